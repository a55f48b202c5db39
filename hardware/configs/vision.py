"""Weights of what a model sees and hears with: towers and projectors, counted from their blocks."""

from __future__ import annotations

from specfleet.hardware.configs.keys import Config, block, count, first

DEFAULTS: dict[str, dict[str, int]] = {
    "llama4": {"hidden_size": 768, "num_hidden_layers": 34, "intermediate_size": 5632, "image_size": 448,
               "patch_size": 14, "vision_output_dim": 7680, "projector_output_dim": 4096,
               "projector_input_dim": 4096},
    "step": {"hidden_size": 1536, "num_hidden_layers": 47, "intermediate_size": 8960, "patch_size": 14,
             "image_size": 728},
    "gemma4": {"hidden_size": 768, "num_hidden_layers": 16, "intermediate_size": 3072, "patch_size": 16,
               "position_embedding_size": 10_240},
    "siglip": {"hidden_size": 1152, "num_hidden_layers": 27, "intermediate_size": 4304, "patch_size": 14,
               "image_size": 896},
    "pixtral": {"hidden_size": 1024, "num_hidden_layers": 24, "intermediate_size": 4096, "patch_size": 16},
    "qwen": {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "patch_size": 14,
             "spatial_merge_size": 2, "temporal_patch_size": 2},
    "qwen3": {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "patch_size": 16,
              "spatial_merge_size": 2, "temporal_patch_size": 2, "num_position_embeddings": 2304},
    "minimax": {"hidden_size": 1280, "num_hidden_layers": 32, "intermediate_size": 5120, "patch_size": 14},
    "kimi": {"vt_hidden_size": 1152, "vt_num_hidden_layers": 27, "vt_intermediate_size": 4304,
             "patch_size": 14},
    "glm": {"depth": 24, "hidden_size": 1536, "patch_size": 14},
    "": {},
}  # fmt: skip
"""What a tower's class takes where its block says nothing."""

STYLES = {
    "llama4": "llama4", "step3p5": "step", "gemma4": "gemma4", "gemma3": "siglip", "mistral3": "pixtral",
    "pixtral": "pixtral", "qwen2_vl": "qwen", "qwen2_5_vl": "qwen", "qwen3_vl": "qwen3",
    "qwen3_vl_moe": "qwen3",
    "qwen3_5": "qwen3", "qwen3_5_moe": "qwen3", "kimi_k25": "kimi", "kimi_k3": "kimi",
    "minimax_m3_vl": "minimax", "minimax_m3": "minimax",
    "mistral4": "pixtral", "glm4v_moe": "glm", "glm4v": "glm", "glm46v": "glm",
}  # fmt: skip
"""Styles of towers by the model's `model_type`."""


def tower_parameters(config: Config, name: str, hidden: int) -> int:
    """Weights of a model's image tower with its projector to `hidden`; 0 where it has none.

    A tower that none of the styles covers is counted as L layers of 4 d x d and 2 d x f with a projector of
    two layers. Sound is counted by the same rule from `audio_config`.
    """
    style = next((STYLES[key] for key in (str(config.get("model_type")), name) if key in STYLES), "")
    sees = str(config.get("architectures") or "").find("ForConditionalGeneration") >= 0 or style == "step"
    vision = block(config, "vision_config")
    named = block(config, "vision_config") or (
        style if sees and style in ("llama4", "step", "siglip") else {}
    )
    said = {key: value for key, value in vision.items() if value is not None}
    total = _tower({**DEFAULTS[style], **said}, style, hidden) if named else 0
    audio = block(config, "audio_config")
    return total + (_plain(audio, hidden) if audio else 0)


def _tower(tower: Config, style: str, hidden: int) -> int:
    if not style:
        return _plain(tower, hidden)
    if style == "glm":
        width, out = count(tower, "hidden_size"), count(tower, "out_hidden_size", hidden)
        layer = 4 * width**2 + 3 * width * out
        merger = out * (out + 4 * width) + 3 * out * count(tower, "intermediate_size")
        return count(tower, "depth") * layer + merger + width * 6 * count(tower, "patch_size") ** 2
    if style in ("qwen", "qwen3"):
        return _qwen(tower, style, hidden)
    if style == "kimi":
        width, deep, wide = (
            count(tower, f"vt_{key}") for key in ("hidden_size", "num_hidden_layers", "intermediate_size")
        )
        merged, heads = 4 * width, count(tower, "qkv_hidden_size", width)
        layer = 4 * width * heads + 2 * width * wide + 6 * width
        return deep * layer + merged * (merged + hidden) + width * 4700
    width, deep = count(tower, "hidden_size"), count(tower, "num_hidden_layers")
    wide, patch = count(tower, "intermediate_size"), 3 * count(tower, "patch_size") ** 2
    layer = 4 * width**2 + 2 * width * wide
    if style == "llama4":
        out, inner = count(tower, "vision_output_dim"), count(tower, "projector_output_dim")
        adapter = wide * count(tower, "projector_input_dim") + inner * count(tower, "projector_input_dim")
        return deep * layer + width * (patch + 1025) + adapter + hidden * out
    if style == "step":
        down = 9 * (2 * width * width + 4 * width * 2 * width)
        return deep * layer + width * (patch + 2704) + down + hidden * 4 * width
    if style == "minimax":
        return deep * layer + width * 2 * patch + hidden * width + 6 * hidden**2
    if style in ("pixtral", "gemma4"):
        gated = deep * (4 * width**2 + 3 * width * wide)
        if style == "gemma4":
            return gated + width * (patch + 2 * count(tower, "position_embedding_size")) + hidden * width
        return gated + width * patch + 4 * width * width + hidden * (width + hidden)
    if style == "siglip":
        positions = (count(tower, "image_size") // count(tower, "patch_size")) ** 2
        return deep * (layer + 9 * width) + width * (patch + positions + hidden)
    return _plain(tower, hidden)


def _qwen(tower: Config, style: str, hidden: int) -> int:
    """Qwen2-VL to Qwen3.5: patches over two frames, a merger of 2 x 2, mergers of deeper layers."""
    deep = count(tower, first(tower, "depth", "num_hidden_layers"))
    width = count(tower, first(tower, "embed_dim", "hidden_size"))
    wide = 4 * width if "embed_dim" in tower else count(tower, "intermediate_size")
    merged = width * count(tower, "spatial_merge_size") ** 2
    out = count(tower, "out_hidden_size", hidden) if "embed_dim" not in tower else hidden
    patches = width * 3 * count(tower, "temporal_patch_size") * count(tower, "patch_size") ** 2
    gates = 3 if style == "qwen" and "embed_dim" not in tower else 2
    mergers = 1 + len(tower.get("deepstack_visual_indexes") or ())
    places = width * count(tower, "num_position_embeddings", 0)
    layer = 4 * width**2 + gates * width * wide + 9 * width + wide
    return deep * layer + patches + places + mergers * merged * (merged + out)


def _plain(tower: Config, hidden: int) -> int:
    width = count(tower, first(tower, "hidden_size", "embed_dim", "width", "d_model"), 0)
    deep = count(tower, first(tower, "num_hidden_layers", "depth", "layers", "encoder_layers"), 0)
    wide = count(tower, first(tower, "intermediate_size", "encoder_ffn_dim"), 4 * width)
    return deep * (4 * width**2 + 2 * width * wide) + hidden * (width + hidden) if width and deep else 0
