"""Fits the kernel laws of `kernels.py` and `interconnect.py` to timed rows, and says how well they fit.

Every fit minimises the soft L1 loss of the logarithm of measured over predicted time, so that a kernel of
5 us counts as much as one of 5 ms. Rows of a table are arrays of one length; times are seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from specfleet.hardware.constants import AllReduceLaw, DecodeConstants, GemmConstants, PrefillConstants
from specfleet.hardware.interconnect import all_reduce_s
from specfleet.hardware.kernels import (
    ATTENTION_QUERY_TILE,
    AttentionShape,
    Rates,
    decode_attention,
    gemm,
    prefill_attention,
)
from specfleet.hardware.leastsquares import Parameter, robust_fit

Array = NDArray[np.float64]
Law = TypeVar("Law")
_US = 1e-6
_NS = 1e-9
_PER_MB = 1e-12


class GemmTimes(NamedTuple):
    """(rows x depth) @ (depth x columns) with weights of `weight_bytes` an element."""

    rows: Array
    columns: Array
    depth: Array
    seconds: Array
    weight_bytes: int = 2


class AttentionTimes(NamedTuple):
    """Attention of `batch` sequences of `context` KV tokens each, `query` new tokens a sequence.

    Prefill without a past has `query == context`. KV elements have `kv_bytes`.
    """

    batch: Array
    context: Array
    query: Array
    heads: Array
    kv_heads: Array
    head_dim: Array
    seconds: Array
    kv_bytes: int = 2

    def where(self, chosen: NDArray[np.bool_]) -> AttentionTimes:
        """The chosen rows."""
        return AttentionTimes(
            self.batch[chosen],
            self.context[chosen],
            self.query[chosen],
            self.heads[chosen],
            self.kv_heads[chosen],
            self.head_dim[chosen],
            self.seconds[chosen],
            self.kv_bytes,
        )

    @property
    def kv_set_bytes(self) -> Array:
        """Bytes of keys and values that a row reads."""
        return 2.0 * self.batch * self.context * self.kv_heads * self.head_dim * self.kv_bytes


class FitError(NamedTuple):
    """Errors of a law on `rows` rows in percent: mean and 90th percentile of the absolute, median signed.

    A positive bias is a law that predicts too much.
    """

    rows: int
    mape_pct: float
    p90_pct: float
    bias_pct: float


class QueryCost(NamedTuple):
    """What one more query token of a sequence adds to decode attention, relative to its time.

    `value` fits all rows; `p10` and `p90` bound the middle of the single rows.
    """

    value: float
    p10: float
    p90: float


def fit_error(predicted: Array, measured: Array) -> FitError:
    """Errors of a law: predicted against measured seconds."""
    signed = 100.0 * (predicted / measured - 1.0)
    size = np.abs(signed)
    return FitError(len(size), float(size.mean()), float(np.percentile(size, 90)), float(np.median(signed)))


def gemm_s(times: GemmTimes, law: GemmConstants, rates: Rates) -> Array:
    """Seconds of every row by the law."""
    total = np.empty(len(times.rows))
    for (columns, depth), chosen in _groups(times.columns, times.depth):
        parts = gemm(
            times.rows[chosen],
            columns,
            depth,
            weight_bytes=times.weight_bytes,
            constants=law,
            rates=rates,
        )
        total[chosen] = parts.floor_s + parts.stream_s + parts.extra_s
    return total


def fit_gemm(times: GemmTimes, rates: Rates, *, quantises: bool = False) -> GemmConstants:
    """The "full" form: floor, bandwidth and peak share, smooth-maximum exponent, wave weight, passes.

    `quantises` says that the rows include passes over the input (FP8 with dynamic scales). Needs rows on both
    sides of the knee: at least six, else ValueError.
    """
    _enough(len(times.rows), 6, "GEMM")

    def law(p: Array) -> GemmConstants:
        return GemmConstants(
            floor_s=float(p[0]) * _US,
            bandwidth_share=float(p[1]),
            peak_share=float(p[2]),
            smooth_exponent=float(p[3]),
            wave_weight=float(p[4]),
            quantise_passes=float(p[5]),
        )

    most_passes = 6.0 if quantises else 0.0
    return _fit(
        law,
        lambda constants: gemm_s(times, constants, rates),
        times.seconds,
        Parameter(_floor_us(times.seconds), 0.0, 1e3),
        Parameter(0.8, 0.01, 1.2),
        Parameter(0.7, 0.01, 1.2),
        Parameter(3.0, 1.2, 12.0),
        Parameter(0.5, 0.0, 1.5),
        Parameter(min(1.0, most_passes), 0.0, most_passes),
    )


def row_residual(times: GemmTimes, law: GemmConstants, rates: Rates) -> dict[int, float]:
    """Measured over predicted time by rows M: the geometric mean over the shapes timed at that M."""
    ratio = np.log(times.seconds / gemm_s(times, law, rates))
    return {int(m): float(np.exp(ratio[times.rows == m].mean())) for m in np.unique(times.rows)}


def decode_s(times: AttentionTimes, law: DecodeConstants, bytes_per_s: float, c_q: float = 0.0) -> Array:
    """Seconds of decode attention of one layer: KV read once, times `1 + c_q (query - 1)`."""
    total = np.empty(len(times.batch))
    for (heads, kv_heads, head_dim), chosen in _groups(times.heads, times.kv_heads, times.head_dim):
        shape = AttentionShape(1, heads, kv_heads, head_dim, times.kv_bytes)
        unit = decode_attention(shape, law, bytes_per_s)
        batch, query = times.batch[chosen], times.query[chosen]
        total[chosen] = (
            unit.floor_s
            + batch * unit.sequence_s
            + batch * times.context[chosen] * unit.kv_token_s
            + batch * query * unit.query_token_s
        ) * (1.0 + c_q * (query - 1.0))
    return total


def fit_decode(times: AttentionTimes, bytes_per_s: float) -> DecodeConstants:
    """Floor, time per sequence and KV head, bandwidth share, from the rows with one query token.

    Needs at least four such rows, else ValueError.
    """
    single = times.where(times.query == 1)
    _enough(len(single.batch), 4, "decode attention")

    def law(p: Array) -> DecodeConstants:
        return DecodeConstants(
            floor_s=float(p[0]) * _US, sequence_head_s=float(p[1]) * _NS, bandwidth_share=float(p[2])
        )

    return _fit(
        law,
        lambda constants: decode_s(single, constants, bytes_per_s),
        single.seconds,
        Parameter(_floor_us(single.seconds), 0.0, 1e4),
        Parameter(10.0, 0.0, 1e5),
        Parameter(0.8, 0.01, 1.2),
    )


def query_cost(times: AttentionTimes, law: DecodeConstants, bytes_per_s: float) -> QueryCost:
    """c_q from rows with 2 to 8 query tokens, each against the row with one of the same batch and context.

    Only the ratio of the two counts, so what the law misses at that batch and context drops out; bytes of the
    further queries are the law's. Raises ValueError when no row has its pair.
    """
    where = {key: at for at, key in enumerate(_keys(times)) if times.query[at] == 1}
    single = np.array([where.get(key, -1) for key in _keys(times)])
    paired = (times.query > 1) & (single >= 0)
    if not paired.any():
        raise ValueError("no row with several query tokens has its row with one; time both")
    known = decode_s(times, law, bytes_per_s)
    more = times.query[paired] - 1.0
    ratio = (times.seconds[paired] / times.seconds[single[paired]]) / (known[paired] / known[single[paired]])
    fitted = robust_fit(
        lambda p: np.asarray(np.log(ratio) - np.log1p(p[0] * more)), [Parameter(0.03, 0.0, 4.0)]
    )
    each = np.maximum(ratio - 1.0, 0.0) / more
    return QueryCost(float(fitted[0]), float(np.percentile(each, 10)), float(np.percentile(each, 90)))


def prefill_s(times: AttentionTimes, law: PrefillConstants, rates: Rates) -> Array:
    """Seconds of prefill attention of one layer, `batch` equal prompts without a past."""
    total = np.empty(len(times.batch))
    for (heads, kv_heads, head_dim), chosen in _groups(times.heads, times.kv_heads, times.head_dim):
        shape = AttentionShape(1, heads, kv_heads, head_dim, times.kv_bytes)
        unit = prefill_attention(shape, law, rates)
        batch, length = times.batch[chosen], times.context[chosen]
        tiles = batch * np.ceil(length / ATTENTION_QUERY_TILE)
        pairs = batch * length * (length + 1.0) / 2.0
        arithmetic = pairs * unit.pair_s * np.maximum(1.0, unit.full_tiles / tiles)
        moved = batch * length * (unit.query_token_s + unit.kv_token_s)
        total[chosen] = unit.floor_s + arithmetic * (1.0 + unit.half_length / length) + moved
    return total


def fit_prefill(times: AttentionTimes, rates: Rates) -> PrefillConstants:
    """Floor, share of peak, half length, bytes multiple. Needs at least five rows, else ValueError."""
    _enough(len(times.batch), 5, "prefill attention")

    def law(p: Array) -> PrefillConstants:
        return PrefillConstants(
            floor_s=float(p[0]) * _US,
            peak_share=float(p[1]),
            half_length=float(p[2]),
            memory_multiple=float(p[3]),
        )

    return _fit(
        law,
        lambda constants: prefill_s(times, constants, rates),
        times.seconds,
        Parameter(_floor_us(times.seconds), 0.0, 1e4),
        Parameter(0.6, 0.001, 1.2),
        Parameter(50.0, 0.0, 4096.0),
        Parameter(2.0, 0.1, 20.0),
    )


def fit_all_reduce(message_bytes: Array, seconds: Array) -> AllReduceLaw:
    """Floor, one-shot slope, two-shot floor and slope, from messages of growing size.

    The law's kink is searched for: of several starts the best is kept. Needs five rows, else ValueError.
    """
    _enough(len(seconds), 5, "all-reduce")

    def law(p: Array) -> AllReduceLaw:
        return AllReduceLaw(
            alpha_s=float(p[0]) * _US,
            oneshot_s_per_byte=float(p[1]) * _PER_MB,
            twoshot_s=float(p[2]) * _US,
            twoshot_s_per_byte=float(p[3]) * _PER_MB,
        )

    floor = _floor_us(seconds) / 0.9
    slope = float(seconds.max() / message_bytes.max()) / _PER_MB
    fits = [
        _fit(
            law,
            lambda constants: all_reduce_s(message_bytes, constants),
            seconds,
            Parameter(floor, 0.0, 1e4),
            Parameter(steeper * slope, 0.0, 1e6),
            Parameter(later * floor, 0.0, 1e4),
            Parameter(slope, 0.0, 1e6),
        )
        for steeper in (1.5, 3.0, 8.0)
        for later in (0.1, 1.0, 4.0)
    ]
    return min(fits, key=lambda fit: fit_error(all_reduce_s(message_bytes, fit), seconds).mape_pct)


def _fit(
    law: Callable[[Array], Law], predict: Callable[[Law], Array], measured: Array, *parameters: Parameter
) -> Law:
    """The law whose predictions are nearest the measured times."""
    target = np.log(measured)
    return law(robust_fit(lambda p: np.asarray(np.log(predict(law(p))) - target), parameters))


def _floor_us(seconds: Array) -> float:
    return 0.9 * float(seconds.min()) / _US


def _enough(rows: int, least: int, what: str) -> None:
    if rows < least:
        raise ValueError(f"{rows} timed rows of {what}; the fit needs at least {least}")


def _groups(*columns: Array) -> Iterator[tuple[tuple[int, ...], NDArray[np.intp]]]:
    """Each distinct combination of integers with the rows that have it."""
    kinds, place = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    for index, kind in enumerate(kinds):
        yield tuple(int(value) for value in kind), np.flatnonzero(place.ravel() == index)


def _keys(times: AttentionTimes) -> list[tuple[float, ...]]:
    """What rows of different query length share."""
    columns = (times.batch, times.context, times.heads, times.kv_heads, times.head_dim)
    return list(zip(*(column.tolist() for column in columns), strict=True))
