"""Weights of towers, kind by kind, counted by hand from small blocks whose sizes are all different."""

from __future__ import annotations

from typing import Any

import pytest

from specfleet.hardware.configs.keys import ConfigError
from specfleet.hardware.configs.vision import tower_parameters

HIDDEN = 11
SEES = {"architectures": ["XForConditionalGeneration"]}
BLOCK = {"hidden_size": 3, "num_hidden_layers": 5, "intermediate_size": 7, "patch_size": 2}
LAYER = 4 * 3 * 3 + 2 * 3 * 7
GATED = 4 * 3 * 3 + 3 * 3 * 7
QWEN = {"depth": 5, "hidden_size": 3, "intermediate_size": 7, "patch_size": 2, "temporal_patch_size": 3,
        "spatial_merge_size": 3, "out_hidden_size": 13}  # fmt: skip

COUNTED: dict[str, tuple[str, dict[str, Any], int]] = {
    "llama4": (
        "llama4",
        BLOCK | {"vision_output_dim": 13, "projector_input_dim": 17, "projector_output_dim": 19},
        5 * LAYER + 3 * (3 * 2 * 2 + 1025) + 7 * 17 + 19 * 17 + 11 * 13,
    ),
    "step": (
        "step3p5",
        BLOCK,
        5 * LAYER + 3 * (3 * 2 * 2 + 2704) + 9 * (2 * 3 * 3 + 4 * 3 * 2 * 3) + 11 * 4 * 3,
    ),
    "minimax": ("minimax_m3", BLOCK, 5 * LAYER + 3 * 2 * (3 * 2 * 2) + 11 * 3 + 6 * 11 * 11),
    "pixtral": ("pixtral", BLOCK, 5 * GATED + 3 * (3 * 2 * 2) + 4 * 3 * 3 + 11 * (3 + 11)),
    "gemma4": (
        "gemma4",
        BLOCK | {"position_embedding_size": 23},
        5 * GATED + 3 * (3 * 2 * 2 + 2 * 23) + 11 * 3,
    ),
    "siglip": (
        "gemma3",
        BLOCK | {"image_size": 13},
        5 * (LAYER + 9 * 3) + 3 * (3 * 2 * 2 + (13 // 2) ** 2 + 11),
    ),
    "kimi": (
        "kimi_k25",
        {"vt_hidden_size": 3, "vt_num_hidden_layers": 5, "vt_intermediate_size": 7, "qkv_hidden_size": 2},
        5 * (4 * 3 * 2 + 2 * 3 * 7 + 6 * 3) + (4 * 3) * (4 * 3 + 11) + 3 * 4700,
    ),
    "glm": (
        "glm4v_moe",
        {"depth": 5, "hidden_size": 3, "out_hidden_size": 13, "intermediate_size": 7, "patch_size": 2},
        5 * (4 * 3 * 3 + 3 * 3 * 13) + 13 * (13 + 4 * 3) + 3 * 13 * 7 + 3 * 6 * 2 * 2,
    ),
    "qwen": (
        "qwen2_5_vl",
        QWEN,
        5 * (4 * 3 * 3 + 3 * 3 * 7 + 9 * 3 + 7) + 3 * 3 * 3 * 2 * 2 + (3 * 9) * (3 * 9 + 13),
    ),
    "qwen2, by its embedding": (
        "qwen2_vl",
        QWEN | {"embed_dim": 2},
        5 * (4 * 2 * 2 + 2 * 2 * 8 + 9 * 2 + 8) + 2 * 3 * 3 * 2 * 2 + (2 * 9) * (2 * 9 + 11),
    ),
    "qwen3": (
        "qwen3_vl",
        QWEN | {"num_position_embeddings": 29, "deepstack_visual_indexes": [1, 2]},
        5 * (4 * 3 * 3 + 2 * 3 * 7 + 9 * 3 + 7) + 3 * 3 * 3 * 2 * 2 + 3 * 29 + 3 * (3 * 9) * (3 * 9 + 13),
    ),
    "no style": ("unheard_of", BLOCK, 5 * LAYER + 11 * (3 + 11)),
}
"""By style: a model type, a block, and the weights of the tower."""

DEFAULT: dict[str, tuple[str, dict[str, Any]]] = {
    "llama4": (
        "llama4",
        {"hidden_size": 768, "num_hidden_layers": 34, "intermediate_size": 5632, "patch_size": 14,
         "vision_output_dim": 7680, "projector_output_dim": 4096, "projector_input_dim": 4096},
    ),
    "step": (
        "step3p5",
        {"hidden_size": 1536, "num_hidden_layers": 47, "intermediate_size": 8960, "patch_size": 14},
    ),
    "gemma4": (
        "gemma4",
        {"hidden_size": 768, "num_hidden_layers": 16, "intermediate_size": 3072, "patch_size": 16,
         "position_embedding_size": 10_240},
    ),
    "siglip": (
        "gemma3",
        {"hidden_size": 1152, "num_hidden_layers": 27, "intermediate_size": 4304, "patch_size": 14,
         "image_size": 896},
    ),
    "pixtral": (
        "pixtral",
        {"hidden_size": 1024, "num_hidden_layers": 24, "intermediate_size": 4096, "patch_size": 16},
    ),
    "qwen": (
        "qwen2_5_vl",
        {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "patch_size": 14,
         "spatial_merge_size": 2, "temporal_patch_size": 2},
    ),
    "qwen3": (
        "qwen3_vl",
        {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "patch_size": 16,
         "spatial_merge_size": 2, "temporal_patch_size": 2, "num_position_embeddings": 2304},
    ),
    "minimax": (
        "minimax_m3",
        {"hidden_size": 1280, "num_hidden_layers": 32, "intermediate_size": 5120, "patch_size": 14},
    ),
    "kimi": (
        "kimi_k25",
        {"vt_hidden_size": 1152, "vt_num_hidden_layers": 27, "vt_intermediate_size": 4304},
    ),
    "glm": ("glm4v", {"depth": 24, "hidden_size": 1536, "patch_size": 14, "intermediate_size": 100}),
}  # fmt: skip
"""Defaults of transformers' classes of towers, written out."""

ONLY = {"glm": {"intermediate_size": 100}}
"""What a class does not default."""


@pytest.mark.parametrize("style", COUNTED)
def test_a_tower_counts_what_its_blocks_hold(style: str) -> None:
    kind, block, weights = COUNTED[style]
    assert tower_parameters({**SEES, "model_type": kind, "vision_config": block}, kind, HIDDEN) == weights


@pytest.mark.parametrize("style", DEFAULT)
def test_a_block_that_says_nothing_is_its_class_defaults(style: str) -> None:
    kind, block = DEFAULT[style]
    said = {**SEES, "model_type": kind, "vision_config": ONLY.get(style, {}) | {"patch_size": None}}
    whole = {**SEES, "model_type": kind, "vision_config": block}
    assert tower_parameters(said, kind, HIDDEN) == tower_parameters(whole, kind, HIDDEN) > 0


def test_a_model_sees_without_a_block_only_where_its_class_always_does() -> None:
    blind = {"architectures": ["XForCausalLM"]}
    for kind, sees in (("llama4", True), ("gemma3", True), ("pixtral", False), ("qwen3_vl", False)):
        assert (tower_parameters({**SEES, "model_type": kind}, kind, HIDDEN) > 0) == sees
        assert tower_parameters({**blind, "model_type": kind}, kind, HIDDEN) == 0
    assert tower_parameters({**blind, "model_type": "step3p5"}, "step3p5", HIDDEN) > 0
    assert tower_parameters({}, "llama", HIDDEN) == 0


def test_sound_is_counted_beside_the_tower_by_the_plain_rule() -> None:
    audio = {"d_model": 2, "encoder_layers": 3, "encoder_ffn_dim": 5}
    heard = 3 * (4 * 2 * 2 + 2 * 2 * 5) + 11 * (2 + 11)
    assert tower_parameters({"audio_config": audio}, "llama", HIDDEN) == heard
    both = {**SEES, "vision_config": BLOCK, "audio_config": audio}
    assert tower_parameters(both, "unheard_of", HIDDEN) == heard + COUNTED["no style"][2]
    four = 3 * (4 * 2 * 2 + 2 * 2 * 8) + 11 * (2 + 11)
    assert tower_parameters({"audio_config": {"width": 2, "layers": 3}}, "llama", HIDDEN) == four
    assert tower_parameters({"audio_config": {"width": 2}}, "llama", HIDDEN) == 0


def test_a_size_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="hidden_size is 'wide'"):
        tower_parameters({**SEES, "vision_config": BLOCK | {"hidden_size": "wide"}}, "pixtral", HIDDEN)
