"""Which layer mixes tokens how: the keys of each family to kinds of attention and of state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specfleet.hardware.configs.families import Family
from specfleet.hardware.configs.keys import Config, ConfigError, block, count, first, listed
from specfleet.hardware.layers.attention import (
    CompressedAttention,
    GroupedAttention,
    Indexer,
    LatentAttention,
)
from specfleet.hardware.layers.recurrent import GatedDelta, Lightning, Mamba, ShortConv
from specfleet.hardware.layers.stack import Mixer

KINDS = {
    "full_attention": "full", "attention": "full", "full": "full", "global": "full",
    "global_attention": "full",
    "sliding_attention": "sliding", "sliding_window": "sliding", "local": "sliding", "swa": "sliding",
    "local_attention": "sliding", "chunked_attention": "chunked", "linear_attention": "linear",
    "mamba": "mamba",
    "mamba2": "mamba", "conv": "conv", "short_conv": "conv", "hybrid": "hybrid", "indexed_attention": "full",
    "deepseek_sparse_attention": "full", "minimax_m3_sparse": "full", "kda": "linear",
    "gated_delta": "linear",
    "lightning_attention": "linear", "moe": "none", "mlp": "none", "-": "none", "noop": "none",
    "compressed_sparse_attention": "compressed", "heavily_compressed_attention": "compressed",
}  # fmt: skip
"""Names of layer types in files."""

LETTERS = {"M": "mamba", "*": "full", "E": "none", "-": "none"}
"""Of Nemotron-H's `hybrid_override_pattern`."""

Builder = Callable[[Config, Family, int], tuple[Mixer, ...]]


def layer_kinds(text: Config, name: str, family: Family, layers: int) -> list[str]:
    """One kind a layer: full, sliding, chunked, linear, mamba, conv, hybrid, compressed or none."""
    if pattern := text.get("hybrid_override_pattern"):
        return _letters(str(pattern), layers)
    key = first(text, "layer_types", "layers_block_type")
    if named := listed(text, key):
        return _seen(text, [_kind(entry, key, family) for entry in named[:layers]], layers, key)
    if pattern := listed(text, "hybrid_layer_pattern"):
        return _seen(text, ["sliding" if entry else "full" for entry in pattern[:layers]], layers, key)
    if types := listed(text, "attn_type_list"):
        return ["full" if entry else family.other for entry in types[:layers]]
    if linear := block(text, "linear_attn_config"):
        full = set(listed(linear, "full_attn_layers"))
        return ["full" if layer + 1 in full else "linear" for layer in range(layers)]
    if name == "deepseek_v4":
        return ["compressed"] * layers
    if name == "falcon_h1":
        return ["hybrid"] * layers
    if chosen := listed(text, first(text, "full_attn_idxs", "attn_layer_indices")):
        other = "mamba" if "attn_layer_indices" in text else "conv"
        return ["full" if layer in set(chosen) else other for layer in range(layers)]
    return _seen(text, _by_pattern(text, family, layers), layers, key)


def _letters(pattern: str, layers: int) -> list[str]:
    if strange := sorted(set(pattern) - set(LETTERS)):
        raise ConfigError(
            f"hybrid_override_pattern has layers of type {', '.join(strange)}; there is no cost model"
        )
    if len(pattern) < layers:
        raise ConfigError(f"hybrid_override_pattern has {len(pattern)} entries for {layers} layers")
    return [LETTERS[letter] for letter in pattern[:layers]]


def _kind(entry: Any, key: str, family: Family) -> str:
    kind = KINDS.get(str(entry))
    if kind is None:
        raise ConfigError(f"there is no cost model for layers of type {entry} ({key})")
    if kind == "linear" and family.mlp == "mixer":
        return "mamba"
    return family.other if kind == "linear" and family.other in ("mamba", "lightning") else kind


def _by_pattern(text: Config, family: Family, layers: int) -> list[str]:
    """Layers of a file that lists none."""
    if text.get("use_sliding_window"):
        full = count(text, "max_window_layers", 0)
        return ["full" if layer < full else "sliding" for layer in range(layers)]
    if no_rope := listed(text, "no_rope_layers"):
        return ["full" if not entry else family.other for entry in no_rope[:layers]]
    every = text.get("sliding_window_pattern", text.get("full_attention_interval"))
    if isinstance(every, str):
        marks = [every[layer % len(every)] for layer in range(layers)] if every else []
        return [
            "full" if mark == "G" or layer == layers - 1 else "sliding" for layer, mark in enumerate(marks)
        ]
    if family.pattern < 0:
        return ["sliding"] * layers
    interval = count({"pattern": every}, "pattern", family.pattern)
    return ["full" if not interval or not (layer + 1) % interval else family.other for layer in range(layers)]


def _seen(text: Config, kinds: list[str], layers: int, key: str) -> list[str]:
    """The same, windows taken back where the file has none."""
    if len(kinds) < layers:
        raise ConfigError(f"{key} has {len(kinds)} entries for {layers} layers")
    off = text.get("use_sliding_window") is False and "layer_types" not in text
    window = text.get(first(text, "sliding_window", "sliding_window_size")) and not off
    chunk = text.get("attention_chunk_size")
    kept = {"sliding": bool(window), "chunked": bool(chunk)}
    return [kind if kept.get(kind, True) else "full" for kind in kinds]


def all_mixers(text: Config, name: str, family: Family, layers: int) -> list[tuple[Mixer, ...]]:
    """What mixes tokens in each layer."""
    if name == "nemotron_nas" and text.get("block_configs"):
        return _by_block(text, layers)
    kinds = layer_kinds(text, name, family, layers)
    choosers = _indexers(text, name, layers)
    return [_mixer(text, name, family, kind, layer, choosers[layer]) for layer, kind in enumerate(kinds)]


def _mixer(
    text: Config, name: str, family: Family, kind: str, layer: int, index: tuple[Indexer | None, int]
) -> tuple[Mixer, ...]:
    if kind == "none":
        return ()
    if kind == "mamba":
        return (_mamba(text, family),)
    if kind == "hybrid":
        return _mamba(text, family), _grouped(text, name, family, "full", (None, 0))
    if kind == "linear":
        return (_delta(text, family),)
    if kind == "lightning":
        return (Lightning(count(text, "num_attention_heads", least=1), _head_dim(text)),)
    if kind == "conv":
        return (ShortConv(count(text, "hidden_size"), count(text, "conv_L_cache", 3)),)
    if kind == "compressed":
        return (_compressed(text, layer),)
    if text.get("kv_lora_rank"):
        latent = _latent(text, index)
        return (latent, latent) if name == "longcat_flash" else (latent,)
    return (_grouped(text, name, family, kind, index),)


def _head_dim(text: Config) -> int:
    heads, hidden = (count(text, key, least=1) for key in ("num_attention_heads", "hidden_size"))
    return count(text, first(text, "head_dim", "attention_head_dim"), hidden // heads)


def _grouped(
    text: Config, name: str, family: Family, kind: str, index: tuple[Indexer | None, int]
) -> GroupedAttention:
    """Grouped attention of a layer; windowed layers may have heads of their own."""
    heads = count(text, "num_attention_heads", least=1)
    kv_heads = count(text, first(text, "num_key_value_heads", "num_attention_groups"), heads, least=1)
    head_dim, value_dim = _head_dim(text), count(text, "v_head_dim", 0)
    one, windowed = False, kind in ("sliding", "chunked")
    if windowed and text.get("swa_num_key_value_heads"):
        kv_heads = count(text, "swa_num_key_value_heads")
        heads = count(text, "swa_num_attention_heads", heads)
        head_dim, value_dim = count(text, "swa_head_dim", head_dim), count(text, "swa_v_head_dim", value_dim)
    if windowed and (other := block(text, "attention_other_setting")):
        heads = count(other, "num_attention_heads", heads)
        kv_heads = count(other, "num_attention_groups", kv_heads)
    if windowed and text.get("num_sliding_attention_heads"):
        heads = count(text, "num_sliding_attention_heads")
    if name == "gemma4" and not windowed:
        head_dim = count(text, "global_head_dim", head_dim)
        one = bool(text.get("attention_k_eq_v"))
        kv_heads = count(text, "num_global_key_value_heads", kv_heads) if one else kv_heads
    window = count(text, "attention_chunk_size") if kind == "chunked" else 0
    if kind == "sliding":
        window = count(text, first(text, "sliding_window", "sliding_window_size"))
    gated = text.get("attn_output_gate", text.get("attention_output_gate", True))
    chooser, sparse = index
    return GroupedAttention(
        heads, kv_heads, head_dim, 0 if value_dim == head_dim else value_dim, window, kind == "chunked",
        gate=family.gate if gated else "", one_projection=one, index=chooser, sparse=sparse,
        norm_over_heads=bool(text.get("use_qk_norm")) and text.get("qk_norm_type") == "per_layer",
    )  # fmt: skip


def _latent(text: Config, index: tuple[Indexer | None, int]) -> LatentAttention:
    nope, rope = count(text, "qk_nope_head_dim"), count(text, "qk_rope_head_dim")
    return LatentAttention(
        count(text, "num_attention_heads", least=1), count(text, "kv_lora_rank"), nope, rope,
        count(text, "v_head_dim", nope + rope), count(text, "q_lora_rank", 0), *index,
        gated=bool(text.get("mla_use_output_gate")),
    )  # fmt: skip


def _indexers(text: Config, name: str, layers: int) -> list[tuple[Indexer | None, int]]:
    """By layer: the indexer of its own, and the tokens that it reads (0: all)."""
    dense: tuple[Indexer | None, int] = (None, 0)
    if sparse := block(text, "sparse_attention_config"):
        topk = count(sparse, "sparse_topk_blocks") * count(sparse, "sparse_block_size")
        one = Indexer(count(sparse, "sparse_num_index_heads"), count(sparse, "sparse_index_dim"), topk)
        where = listed(sparse, "sparse_attention_freq") or [1] * layers
        return [(one, topk) if on else dense for on in where[:layers]]
    if not text.get("index_topk") or name == "deepseek_v4":
        return [dense] * layers
    topk = count(text, "index_topk")
    rank = count(text, "q_lora_rank", 0)
    own = Indexer(count(text, "index_n_heads"), count(text, "index_head_dim"), topk, rank)
    kinds = listed(text, "indexer_types") or _shared_indexers(text, layers)
    return [(own if kind in ("full", "F") else None, topk) for kind in kinds[:layers]]


def _shared_indexers(text: Config, layers: int) -> list[str]:
    if pattern := text.get("index_topk_pattern"):
        return list(pattern)
    every, offset = max(1, count(text, "index_topk_freq", 1)), count(text, "index_skip_topk_offset", 2)
    return ["full" if max(layer - offset + 1, 0) % every == 0 else "shared" for layer in range(layers)]


def _compressed(text: Config, layer: int) -> CompressedAttention:
    ratios = listed(text, "compress_ratios")
    if layer < len(ratios):
        ratio = count({"compress_ratios": ratios[layer]}, "compress_ratios")
    else:
        kinds = listed(text, "layer_types")
        usual = "heavily_compressed_attention" if layer < 2 or layer % 2 else "compressed_sparse_attention"
        ratio = 4 if (kinds[layer] if kinds else usual) == "compressed_sparse_attention" else 128
    rank = count(text, "q_lora_rank")
    index = Indexer(
        count(text, "index_n_heads"), count(text, "index_head_dim"), count(text, "index_topk"), rank
    )
    return CompressedAttention(
        count(text, "num_attention_heads", least=1), count(text, "head_dim"), rank,
        count(text, "o_groups", least=1), count(text, "o_lora_rank"), count(text, "sliding_window"), ratio,
        index if ratio and ratio < 128 else None,
    )  # fmt: skip


def _delta(text: Config, family: Family) -> GatedDelta:
    if kimi := block(text, "linear_attn_config"):
        heads, width = count(kimi, "num_heads"), count(kimi, "head_dim")
        kernel = count(kimi, "short_conv_kernel_size", 4)
        gates = "output" if kimi.get("use_full_rank_gate") else "low_rank"
        return GatedDelta(heads, heads, width, width, kernel, 4, gates)
    if text.get("linear_num_heads"):
        heads, width = count(text, "linear_num_heads"), count(text, "linear_head_dim")
        return GatedDelta(heads, heads, width, width, count(text, "linear_conv_kernel_dim", 4), 4, "full")
    return GatedDelta(
        count(text, "linear_num_key_heads"), count(text, "linear_num_value_heads"),
        count(text, "linear_key_head_dim"), count(text, "linear_value_head_dim"),
        count(text, "linear_conv_kernel_dim", 4), _state_bytes(text, "mamba_ssm_dtype", family),
    )  # fmt: skip


def _state_bytes(text: Config, key: str, family: Family) -> int:
    """Bytes of a value of the recurrent state: as the file says, else the family's."""
    said = text.get(key)
    if said in (None, "auto"):
        return family.state_bytes
    return 4 if said == "float32" else 2


def _mamba(text: Config, family: Family) -> Mamba:
    heads = count(text, first(text, "mamba_num_heads", "mamba_n_heads"), least=1)
    inner = count(text, "mamba_d_ssm", count(text, "mamba_expand", 2) * count(text, "hidden_size"))
    width = text.get(first(text, "mamba_head_dim", "mamba_d_head"))
    width = inner // heads if width in (None, "auto") else count({"mamba_head_dim": width}, "mamba_head_dim")
    return Mamba(
        heads, width, count(text, first(text, "ssm_state_size", "mamba_d_state")),
        count(text, first(text, "n_groups", "mamba_n_groups"), 1),
        count(text, first(text, "conv_kernel", "mamba_d_conv"), 4),
        _state_bytes(text, "mamba_ssm_cache_dtype", family),
        "mixer" if family.mlp == "mixer" else "mamba",
    )  # fmt: skip


def _by_block(text: Config, layers: int) -> list[tuple[Mixer, ...]]:
    """Layers of a model pruned block by block (Nemotron NAS): heads of each, some without attention."""
    heads, head_dim, blocks = (
        count(text, "num_attention_heads", least=1),
        _head_dim(text),
        text["block_configs"],
    )
    if not isinstance(blocks, list) or len(blocks) < layers:
        raise ConfigError(f"block_configs has no entry for each of {layers} layers")
    found: list[tuple[Mixer, ...]] = []
    for entry in blocks[:layers]:
        attention = block(entry, "attention")
        if attention.get("replace_with_linear"):
            raise ConfigError(
                "block_configs: there is no cost model for attention replaced by a linear layer"
            )
        group = attention.get("n_heads_in_group")
        if attention.get("no_op") or not (group or attention.get("num_key_value_heads")):
            found.append(())
            continue
        kv_heads = (
            heads // count(attention, "n_heads_in_group", least=1)
            if group
            else (count(attention, "num_key_value_heads"))
        )
        found.append((GroupedAttention(heads, kv_heads, head_dim),))
    return found
