"""Which layer is what, key by key of the families' files: attention, state, experts, widths."""

from __future__ import annotations

from typing import Any

import pytest

from specfleet.hardware.configs.families import FAMILIES, Family
from specfleet.hardware.configs.feeding import all_feed_forwards
from specfleet.hardware.configs.keys import ConfigError, by_layer, count, listed
from specfleet.hardware.configs.mixing import all_mixers, layer_kinds
from specfleet.hardware.layers.attention import (
    CompressedAttention,
    GroupedAttention,
    Indexer,
    LatentAttention,
)
from specfleet.hardware.layers.feedforward import DenseMlp, ExpertMlp
from specfleet.hardware.layers.recurrent import GatedDelta, Lightning, Mamba, ShortConv

SHORT = {"full": "F", "sliding": "s", "chunked": "c", "linear": "l", "mamba": "m", "conv": "v", "hybrid": "h",
         "compressed": "z", "none": "-", "lightning": "t"}  # fmt: skip
HEADS = {"num_attention_heads": 8, "hidden_size": 48}


def kinds(text: dict[str, Any], name: str = "llama", family: Family | None = None, layers: int = 6) -> str:
    """One letter a layer."""
    return "".join(SHORT[kind] for kind in layer_kinds(text, name, family or FAMILIES[name], layers))


@pytest.mark.parametrize(
    ("text", "name", "found"),
    [
        ({}, "llama", "FFFFFF"),
        ({}, "mistral", "FFFFFF"),
        ({"sliding_window": 7}, "mistral", "ssssss"),
        ({"sliding_window_size": 7}, "mistral", "ssssss"),
        ({"sliding_window": 7, "use_sliding_window": False}, "mistral", "FFFFFF"),
        ({"sliding_window": 7, "use_sliding_window": True, "max_window_layers": 2}, "qwen2", "FFssss"),
        ({"sliding_window": 7, "use_sliding_window": True}, "qwen2", "ssssss"),
        ({"sliding_window": 7}, "gemma2", "sFsFsF"),
        ({"sliding_window": 7}, "gemma3", "sssssF"),
        ({"sliding_window": 7, "sliding_window_pattern": 3}, "gemma3", "ssFssF"),
        ({"sliding_window": 7, "sliding_window_pattern": "LG"}, "llama", "sFsFsF"),
        ({"sliding_window": 7, "sliding_window_pattern": "LLG"}, "llama", "ssFssF"),
        ({"sliding_window": 7, "sliding_window_pattern": "LLLG"}, "llama", "sssFsF"),
        ({"sliding_window": 7, "hybrid_layer_pattern": [1, 1, 0, 1, 1, 0]}, "mimo_v2_flash", "ssFssF"),
        ({"hybrid_override_pattern": "M*E-M*"}, "nemotron_h", "mF--mF"),
        ({"attention_chunk_size": 5}, "llama4", "cccFcc"),
        ({}, "llama4", "FFFFFF"),
        ({"attention_chunk_size": 5, "no_rope_layers": [1, 0, 1, 0, 1, 1]}, "llama4", "cFcFcc"),
        ({}, "qwen3_next", "lllFll"),
        ({"full_attention_interval": 2}, "qwen3_next", "lFlFlF"),
        ({"attn_type_list": [0, 1, 0, 0, 1, 0]}, "minimax", "tFttFt"),
        ({}, "minimax", "tFtFtF"),
        ({"linear_attn_config": {"full_attn_layers": [3, 6]}}, "kimi_linear", "llFllF"),
        ({}, "deepseek_v4", "zzzzzz"),
        ({}, "falcon_h1", "hhhhhh"),
        ({"full_attn_idxs": [1, 4]}, "lfm2", "vFvvFv"),
        ({"attn_layer_indices": [0, 5]}, "bamba", "FmmmmF"),
        ({"layer_types": ["full_attention", "linear_attention"] * 3}, "qwen3_next", "FlFlFl"),
        ({"layer_types": ["attention", "linear_attention"] * 3}, "bamba", "FmFmFm"),
        ({"layer_types": ["attention", "linear_attention"] * 3}, "nemotron_h", "FmFmFm"),
        ({"layer_types": ["full_attention", "lightning_attention"] * 3}, "minimax", "FtFtFt"),
        ({"layer_types": ["sliding_attention", "full_attention"] * 3}, "llama", "FFFFFF"),
        ({"layer_types": ["sliding_attention", "full_attention"] * 3, "sliding_window": 7,
          "use_sliding_window": False}, "llama", "sFsFsF"),
    ],
)  # fmt: skip
def test_layers_are_what_the_file_lists_or_the_family_does(
    text: dict[str, Any], name: str, found: str
) -> None:
    assert kinds(text, name) == found


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        ({"layer_types": ["full_attention"] * 5}, "llama", "layer_types has 5 entries for 6 layers"),
        ({"layer_types": ["novel"] * 6}, "llama", "no cost model for layers of type novel"),
        ({"hybrid_override_pattern": "M*E-M"}, "nemotron_h", "has 5 entries for 6 layers"),
        ({"hybrid_override_pattern": "M*X-M*"}, "nemotron_h", "layers of type X"),
    ],
)
def test_a_list_that_is_short_or_strange_is_refused(text: dict[str, Any], name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        layer_kinds(text, name, FAMILIES[name], 6)


def mixers(text: dict[str, Any], name: str, layers: int = 2) -> list[tuple[Any, ...]]:
    """What mixes tokens in each layer."""
    return all_mixers({**HEADS, **text}, name, FAMILIES[name], layers)


def test_heads_come_from_their_keys_and_windows_may_have_their_own() -> None:
    assert mixers({}, "llama", 1) == [(GroupedAttention(8, 8, 6),)]
    assert mixers({"num_attention_groups": 2, "attention_head_dim": 5}, "llama", 1) == [
        (GroupedAttention(8, 2, 5),)
    ]
    assert mixers({"v_head_dim": 4}, "llama", 1) == [(GroupedAttention(8, 8, 6, v_head_dim=4),)]
    assert mixers({"v_head_dim": 6}, "llama", 1) == [(GroupedAttention(8, 8, 6),)]
    own = {"sliding_window": 7, "swa_num_key_value_heads": 4, "swa_num_attention_heads": 16,
           "swa_head_dim": 3, "swa_v_head_dim": 2, "hybrid_layer_pattern": [1, 0]}  # fmt: skip
    assert mixers(own, "mimo_v2_flash") == [(GroupedAttention(16, 4, 3, 2, 7),), (GroupedAttention(8, 8, 6),)]
    less = {"sliding_window": 7, "swa_num_key_value_heads": 4, "hybrid_layer_pattern": [1, 0]}
    assert mixers(less, "mimo_v2_flash")[0] == (GroupedAttention(8, 4, 6, 0, 7),)
    step = {"sliding_window": 7, "layer_types": ["sliding_attention", "full_attention"],
            "attention_other_setting": {"num_attention_heads": 12, "num_attention_groups": 3}}  # fmt: skip
    assert mixers(step, "step3p5") == [
        (GroupedAttention(12, 3, 6, window=7, gate="head"),),
        (GroupedAttention(8, 8, 6, gate="head"),),
    ]
    sliding = {"sliding_window": 7, "num_sliding_attention_heads": 10, "layer_types": step["layer_types"]}
    assert [m[0].heads for m in mixers(sliding, "llama")] == [10, 8]
    gate = {"layer_types": ["full_attention"], "attn_output_gate": False}
    assert mixers(gate, "step3p5", 1) == [(GroupedAttention(8, 8, 6),)]
    assert mixers({"attention_chunk_size": 5}, "llama4", 1) == [
        (GroupedAttention(8, 8, 6, window=5, chunked=True),)
    ]


def test_gemma_4_has_wider_heads_where_it_sees_all() -> None:
    text = {"sliding_window": 7, "layer_types": ["sliding_attention", "full_attention"], "head_dim": 6}
    wide = mixers(text | {"global_head_dim": 9}, "gemma4")
    assert wide == [(GroupedAttention(8, 8, 6, window=7),), (GroupedAttention(8, 8, 9),)]
    one = mixers(text | {"attention_k_eq_v": True, "num_global_key_value_heads": 2}, "gemma4")
    assert one == [(GroupedAttention(8, 8, 6, window=7),), (GroupedAttention(8, 2, 6, one_projection=True),)]
    apart = mixers(text | {"num_global_key_value_heads": 2}, "gemma4")
    assert apart[1] == (GroupedAttention(8, 8, 6),)


LATENT = {"kv_lora_rank": 7, "qk_nope_head_dim": 5, "qk_rope_head_dim": 3}


def test_latent_layers_and_who_chooses_for_them() -> None:
    plain = LatentAttention(8, 7, 5, 3, 8)
    assert mixers(LATENT, "deepseek_v3", 1) == [(plain,)]
    assert mixers(LATENT, "longcat_flash", 1) == [(plain, plain)]
    given = LATENT | {"v_head_dim": 4, "q_lora_rank": 9, "mla_use_output_gate": True}
    assert mixers(given, "deepseek_v3", 1) == [(LatentAttention(8, 7, 5, 3, 4, 9, gated=True),)]
    sparse = LATENT | {"index_topk": 11, "index_n_heads": 2, "index_head_dim": 4, "q_lora_rank": 9}
    own = Indexer(2, 4, 11, 9)
    assert [m[0].index for m in mixers(sparse, "deepseek_v32", 5)] == [own] * 5
    every = mixers(sparse | {"index_topk_freq": 2}, "deepseek_v32", 6)
    assert [m[0].index for m in every] == [own, own, None, own, None, own]
    assert [m[0].sparse for m in every] == [11] * 6
    later = mixers(sparse | {"index_topk_freq": 3, "index_skip_topk_offset": 1}, "deepseek_v32", 7)
    assert [bool(m[0].index) for m in later] == [True, False, False, True, False, False, True]
    pattern = mixers(sparse | {"index_topk_pattern": "FSF"}, "deepseek_v32", 3)
    assert [bool(m[0].index) for m in pattern] == [True, False, True]
    named = mixers(sparse | {"indexer_types": ["full", "shared"]}, "glm_moe_dsa", 2)
    assert [bool(m[0].index) for m in named] == [True, False]
    given = {
        "sparse_topk_blocks": 3,
        "sparse_block_size": 5,
        "sparse_num_index_heads": 2,
        "sparse_index_dim": 4,
    }
    blocks: dict[str, Any] = {"sparse_attention_config": {**given, "sparse_attention_freq": [0, 1]}}
    assert [(m[0].index, m[0].sparse) for m in mixers(blocks, "minimax_m3_vl")] == [
        (None, 0),
        (Indexer(2, 4, 15), 15),
    ]
    del blocks["sparse_attention_config"]["sparse_attention_freq"]
    assert [m[0].sparse for m in mixers(blocks, "minimax_m3_vl")] == [15, 15]


def test_compressed_layers_by_ratio_type_or_place() -> None:
    text = {"q_lora_rank": 9, "index_n_heads": 2, "index_head_dim": 4, "index_topk": 11, "head_dim": 6,
            "o_groups": 4, "o_lora_rank": 5, "sliding_window": 7}  # fmt: skip

    def layer(ratio: int) -> CompressedAttention:
        chooses = Indexer(2, 4, 11, 9) if 0 < ratio < 128 else None
        return CompressedAttention(8, 6, 9, 4, 5, 7, ratio, chooses)

    usual = [m[0] for m in mixers(text, "deepseek_v4", 6)]
    assert usual == [layer(n) for n in (128, 128, 4, 128, 4, 128)]
    given = [m[0] for m in mixers(text | {"compress_ratios": [0, 4, 127, 128]}, "deepseek_v4", 4)]
    assert given == [layer(n) for n in (0, 4, 127, 128)]
    types = ["compressed_sparse_attention", "heavily_compressed_attention"]
    assert [m[0] for m in mixers(text | {"layer_types": types}, "deepseek_v4")] == [layer(4), layer(128)]


def test_states_by_the_keys_of_their_families() -> None:
    delta = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 3,
             "linear_value_head_dim": 5}  # fmt: skip
    assert mixers(delta, "qwen3_next", 1) == [(GatedDelta(2, 4, 3, 5, 4),)]
    assert mixers(delta | {"linear_conv_kernel_dim": 6}, "qwen3_5", 1) == [(GatedDelta(2, 4, 3, 5, 6, 4),)]
    said = {"mamba_ssm_dtype": "float32"}
    assert mixers(delta | said, "qwen3_next", 1) == [(GatedDelta(2, 4, 3, 5, 4, 4),)]
    assert mixers(delta | {"mamba_ssm_dtype": "bfloat16"}, "qwen3_5", 1)[0][0].state_element_bytes == 2
    kimi = {"linear_attn_config": {"num_heads": 3, "head_dim": 5, "full_attn_layers": []}}
    assert mixers(kimi, "kimi_linear", 1) == [(GatedDelta(3, 3, 5, 5, 4, 4, "low_rank"),)]
    kimi["linear_attn_config"] |= {"short_conv_kernel_size": 2, "use_full_rank_gate": True}
    assert mixers(kimi, "kimi_linear", 1) == [(GatedDelta(3, 3, 5, 5, 2, 4, "output"),)]
    ling = {"linear_num_heads": 3, "linear_head_dim": 5, "layer_types": ["linear_attention"]}
    assert mixers(ling, "bailing_hybrid", 1) == [(GatedDelta(3, 3, 5, 5, 4, 4, "full"),)]
    assert mixers({}, "minimax", 1) == [(Lightning(8, 6),)]
    assert mixers({"full_attn_idxs": [5]}, "lfm2", 1) == [(ShortConv(48, 3),)]
    assert mixers({"full_attn_idxs": [5], "conv_L_cache": 4}, "lfm2", 1) == [(ShortConv(48, 4),)]


def test_mamba_layers_by_either_set_of_names() -> None:
    one = {"mamba_num_heads": 4, "mamba_head_dim": 6, "ssm_state_size": 5, "n_groups": 2, "conv_kernel": 3}
    assert mixers(one | {"hybrid_override_pattern": "M"}, "nemotron_h", 1) == [(Mamba(4, 6, 5, 2, 3, 4),)]
    other = {"mamba_n_heads": 4, "mamba_d_head": "auto", "mamba_d_state": 5, "mamba_d_conv": 3,
             "mamba_n_groups": 2, "mamba_expand": 3, "layer_types": ["mamba"]}  # fmt: skip
    assert mixers(other, "granitemoehybrid", 1) == [(Mamba(4, 3 * 48 // 4, 5, 2, 3),)]
    bare = {"mamba_n_heads": 4, "mamba_d_state": 5, "layer_types": ["mamba"]}
    assert mixers(bare, "llama", 1) == [(Mamba(4, 2 * 48 // 4, 5, 1, 4),)]
    stated = {**bare, "mamba_d_ssm": 40, "mamba_ssm_cache_dtype": "float32"}
    assert mixers(stated, "llama", 1) == [(Mamba(4, 10, 5, 1, 4, 4),)]
    both = mixers({**bare, "layer_types": ["hybrid"]}, "falcon_h1", 1)
    assert both == [(Mamba(4, 24, 5, 1, 4), GroupedAttention(8, 8, 6))]


def fed(text: dict[str, Any], name: str, layers: int = 4) -> list[Any]:
    """The feed-forward of each layer."""
    return all_feed_forwards(text, name, FAMILIES[name], layers)


MOE = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 5, "intermediate_size": 9}


def routed(text: dict[str, Any], name: str, layers: int = 6) -> str:
    """E where a layer routes to experts."""
    return "".join("E" if isinstance(one, ExpertMlp) else "d" for one in fed({**MOE, **text}, name, layers))


@pytest.mark.parametrize(
    ("text", "name", "found"),
    [
        ({}, "qwen3_moe", "EEEEEE"),
        ({"decoder_sparse_step": 2}, "qwen3_moe", "dEdEdE"),
        ({"moe_layer_freq": 3}, "deepseek_v3", "ddEddE"),
        ({"moe_layer_freq": [0, 1, 1, 0, 1, 0]}, "deepseek_v3", "dEEdEd"),
        ({"mlp_only_layers": [1, 4]}, "qwen3_moe", "EdEEdE"),
        ({"first_k_dense_replace": 2}, "deepseek_v3", "ddEEEE"),
        ({"num_dense_layers": 1}, "afmoe", "dEEEEE"),
        ({"moe_first_k_dense_replace": 3}, "llama", "dddEEE"),
        ({"first_k_dense_replace": 6}, "deepseek_v3", "dddddd"),
        ({"mlp_layer_types": ["dense", "sparse", "mlp", "sparse", "sparse", "dense"]}, "llama", "dEdEEd"),
        ({"moe_layers_enum": "1,3"}, "step3p5", "dEdEdd"),
        ({"moe_layers_enum": [0, 5]}, "step3p5", "EddddE"),
        ({"intermediate_size_mlp": 7, "interleave_moe_layer_step": 2}, "llama4", "dEdEdE"),
        ({"intermediate_size_mlp": 7}, "llama4", "EEEEEE"),
        ({"intermediate_size_mlp": 7, "interleave_moe_layer_step": 0}, "llama4", "dddddd"),
        ({"intermediate_size_mlp": 7, "moe_layers": [2]}, "llama4", "ddEddd"),
        ({}, "ernie4_5_moe", "dEEEEE"),
        ({"moe_layer_start_index": 2, "moe_layer_end_index": 4}, "ernie4_5_moe", "ddEEEd"),
        ({"moe_layer_start_index": [1, 3], "moe_layer_end_index": [3, 4]}, "ernie4_5_moe", "dEEEEd"),
        ({"moe_layer_start_index": 0, "moe_layer_end_index": -1}, "ernie4_5_moe", "EEEEEE"),
        ({"moe_layer_interval": 2}, "ernie4_5_moe", "dEdEdE"),
    ],
)
def test_layers_route_where_the_file_says(text: dict[str, Any], name: str, found: str) -> None:
    assert routed(text, name) == found


def test_a_model_without_experts_is_dense_and_one_that_must_have_them_is_refused() -> None:
    assert fed({"intermediate_size": 9}, "llama", 2) == [DenseMlp(9)] * 2
    assert fed({"ffn_hidden_size": 9}, "llama", 1) == [DenseMlp(9)]
    assert fed({"intermediate_size": [9, 9]}, "nemotron", 1) == [DenseMlp(9, gated=False)]
    for text, name, said in (
        ({"intermediate_size": 9}, "qwen3_moe", "num_experts"),
        ({"intermediate_size": [9, 8]}, "llama", "a width a layer"),
        ({"intermediate_size": []}, "llama", "a width a layer"),
        ({"intermediate_size": [[9], 9]}, "llama", "a width a layer"),
        ({**MOE, "num_experts_per_tok": [2, 3]}, "qwen3_moe", "differs from layer to layer"),
    ):
        with pytest.raises(ConfigError, match=said):
            fed(text, name)
    assert fed({**MOE, "num_experts": 1}, "hunyuan_v1_moe", 1) == [DenseMlp(9)]
    assert fed({**MOE, "num_experts": 2}, "hunyuan_v1_moe", 1) == [ExpertMlp(2, 2, 5)]
    assert fed({**MOE, "num_experts": 1, "num_experts_per_tok": 1}, "qwen3_moe", 1) == [ExpertMlp(1, 1, 5)]
    assert fed(MOE, "gemma4", 1) == [DenseMlp(9)]


@pytest.mark.parametrize(
    ("text", "name", "shared"),
    [
        ({}, "qwen3_moe", 0),
        ({"n_shared_experts": 3}, "deepseek_v3", 15),
        ({"num_shared_experts": [2, 2]}, "llama", 10),
        ({"n_shared_experts": 3, "shared_expert_intermediate_size": 7}, "qwen2_moe", 7),
        ({"n_shared_experts": 3, "shared_intermediate_size": 7}, "llama", 21),
        ({"shared_intermediate_size": 7}, "llama", 7),
        ({"intermediate_size_mlp": 7}, "llama4", 5),
        ({"enable_moe_block": True}, "gemma4", 9),
        ({"ffn_hidden_size": 11}, "longcat_flash", 22),
        ({}, "longcat_flash", 18),
    ],
)
def test_shared_experts_are_as_wide_as_the_file_says(text: dict[str, Any], name: str, shared: int) -> None:
    found = [one for one in fed({**MOE, **text}, name, 6) if isinstance(one, ExpertMlp)]
    family = FAMILIES[name]
    assert set(found) == {ExpertMlp(8, 2, 5, shared, family.gated)}


def test_widths_of_experts_and_what_stands_around_them() -> None:
    assert fed({**MOE, "moe_intermediate_size": None}, "qwen3_moe", 1) == [ExpertMlp(8, 2, 9)]
    assert fed({**MOE, "moe_latent_size": 3}, "qwen3_moe", 1) == [ExpertMlp(8, 2, 5, latent=3)]
    wide = fed({"intermediate_size": 9, "use_double_wide_mlp": True, "num_kv_shared_layers": 1}, "gemma4", 3)
    assert wide == [DenseMlp(9), DenseMlp(9), DenseMlp(18)]
    assert fed({"intermediate_size": 9, "dense_intermediate_size": 4}, "llama", 1) == [DenseMlp(9)]
    assert routed({"dense_intermediate_size": 4, "num_dense_layers": 1}, "minimax_m3_vl", 2) == "dE"
    first = fed({**MOE, "dense_intermediate_size": 4, "num_dense_layers": 1}, "minimax_m3_vl", 1)
    assert first == [DenseMlp(4)]


def test_adjusted_and_pruned_widths_are_whole_multiples() -> None:
    assert fed({"block_ff_dim": 900}, "lfm2", 1) == [DenseMlp(768)]
    assert fed({"block_ff_dim": 900, "block_multiple_of": 7}, "lfm2", 1) == [DenseMlp(602)]
    more = {"block_ff_dim": 900, "block_multiple_of": 7, "block_ffn_dim_multiplier": 1.5}
    assert fed(more, "lfm2", 1) == [DenseMlp(903)]
    assert fed({"intermediate_size": 900, "block_auto_adjust_ff_dim": False}, "lfm2", 1) == [DenseMlp(900)]
    blocks = [{"ffn": {"ffn_mult": 1.5}}, {"ffn": {"no_op": True}}, {"ffn": {"intermediate_size": 5}}]
    pruned = {"block_configs": blocks, "hidden_size": 512}
    assert fed(pruned, "nemotron_nas", 3) == [DenseMlp(512), None, DenseMlp(5)]
    assert fed({**pruned, "hidden_size": 514}, "nemotron_nas", 1) == [DenseMlp(768)]
    alone = {**MOE, "hybrid_override_pattern": "M-E*"}
    mlp, experts = DenseMlp(9, gated=False), ExpertMlp(8, 2, 5, gated=False)
    assert fed(alone, "nemotron_h") == [None, mlp, experts, None]


def test_heads_of_a_pruned_model_are_groups_or_counted() -> None:
    blocks: list[dict[str, Any]] = [
        {"attention": {"n_heads_in_group": 4}},
        {"attention": {"num_key_value_heads": 4}},
        {"attention": {"no_op": True, "n_heads_in_group": 4}},
        {"attention": {}},
    ]
    found = mixers({"block_configs": blocks}, "nemotron_nas", 4)
    assert found == [(GroupedAttention(8, 2, 6),), (GroupedAttention(8, 4, 6),), (), ()]
    with pytest.raises(ConfigError, match="no entry for each of 5 layers"):
        mixers({"block_configs": blocks}, "nemotron_nas", 5)


def test_numbers_are_whole_and_within_their_limits_to_the_last() -> None:
    assert count({"n": 3.0}, "n") == count({}, "n", 3) == count({"n": None}, "n", 3) == 3
    assert [count({"n": n}, "n", least=2, most=4) for n in (2, 4)] == [2, 4]
    for value, said in (
        (1, "use 2 to 4"),
        (5, "use 2 to 4"),
        (2.5, "whole"),
        (True, "whole"),
        ("3", "whole"),
    ):
        with pytest.raises(ConfigError, match=said):
            count({"n": value}, "n", least=2, most=4)
    assert listed({"n": [1, "a"]}, "n") == [1, "a"] and listed({}, "n") == []
    for strange in ("ab", [[1]], {"a": 1}):
        with pytest.raises(ConfigError, match="expected a list"):
            listed({"n": strange}, "n")
    assert by_layer({"n": [1, 2, 3]}, "n", 2) == [1, 2] and by_layer({"n": 4}, "n", 2) == [4, 4]
    with pytest.raises(ConfigError, match="1 entries for 2"):
        by_layer({"n": [1]}, "n", 2)


def test_one_head_is_enough() -> None:
    blocks = [{"attention": {"n_heads_in_group": 1}}]
    text = {"num_attention_heads": 1, "hidden_size": 6, "block_configs": blocks}
    assert all_mixers(text, "nemotron_nas", FAMILIES["nemotron_nas"], 1) == [(GroupedAttention(1, 1, 6),)]
    assert all_mixers({"num_attention_heads": 1, "hidden_size": 6}, "llama", FAMILIES["llama"], 1) == [
        (GroupedAttention(1, 1, 6),)
    ]
