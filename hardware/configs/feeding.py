"""Which layer has which feed-forward: dense, experts, what stands beside them."""

from __future__ import annotations

from collections.abc import Sequence

from specfleet.hardware.configs.families import Family
from specfleet.hardware.configs.keys import Config, ConfigError, block, by_layer, count, first, listed
from specfleet.hardware.layers.feedforward import DenseMlp, ExpertMlp
from specfleet.hardware.layers.stack import FeedForward

EXPERT_COUNTS = (
    *("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts", "num_routed_experts"),
)
EXPERTS_A_TOKEN = (
    *("num_experts_per_tok", "experts_per_token", "num_experts_per_token", "top_k_experts", "moe_topk"),
    *("moe_k", "moe_top_k"),
)
BIASES = ("use_routing_bias", "use_moe_router_bias")
BIASED = (
    *("deepseek_v3", "deepseek_v32", "deepseek_v4", "kimi_k2", "kimi_linear", "glm4_moe", "glm4_moe_lite"),
    *("glm_moe_dsa", "minimax_m2", "nemotron_h", "mimo_v2_flash"),
)
"""Families that choose experts by scores with a correction added (`e_score_correction_bias` in vLLM), said in
their files or not."""
EXPERT_WIDTHS = ("moe_intermediate_size", "expert_ffn_hidden_size", "expert_intermediate_size")


def all_feed_forwards(text: Config, name: str, family: Family, layers: int) -> list[FeedForward | None]:
    """The feed-forward of each layer."""
    if name == "nemotron_h":
        kinds = text.get("hybrid_override_pattern") or listed(
            text, first(text, "layers_block_type", "layer_types")
        )
        return [_alone(text, family, str(kind)) for kind in kinds[:layers]]
    if name == "nemotron_nas" and text.get("block_configs"):
        return _by_block(text, layers)
    dense = DenseMlp(_dense_width(text, name), family.gated, family.mlp)
    experts = _experts(text, name, family)
    if name == "gemma4" and text.get("use_double_wide_mlp"):
        wide, shared = (
            DenseMlp(2 * dense.width, family.gated, family.mlp),
            count(text, "num_kv_shared_layers", 0),
        )
        return [wide if layer >= layers - shared else dense for layer in range(layers)]
    if experts is None:
        return [dense] * layers
    return [experts if routed else dense for routed in _routed(text, name, family, layers)]


def _dense_width(text: Config, name: str) -> int:
    if name == "llama4":
        return count(text, "intermediate_size_mlp")
    if name == "minimax_m3_vl" and text.get("dense_intermediate_size"):
        return count(text, "dense_intermediate_size")
    if name in ("lfm2", "lfm2_moe") and text.get("block_auto_adjust_ff_dim", name == "lfm2"):
        return _adjusted(text)
    width = text.get("intermediate_size")
    if isinstance(width, list):
        if not width or any(one != width[0] for one in width):
            raise ConfigError("intermediate_size: there is no cost model for a width a layer")
        return count({"intermediate_size": width[0]}, "intermediate_size")
    shared = first(
        text, "intermediate_size", "ffn_hidden_size", "moe_intermediate_size", "shared_intermediate_size"
    )
    return count(text, shared)


def _adjusted(text: Config) -> int:
    """LFM2: two thirds of the stated width, times a factor, up to a whole multiple."""
    width = int(2 * count(text, first(text, "block_ff_dim", "intermediate_size")) / 3)
    width = int(float(text.get("block_ffn_dim_multiplier") or 1.0) * width)
    multiple = count(text, "block_multiple_of", 256, least=1)
    return -(-width // multiple) * multiple


def _experts(text: Config, name: str, family: Family) -> ExpertMlp | None:
    """The routed experts that a file describes; None for a dense model."""
    counted = next((key for key in EXPERT_COUNTS if text.get(key)), None)
    if name == "gemma4" and not text.get("enable_moe_block"):
        return None
    if counted is None:
        if family.moe:
            raise ConfigError("num_experts, num_local_experts or n_routed_experts is missing")
        return None
    experts = count(text, counted)
    if experts == 1 and name.startswith("hunyuan"):
        return None
    width = count(
        _flat(text, EXPERT_WIDTHS), first(text, *EXPERT_WIDTHS), count(text, "intermediate_size", 0), least=1
    )
    chosen = _flat(text, EXPERTS_A_TOKEN)
    return ExpertMlp(
        experts, count(chosen, first(text, *EXPERTS_A_TOKEN), least=1, most=experts), width,
        _shared_width(text, name, width), family.gated,
        count(text, first(text, "moe_latent_size", "routed_expert_hidden_size"), 0),
        name in BIASED or text.get("topk_method") == "noaux_tc" or any(text.get(key) for key in BIASES),
        family.experts, family.shared,
    )  # fmt: skip


def _shared_width(text: Config, name: str, width: int) -> int:
    """Width of all shared experts of a layer together."""
    if name == "llama4":
        return width
    if name == "gemma4":
        return count(text, "intermediate_size")
    if name == "longcat_flash":
        return 2 * count(text, first(text, "ffn_hidden_size", "intermediate_size"))
    direct = ("shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "share_expert_dim",
              "share_expert_dims")  # fmt: skip
    numbers = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert")
    number = count(_flat(text, numbers), first(text, *numbers), 0)
    for key in direct:
        if text.get(key):
            return count(text, key)
    if text.get("shared_intermediate_size") is not None:
        return count(text, "shared_intermediate_size") * max(1, number)
    return number * width


def _flat(text: Config, keys: Sequence[str]) -> Config:
    """The keys with a list of equal values, one a layer, as that value; ConfigError where they differ."""
    found = {}
    for key in keys:
        value = text.get(key)
        if isinstance(value, list):
            if len(set(map(str, value))) != 1:
                raise ConfigError(f"{key} differs from layer to layer; there is no cost model for that")
            value = value[0]
        found[key] = value
    return found


def _routed(text: Config, name: str, family: Family, layers: int) -> list[bool]:
    """Which layers route to experts."""
    if named := listed(text, "mlp_layer_types"):
        return [entry not in ("dense", "mlp") for entry in named[:layers]]
    if isinstance(text.get("moe_layer_freq"), list):
        return [bool(entry) for entry in by_layer(text, "moe_layer_freq", layers)]
    if (said := text.get("moe_layers_enum")) is not None:
        numbers = said.split(",") if isinstance(said, str) else said
        chosen = {int(entry) for entry in numbers}
        return [layer in chosen for layer in range(layers)]
    if name == "llama4":
        step = count(text, "interleave_moe_layer_step", 1)
        chosen = set(listed(text, "moe_layers")) or set(range(step - 1, layers, step) if step else ())
        return [layer in chosen for layer in range(layers)]
    if name.startswith("ernie"):
        return _from_to(text, layers)
    first_dense = first(text, "first_k_dense_replace", "num_dense_layers", "moe_first_k_dense_replace")
    leading = count(text, first_dense, 0, most=layers)
    step = count(text, "decoder_sparse_step", count(text, "moe_layer_freq", 1, least=1), least=1)
    dense = set(range(leading)) | set(listed(text, "mlp_only_layers"))
    return [layer not in dense and not (layer + 1) % step for layer in range(layers)]


def _from_to(text: Config, layers: int) -> list[bool]:
    """ERNIE: an interval of layers."""
    start, end = (text.get(key) for key in ("moe_layer_start_index", "moe_layer_end_index"))
    low = min(start) if isinstance(start, list) else count(text, "moe_layer_start_index", 1)
    high = (
        max(end)
        if isinstance(end, list)
        else (layers - 1 if end in (None, -1) else count(text, "moe_layer_end_index"))
    )
    step = count(text, "moe_layer_interval", 1, least=1)
    return [low <= layer <= high and not (layer + 1) % step for layer in range(layers)]


def _alone(text: Config, family: Family, kind: str) -> FeedForward | None:
    """Nemotron-H: layers are a mixer or a feed-forward."""
    if kind in ("-", "mlp"):
        return DenseMlp(count(text, "intermediate_size"), family.gated, family.mlp)
    return _experts(text, "nemotron_h", family) if kind in ("E", "moe") else None


def _by_block(text: Config, layers: int) -> list[FeedForward | None]:
    """Nemotron NAS: a multiple of the hidden size a block, in whole 256ths."""
    found: list[FeedForward | None] = []
    hidden = count(text, "hidden_size")
    for entry in text["block_configs"][:layers]:
        ffn = block(entry, "ffn")
        if ffn.get("replace_with_linear"):
            raise ConfigError("block_configs: there is no cost model for an MLP replaced by a linear layer")
        if ffn.get("no_op"):
            found.append(None)
        elif ffn.get("ffn_mult"):
            width = int(2 * float(ffn["ffn_mult"]) * hidden / 3)
            found.append(DenseMlp(-(-width // 256) * 256))
        else:
            found.append(DenseMlp(count(ffn, "intermediate_size")))
    return found
