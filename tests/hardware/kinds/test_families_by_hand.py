"""What a file leaves out: defaults of its class in transformers, and what a family cannot be without."""

from __future__ import annotations

from typing import Any

import pytest

from specfleet.hardware.configs.families import FAMILIES
from specfleet.hardware.configs.feeding import all_feed_forwards
from specfleet.hardware.configs.keys import ConfigError
from specfleet.hardware.configs.reader import _summary, model_of
from specfleet.hardware.layers.attention import CompressedAttention
from specfleet.hardware.layers.feedforward import DenseMlp
from specfleet.hardware.layers.stack import LayerRun
from specfleet.hardware.model import MOST, MOST_LAYERS, ModelSpec

NAMES: tuple[str, ...] = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
)
NAMES += ("num_key_value_heads", "head_dim", "sliding_window", "max_position_embeddings")

# configuration_gemma3.py, _gemma3n.py, _gpt_oss.py, _llama4.py of transformers, in the order of NAMES
CLASSES: dict[str, tuple[int | None, ...]] = {
    "gemma3": (262_208, 2304, 9216, 26, 8, 4, 256, 4096, 131_072),
    "gemma3n": (262_400, 2048, 16_384, 35, 8, 2, 256, 512, 32_768),
    "gpt_oss": (201_088, 2880, 2880, None, 64, 8, 64, 128, 131_072),
    "llama4": (202_048, 5120, 8192, 48, 40, 8, 128, None, 131_072),
}
OTHERS: dict[str, dict[str, int]] = {
    "gemma3n": {"vocab_size_per_layer_input": 262_144, "hidden_size_per_layer_input": 256,
                "altup_num_inputs": 4, "num_kv_shared_layers": 15, "laurel_rank": 64},
    "gpt_oss": {"num_local_experts": 128, "num_experts_per_tok": 4},
    "llama4": {"intermediate_size_mlp": 16_384, "num_experts_per_tok": 1, "num_local_experts": 16,
               "interleave_moe_layer_step": 1, "attention_chunk_size": 8192, "no_rope_layer_interval": 4},
    "qwen3_next": {"linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
                   "linear_num_key_heads": 16, "linear_num_value_heads": 32, "full_attention_interval": 4,
                   "head_dim": 256},
}  # fmt: skip


@pytest.mark.parametrize("name", sorted({*CLASSES, *OTHERS}))
def test_what_a_file_leaves_out_is_what_its_class_in_transformers_says(name: str) -> None:
    said = dict(zip(NAMES, CLASSES[name], strict=True)) if name in CLASSES else {}
    expected = {key: value for key, value in said.items() if value is not None} | OTHERS.get(name, {})
    assert FAMILIES[name].defaults == expected


def test_a_bare_gemma_3n_is_the_model_of_its_class() -> None:
    model = model_of({"model_type": "gemma3n_text"}, None, name="bare", source="here")
    assert (model.num_layers, model.hidden_size, model.num_heads, model.num_kv_heads) == (35, 2048, 8, 2)
    assert (model.vocab_size, model.head_dim, model.sliding_window) == (262_400, 256, 512)
    assert (model.num_windowed_layers, model.intermediate_size) == (28, 16_384), "every fifth is full"


ROUTED = (
    *("mixtral", "phimoe", "glm4_moe", "bailing_moe", "olmoe", "longcat_flash", "qwen2_moe", "qwen3_moe"),
    *("ernie4_5_moe", "exaone_moe", "mistral_large4", "kimi_linear", "deepseek_v4", "glm4_moe_lite"),
    *(
        "minimax_m2",
        "minimax_m3_vl",
        "minimax",
        "minimax_text_01",
        "hunyuan_v1_moe",
        "granitemoe",
        "lfm2_moe",
    ),
    *("qwen3_5_moe", "glm_moe_dsa", "solar_open", "mimo_v2_flash"),
)
EITHER = (
    "llama",
    "qwen3_next",
    "qwen3_5",
    "deepseek_v3",
    "kimi_k2",
    "granitemoehybrid",
    "falcon_h1",
    "gemma4",
)


@pytest.mark.parametrize("name", [*ROUTED, *EITHER])
def test_a_family_that_comes_routed_alone_is_refused_without_its_experts(name: str) -> None:
    text: dict[str, Any] = {"intermediate_size": 9, "hidden_size": 48, **FAMILIES[name].defaults}
    if name in ROUTED:
        with pytest.raises(ConfigError, match="experts"):
            all_feed_forwards(text, name, FAMILIES[name], 1)
    else:
        assert all_feed_forwards(text, name, FAMILIES[name], 1) == [DenseMlp(9)]


def test_a_stack_of_compressed_attention_is_summed_up_by_its_first_layer() -> None:
    first = CompressedAttention(48, 96, q_rank=64, o_groups=4, o_rank=32, window=128)
    other = CompressedAttention(16, 32, q_rank=64, o_groups=4, o_rank=32, window=128)
    stack = tuple(LayerRun(2, (mixer,), DenseMlp(9)) for mixer in (first, other))
    found = _summary(stack, {})
    assert found == {"num_heads": 48, "num_kv_heads": 1, "head_dim": 96, "intermediate_size": 9}


def shape(**sizes: int) -> ModelSpec:
    plain = {"num_layers": 2, "hidden_size": 64, "num_heads": 4, "num_kv_heads": 2, "head_dim": 16,
             "intermediate_size": 128, "vocab_size": 256, "max_position_embeddings": 512}  # fmt: skip
    return ModelSpec("x", "x", **(plain | sizes), tie_word_embeddings=False, source="here")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("key", "most"),
    [
        ("num_layers", MOST_LAYERS),
        ("vision_parameters", 1000 * MOST),
        ("extra_parameters", 10**12),
        ("vocab_size", MOST),
    ],
)
def test_a_size_of_a_model_may_be_as_large_as_its_limit_and_no_larger(key: str, most: int) -> None:
    assert getattr(shape(**{key: most}), key) == most
    with pytest.raises(ValueError, match=f"{key} is {most + 1}; use 0 to {most}"):
        shape(**{key: most + 1})
