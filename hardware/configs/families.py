"""What is a family's own: defaults of its class in transformers, which layers see what, names of modules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Family:
    """A family of models, by the `model_type` of its text part.

    `defaults` stand for keys that its files leave out, `tied` for `tie_word_embeddings`. `pattern` N: without
    a list of layer types every N-th layer is full and the others are `other`; 0: all are full; -1: all have
    the window where one is given. `gated` says whether an MLP has a gate. `gate` is that of attention.
    `shared` names the shared experts' module, `experts` that of the routed ones, `mlp` that of a dense MLP.
    `moe` families route where their file does not say so.
    """

    defaults: Mapping[str, Any] = field(default_factory=dict)
    tied: bool = False
    pattern: int = 0
    other: str = "sliding"
    gated: bool = True
    gate: str = ""
    mlp: str = "mlp"
    experts: str = "mlp.experts"
    shared: str = "mlp.shared_experts"
    moe: bool = False
    state_bytes: int = 2


_GEMMA3 = {
    "vocab_size": 262_208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
    "max_position_embeddings": 131_072, "sliding_window": 4096, "hidden_size": 2304,
    "num_hidden_layers": 26, "intermediate_size": 9216,
}  # fmt: skip
_GEMMA3N = {
    "vocab_size": 262_400, "hidden_size": 2048, "intermediate_size": 16_384, "num_hidden_layers": 35,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "max_position_embeddings": 32_768,
    "sliding_window": 512, "vocab_size_per_layer_input": 262_144, "hidden_size_per_layer_input": 256,
    "altup_num_inputs": 4, "num_kv_shared_layers": 15, "laurel_rank": 64,
}  # fmt: skip
_GEMMA4 = {
    "vocab_size": 262_144, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
    "max_position_embeddings": 131_072, "sliding_window": 512, "global_head_dim": 512,
    "vocab_size_per_layer_input": 262_144, "hidden_size_per_layer_input": 256,
}  # fmt: skip
_LLAMA4 = {
    "vocab_size": 202_048, "hidden_size": 5120, "intermediate_size": 8192, "intermediate_size_mlp": 16_384,
    "num_hidden_layers": 48, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
    "max_position_embeddings": 131_072, "num_experts_per_tok": 1, "num_local_experts": 16,
    "interleave_moe_layer_step": 1, "attention_chunk_size": 8192, "no_rope_layer_interval": 4,
}  # fmt: skip
_LINEAR = {
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "full_attention_interval": 4, "head_dim": 256,
}  # fmt: skip
_MAMBA = {
    "mamba_d_conv": 4,
    "mamba_n_groups": 1,
    "mamba_expand": 2,
    "mamba_d_state": 256,
    "mamba_n_heads": 128,
}
_KIMI = {"first_k_dense_replace": 0}
_GPT_OSS = {
    "vocab_size": 201_088, "hidden_size": 2880, "intermediate_size": 2880, "num_attention_heads": 64,
    "num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128, "max_position_embeddings": 131_072,
    "num_local_experts": 128, "num_experts_per_tok": 4,
}  # fmt: skip

FAMILIES: Mapping[str, Family] = {
    **dict.fromkeys(("llama", "internlm3", "glm", "glm4", "ministral3", "seed_oss"), Family()),
    **dict.fromkeys(("olmo", "olmo2", "granite", "helium", "hunyuan_v1_dense", "yi"), Family()),
    **dict.fromkeys(("qwen2", "qwen2_vl", "qwen2_5_vl", "qwen3", "qwen3_vl", "mimo"), Family()),
    **dict.fromkeys(("qwen2_5_omni", "qwen2_5_omni_thinker", "internlm2", "exaone", "telechat3"), Family()),
    **dict.fromkeys(("arcee", "apertus", "nemotron"), Family(gated=False)),
    **dict.fromkeys(("phi3", "mistral", "ministral"), Family(pattern=-1)),
    **dict.fromkeys(("gemma", "smollm3", "ernie4_5"), Family(tied=True)),
    **dict.fromkeys(("ernie4_5_moe", "ernie4_5_moe_vl"), Family(tied=True, moe=True)),
    **dict.fromkeys(("mixtral", "phimoe"), Family(pattern=-1, moe=True, experts="block_sparse_moe.experts")),
    **dict.fromkeys(("glm4_moe", "glm4v_moe", "glm_moe_dsa"), Family(moe=True)),
    **dict.fromkeys(("bailing_moe", "bailing_moe_v2"), Family(moe=True)),
    **dict.fromkeys(("olmoe", "mimo_v2_flash", "longcat_flash", "solar_open"), Family(moe=True)),
    **dict.fromkeys(
        ("qwen2_moe", "qwen3_moe", "qwen3_vl_moe", "qwen3_omni_moe", "qwen3_omni_moe_thinker"),
        Family(moe=True, shared="mlp.shared_expert"),
    ),
    "starcoder2": Family(gated=False, tied=True, pattern=-1),
    "gemma2": Family({"sliding_window": 4096, "head_dim": 256}, tied=True, pattern=2),
    "gemma3": Family(_GEMMA3, tied=True, pattern=6),
    "gemma3n": Family(_GEMMA3N, tied=True, pattern=5),
    "gemma4": Family(_GEMMA4, tied=True, pattern=6, experts="experts", shared="mlp"),
    "cohere": Family(tied=True),
    "cohere2": Family({"sliding_window": 4096}, tied=True, pattern=4),
    "olmo3": Family({"sliding_window": 4096}, pattern=4),
    "olmo_hybrid": Family({"linear_conv_kernel_dim": 4}, pattern=4, other="linear"),
    "exaone4": Family({"sliding_window": 4096}, pattern=4),
    "exaone_moe": Family({"sliding_window": 4096, "first_k_dense_replace": 1}, pattern=4, moe=True),
    "qwen3_next": Family(_LINEAR, pattern=4, other="linear", gate="full", shared="mlp.shared_expert"),
    "qwen3_5": Family(_LINEAR, pattern=4, other="linear", gate="full", state_bytes=4),
    "qwen3_5_moe": Family(
        _LINEAR, pattern=4, other="linear", gate="full", moe=True, shared="mlp.shared_expert", state_bytes=4
    ),
    "gpt_oss": Family(_GPT_OSS, pattern=2, moe=True),
    "llama4": Family(
        _LLAMA4, pattern=4, other="chunked", moe=True, mlp="feed_forward", experts="feed_forward.experts",
        shared="feed_forward.shared_expert",
    ),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "mistral4", "dots1"), Family()),
    "mistral_large4": Family({"first_k_dense_replace": 1}, moe=True),
    "kimi_linear": Family(_KIMI, moe=True, state_bytes=4, experts="block_sparse_moe.experts",
                          shared="block_sparse_moe.shared_experts"),
    "deepseek_v4": Family(
        {"o_groups": 8, "o_lora_rank": 1024, "index_head_dim": 128, "index_n_heads": 64, "index_topk": 512,
         "sliding_window": 128, "hc_mult": 4, "head_dim": 512},
        moe=True,
    ),
    "glm4_moe_lite": Family({"first_k_dense_replace": 1}, moe=True),
    "minimax_m2": Family(moe=True, experts="block_sparse_moe.experts"),
    "minimax_m3_vl": Family(
        moe=True, experts="block_sparse_moe.experts", shared="block_sparse_moe.shared_experts"
    ),
    "minimax": Family(pattern=2, other="lightning", moe=True, experts="block_sparse_moe.experts"),
    "minimax_text_01": Family(
        pattern=8, other="lightning", moe=True, experts="block_sparse_moe.experts"
    ),
    "hunyuan_v1_moe": Family(moe=True, shared="mlp.shared_mlp"),
    "granitemoe": Family(moe=True, experts="block_sparse_moe"),
    "granitemoehybrid": Family(_MAMBA, other="mamba", experts="block_sparse_moe", shared="shared_mlp"),
    "bamba": Family(_MAMBA, other="mamba", mlp="feed_forward"),
    "falcon_h1": Family(_MAMBA, mlp="feed_forward"),
    "lfm2": Family(tied=True, mlp="feed_forward"),
    "lfm2_moe": Family(
        tied=True, moe=True, mlp="feed_forward", experts="feed_forward.experts"
    ),
    "nemotron_h": Family(gated=False, mlp="mixer", experts="mixer.experts", shared="mixer.shared_experts",
                         state_bytes=4),
    "nemotron_nas": Family(),
    "step3p5": Family(
        {"sliding_window": 512}, moe=True, gate="head", shared="mlp.share_expert", experts="mlp.moe"
    ),
    "afmoe": Family(pattern=4, moe=True, gate="full"),
    "hy_v3": Family({"first_k_dense_replace": 1}, moe=True),
    "bailing_hybrid": Family(moe=True, state_bytes=4),
}  # fmt: skip
"""By `model_type`. Sources: the configuration and modelling files of transformers 5.24 and vLLM's models."""

SAME_AS = {
    "step3p7": "step3p5", "step3p7_flash": "step3p5", "step3_5": "step3p5", "step3_7": "step3p5",
    "minimax_m3": "minimax_m3_vl", "minimax_m3_sparse": "minimax_m3_vl", "minimax_m1": "minimax_text_01",
    "kimi_k25": "deepseek_v3", "kimi_k3": "kimi_linear", "mimo_v2": "mimo_v2_flash",
    "deci": "nemotron_nas", "decilm": "nemotron_nas",
    "qwen3_5_next": "qwen3_next", "command_r": "cohere",
    "longcat": "longcat_flash", "gemma4_unified": "gemma4",
    "glm4v": "glm4", "glm46v": "glm4_moe", "phi4mm": "phi3",
    "mistral_large3": "deepseek_v3",
    "deepseek_vl_v2": "deepseek_v2", "hunyuan": "hunyuan_v1_moe",
}  # fmt: skip
"""Other names of the same layers."""

BY_ARCHITECTURE = {
    "Llama": "llama", "Mistral": "mistral", "Mixtral": "mixtral", "Qwen2": "qwen2", "Qwen3": "qwen3",
    "Qwen2Moe": "qwen2_moe", "Qwen3Moe": "qwen3_moe", "GptOss": "gpt_oss", "Glm4Moe": "glm4_moe",
    "MiniMaxM2": "minimax_m2", "DeepseekV2": "deepseek_v2", "DeepseekV3": "deepseek_v3",
    "DeepseekV32": "deepseek_v32", "DeepseekV4": "deepseek_v4", "GlmMoeDsa": "glm_moe_dsa",
    "Qwen3Next": "qwen3_next", "Phi3": "phi3", "Gemma2": "gemma2", "Gemma3": "gemma3",
    "Gemma4": "gemma4", "NemotronH": "nemotron_h", "KimiLinear": "kimi_linear",
    "MiMoV2Flash": "mimo_v2_flash",
    "Step3p7Flash": "step3p5", "Step3p5": "step3p5", "Exaone4": "exaone4", "Olmo2": "olmo2", "Olmo3": "olmo3",
    "DeciLM": "nemotron_nas", "Cohere2": "cohere2", "Cohere": "cohere", "Glm4MoeLite": "glm4_moe_lite",
    "MiniMaxM3Sparse": "minimax_m3_vl", "Llama4": "llama4", "SeedOss": "seed_oss", "PhiMoE": "phimoe",
    "MiniMaxText01": "minimax_text_01", "MiniMaxM1": "minimax_text_01", "BailingMoeV2": "bailing_moe_v2",
    "BailingMoe": "bailing_moe", "MiMo": "mimo", "Granite": "granite", "Ernie4_5_Moe": "ernie4_5_moe",
    "Ernie4_5": "ernie4_5", "HunYuanMoEV1": "hunyuan_v1_moe", "HunYuanDenseV1": "hunyuan_v1_dense",
    "FalconH1": "falcon_h1", "GraniteMoeHybrid": "granitemoehybrid", "Bamba": "bamba", "Lfm2": "lfm2",
    "Lfm2Moe": "lfm2_moe", "OlmoHybrid": "olmo_hybrid", "LongcatFlash": "longcat_flash", "Dots1": "dots1",
    "Mistral4": "mistral4", "ExaoneMoE": "exaone_moe", "Olmoe": "olmoe", "OLMoE": "olmoe",
    "Nemotron": "nemotron",
    "Qwen3_5": "qwen3_5", "Qwen3_5Moe": "qwen3_5_moe", "Gemma3n": "gemma3n", "InternLM3": "internlm3",
    "InternLM2": "internlm2", "Starcoder2": "starcoder2", "Afmoe": "afmoe",
    "HYV3": "hy_v3", "SolarOpen": "solar_open", "Exaone": "exaone",
}  # fmt: skip
"""Text models by the name of their class without `ForCausalLM`, for files that name no `model_type`."""


def family_name(model_type: object, architectures: list[Any]) -> str | None:
    """The key of `FAMILIES` for a `model_type`, or for a class name where that is unknown; else None."""
    kind = str(model_type or "").lower().removesuffix("_text")
    kind = SAME_AS.get(kind, kind)
    if kind in FAMILIES:
        return kind
    for name in architectures:
        for ending in ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel"):
            known = BY_ARCHITECTURE.get(str(name).removesuffix(ending))
            if known in FAMILIES:
                return known
    return None
