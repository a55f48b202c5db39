"""`--speculative-config` as vLLM 0.33.0 resolves it: method, K, drafter, lengths, slots, K by batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from specfleet.experiments.flags.facts import Config, Configs
from specfleet.experiments.flags.faults import LineFault
from specfleet.experiments.flags.fields import converted
from specfleet.experiments.flags.mtp import ALIASES, Layers, mtp_layers

LOOK_UP = ("ngram", "ngram_gpu")
"""Methods that look drafts up in the text, on the GPU since 0.33."""

HIDDEN_STATES = ("eagle", "eagle3", "mtp", "dflash", "dspark")
"""Methods whose drafter reads the target's hidden states: the EAGLE kind."""

WITHOUT_MODEL = (*LOOK_UP, "suffix", "custom_class", "extract_hidden_states")


@dataclass(frozen=True)
class Target:
    """What of the target counts: its config, tensor parallelism, longest sequence, and quantization."""

    config: Config
    tensor_parallel_size: int
    max_model_len: int | None
    quantization: str | None
    data_parallel_size: int = 1


@dataclass(frozen=True)
class Speculation:
    """A resolved `--speculative-config`.

    Attributes:
        fields: every field, converted, defaults included.
        method: one of vLLM's, aliases resolved.
        num_speculative_tokens: K.
        model: the drafter by name; None where there is none.
        drafter: the drafter's config; None where there is none, or none was found.
        architecture: what runs the drafter.
        draft_tensor_parallel_size: None without a drafter.
        draft_max_model_len: positions of the drafter, tokens.
        draft_positions: the same after a head's rotary positions were raised.
        quantization: of the drafter.
        n_predict: MTP layers, where the config says so.
        parallel: all K drafts in one pass.
        lowers_to: the engine's longest sequence is lowered to this; None where it is not.
        skips_beyond: no drafts in steps with a longer sequence; None where that never happens.
        lookup: shortest and longest n-gram.
        schedule: (lowest batch, highest batch, K), in order; empty for one K.
        rates: synthetic acceptance by position; empty for none.
    """

    fields: Mapping[str, Any]
    method: str
    num_speculative_tokens: int
    model: str | None = None
    drafter: Config | None = None
    architecture: str | None = None
    draft_tensor_parallel_size: int | None = None
    draft_max_model_len: int | None = None
    draft_positions: int | None = None
    quantization: str | None = None
    n_predict: int | None = None
    parallel: bool = False
    lowers_to: int | None = None
    skips_beyond: int | None = None
    lookup: tuple[int, int] | None = None
    schedule: tuple[tuple[int, int, int], ...] = ()
    rates: tuple[float, ...] = ()

    @property
    def draft_slots(self) -> int:
        """Tokens of the budget charged a request beside its own."""
        k = self.num_speculative_tokens
        if self.method == "draft_model":
            return k if self.parallel else 1
        return k - 1 if self.parallel and self.method in ("eagle", "eagle3") else 0

    @property
    def lookahead_tokens(self) -> int:
        """KV slots held past the scheduled tokens."""
        if self.method in WITHOUT_MODEL:
            return 0
        return self.num_speculative_tokens + (1 if self.method == "dflash" else 0)

    @property
    def default_runner(self) -> bool:
        """Whether 0.33's default model runner takes it; the older one skips drafts of long sequences."""
        if self.method == "suffix" or self.fields["use_heterogeneous_vocab"]:
            return False
        return not (self.parallel and self.method in ("eagle", "eagle3", "draft_model"))

    @property
    def asynchronous(self) -> bool:
        """Whether steps are scheduled ahead by default."""
        return self.method != "suffix"

    def k_at(self, batch: int) -> int:
        """Drafts a request in a step of so many requests: gaps and the tail keep the K before them."""
        k = self.num_speculative_tokens
        for low, _, asked in self.schedule:
            if batch >= low:
                k = min(asked, self.num_speculative_tokens)
        return k

    def tiers(self, requests: int) -> tuple[tuple[int, int], ...]:
        """Of a schedule, each 1 + K with the most of so many requests that run with it; () without one."""
        if not self.schedule:
            return ()
        return tuple(sorted({1 + self.k_at(batch): batch for batch in range(1, requests + 1)}.items()))


def resolve(given: Mapping[str, Any], target: Target, configs: Configs) -> Speculation:
    """What vLLM makes of a `--speculative-config`.

    Raises:
        LineFault: what vLLM refuses.
    """
    fields = converted(given)
    fields = _with_method(fields, target)
    method = fields["method"]
    if fields["num_speculative_tokens"] is None and method == "suffix":
        fields["num_speculative_tokens"] = fields["suffix_decoding_max_tree_depth"]
    found: dict[str, Any] = {}
    if method in LOOK_UP:
        found["lookup"] = _lookup(fields)
    elif method == "suffix":
        _check_suffix(fields)
    elif method not in WITHOUT_MODEL:
        found = _with_drafter(fields, target, configs)
        method = found.pop("method")
        fields["num_speculative_tokens"] = found.pop("k")
    k = fields["num_speculative_tokens"]
    if k is None:
        raise LineFault("missing_k", "num_speculative_tokens", "is required; give the drafts a round")
    _check_belonging(fields, method)
    found["rates"] = _synthetic(fields, k)
    if target.data_parallel_size == 1:
        found["schedule"] = _schedule(fields["num_speculative_tokens_per_batch_size"])
    return Speculation(fields, method, k, **found)


def _with_method(fields: dict[str, Any], target: Target) -> dict[str, Any]:
    """The method and model that follow from one another."""
    method, model = fields["method"], fields["model"]
    if method is None:
        method = "ngram" if model in ("ngram", "[ngram]") else "draft_model"
        if model is not None and _is_import_path(model):
            method = "custom_class"
    if method in ALIASES:
        method = "mtp"
    k = fields["num_speculative_tokens"]
    quantization = fields["quantization"]
    if model is None and k is not None and method in ("mtp", "dspark"):
        model, quantization = target.config.name, quantization or target.quantization
    elif model is None and k is None and method not in WITHOUT_MODEL:
        raise LineFault("missing_k", "num_speculative_tokens", "is required; give the drafts a round")
    elif model is None and method not in WITHOUT_MODEL:
        raise LineFault("missing_model", "model", f"method {method} needs a drafter; add model")
    elif model is None and method == "custom_class":
        raise LineFault("missing_model", "model", "custom_class needs the import path of a proposer")
    return {**fields, "method": method, "model": model, "quantization": quantization}


def _is_import_path(model: str) -> bool:
    parts = model.split(".")
    return "/" not in model and len(parts) >= 2 and all(part.isidentifier() for part in parts)


def _lookup(fields: Mapping[str, Any]) -> tuple[int, int]:
    """Shortest and longest n-gram; 5 where neither is given."""
    shortest, longest = fields["prompt_lookup_min"], fields["prompt_lookup_max"]
    shortest, longest = shortest or longest or 5, longest or shortest or 5
    if shortest > longest:
        raise LineFault(
            "lookup_range", "prompt_lookup_min", f"{shortest} is above prompt_lookup_max, {longest}"
        )
    return shortest, longest


def _check_suffix(fields: Mapping[str, Any]) -> None:
    limits = {
        "suffix_decoding_max_tree_depth": (1, None),
        "suffix_decoding_max_cached_requests": (0, None),
        "suffix_decoding_max_spec_factor": (0, None),
        "suffix_decoding_min_token_prob": (0, 1),
    }
    for name, (low, high) in limits.items():
        value = fields[name]
        if value < low or (high is not None and value > high):
            bounds = f"at least {low}" if high is None else f"from {low} to {high}"
            raise LineFault("out_of_range", name, f"must be {bounds}, not {value:g}")


def _check_belonging(fields: Mapping[str, Any], method: str) -> None:
    """Fields of one method given to another."""
    for name, owner in (
        ("dspark_draft_topk", "dspark"),
        ("enable_adaptive_verification", "dspark"),
        ("index_share_for_mtp_iteration", "mtp"),
        ("use_heterogeneous_vocab", "draft_model"),
    ):
        if fields[name] not in (None, False) and method != owner:
            raise LineFault("wrong_method", name, f"belongs to method {owner}, and the method is {method}")


def _synthetic(fields: Mapping[str, Any], k: int) -> tuple[float, ...]:
    """Acceptance by position of the synthetic rejection sampler; empty for the others."""
    rates, length = fields["synthetic_acceptance_rates"], fields["synthetic_acceptance_length"]
    name = "synthetic_acceptance_rates" if rates is not None else "synthetic_acceptance_length"

    def fault(message: str) -> LineFault:
        return LineFault("synthetic", name, message)

    if fields["rejection_sample_method"] != "synthetic":
        if rates is not None or length is not None:
            raise fault("needs rejection_sample_method: synthetic; add it")
        return ()
    if (rates is None) == (length is None):
        raise fault(
            "synthetic needs exactly one of synthetic_acceptance_rates and synthetic_acceptance_length"
        )
    if rates is not None:
        if len(rates) != k:
            raise fault(f"has {len(rates)} entries for {k} drafts; give one a draft")
        if any(not 0 <= rate <= 1 for rate in rates):
            raise fault("has entries outside 0 to 1")
        if any(b > a for a, b in pairwise(rates)):
            raise fault("must not rise with the position")
        return tuple(rates)
    if not 1 <= length <= k + 1:
        raise fault(f"must be from 1 to {k + 1}, not {length:g}")
    accepted = length - 1
    whole = int(accepted)
    return tuple(([1.0] * whole + [accepted - whole] + [0.0] * k)[:k])


def _schedule(given: Sequence[Sequence[int]] | None) -> tuple[tuple[int, int, int], ...]:
    """The ranges in order. They start at 1 and do not overlap."""
    rows = tuple(sorted((row[0], row[1], row[2]) for row in given or ()))
    name, last = "num_speculative_tokens_per_batch_size", 0
    for low, high, k in rows:
        if low < 1 or high < low or k < 0:
            raise LineFault("schedule", name, f"{[low, high, k]} is no [lowest batch, highest batch, K]")
        if low <= last:
            raise LineFault("schedule", name, f"the ranges overlap at {low}")
        last = high
    if rows and rows[0][0] != 1:
        raise LineFault("schedule", name, f"the first range starts at {rows[0][0]}; it must start at 1")
    return rows


def _with_drafter(fields: Mapping[str, Any], target: Target, configs: Configs) -> dict[str, Any]:
    """Everything that follows from the drafter's config."""
    name = str(fields["model"])
    own = name == target.config.name
    config = target.config if own else configs.find(name)
    layers = mtp_layers(config) if config is not None else None
    method = _detected(fields["method"], name, config, layers)
    k = _k(fields, method, config, layers)
    tp = fields["draft_tensor_parallel_size"] or target.tensor_parallel_size
    if tp not in (1, target.tensor_parallel_size):
        message = f"{tp} is neither 1 nor the target's tensor_parallel_size, {target.tensor_parallel_size}"
        raise LineFault("draft_tp", "draft_tensor_parallel_size", message)
    if method == "draft_model" and config is not None and not fields["use_heterogeneous_vocab"]:
        _check_vocabulary(config, target.config)
    parallel = method in ("dflash", "dspark") or fields["parallel_drafting"]
    found = {
        "method": method,
        "k": k,
        "model": name,
        "drafter": config,
        "architecture": _architecture(method, config, layers, own),
        "draft_tensor_parallel_size": tp,
        "parallel": parallel,
        "quantization": fields["quantization"] or (config.quantization if config else None),
    }
    if method == "mtp" and layers is not None:
        found["n_predict"] = layers.number
    elif method == "dspark" and own and config is not None:
        found["n_predict"] = config.text.get("num_nextn_predict_layers")
    return found | _lengths(fields, method, parallel, config, target)


def _detected(method: str, name: str, config: Config | None, layers: Layers | None) -> str:
    """The method by the drafter's path, then its architecture and type, as vLLM goes through them."""
    if method in ("eagle", "eagle3", "dflash", "dspark"):
        return method
    path = name.lower()
    for hint, meant in (
        ("eagle-", "eagle"),
        ("eagle3", "eagle3"),
        ("dflash", "dflash"),
        ("dspark", "dspark"),
    ):
        if hint in path:
            return meant
    if config is not None:
        if config.values.get("speculators_model_type") in ("eagle", "eagle3", "dflash"):
            return str(config.values["speculators_model_type"])
        of_dspark = ("Qwen3DSparkModel", "Qwen3OmniDSparkModel", "Gemma4DSparkModel")
        shared = config.architecture == "DSparkDraftModel" and config.model_type == "qwen3"
        if config.architecture in of_dspark or shared:
            return "dspark"
        if config.model_type in ("medusa", "mlp_speculator"):
            message = f"{name} is a drafter of method {config.model_type}, gone in this version"
            raise LineFault("unknown_method", "method", message)
        if layers is not None:
            return "mtp"
        if method == "mtp":
            message = f"{name} ({config.architecture}) has no MTP layers that are known for its family"
            raise LineFault("no_mtp", "method", message)
    return method


def _k(fields: Mapping[str, Any], method: str, config: Config | None, layers: Layers | None) -> int:
    """K: as given, or what a DSpark drafter was trained for; a multiple of the MTP layers."""
    k = fields["num_speculative_tokens"]
    if k is None and method == "dspark" and config is not None:
        k = config.text.get("block_size", config.text.get("dspark_block_size"))
    if k is None:
        message = "is required with this drafter; give the drafts a round"
        raise LineFault("missing_k", "num_speculative_tokens", message)
    count = layers.number if layers is not None and method == "mtp" else None
    if count and k > count and k % count:
        message = f"{k} drafts are no multiple of the {count} MTP layers"
        raise LineFault("not_divisible", "num_speculative_tokens", message)
    return int(k)


def _check_vocabulary(drafter: Config, target: Config) -> None:
    mine, its = drafter.vocab_size, target.vocab_size
    if mine is not None and its is not None and mine != its:
        message = (
            f"{drafter.name} has {mine} tokens in its vocabulary and the target {its}; they must be equal"
        )
        raise LineFault("vocabulary", "model", message)


def _architecture(method: str, config: Config | None, layers: Layers | None, own: bool) -> str | None:
    """What runs the drafter.

    Raises:
        LineFault: an EAGLE-3 head under method eagle.
    """
    if config is None:
        return None
    name = config.architecture
    if method == "mtp":
        return layers.architecture if layers else None
    if method == "dspark":
        if own:
            return "DSparkDraftModel"
        return "Qwen3DSparkModel" if name == "DSparkDraftModel" else name
    if config.values.get("speculators_model_type") == "eagle3":
        return "Eagle3LlamaForCausalLM"
    if method == "eagle":
        if "eagle3" in name.lower():
            message = f"{config.name} is an EAGLE-3 head; write method eagle3"
            raise LineFault("architecture", "method", message)
        return name if name.startswith("Eagle") else f"Eagle{name}"
    for mine, word in (("eagle3", "Eagle3"), ("dflash", "DFlash")):
        if method == mine:
            return name if name.startswith(word) or name.endswith(word) else f"{word}{name}"
    return name


def _lengths(
    fields: Mapping[str, Any], method: str, parallel: bool, config: Config | None, target: Target
) -> dict[str, Any]:
    """How far the drafter reaches, and what becomes of longer sequences."""
    if config is None or config.positions() is None:
        return {}
    longest, own = target.max_model_len, config.positions()
    assert own is not None
    asked = fields["max_model_len"]
    for limit, whose in ((own, "the drafter's positions"), (longest, "the target's max_model_len")):
        if asked is not None and limit is not None and asked > limit:
            raise LineFault("length", "max_model_len", f"{asked} is above {whose}, {limit}; lower it")
    length = asked or min(own, longest or own)
    raised = method in ("eagle", "eagle3") and config.plain_positions
    positions = max(own, longest or 0) if raised else own
    found: dict[str, Any] = {"draft_max_model_len": length, "draft_positions": positions}
    old_runner = parallel and method in ("eagle", "eagle3", "draft_model")
    if old_runner or fields["use_heterogeneous_vocab"]:
        return found | {"skips_beyond": length}
    never = method in HIDDEN_STATES and config.plain_positions
    if not never and longest is not None and length < longest:
        found["lowers_to"] = length
    return found
