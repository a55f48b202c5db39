"""A Hugging Face `config.json` as a `ModelSpec`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specfleet.hardware.model import MOST, MOST_LAYERS, ModelSpec

DENSE = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
MIXTURES = (
    *("MixtralForCausalLM", "Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM", "GptOssForCausalLM"),
    *("Glm4MoeForCausalLM", "MiniMaxM2ForCausalLM", "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"),
)
TEXT_PARTS = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2_5_vl_text": "Qwen2ForCausalLM",
    "qwen3_vl_text": "Qwen3ForCausalLM",
    "qwen3_vl_moe_text": "Qwen3MoeForCausalLM",
}
"""Language models inside multimodal ones, by `model_type`: text traffic runs through these layers only."""

WINDOWED_THROUGHOUT = ("MistralForCausalLM", "MixtralForCausalLM")
"""Families whose `sliding_window`, when it is set, holds in every layer."""

NOT_MODELLED = (
    *("mamba", "ssm_", "linear_", "conv_", "rwkv", "recurrent", "lru_", "index_", "attention_chunk_size"),
    *("cross_attention", "num_kv_shared_layers", "is_encoder_decoder", "hyper_connection", "expert_layer_"),
)
"""Beginnings of keys that announce layers without a cost model."""

Config = Mapping[str, Any]

_SHOWN = 60
"""Characters of a value in a message."""


class ConfigError(ValueError):
    """A `config.json` that cannot be turned into a model; says which key or layer is the reason."""


def read_hf_config(path: str | Path) -> ModelSpec:
    """The model that the `config.json` at `path` (the file or its folder) describes.

    Raises ConfigError, naming the file, for a missing or broken file, an architecture without a cost model,
    a missing key, or a weight format that is not modelled.
    """
    file = Path(path)
    file = file / "config.json" if file.is_dir() else file
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"hf_config {file}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"hf_config {file}: not JSON ({error})") from None
    if not isinstance(config, dict):
        raise ConfigError(f"hf_config {file}: not a mapping; give a model's config.json")
    name = config.get("_name_or_path") or file.resolve().parent.name
    try:
        return model_from_config(config, name=str(name), source=f"read from {file}")
    except ValueError as error:
        raise ConfigError(f"hf_config {file}: {error}") from None


def model_from_config(config: Config, *, name: str, source: str) -> ModelSpec:
    """The model of a parsed `config.json`. Raises ValueError saying what is missing or not modelled."""
    text = {**config, **config["text_config"]} if isinstance(config.get("text_config"), dict) else config
    family = _family(text)
    heads, hidden = (_count(text, key, least=1) for key in ("num_attention_heads", "hidden_size"))
    layers = _count(text, "num_hidden_layers", least=1, most=MOST_LAYERS)
    return ModelSpec(
        name=name,
        hf_id="",
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=_count(text, "num_key_value_heads", heads),
        head_dim=_head_dim(text, hidden // heads),
        vocab_size=_count(text, "vocab_size"),
        tie_word_embeddings=bool(text.get("tie_word_embeddings", False)),
        max_position_embeddings=_count(text, "max_position_embeddings"),
        source=source,
        checkpoint_quantization=_stored_as(config),
        intermediate_size=_count(text, "intermediate_size"),
        **_experts(text, family, layers),
        **_latent(text),
        **_window(text, family, layers),
    )


def _family(config: Config) -> str:
    """The architecture, when its layers have a cost model."""
    named = _list(config, "architectures") or ["(no architecture named)"]
    family = next((name for name in named if name in (*DENSE, *MIXTURES)), None)
    if family is None and str(named[0]).endswith("ForConditionalGeneration"):
        family = TEXT_PARTS.get(str(config.get("model_type")))
    strange = sorted(key for key in config if key.startswith(NOT_MODELLED) and config[key])
    kinds = set(map(str, _list(config, "layer_types"))) - {"full_attention", "sliding_attention"}
    missing = [*strange, *(f"layers of type {kind}" for kind in sorted(kinds))]
    if family is not None and not missing:
        return str(family)
    why = f"; there is no cost model for {', '.join(missing)}" if missing else ""
    raise ConfigError(
        f"architecture {named[0]!r} is not modelled{why}. Known: {', '.join((*DENSE, *MIXTURES))}. "
        "A plain transformer under another name can be given inline (num_layers, hidden_size, ...)"
    )


def _count(config: Config, key: str, default: int | None = None, *, least: int = 0, most: int = MOST) -> int:
    """A whole number within limits; ConfigError for anything else."""
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool):
        said = "missing" if value is None else repr(value)[:_SHOWN]
        raise ConfigError(f"{key} is {said}; expected a whole number")
    if not least <= value <= most:
        raise ConfigError(f"{key} is {value:g}; use {least} to {most}")
    return value


def _list(config: Config, key: str) -> list[Any]:
    """A list, empty where it is not given; ConfigError for anything else, and for lists in it."""
    value = config.get(key)
    if not value:
        return []
    if not isinstance(value, list) or any(isinstance(entry, list | dict) for entry in value):
        raise ConfigError(f"{key} is {repr(value)[:_SHOWN]}; expected a list")
    return value


def _head_dim(config: Config, default: int) -> int:
    """Width of a head; query and key width with latent attention, `hidden / heads` where it is not given."""
    if config.get("kv_lora_rank"):
        return _count(config, "qk_nope_head_dim") + _count(config, "qk_rope_head_dim")
    return _count(config, "head_dim", default)


def _experts(config: Config, family: str, layers: int) -> dict[str, Any]:
    """Fields of a mixture of experts, under the names that the families use; none for a dense model."""
    counts = [key for key in ("n_routed_experts", "num_local_experts", "num_experts") if config.get(key)]
    if not counts:
        if family in MIXTURES and not family.startswith("Deepseek"):
            raise ConfigError("num_experts, num_local_experts or n_routed_experts is missing")
        return {}
    width = _count(config, "moe_intermediate_size", _count(config, "intermediate_size"))
    shared = _count(config, "shared_expert_intermediate_size", 0)
    shared = shared or _count(config, "n_shared_experts", 0) * width
    step = _count(config, "decoder_sparse_step", _count(config, "moe_layer_freq", 1, least=1), least=1)
    first = _count(config, "first_k_dense_replace", 0, most=layers)
    dense = set(range(first)) | set(_list(config, "mlp_only_layers"))
    dense |= {layer for layer in range(layers) if (layer + 1) % step}
    return {
        "num_experts": _count(config, counts[0]),
        "num_experts_per_tok": _count(config, "num_experts_per_tok", config.get("experts_per_token")),
        "moe_intermediate_size": width,
        "shared_expert_intermediate_size": shared,
        "num_dense_layers": len(dense),
    }


def _latent(config: Config) -> dict[str, Any]:
    """Fields of multi-head latent attention; none for other models."""
    if not config.get("kv_lora_rank"):
        return {}
    needed = ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    return {key: _count(config, key) for key in needed} | {"q_lora_rank": _count(config, "q_lora_rank", 0)}


def _window(config: Config, family: str, layers: int) -> dict[str, Any]:
    """Sliding window in tokens and the layers that have one."""
    window = config.get("sliding_window")
    if not window or config.get("use_sliding_window") is False:
        return {}
    if kinds := _list(config, "layer_types"):
        windowed = sum(kind == "sliding_attention" for kind in kinds)
    elif config.get("use_sliding_window"):
        windowed = layers - _count(config, "max_window_layers", 0)
    else:
        windowed = layers if family in WINDOWED_THROUGHOUT else 0
    return (
        {"sliding_window": _count(config, "sliding_window"), "num_windowed_layers": windowed}
        if windowed
        else {}
    )


def _is_fp8(weights: Config) -> bool:
    return (weights.get("type"), weights.get("num_bits")) == ("float", 8)


def _stored_as(config: Config) -> str | None:
    """Weight format of the checkpoint: None (16 bits), "fp8" or "mxfp4"."""
    quantization = config.get("quantization_config")
    if not isinstance(quantization, dict):
        return None
    method = str(quantization.get("quant_method", "")).lower()
    if method in ("fp8", "mxfp4"):
        return method
    groups = quantization.get("config_groups")
    listed = list(groups.values()) if isinstance(groups, dict) else []
    weights = [group.get("weights") or {} for group in listed if isinstance(group, dict)]
    if weights and all(isinstance(w, dict) and _is_fp8(w) for w in weights):
        return "fp8"
    raise ConfigError(
        f"weights stored as {method or 'an unnamed format'}; modelled are 16 bits, fp8 and mxfp4"
    )
