"""Drafters made from a target's shape: what a head trained for it the usual way looks like."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from specfleet.hardware.layers.stack import LayerRun, Recurrent
from specfleet.hardware.model import DrafterSpec, ModelSpec

EAGLE3_VOCABULARY = 32_000
MOE_MLP_MULTIPLE = 6
MEDUSA_HEADS = 4
_NOT_COPIED = (
    *(
        "num_experts",
        "num_experts_per_tok",
        "num_dense_layers",
        "router_bias",
        "num_windowed_layers",
        "sliding_window",
    ),
    *("kv_lora_rank", "vision_parameters", "mtp_layers", "extra_parameters"),
)


def reads_target(drafter: DrafterSpec) -> bool:
    """Whether it reads the target's hidden states, and so shares its positions."""
    return drafter.fuses or drafter.method == "medusa"


def scales_positions(drafter: DrafterSpec) -> bool:
    """Whether its positions are stretched (YaRN), so that an engine cannot raise them further."""
    return drafter.model is not None and drafter.model.rope.kind not in ("default", "linear", "llama3")


def one_layer(target: ModelSpec, **changes: int) -> ModelSpec:
    """One dense layer as wide as the target's, in 16 bits; `changes` are fields of the record.

    A mixture of experts has no dense MLP to copy; published heads for such targets (gpt-oss, Qwen3 MoE) use
    6 x the hidden size. Latent attention is not copied either: the head has heads of 128 and 8 KV heads.
    """
    shape: dict[str, Any] = dict.fromkeys(_NOT_COPIED, 0) | {"num_layers": 1, "stack": ()}
    if target.num_experts:
        shape["intermediate_size"] = MOE_MLP_MULTIPLE * target.hidden_size
    if target.kv_lora_rank:
        shape |= {"num_heads": target.hidden_size // 128, "num_kv_heads": 8, "head_dim": 128}
    return replace(target, **(shape | changes), checkpoint_quantization=None)


def eagle3_for(target: ModelSpec) -> DrafterSpec:
    """An EAGLE-3 head: one layer on (embedding, hidden state), `fc` 3h -> h, 32,000 draft tokens.

    It shares the target's embedding; heads that bring their own say so (`own_embedding: true`).
    """
    return DrafterSpec(
        name=f"eagle3-for-{target.name}",
        hf_id="",
        method="eagle3",
        model=one_layer(target, qkv_input_multiple=2),
        source=f"made from the shape of {target.name}: one layer, fc 3h -> h, 32,000-token head",
        fc_input_multiple=3,
        target_hidden_size=target.hidden_size,
        draft_vocab_size=min(EAGLE3_VOCABULARY, target.vocab_size),
        max_model_len=target.max_position_embeddings,
    )


def eagle_for(target: ModelSpec) -> DrafterSpec:
    """An EAGLE-1 head: one layer behind `fc` 2h -> h, the target's embedding and (whole) LM head."""
    return DrafterSpec(
        name=f"eagle-for-{target.name}",
        hf_id="",
        method="eagle",
        model=one_layer(target),
        source=f"made from the shape of {target.name}: one layer, fc 2h -> h, embedding and LM head shared",
        fc_input_multiple=2,
        target_hidden_size=target.hidden_size,
        draft_vocab_size=target.vocab_size,
        own_lm_head=False,
        max_model_len=target.max_position_embeddings,
    )


BLOCK_DRAFTER_LAYERS = 5
"""Layers, and hidden states of the target that `fc` reads: z-lab/Qwen3-8B-DFlash-b16 and
deepseek-ai/dspark_qwen3_8b_block7, config.json of both."""


def dflash_for(target: ModelSpec) -> DrafterSpec:
    """A DFlash drafter: five layers as wide as the target's that fill a block of masked tokens in one pass.

    `fc` 5h -> h reads the target's hidden states; embedding and LM head are the target's.
    """
    return _block_drafter(target, "dflash")


def dspark_for(target: ModelSpec) -> DrafterSpec:
    """A DSpark drafter: as DFlash; the small head that links the drafts of a block (rank 256) is left out."""
    return _block_drafter(target, "dspark")


def _block_drafter(target: ModelSpec, method: str) -> DrafterSpec:
    return DrafterSpec(
        name=f"{method}-for-{target.name}",
        hf_id="",
        method=method,
        model=one_layer(target, num_layers=BLOCK_DRAFTER_LAYERS),
        source=f"made from the shape of {target.name}: five layers, fc 5h -> h, embedding and LM head shared",
        fc_input_multiple=BLOCK_DRAFTER_LAYERS,
        target_hidden_size=target.hidden_size,
        draft_vocab_size=target.vocab_size,
        own_lm_head=False,
        max_model_len=target.max_position_embeddings,
        parallel_drafting=True,
    )


def mtp_for(target: ModelSpec) -> DrafterSpec:
    """A multi-token-prediction module, recycled for every draft: one more layer of the target's last kind.

    A projection 2h -> h joins embedding and hidden state; embedding and LM head are the target's
    (DeepSeek-V3: 11.5e9 weights of its own).
    """
    windowed = min(1, target.num_windowed_layers)
    one = replace(target, num_layers=1, num_dense_layers=0, num_windowed_layers=windowed, mtp_layers=0)
    if target.stack:
        one = replace(one, stack=(_last_kind(target),), num_windowed_layers=0, extra_parameters=0)
    return DrafterSpec(
        name=f"mtp-for-{target.name}",
        hf_id="",
        method="mtp",
        model=one,
        source=f"made from the shape of {target.name}: one more layer, projection 2h -> h",
        fc_input_multiple=2,
        target_hidden_size=target.hidden_size,
        draft_vocab_size=target.vocab_size,
        own_lm_head=False,
        max_model_len=target.max_position_embeddings,
    )


def _last_kind(target: ModelSpec) -> LayerRun:
    """One layer with the target's last attention (no state) and its last feed-forward."""
    attention = [run for run in target.stack if any(not isinstance(m, Recurrent) for m in run.mixers)]
    feeding = [run for run in target.stack if run.feed_forward]
    last = (attention or list(target.stack))[-1]
    formats = dict((*feeding[-1].formats, *last.formats)) if feeding else dict(last.formats)
    feed_forward = feeding[-1].feed_forward if feeding else None
    return LayerRun(1, last.mixers, feed_forward, tuple(formats.items()))


def medusa_for(target: ModelSpec) -> DrafterSpec:
    """Four Medusa heads, each h x h and an LM head over the whole vocabulary; all drafts in one pass."""
    return DrafterSpec(
        name=f"medusa-for-{target.name}",
        hf_id="",
        method="medusa",
        model=None,
        source=f"made from the shape of {target.name}: 4 heads of h x h and vocabulary x h",
        target_hidden_size=target.hidden_size,
        draft_vocab_size=target.vocab_size,
        parallel_drafting=True,
        medusa_heads=MEDUSA_HEADS,
    )


MAKERS: Mapping[str, Callable[[ModelSpec], DrafterSpec]] = {
    "eagle3_for": eagle3_for,
    "eagle_for": eagle_for,
    "mtp_for": mtp_for,
    "dflash_for": dflash_for,
    "dspark_for": dspark_for,
    "medusa_for": medusa_for,
}
"""Inline forms, `{eagle3_for: MODEL}`; further keys change the record that comes out."""
