"""Kinds of layers, and what quantization blocks say of them, on small models made here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from specfleet.hardware import catalog
from specfleet.hardware.configs.keys import ConfigError
from specfleet.hardware.configs.storage import Names
from specfleet.hardware.heads import MAKERS
from specfleet.hardware.hfconfig import model_from_config
from specfleet.hardware.layers.attention import GroupedAttention
from specfleet.hardware.layers.formats import weight_format
from specfleet.hardware.layers.recurrent import GatedDelta
from specfleet.hardware.model import ModelSpec
from specfleet.hardware.placement import Placement
from specfleet.hardware.stepcost import KernelCost, StepShape

PLAIN: dict[str, Any] = {
    "model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 8,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 32_000,
    "max_position_embeddings": 8192,
}  # fmt: skip
DELTA = {
    "model_type": "qwen3_next", "linear_num_key_heads": 4, "linear_num_value_heads": 8,
    "linear_key_head_dim": 64, "linear_value_head_dim": 64, "linear_conv_kernel_dim": 4,
}  # fmt: skip


def read(**changes: Any) -> ModelSpec:
    return model_from_config({**PLAIN, **changes}, name="m", source="")


def place(model: ModelSpec, **options: Any) -> Placement:
    gpu = catalog.accelerator(options.pop("gpu", "h100-sxm"))
    return Placement.of(model, gpu, catalog.engine_profile("vllm-0.33"), **options)


def decode(context: int, window: int, sequences: int = 8) -> StepShape:
    tokens = sequences * context
    return StepShape(sequences, sequences, 0, sequences, 0, tokens, sequences * window, 0, 0)


def test_linear_attention_holds_bytes_a_sequence_and_none_a_token() -> None:
    model = read(**DELTA)
    (full,) = [m for m in model.mixers if isinstance(m, GroupedAttention)]
    assert model.mixers[full] == 2
    assert model.kv_bytes_per_token("auto", 1) == 2 * 2 * 8 * 64 * 2
    conv, matrix = 3 * 2 * (2 * 4 * 64 + 8 * 64), 8 * 64 * 64 * 2
    assert model.state_bytes("auto", 1) == 6 * (conv + matrix)
    assert model.state_bytes("auto", 1, drafts=3) - model.state_bytes("auto", 1) == 6 * 3 * conv // 3
    assert model.state_bytes("auto", 2) == model.state_bytes("auto", 1) // 2


@pytest.mark.parametrize("context", [1024, 16_384])
def test_a_state_costs_the_same_at_every_context(context: int) -> None:
    delta = GatedDelta(4, 8, 64, 64, 4)
    only = replace(read(**DELTA), stack=tuple(run for run in read(**DELTA).stack if delta in run.mixers))
    cost = KernelCost(place(replace(only, num_layers=6)))
    assert cost.seconds(decode(context, 0)) == cost.seconds(decode(2 * context, 0))


def test_sparse_attention_stores_every_token_and_reads_its_choice() -> None:
    latent = {
        "model_type": "deepseek_v32", "kv_lora_rank": 128, "q_lora_rank": 256, "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 32, "v_head_dim": 64, "index_topk": 512, "index_n_heads": 4,
        "index_head_dim": 128,
    }  # fmt: skip
    sparse, dense = read(**latent), read(**{**latent, "index_topk": None})
    assert sparse.kv_bytes_per_token("auto", 1) - dense.kv_bytes_per_token("auto", 1) == 8 * 132
    assert (sparse.reach, dense.reach) == (512, 0)
    terms = [KernelCost(place(m)).seconds(decode(32_768, 512, 64)) for m in (sparse, dense)]
    near = [KernelCost(place(m)).seconds(decode(16_384, 512, 64)) for m in (sparse, dense)]
    assert terms[0] - near[0] < 0.7 * (terms[1] - near[1])


def test_an_indexer_may_be_shared_by_later_layers() -> None:
    base = {
        "model_type": "glm_moe_dsa", "kv_lora_rank": 128, "q_lora_rank": 256, "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 32, "v_head_dim": 64, "index_topk": 512, "index_n_heads": 4,
        "index_head_dim": 128,
        "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256,
    }  # fmt: skip
    every, fourth = read(**base), read(**base, index_topk_freq=4, index_skip_topk_offset=3)
    assert every.kv_bytes_per_token("auto", 1) - fourth.kv_bytes_per_token("auto", 1) == 4 * 132


def test_windowed_layers_may_have_heads_of_their_own() -> None:
    model = read(
        model_type="mimo_v2_flash", hybrid_layer_pattern=[0, 1, 1, 1] * 2, sliding_window=128, v_head_dim=32,
        swa_num_key_value_heads=4, swa_head_dim=64, swa_v_head_dim=32, n_routed_experts=8,
        num_experts_per_tok=2, moe_intermediate_size=256,
    )  # fmt: skip
    assert model.kv_bytes_per_token("auto", 1) == 2 * (2 * 8 + 6 * 4) * (64 + 32)


def test_values_made_of_keys_are_cached_and_not_projected() -> None:
    base = {"model_type": "gemma4", "hidden_size_per_layer_input": 0, "sliding_window": 512,
            "global_head_dim": 128, "num_global_key_value_heads": 2}  # fmt: skip
    two, one = read(**base), read(**base, attention_k_eq_v=True)
    assert two.parameters - one.parameters == 1024 * 128 * (2 * 8 - 2)
    assert one.kv_bytes_per_token("auto", 1) == 2 * 2 * (7 * 8 * 64 + 2 * 128)


def test_layers_that_share_kv_have_neither_projections_nor_cache() -> None:
    own = read(model_type="gemma4", hidden_size_per_layer_input=0, sliding_window=512, global_head_dim=64)
    shared = read(
        model_type="gemma4", hidden_size_per_layer_input=0, sliding_window=512, global_head_dim=64,
        num_kv_shared_layers=4,
    )  # fmt: skip
    assert 2 * shared.kv_bytes_per_token("auto", 1) == own.kv_bytes_per_token("auto", 1)
    assert own.parameters - shared.parameters == 4 * 2 * 8 * 64 * 1024


def test_every_second_layer_can_be_dense_and_chunks_are_windows() -> None:
    model = read(
        model_type="llama4", interleave_moe_layer_step=2, num_local_experts=8, intermediate_size_mlp=4096,
        attention_chunk_size=1024,
    )  # fmt: skip
    assert (model.num_routed_layers, model.num_experts) == (4, 8)
    kinds = {m.cache(1).kind: layers for m, layers in model.mixers.items()}
    assert kinds == {"chunked": 6, "full": 2}


def test_a_pruned_model_has_heads_and_widths_block_by_block() -> None:
    blocks = [
        {"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 3.0}},
        {"attention": {"no_op": True}, "ffn": {"ffn_mult": 1.5}},
        {"attention": {"n_heads_in_group": 4}, "ffn": {"no_op": True}},
        {"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 3.0}},
    ]
    model = read(model_type="nemotron-nas", architectures=["DeciLMForCausalLM"], num_hidden_layers=4,
                 block_configs=blocks)  # fmt: skip
    assert model.kv_bytes_per_token("auto", 1) == 2 * 2 * 64 * (8 + 4 + 8)
    widths = sum(run.layers * run.feed_forward.width for run in model.runs if run.feed_forward)
    assert widths == 2048 + 1024 + 2048


def test_a_head_for_multi_token_prediction_is_a_layer_of_the_targets_kind() -> None:
    target = read(**DELTA, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=256)
    head = MAKERS["mtp_for"](target)
    assert head.kv_bytes_per_token("auto", 1) == target.kv_bytes_per_token("auto", 1) // 2
    assert head.model is not None and head.model.state_bytes("auto", 1) == 0


def quantized(block: dict[str, Any], **changes: Any) -> ModelSpec:
    return read(quantization_config=block, **changes)


LINEAR = read().linear_parameters(1)


@pytest.mark.parametrize(
    ("block", "bits"),
    [
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, 4 + 20 / 128),
        ({"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True}, 4 + 16 / 32),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1, "sym": True}, 8),
        ({"quant_method": "fbgemm_fp8"}, 8),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 4.5),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"g": {"targets": ["Linear"], "weights":
             {"num_bits": 8, "type": "int"}, "input_activations": {"num_bits": 8}}}}, 8,
        ),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"g": {"targets": ["Linear"], "weights":
             {"num_bits": 4, "type": "int", "group_size": 128, "symmetric": False}}}}, 4 + 20 / 128,
        ),
        (
            {"quant_method": "compressed-tensors", "config_groups": {"g": {"targets": ["Linear"], "weights":
             {"num_bits": 4, "type": "float", "group_size": 16}}}}, 4.5,
        ),
    ],
)  # fmt: skip
def test_a_block_says_what_a_linear_weight_weighs(block: dict[str, Any], bits: float) -> None:
    left = 2 * (read().parameters - LINEAR)
    assert quantized(block).checkpoint_bytes - left == pytest.approx(LINEAR * bits / 8, abs=1)


def test_a_block_one_level_down_or_in_the_file_beside_counts_as_much() -> None:
    block = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    outside = {"architectures": ["Mistral3ForConditionalGeneration"], "vision_config": None}
    nested = model_from_config(
        {**outside, "text_config": {**PLAIN, "quantization_config": block}}, name="m", source=""
    )
    beside = model_from_config(
        PLAIN, name="m", source="",
        beside={"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}},
    )  # fmt: skip
    assert nested.checkpoint_bytes == beside.checkpoint_bytes == quantized(block).checkpoint_bytes
    assert nested.checkpoint_quantization == "fp8"


@pytest.mark.parametrize(
    "pattern",
    [
        "model.layers.0.self_attn*",
        "re:.*layers\\.0\\.self_attn.*",
        "model.language_model.layers.0.self_attn.*",
    ],
)
def test_excluded_modules_stay_in_sixteen_bits(pattern: str) -> None:
    block = {"quant_method": "fp8", "modules_to_not_convert": [pattern, "lm_head"]}
    attention = sum(part.parameters for part in read().runs[0].mixers[0].parts(1024, 1))
    assert (
        quantized(block).checkpoint_bytes - quantized({"quant_method": "fp8"}).checkpoint_bytes == attention
    )


def test_a_bare_name_means_a_module_and_not_the_start_of_another() -> None:
    names = Names(["gate", "lm_head"])
    assert names.match(3, ["mlp.gate"])
    assert not names.match(3, ["mlp.gate_proj"])


def test_a_checkpoint_may_bring_its_kv_type() -> None:
    block = {
        "quant_method": "modelopt",
        "quant_algo": "FP8",
        "kv_cache_scheme": {"num_bits": 8, "type": "float"},
    }
    assert quantized(block).checkpoint_kv_cache_dtype == "fp8_e4m3"
    assert quantized({"quant_method": "fp8"}).checkpoint_kv_cache_dtype == "auto"


def test_an_unknown_method_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"weights stored by 'hqq' are not modelled; known methods: .*awq"):
        quantized({"quant_method": "hqq"})


@pytest.mark.parametrize("stored", ["int4_g128", "int4_g32z", "nvfp4", "fp8", "int8"])
def test_fewer_bits_are_read_faster_and_never_slower_than_sixteen(stored: str) -> None:
    one = StepShape(1, 1, 0, 1, 0, 512, 512, 0, 0)
    whole, packed = (
        KernelCost(place(replace(catalog.model("llama-3.1-8b"), checkpoint_quantization=q)))
        for q in (None, stored)
    )
    assert weight_format(stored).bits < 16
    assert packed.seconds(one) < whole.seconds(one)


def test_kinds_and_formats_without_a_table_are_named() -> None:
    assert place(read()).unmeasured == ()
    assert place(read(**DELTA)).unmeasured == ("linear attention (gated delta rule)",)
    packed = quantized({"quant_method": "awq", "bits": 4, "group_size": 128})
    assert place(packed).unmeasured == ("int4_g128 weights",)
    assert "nearest law: int4_g128 weights" in KernelCost(place(packed)).summary()


def test_positions_are_stretched_as_the_build_reads_them() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}
    assert [read(rope_scaling=yarn).longest(old) for old in (True, False)] == [32_768, 8192]
    linear = read(rope_scaling={"rope_type": "linear", "factor": 4.0})
    assert [linear.longest(old) for old in (True, False)] == [32_768, 32_768]
    assert read(rope_scaling={"rope_type": "llama3", "factor": 8.0}).longest(True) == 8192


def test_a_checkpoint_in_fp8_kv_is_served_in_it() -> None:
    block = {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
    assert place(quantized(block)).kv_element_bytes == 1
    assert place(quantized(block), kv_cache_dtype="bfloat16").kv_element_bytes == 2
