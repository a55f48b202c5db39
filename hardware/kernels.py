"""Kernel times: GEMM, decode attention, prefill attention, elementwise. Formulas only.

Each formula was fitted to measured kernel tables (see `measured/README.md`); the fitted shares multiply the
datasheet rates of the GPU at hand. Rows M are float arrays, times are seconds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specfleet.hardware.constants import DecodeConstants, GemmConstants, LatentConstants, PrefillConstants

Array = NDArray[np.float64]

TILES = ((128, 256), (128, 128), (64, 128))
"""Output tiles (rows, columns) a Hopper GEMM chooses from."""

ELEMENTWISE_FLOOR_S = 3e-6
ELEMENTWISE_BANDWIDTH_SHARE = 0.8
ATTENTION_QUERY_TILE = 128


class Rates(NamedTuple):
    """What shares of a law multiply: bytes a second, dense FLOP a second in the type at hand, SMs."""

    bytes_per_s: float
    flops_per_s: float
    sms: int


class AttentionShape(NamedTuple):
    """Attention of a layer stack on one GPU: heads are those on the GPU, a KV element has `kv_bytes`.

    `windowed` of the layers see at most `window` keys a query.
    """

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    kv_bytes: int
    windowed: int = 0
    window: int = 0


class LatentShape(NamedTuple):
    """Multi-head latent attention of a layer stack on one GPU: a token is `latent + rope` values.

    `windowed` of the layers read a choice of tokens only (sparse attention).
    """

    layers: int
    heads: int
    latent: int
    rope: int
    kv_bytes: int
    windowed: int = 0


class GemmParts(NamedTuple):
    """One GEMM by rows: floor, time to stream its bytes, what arithmetic and quantisation add."""

    floor_s: Array
    stream_s: Array
    extra_s: Array


def wave_quantisation(rows: Array, columns: int, sms: int) -> Array:
    """Work of the best tiling over useful work, at least 1: idle SMs in the last wave, empty tile rows.

    Below 64 rows a tile is never better than 64 / M full, hence the second bound.
    """
    useful = rows * columns
    per_tiling = [
        np.ceil(np.ceil(rows / tile_rows) * np.ceil(columns / tile_columns) / sms)
        * (sms * tile_rows * tile_columns)
        / useful
        for tile_rows, tile_columns in TILES
    ]
    best = np.minimum.reduce(per_tiling)
    return np.where(rows < 64, np.minimum(best, 64 / rows), best)


def gemm(
    rows: Array,
    columns: int,
    depth: int,
    *,
    weight_bytes: float,
    constants: GemmConstants,
    rates: Rates,
    factor: Array | float = 1.0,
    input_bytes: float | None = None,
) -> GemmParts:
    """Time of (M x depth) @ (depth x columns) in the "full" form.

    `t = t0 + (tb^p + tc^p)^(1/p) + tq`, with tb the bytes of weights, inputs and outputs at the bandwidth
    share, tc the arithmetic times `1 + w (min(q, 3) - 1)` for tile and wave quantisation q, and tq the passes
    over the input that quantise it (FP8 only). `input_bytes` are those of one input value, where they are not
    those of a weight. `factor` multiplies everything: what a measured table adds
    (`gemmtable.py`). Mean error without one 7 % (BF16), 9 % (FP8).
    """
    rate = rates.bytes_per_s * constants.bandwidth_share
    read = weight_bytes if input_bytes is None else input_bytes
    moved = columns * depth * weight_bytes + rows * (depth * read) + rows * (2 * columns)
    stream = moved / rate
    waste = np.minimum(wave_quantisation(rows, columns, rates.sms), 3.0)
    arithmetic = (
        2.0 * rows * columns * depth * (1.0 + constants.wave_weight * (waste - 1.0))
        / (rates.flops_per_s * constants.peak_share)
    )  # fmt: skip
    exponent = constants.smooth_exponent
    smooth = (stream**exponent + arithmetic**exponent) ** (1.0 / exponent)
    quantise = constants.quantise_passes * 3.0 * rows * depth / rate
    return GemmParts(
        np.broadcast_to(np.float64(constants.floor_s), rows.shape) * factor,
        factor * stream,
        factor * (smooth - stream + quantise),
    )


def elementwise_s(moved_bytes: Array, bytes_per_s: float) -> Array:
    """Seconds of a norm or an activation beyond its floor: bytes at 0.8 of the bandwidth.

    The floor of 3 us per kernel is `ELEMENTWISE_FLOOR_S`. Not measured: the convention of the kernel tables.
    """
    return moved_bytes / (ELEMENTWISE_BANDWIDTH_SHARE * bytes_per_s)


class DecodeAttention(NamedTuple):
    """Decode attention of a layer stack, linear in what a batch holds; seconds per unit.

    `kv_token_s` is a KV token read in the layers without a window, `window_token_s` one in those with one.
    `pair_s` is the arithmetic of a (query, KV token) pair: zero where it never limits (`window_pair_s`: in
    layers that read a window, or a choice of tokens).
    """

    floor_s: float
    sequence_s: float
    kv_token_s: float
    query_token_s: float
    window_token_s: float = 0.0
    pair_s: float = 0.0
    window_pair_s: float = 0.0

    def times(self, scale: float) -> DecodeAttention:
        """All times multiplied."""
        return DecodeAttention(*(scale * time for time in self))


def decode_attention(
    shape: AttentionShape, constants: DecodeConstants, bytes_per_s: float
) -> DecodeAttention:
    """Coefficients of `t = t0 + c B kv_heads + bytes / (share x bandwidth)` for all layers of one GPU.

    Bytes are keys and values, read once per sequence however many queries it verifies, and queries and
    outputs (2 bytes each). Windowed layers read their window only. Mean error 8 % (rows with BF16 KV).
    """
    rate = bytes_per_s * constants.bandwidth_share
    width = 2 * shape.kv_heads * shape.head_dim * shape.kv_bytes
    return DecodeAttention(
        floor_s=shape.layers * constants.floor_s,
        sequence_s=shape.layers * shape.kv_heads * constants.sequence_head_s,
        kv_token_s=(shape.layers - shape.windowed) * width / rate,
        query_token_s=shape.layers * (2 * shape.heads * shape.head_dim * 2) / rate,
        window_token_s=shape.windowed * width / rate,
    )


def latent_decode_attention(shape: LatentShape, constants: LatentConstants, rates: Rates) -> DecodeAttention:
    """The same with multi-head latent attention (MLA) in its absorbed form: one shared "KV head".

    A token is read once for all heads and queries; every query of every head multiplies with all its values
    and sums `latent` of them, 2 FLOP each, which can take longer than reading. Median error 4 to 7 % of whole
    layers on H100 and H200, 9 to 14 % on B200, against the tables that the constants were fitted on
    (`measured/latent.json`).
    """
    rate = rates.bytes_per_s * constants.bandwidth_share
    layers, heads, latent, rope = shape.layers, shape.heads, shape.latent, shape.rope
    pair_flops, peak = 2.0 * heads * (2 * latent + rope), rates.flops_per_s * constants.peak_share
    return DecodeAttention(
        floor_s=layers * constants.floor_s,
        sequence_s=layers * constants.sequence_s,
        kv_token_s=(layers - shape.windowed) * ((latent + rope) * shape.kv_bytes) / rate,
        query_token_s=layers * (heads * (2 * latent + rope) * 2) / rate,
        window_token_s=shape.windowed * ((latent + rope) * shape.kv_bytes) / rate,
        pair_s=(layers - shape.windowed) * pair_flops / peak,
        window_pair_s=shape.windowed * pair_flops / peak,
    )


def unmeasured_latent(constants: DecodeConstants) -> LatentConstants:
    """Constants of latent attention where none were measured: time a sequence and share of bandwidth as in
    grouped-query attention, 0.6 of the peak (FlashMLA publishes 580 to 660 TFLOP/s on an H800 of 989), and a
    floor between what was measured elsewhere (16 to 70 us a layer)."""
    share = constants.bandwidth_share
    return LatentConstants(30e-6, constants.sequence_head_s, share, 0.6, share)


class PrefillAttention(NamedTuple):
    """Prefill attention of a layer stack; seconds per unit, `full_tiles` query tiles fill the GPU.

    `windowed_share` of the layers see at most `window` keys a query.
    """

    floor_s: float
    pair_s: float
    full_tiles: float
    half_length: float
    query_token_s: float
    kv_token_s: float
    windowed_share: float = 0.0
    window: int = 0

    def times(self, scale: float) -> PrefillAttention:
        """All times multiplied."""
        return self._replace(
            floor_s=scale * self.floor_s, pair_s=scale * self.pair_s,
            query_token_s=scale * self.query_token_s, kv_token_s=scale * self.kv_token_s,
        )  # fmt: skip


NO_PREFILL = PrefillAttention(0.0, 0.0, 1.0, 0.0, 0.0, 0.0)
"""Of a drafter without attention."""


def prefill_attention(shape: AttentionShape, constants: PrefillConstants, rates: Rates) -> PrefillAttention:
    """Coefficients of `t = t0 + flops / (peak e util) (1 + s_half / S) + mm bytes / bandwidth`, all layers.

    4 x head_dim FLOP a (query, key) pair and head; util = min(1, heads x query tiles of 128 / SMs). Bytes are
    queries and outputs of the chunk, keys and values of its whole context. Mean error 6 %.
    """
    rate = rates.bytes_per_s / constants.memory_multiple
    layers, heads, head_dim = shape.layers, shape.heads, shape.head_dim
    return PrefillAttention(
        floor_s=layers * constants.floor_s,
        pair_s=layers * (4.0 * heads * head_dim) / (rates.flops_per_s * constants.peak_share),
        full_tiles=rates.sms / heads,
        half_length=constants.half_length,
        query_token_s=layers * (2 * heads * head_dim * 2) / rate,
        kv_token_s=layers * (2 * shape.kv_heads * head_dim * shape.kv_bytes) / rate,
        windowed_share=shape.windowed / layers,
        window=shape.window,
    )
