"""A `config.json` from Hugging Face becomes the model the catalogue has typed in."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from specfleet.hardware import catalog
from specfleet.hardware.catalog import CatalogError
from specfleet.hardware.hfconfig import ConfigError, model_from_config, read_hf_config
from specfleet.hardware.mixture.table import stored_kind

CONFIGS: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": {
        "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 128256,
        "max_position_embeddings": 131072, "tie_word_embeddings": False, "rope_scaling": {"factor": 8.0},
    },
    "qwen3-0.6b": {
        "architectures": ["Qwen3ForCausalLM"], "head_dim": 128, "hidden_size": 1024,
        "intermediate_size": 3072, "num_attention_heads": 16, "num_hidden_layers": 28,
        "num_key_value_heads": 8, "vocab_size": 151936,
        "max_position_embeddings": 40960, "tie_word_embeddings": True, "sliding_window": None,
        "use_sliding_window": False, "max_window_layers": 28,
    },
    "qwen2.5-7b": {
        "architectures": ["Qwen2ForCausalLM"], "hidden_size": 3584, "intermediate_size": 18944,
        "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4, "vocab_size": 152064,
        "max_position_embeddings": 32768, "use_sliding_window": False, "sliding_window": 131072,
    },
    "mistral-small-3.2-24b": {
        "architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3",
        "text_config": {
            "model_type": "mistral", "head_dim": 128, "hidden_size": 5120, "intermediate_size": 32768,
            "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8,
            "vocab_size": 131072, "max_position_embeddings": 131072, "sliding_window": None,
        },
    },
    "mixtral-8x7b": {
        "architectures": ["MixtralForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336,
        "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "vocab_size": 32000,
        "max_position_embeddings": 32768, "num_local_experts": 8, "num_experts_per_tok": 2,
    },
    "qwen3-30b-a3b": {
        "architectures": ["Qwen3MoeForCausalLM"], "head_dim": 128, "hidden_size": 2048,
        "intermediate_size": 6144, "moe_intermediate_size": 768, "num_attention_heads": 32,
        "num_hidden_layers": 48, "num_key_value_heads": 4, "num_experts": 128, "num_experts_per_tok": 8,
        "decoder_sparse_step": 1, "mlp_only_layers": [], "vocab_size": 151936,
        "max_position_embeddings": 40960,
    },
    "gpt-oss-20b": {
        "architectures": ["GptOssForCausalLM"], "head_dim": 64, "hidden_size": 2880,
        "intermediate_size": 2880, "num_attention_heads": 64, "num_hidden_layers": 24,
        "num_key_value_heads": 8, "num_local_experts": 32, "experts_per_token": 4, "vocab_size": 201088,
        "max_position_embeddings": 131072, "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 12,
        "quantization_config": {"quant_method": "mxfp4"},
    },
    "deepseek-v3": {
        "architectures": ["DeepseekV3ForCausalLM"], "first_k_dense_replace": 3, "hidden_size": 7168,
        "intermediate_size": 18432, "kv_lora_rank": 512, "moe_intermediate_size": 2048, "moe_layer_freq": 1,
        "n_routed_experts": 256, "n_shared_experts": 1, "num_attention_heads": 128,
        "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128,
        "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "v_head_dim": 128, "vocab_size": 129280, "max_position_embeddings": 163840,
        "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
    },
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_a_config_is_the_model_in_the_catalogue(name: str) -> None:
    ours = catalog.model(name)
    read = model_from_config(CONFIGS[name], name=ours.name, source=ours.source)
    said: dict[str, Any] = {"vision_parameters": 0, "mtp_layers": read.mtp_layers, "rope": read.rope}
    assert replace(read, vision_parameters=0) == replace(ours, hf_id="", aliases=(), **said)


def test_a_model_can_be_a_path_with_changes(tmp_path: Path) -> None:
    folder = tmp_path / "My-8B"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIGS["llama-3.1-8b"]))
    model = catalog.model({"hf_config": str(folder)})
    assert (model.name, model.parameters) == ("My-8B", catalog.model("llama-3.1-8b").parameters)
    assert catalog.model({"hf_config": str(folder), "name": "mine", "num_layers": 2}).num_layers == 2
    assert catalog.drafter({"hf_config": str(folder / "config.json")}).model == model


def test_mistral_windows_all_layers_and_qwen_the_upper_ones() -> None:
    mistral = {**CONFIGS["llama-3.1-8b"], "architectures": ["MistralForCausalLM"], "sliding_window": 4096}
    model = model_from_config(mistral, name="m", source="")
    assert (model.sliding_window, model.num_windowed_layers) == (4096, 32)
    qwen = {**CONFIGS["qwen2.5-7b"], "use_sliding_window": True, "max_window_layers": 21}
    assert model_from_config(qwen, name="q", source="").num_windowed_layers == 7


def test_sparse_steps_and_listed_layers_are_dense() -> None:
    config = {**CONFIGS["qwen3-30b-a3b"], "decoder_sparse_step": 2, "mlp_only_layers": [1, 3]}
    assert model_from_config(config, name="m", source="").num_dense_layers == 26


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"architectures": ["JambaForCausalLM"], "attn_layer_period": 8},
            "architecture 'JambaForCausalLM' is not modelled; there is no cost model for attn_layer_period",
        ),
        ({"architectures": None}, "architecture '(no architecture named)' is not modelled. Known: afmoe"),
        ({"layer_types": ["retention"] * 32}, "there is no cost model for layers of type retention"),
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entries for 32 layers"),
        ({"hidden_size": None}, "hidden_size is missing; expected a whole number"),
        ({"vocab_size": "many"}, "vocab_size is 'many'; expected a whole number"),
        ({"quantization_config": {"quant_method": "hqq"}}, "weights stored by 'hqq' are not modelled"),
        ({"architectures": ["MixtralForCausalLM"]}, "num_local_experts or n_routed_experts is missing"),
    ],
)
def test_what_is_not_modelled_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        model_from_config({**CONFIGS["llama-3.1-8b"], **change}, name="m", source="")
    assert message in str(error.value)


def test_eight_bit_floats_are_fp8_whoever_packed_them() -> None:
    packed = {"quant_method": "compressed-tensors",
              "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float"}}}}  # fmt: skip
    config = {**CONFIGS["llama-3.1-8b"], "quantization_config": packed}
    assert model_from_config(config, name="m", source="").checkpoint_quantization == "fp8"


def weights(**said: Any) -> dict[str, Any]:
    group = {"weights": {"num_bits": 8, "type": "float", **said}}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}


@pytest.mark.parametrize(
    ("said", "by_block"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, True),
        ({"quant_method": "fp8", "activation_scheme": "static"}, False),
        (weights(strategy="block", block_structure=[128, 128]), True),
        (weights(strategy="channel"), False),
        (weights(strategy="tensor"), False),
        (weights(num_bits=4, type="int", group_size=128), True),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, False),
        ({"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"}, True),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, True),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp8_e4m3"}}}, False),
        (None, True),
    ],
)
def test_a_file_says_whether_its_eight_bit_floats_have_a_scale_a_block(said: Any, by_block: bool) -> None:
    config = {**CONFIGS["qwen3-30b-a3b"], "quantization_config": said}
    model = model_from_config(config, name="m", source="")
    assert model.fp8_scales_by_block is by_block
    if model.checkpoint_quantization == "fp8":
        assert stored_kind(model, "fp8") == ("fp8_block" if by_block else "fp8")


def test_a_mixed_checkpoint_has_scales_by_block_if_all_its_fp8_has() -> None:
    layers = {f"model.layers.{n}.mlp.experts": {"quant_algo": "FP8_PB_WO"} for n in range(48)}
    mixed = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}

    def by_block(**more: str) -> bool:
        named = {**layers, **{name: {"quant_algo": algo} for name, algo in more.items()}}
        said = {**mixed, "quantized_layers": named}
        config = {**CONFIGS["qwen3-30b-a3b"], "quantization_config": said}
        return model_from_config(config, name="m", source="").fp8_scales_by_block

    assert by_block() and by_block(lm_head="NVFP4") and not by_block(lm_head="FP8")


@pytest.mark.parametrize(
    ("text", "message"), [(None, "No such file"), ("{", "not JSON"), ("[]", "not a mapping")]
)
def test_a_file_that_is_no_config_is_refused_by_name(tmp_path: Path, text: str | None, message: str) -> None:
    file = tmp_path / "config.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(CatalogError, match=f"config.json: {message}"):
        catalog.model({"hf_config": str(file)})
    with pytest.raises(ConfigError):
        read_hf_config(file)


def test_kimi_k3_holds_what_the_tensors_of_its_files_add_up_to() -> None:
    kimi = catalog.model("kimi-k3")
    assert kimi.checkpoint_bytes / 2**30 == pytest.approx(1453.66, abs=0.05), "96 files, 497,220 tensors"
    gates = 2 * 93 * 12_288 * 7168  # an output gate as wide as the output in every layer, MLA or not
    latent = 2 * 92 * 2 * 3584 * 7168
    assert gates + latent == pytest.approx((15.26 + 2 * 4.40) * 2**30, rel=1e-3)
    assert kimi.parameters == pytest.approx(2.78e12, rel=2e-3)
    assert kimi.kv_bytes_per_token("auto", 8) == 24 * 2 * (512 + 64), (
        "24 layers of MLA, the others keep a state"
    )
