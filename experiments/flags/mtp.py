"""Multi-token prediction: which models bring layers for it, as vLLM 0.33.0 knows the families."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from specfleet.experiments.flags.facts import Config

ALIASES = (
    *("deepseek_mtp", "dots3_note_mtp", "mimo_mtp", "mimo_v2_mtp", "glm4_moe_mtp", "glm4_moe_lite_mtp"),
    *("glm_ocr_mtp", "ernie_mtp", "nemotron_h_mtp", "exaone_moe_mtp", "exaone4_5_mtp", "qwen3_next_mtp"),
    *("qwen4_exp_mtp", "qwen3_5_mtp", "longcat_flash_mtp", "bailing_hybrid_v3_mtp", "minimax_m3_mtp"),
    *("bailing_hybrid_mtp", "kimi_k3_mtp", "pangu_ultra_moe_mtp", "step3p5_mtp", "hy_v3_mtp", "hy_v4_mtp"),
    *("gemma4_mtp", "inkling_mtp", "glm5_next_mtp"),
)
"""Family names of the method; all mean `mtp`, whatever family the model is."""

_NEXTN = "num_nextn_predict_layers"


class Layers(NamedTuple):
    """The MTP layers of a model: what runs them, and how many there are (None: the config does not say)."""

    architecture: str
    number: int | None


_BY_TYPE: Mapping[str, tuple[str, str, int | None]] = {
    "deepseek_v3": ("DeepSeekMTPModel", _NEXTN, None),
    "deepseek_mtp": ("DeepSeekMTPModel", _NEXTN, None),
    "deepseek_v32": ("DeepseekV32MTPModel", _NEXTN, None),
    "glm_moe_dsa": ("DeepseekV32MTPModel", _NEXTN, None),
    "deepseek_v4": ("DeepSeekV4MTPModel", _NEXTN, None),
    "pangu_ultra_moe": ("OpenPanguMTPModel", _NEXTN, None),
    "kimi_k3": ("KimiK3MTPModel", _NEXTN, None),
    "dots3_note": ("Dots3NoteMTPModel", _NEXTN, 1),
    "ernie4_5_moe": ("ErnieMTPModel", _NEXTN, None),
    "nemotron_h": ("NemotronHMTPModel", _NEXTN, 0),
    "nemotron_h_puzzle": ("NemotronHMTPModel", _NEXTN, 0),
    "qwen3_next": ("Qwen3NextMTP", _NEXTN, None),
    "qwen4_exp": ("Qwen4ExpMTP", "mtp_num_hidden_layers", None),
    "qwen4_exp_text": ("Qwen4ExpMTP", "mtp_num_hidden_layers", None),
    "qwen3_5": ("Qwen3_5MTP", "mtp_num_hidden_layers", None),
    "qwen3_5_text": ("Qwen3_5MTP", "mtp_num_hidden_layers", None),
    "qwen3_5_moe": ("Qwen3_5MoeMTP", "mtp_num_hidden_layers", None),
    "qwen3_5_moe_text": ("Qwen3_5MoeMTP", "mtp_num_hidden_layers", None),
    "bailing_hybrid": ("BailingMoeV25MTPModel", _NEXTN, None),
    "exaone_moe": ("ExaoneMoeMTP", _NEXTN, None),
    "exaone4_5": ("Exaone4_5_MTP", _NEXTN, None),
    "longcat_flash": ("LongCatFlashMTPModel", _NEXTN, 1),
    "longcat_flash_ngram": ("LongCatFlashMTPModel", _NEXTN, 1),
    "step3p5": ("Step3p5MTP", _NEXTN, 1),
    "step3p7": ("Step3p5MTP", _NEXTN, 1),
    "hy_v3": ("HYV3MTPModel", _NEXTN, None),
    "hy_v4": ("HYV4MTPModel", _NEXTN, None),
    "minimax_m3_vl": ("MiniMaxM3MTP", "num_mtp_modules", 1),
    "minimax_m3_mtp": ("MiniMaxM3MTP", "num_mtp_modules", 1),
    "glm5_next": ("Glm5NextMTPModel", _NEXTN, None),
    "mimo_mtp": ("MiMoMTPModel", _NEXTN, None),
    "glm4_moe_mtp": ("Glm4MoeMTPModel", _NEXTN, None),
    "qwen3_next_mtp": ("Qwen3NextMTP", _NEXTN, None),
    "ernie_mtp": ("ErnieMTPModel", _NEXTN, None),
}
"""`model_type` -> architecture, key of the number of layers, and that number where the key is missing."""

_BY_ARCHITECTURE: Mapping[str, tuple[str, str, int | None]] = {
    "MiMoForCausalLM": ("MiMoMTPModel", _NEXTN, None),
    "Glm4MoeForCausalLM": ("Glm4MoeMTPModel", _NEXTN, None),
    "Glm4MoeLiteForCausalLM": ("Glm4MoeLiteMTPModel", _NEXTN, None),
    "GlmOcrForConditionalGeneration": ("GlmOcrMTPModel", _NEXTN, None),
    "BailingMoeV2_5ForCausalLM": ("BailingMoeV25MTPModel", _NEXTN, None),
    "BailingMoeV3ForCausalLM": ("BailingMoeV3MTPModel", _NEXTN, None),
    "BailingMoeV3VLForConditionalGeneration": ("BailingMoeV3MTPModel", _NEXTN, None),
    "Step3p5ForCausalLM": ("Step3p5MTP", _NEXTN, 1),
    "Step3p7ForConditionalGeneration": ("Step3p5MTP", _NEXTN, 1),
    "MiniMaxM3SparseForConditionalGeneration": ("MiniMaxM3MTP", "num_mtp_modules", 1),
}

_ONE_LAYER = {
    "MiMoV2ForCausalLM": "MiMoV2MTPModel",
    "MiMoV2FlashForCausalLM": "MiMoV2MTPModel",
    "MiMoV2OmniForCausalLM": "MiMoV2OmniMTPModel",
}
"""Families of which vLLM runs the first layer alone, whatever the config says."""


def mtp_layers(config: Config) -> Layers | None:
    """The MTP layers of a model; None where vLLM knows none for its family."""
    if config.architecture in _ONE_LAYER:
        return Layers(_ONE_LAYER[config.architecture], 1)
    if config.model_type in ("gemma4_assistant", "gemma4_unified_assistant"):
        return Layers("Gemma4MTPModel", 1)
    if config.model_type in ("inkling_mm_model", "inkling_model"):
        inner: Any = config.values.get("mtp_config") or {}
        count = inner.get(_NEXTN, 0)
        return Layers("InklingMTPModel", count) if count else None
    known = _BY_ARCHITECTURE.get(config.architecture) or _BY_TYPE.get(config.model_type)
    if known is None:
        return None
    architecture, key, otherwise = known
    count = config.text.get(key, otherwise)
    if count is None and key != _NEXTN:
        count = config.text.get(_NEXTN)
    if count == 0:
        return None
    return Layers(architecture, count if isinstance(count, int) else None)
