"""The fields of `--speculative-config` in vLLM 0.33.0, and how their values are converted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specfleet.experiments.flags.faults import LineFault
from specfleet.experiments.flags.mtp import ALIASES

METHODS = (
    *("ngram", "ngram_gpu", "suffix", "draft_model", "eagle", "eagle3", "mtp", "dflash", "dspark"),
    *("custom_class", "extract_hidden_states", *ALIASES),
)

GONE = ("medusa", "mlp_speculator")
"""Methods of older versions."""

FIELDS: Mapping[str, tuple[str, Any]] = {
    "enforce_eager": ("bool?", None),
    "num_speculative_tokens": ("int", None),
    "model": ("text?", None),
    "method": ("method", None),
    "draft_tensor_parallel_size": ("int?", None),
    "tensor_parallel_size": ("int?", None),
    "quantization": ("text?", None),
    "moe_backend": ("text?", None),
    "attention_backend": ("text?", None),
    "kv_cache_dtype": ("text?", None),
    "max_model_len": ("int?", None),
    "revision": ("text?", None),
    "code_revision": ("text?", None),
    "index_share_for_mtp_iteration": ("bool?", None),
    "disable_padded_drafter_batch": ("bool", False),
    "disable_eagle_block_drop": ("bool", False),
    "disable_lookahead_block_hashes": ("bool", False),
    "draft_lm_head_quantization": ("text?", None),
    "use_local_argmax_reduction": ("bool", False),
    "use_heterogeneous_vocab": ("bool", False),
    "prompt_lookup_max": ("int?", None),
    "prompt_lookup_min": ("int?", None),
    "parallel_drafting": ("bool", False),
    "num_speculative_tokens_per_batch_size": ("triples?", None),
    "suffix_decoding_max_tree_depth": ("int", 24),
    "suffix_decoding_max_cached_requests": ("int", 10000),
    "suffix_decoding_max_spec_factor": ("float", 1.0),
    "suffix_decoding_min_token_prob": ("float", 0.1),
    "draft_load_config": ("object?", None),
    "rejection_sample_method": ("text", "standard"),
    "synthetic_acceptance_rates": ("floats?", None),
    "synthetic_acceptance_length": ("float?", None),
    "enable_adaptive_verification": ("bool", False),
    "draft_sample_method": ("text", "greedy"),
    "dspark_draft_topk": ("int?", None),
    "xpress_topc": ("int?", None),
    "fly_window_size": ("int?", None),
    "fly_entropy_threshold": ("float", 0.3),
    "fly_entropy_top_k": ("int", 3),
}
"""Field -> type (`?`: null is taken) and default."""

_CHOICES = {
    "rejection_sample_method": ("standard", "synthetic", "block", "fly"),
    "draft_sample_method": ("greedy", "probabilistic"),
    "draft_lm_head_quantization": ("fp8", "nvfp4"),
}
_AT_LEAST_ONE = (
    *("num_speculative_tokens", "draft_tensor_parallel_size", "max_model_len", "prompt_lookup_max"),
    *("prompt_lookup_min", "dspark_draft_topk"),
)
_TRUE, _FALSE = ("true", "1", "yes", "on", "t", "y"), ("false", "0", "no", "off", "f", "n")


def converted(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a JSON object, converted as vLLM converts them; defaults where they are not given.

    Raises:
        LineFault: an unknown field or method, a value of the wrong type or out of range.
    """
    found = {name: default for name, (_, default) in FIELDS.items()}
    for key, value in given.items():
        name = str(key).replace("-", "_")
        if name not in FIELDS:
            raise LineFault("unknown_key", name, _unknown(name))
        found[name] = _value(name, FIELDS[name][0], value)
    if found["tensor_parallel_size"] is not None:
        message = "is the target's name; the drafter's is draft_tensor_parallel_size"
        raise LineFault("wrong_key", "tensor_parallel_size", message)
    return found


def _unknown(name: str) -> str:
    from difflib import get_close_matches

    if name == "disable_by_batch_size":
        return "no such field in this version; write num_speculative_tokens_per_batch_size with K 0"
    if name == "speculative_token_tree":
        return "no such field in this version; vLLM verifies chains (SGLang trees: serve.draft_tree)"
    near = get_close_matches(name, FIELDS, n=1, cutoff=0.7)
    return f"no such field in this version{'; did you mean ' + near[0] + '?' if near else '; remove it'}"


def _value(name: str, kind: str, value: Any) -> Any:
    """One value by its type."""
    if value is None:
        if kind.endswith("?") or name == "method":
            return None
        raise LineFault("wrong_type", name, "is null; give a value, or leave it out")
    kind = kind.removesuffix("?")
    if kind == "method":
        return _method(value)
    if kind == "triples":
        return _triples(name, value)
    if kind == "floats":
        if not isinstance(value, list | tuple):
            raise LineFault("wrong_type", name, "must be a list of numbers")
        return [_number(name, each) for each in value]
    if kind == "object":
        return value
    if kind == "text":
        return _text(name, value)
    if kind == "bool":
        return _truth(name, value)
    number = _number(name, value)
    if kind == "float":
        return number
    if number != int(number):
        raise LineFault("wrong_type", name, f"must be a whole number, not {value}")
    if name in _AT_LEAST_ONE and number < 1:
        raise LineFault("out_of_range", name, f"must be at least 1, not {value}")
    return int(number)


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise LineFault("wrong_type", name, f"must be a number, not {value!r}") from None


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise LineFault("wrong_type", name, f"must be text, not {value!r}")
    choices = _CHOICES.get(name)
    if choices and value not in choices:
        raise LineFault("not_a_choice", name, f"{value!r} is none of {', '.join(choices)}")
    return value


def _truth(name: str, value: Any) -> bool:
    said = str(value).lower()
    if isinstance(value, bool) or said in (*_TRUE, *_FALSE):
        return value if isinstance(value, bool) else said in _TRUE
    raise LineFault("wrong_type", name, f"must be true or false, not {value!r}")


def _method(value: Any) -> str:
    if value in GONE:
        message = f"{value} is gone in this version; older engine profiles (vllm-2026-01) have it"
        raise LineFault("unknown_method", "method", message)
    if value not in METHODS:
        named = ", ".join(m for m in METHODS if m not in ALIASES)
        raise LineFault("unknown_method", "method", f"{value!r} is none of {named}")
    return str(value)


def _triples(name: str, value: Any) -> list[list[int]]:
    rows = value if isinstance(value, list | tuple) else None
    if rows is None or any(not isinstance(row, list | tuple) or len(row) != 3 for row in rows):
        raise LineFault("wrong_type", name, "must be a list of [lowest batch, highest batch, K]")
    return [[int(_value(name, "int", each)) for each in row] for row in rows]
