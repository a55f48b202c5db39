"""Attention and state of all layers of a model on one GPU: each kind by its law, the kinds added up."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

from specfleet.hardware.kernels import (
    ELEMENTWISE_FLOOR_S,
    NO_PREFILL,
    AttentionShape,
    DecodeAttention,
    LatentShape,
    PrefillAttention,
    Rates,
    decode_attention,
    latent_decode_attention,
    prefill_attention,
    unmeasured_latent,
)
from specfleet.hardware.layers.attention import CompressedAttention, GroupedAttention, LatentAttention
from specfleet.hardware.layers.stack import Mixer, Recurrent
from specfleet.hardware.model import ModelSpec
from specfleet.hardware.placement import KV_TYPES, Placement

STATE_KERNELS = 2
"""Of a layer with a state: the convolution's update and the state's."""

STATE_BANDWIDTH_SHARE = 0.6
"""Of the bandwidth, at which states are read and written back: assumed, no measured table."""

STATE_PEAK_SHARE = 0.3
"""Of the dense peak in the chunked scan of a prompt: assumed, no measured table."""

Layers = tuple[Mixer, int, int]
"""A kind without its window, its layers, and those of them that read a window or a choice of tokens."""


def decode_coefficients(placement: Placement, model: ModelSpec, tp: int) -> DecodeAttention:
    """Decode attention of all layers of `model` on one GPU."""
    laws = [_decode(placement, *layers, tp) for layers in _by_kind(model)]
    return reduce(_add, laws) if laws else DecodeAttention(0.0, 0.0, 0.0, 0.0)


def prefill_coefficients(placement: Placement, model: ModelSpec, tp: int) -> PrefillAttention:
    """Prefill attention of all layers of `model` on one GPU; runs in BF16 at the measured FLOP rate.

    With latent attention every head has keys and values of its own, made from the latent, in 16 bits.
    """
    laws = [_prefill(placement, *layers, model.reach, tp) for layers in _by_kind(model)]
    return reduce(_add_prefill, laws) if laws else NO_PREFILL


def _by_kind(model: ModelSpec) -> Iterable[Layers]:
    found: dict[Mixer, list[int]] = {}
    for mixer, layers in model.mixers.items():
        counts = found.setdefault(mixer.unwindowed, [0, 0])
        counts[0] += layers
        counts[1] += layers if mixer.reach else 0
    return [(mixer, layers, within) for mixer, (layers, within) in found.items()]


def _rates(placement: Placement) -> Rates:
    gpu = placement.accelerator
    return Rates(gpu.hbm_bytes_per_s, gpu.flops_per_s["bfloat16"], gpu.sms)


def _decode(placement: Placement, mixer: Mixer, layers: int, within: int, tp: int) -> DecodeAttention:
    """One kind; what an indexer reads of every token comes on top."""
    constants = placement.constants.decode[KV_TYPES[placement.kv_element_bytes], placement.attention]
    rates = _rates(placement)
    if isinstance(mixer, LatentAttention):
        return _latent(placement, mixer, layers, within, tp)
    if isinstance(mixer, GroupedAttention):
        law = decode_attention(
            _grouped(placement, mixer, layers, within, 0, tp), constants, rates.bytes_per_s
        )
    elif isinstance(mixer, CompressedAttention):
        return _compressed(placement, mixer, layers, tp)
    else:
        return _state(placement, mixer, layers, tp)
    if index := mixer.index:
        rate = rates.bytes_per_s * constants.bandwidth_share
        law = law._replace(
            floor_s=law.floor_s + layers * constants.floor_s,
            kv_token_s=law.kv_token_s + layers * index.key_bytes / rate,
        )
    return law


def _latent(
    placement: Placement, mixer: LatentAttention, layers: int, within: int, tp: int
) -> DecodeAttention:
    """Latent layers as measured; the floor of an indexer, where they have one, is in theirs."""
    rates, element = _rates(placement), placement.kv_element_bytes
    shape = LatentShape(layers, mixer.heads // tp, mixer.kv_rank, mixer.rope_dim, element, within)
    index, found = mixer.index, placement.latent_constants(mixer.index is not None)
    if found is not None:
        law = latent_decode_attention(shape, found, rates)
        each = index.key_bytes / (rates.bytes_per_s * found.index_share) if index else 0.0
        return law._replace(kv_token_s=law.kv_token_s + layers * each)
    constants = placement.constants.decode[KV_TYPES[element], placement.attention]
    law = latent_decode_attention(shape, unmeasured_latent(constants), rates)
    if index is None:
        return law
    rate = rates.bytes_per_s * constants.bandwidth_share
    return law._replace(
        floor_s=law.floor_s + layers * constants.floor_s,
        kv_token_s=law.kv_token_s + layers * index.key_bytes / rate,
    )


def _grouped(
    placement: Placement, mixer: GroupedAttention, layers: int, within: int, window: int, tp: int
) -> AttentionShape:
    width = (mixer.head_dim + mixer.value_dim) // 2
    return AttentionShape(
        layers, mixer.heads // tp, mixer.kv_heads_on(tp), width, placement.kv_element_bytes, within, window
    )


def _compressed(placement: Placement, mixer: CompressedAttention, layers: int, tp: int) -> DecodeAttention:
    """Window and chosen entries are a constant a sequence; the rest of what a token leaves is read."""
    constants = placement.constants.decode[KV_TYPES[placement.kv_element_bytes], placement.attention]
    shape = LatentShape(layers, mixer.heads // tp, mixer.head_dim, 0, placement.kv_element_bytes, layers)
    law = latent_decode_attention(shape, unmeasured_latent(constants), _rates(placement))
    chosen = mixer.window + (mixer.index.topk if mixer.index else 0)
    cache = mixer.cache(tp, placement.kv_element_bytes)
    rate = placement.accelerator.hbm_bytes_per_s * constants.bandwidth_share
    left = cache.index_bytes if mixer.index else cache.elements * placement.kv_element_bytes
    return law._replace(
        sequence_s=law.sequence_s + chosen * law.window_token_s,
        kv_token_s=layers * left / rate,
        window_token_s=0.0,
        window_pair_s=0.0,
    )


def _state(placement: Placement, mixer: Recurrent, layers: int, tp: int) -> DecodeAttention:
    """A state is read and written once a sequence; every verified token has its own to fall back to."""
    rate = placement.accelerator.hbm_bytes_per_s * STATE_BANDWIDTH_SHARE
    held = mixer.cache(tp, placement.kv_element_bytes).state_bytes
    return DecodeAttention(
        floor_s=layers * STATE_KERNELS * ELEMENTWISE_FLOOR_S,
        sequence_s=layers * held / rate,
        kv_token_s=0.0,
        query_token_s=layers * held / rate,
    )


def _prefill(
    placement: Placement, mixer: Mixer, layers: int, within: int, reach: int, tp: int
) -> PrefillAttention:
    rates, constants = _rates(placement), placement.constants.prefill
    if isinstance(mixer, GroupedAttention):
        return prefill_attention(_grouped(placement, mixer, layers, within, reach, tp), constants, rates)
    if isinstance(mixer, LatentAttention):
        heads, width = mixer.heads // tp, (mixer.head_dim + mixer.v_head_dim) // 2
        return prefill_attention(
            AttentionShape(layers, heads, heads, width, 2, within, reach), constants, rates
        )
    if isinstance(mixer, CompressedAttention):
        heads = mixer.heads // tp
        shape = AttentionShape(
            layers, heads, 1, mixer.head_dim, placement.kv_element_bytes, layers, mixer.window
        )
        return prefill_attention(shape, constants, rates)
    per_token = layers * mixer.token_flops(tp) / (rates.flops_per_s * STATE_PEAK_SHARE)
    floor = layers * STATE_KERNELS * ELEMENTWISE_FLOOR_S
    return NO_PREFILL._replace(floor_s=floor, query_token_s=per_token)


def _add(one: DecodeAttention, other: DecodeAttention) -> DecodeAttention:
    return DecodeAttention(*(a + b for a, b in zip(one, other, strict=True)))


def _add_prefill(one: PrefillAttention, other: PrefillAttention) -> PrefillAttention:
    """Both; tiles and windows are those of the kinds, weighted by their arithmetic."""
    pairs = one.pair_s + other.pair_s
    if not pairs:
        return one._replace(
            floor_s=one.floor_s + other.floor_s, query_token_s=one.query_token_s + other.query_token_s
        )
    first, second = one.pair_s / pairs, other.pair_s / pairs
    return PrefillAttention(
        floor_s=one.floor_s + other.floor_s,
        pair_s=pairs,
        full_tiles=first * one.full_tiles + second * other.full_tiles,
        half_length=first * one.half_length + second * other.half_length,
        query_token_s=one.query_token_s + other.query_token_s,
        kv_token_s=one.kv_token_s + other.kv_token_s,
        windowed_share=first * one.windowed_share + second * other.windowed_share,
        window=max(one.window, other.window),
    )
