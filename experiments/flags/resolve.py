"""A parsed `vllm serve` line as the settings that the engine runs with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from specfleet.experiments.flags import speculative
from specfleet.experiments.flags.facts import Config, Configs, absent
from specfleet.experiments.flags.faults import LineFault
from specfleet.experiments.flags.limits import Graphs, batch_limits, graphs, longest_sequence
from specfleet.experiments.flags.parser import Parsed
from specfleet.experiments.flags.speculative import Speculation, Target

SHORT_FORMS = {"spec_method": "method", "spec_model": "model", "spec_tokens": "num_speculative_tokens"}

KV_TYPES = (
    *("auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_ds_mla"),
    *("nvfp4_ds_mla", "turboquant_k8v4", "turboquant_4bit_nc"),
)
_DTYPES = {"half": "float16", "float": "float32"}
_DEPRECATED = ("fbgemm_fp8",)


@dataclass(frozen=True)
class EngineSettings:
    """What an engine runs with, every default in place.

    Attributes:
        values: the line's flags.
        config: the target's config, overrides applied.
        max_model_len: longest sequence, tokens; a drafter may have lowered it.
        asked_max_model_len: the same before the drafter.
        max_num_seqs: sequences at once.
        max_num_batched_tokens: tokens a step.
        dtype: of activations.
        quantization: of the weights, vLLM's name; None for none.
        kv_cache_dtype: `auto`, or a type of its own.
        graphs: CUDA graphs.
        speculation: the drafter, or None.
    """

    values: Mapping[str, Any]
    config: Config
    max_model_len: int | None
    asked_max_model_len: int | None
    max_num_seqs: int
    max_num_batched_tokens: int
    dtype: str
    quantization: str | None
    kv_cache_dtype: str
    graphs: Graphs
    speculation: Speculation | None

    @property
    def async_scheduling(self) -> bool:
        """Whether steps are scheduled ahead."""
        asked = self.values["async_scheduling"]
        return bool(asked) if asked is not None else self.speculation is None or self.speculation.asynchronous


def resolve(
    parsed: Parsed, usual: tuple[int, int], configs: Configs, catalogued: Config | None = None
) -> EngineSettings:
    """The settings of a line.

    Args:
        parsed: the line.
        usual: default sequences and tokens a step on the GPU.
        configs: where configs of models are found.
        catalogued: facts of the model from elsewhere, where no config is found.

    Raises:
        LineFault: what vLLM refuses, or a model of which nothing is known.
    """
    values = parsed.values
    given = speculative_json(values)
    config, given = _target(parsed, configs, catalogued, given)
    longest = longest_sequence(values["max_model_len"], config, bool(values["hf_overrides"]))
    quantization = values["quantization"] or config.quantization
    if quantization in _DEPRECATED and not values["allow_deprecated_quantization"]:
        message = f"{quantization} is deprecated; vLLM asks for --allow-deprecated-quantization"
        raise LineFault("deprecated", "quantization", message)
    if values["kv_cache_dtype"] not in KV_TYPES:
        message = f"{values['kv_cache_dtype']!r} is none of {', '.join(KV_TYPES)}"
        raise LineFault("not_a_choice", "kv_cache_dtype", message)
    drafting, asked = None, longest
    if given is not None:
        target = Target(
            config, values["tensor_parallel_size"], longest, quantization, values["data_parallel_size"]
        )
        drafting = speculative.resolve(given, target, configs)
        longest = drafting.lowers_to or longest
    seqs, budget = batch_limits(values, usual, longest)
    k = drafting.num_speculative_tokens if drafting else 0
    return EngineSettings(
        values,
        config,
        longest,
        asked,
        seqs,
        budget,
        _dtype(values["dtype"], config),
        quantization,
        (config.kv_cache_dtype or "auto") if values["kv_cache_dtype"] == "auto" else values["kv_cache_dtype"],
        graphs(values, config, seqs, budget, k, drafting.tiers(seqs) if drafting else ()),
        drafting,
    )


def speculative_json(values: Mapping[str, Any]) -> dict[str, Any] | None:
    """`--speculative-config` with what the short flags add to it.

    Raises:
        LineFault: no JSON object, or a field given twice.
    """
    given = values["speculative_config"]
    short = {field: values[name] for name, field in SHORT_FORMS.items() if values[name] is not None}
    if given is None and not short:
        return None
    if given is not None and not isinstance(given, dict):
        raise LineFault("wrong_type", "speculative_config", "must be a JSON object; write {...}")
    whole = {str(key).replace("-", "_"): value for key, value in (given or {}).items()}
    for name, field in SHORT_FORMS.items():
        if field in short and field in whole:
            flag = "--" + name.replace("_", "-")
            raise LineFault("given_twice", field, f"stands in {flag} and in the JSON; keep one")
    return whole | short


def _target(
    parsed: Parsed, configs: Configs, catalogued: Config | None, given: dict[str, Any] | None
) -> tuple[Config, dict[str, Any] | None]:
    """The target's config with its overrides. A speculators checkpoint names its target and drafts itself."""
    if parsed.model is None:
        raise LineFault("missing_model", "model", "no model is named; write `vllm serve MODEL`")
    path = parsed.values["hf_config_path"]
    config = configs.find(str(path)) if path else configs.find(parsed.model)
    config = config or catalogued
    if config is None:
        raise absent(parsed.model)
    inner = config.values.get("speculators_config")
    if isinstance(inner, dict) and isinstance(verifier := inner.get("verifier"), dict):
        head, name = config, str(verifier.get("name_or_path"))
        found = configs.find(name)
        if found is None:
            raise LineFault(
                "unknown_model", "model", f"{head.name} drafts for {name}, whose config is missing"
            )
        proposals = inner.get("proposal_methods") or [{}]
        own = {
            "method": config.values.get("speculators_model_type"),
            "model": head.name,
            "num_speculative_tokens": proposals[0].get("speculative_tokens"),
        }
        config, given = found, own | (given or {})
    overrides = parsed.values["hf_overrides"]
    if isinstance(overrides, dict) and overrides:
        config = replace(config, values=_overridden(config.values, overrides))
    return replace(config, name=config.name if inner else parsed.model), given


def _overridden(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A config with overrides; keys of the language model reach into the part that describes it."""
    found = dict(values)
    for key, value in changes.items():
        inner = found.get("text_config")
        if isinstance(inner, dict) and key in inner and key not in found:
            found["text_config"] = {**inner, key: value}
        elif isinstance(value, dict) and isinstance(found.get(key), dict) and not key.startswith("rope"):
            found[key] = _overridden(found[key], value)
        else:
            found[key] = value
    if isinstance(changes.get("rope_scaling"), dict):
        found["rope_parameters"] = changes["rope_scaling"]
    return found


def _dtype(asked: str, config: Config) -> str:
    """`auto` is the checkpoint's; one in 32 bits runs in bfloat16."""
    if asked != "auto":
        return _DTYPES.get(asked, asked)
    own = str(config.text.get("dtype", config.text.get("torch_dtype", "bfloat16"))).removeprefix("torch.")
    return "float16" if own == "float16" else "bfloat16"
