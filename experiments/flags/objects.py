"""Flags that hold a JSON object with fields of its own: what the fields are, and their conversion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specfleet.experiments.flags.faults import LineFault

FIELDS: Mapping[str, tuple[str, ...]] = {
    "compilation_config": (
        *("mode", "debug_dump_path", "cache_dir", "compile_cache_save_format", "backend", "custom_ops"),
        *("ir_enable_torch_wrap", "splitting_ops", "compile_mm_encoder", "cudagraph_mm_encoder"),
        *("encoder_cudagraph_token_budgets", "encoder_cudagraph_max_vision_items_per_batch"),
        *("encoder_cudagraph_max_frames_per_batch", "cudagraph_decoder_replay"),
        *("decoder_replay_cudagraph_capture_sizes", "decoder_replay_trim_threshold", "compile_sizes"),
        *("compile_ranges_endpoints", "inductor_compile_config", "inductor_passes", "cudagraph_mode"),
        *("cudagraph_num_of_warmups", "cudagraph_capture_sizes", "cudagraph_copy_inputs"),
        *("cudagraph_specialize_lora", "use_inductor_graph_partition", "pass_config"),
        *("max_cudagraph_capture_size", "dynamic_shapes_config", "fast_moe_cold_start"),
    ),
    "kv_transfer_config": (
        *("kv_connector", "engine_id", "kv_buffer_device", "kv_role", "kv_port"),
        *("kv_connector_extra_config", "kv_connector_module_path", "enable_permute_local_kv"),
        "kv_load_failure_policy",
    ),
}
"""Fields by flag, vLLM 0.33.0."""

_WHOLE = ("max_cudagraph_capture_size", "cudagraph_num_of_warmups", "kv_port")
_WHOLES = ("cudagraph_capture_sizes", "encoder_cudagraph_token_budgets")


def checked(flag: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """An object whose whole numbers are numbers.

    Raises:
        LineFault: a field that the flag does not have, or text where a number belongs.
    """
    known = FIELDS.get(flag)
    if known is None:
        return dict(given)
    found = {}
    for key, value in given.items():
        name = key.replace("-", "_")
        if name not in known:
            raise LineFault("unknown_key", flag, f"has no field {key} in this version; remove it")
        if name in _WHOLES and value is not None:
            value = [_whole(flag, each) for each in (value if isinstance(value, list) else [value])]
        elif name in _WHOLE and value is not None:
            value = _whole(flag, value)
        found[name] = value
    return found


def _whole(flag: str, value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise LineFault("wrong_type", flag, f"{value!r} is no whole number") from None
