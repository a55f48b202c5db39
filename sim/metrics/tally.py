"""A sample of which only counts are kept: moments, extremes and a histogram of relative bins."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np
import numpy.typing as npt

from specfleet.sim.metrics.samples import dot

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

MANTISSA_BITS = 10
ERROR = 2.0 ** -(MANTISSA_BITS + 1)
"""Most relative error of a percentile of values from `LEAST` on: half a bin, 0.05 %."""
LEAST, MOST = 2.0**-30, 2.0**30
"""Values outside fall into the first or last bin: below a nanosecond, from 34 years on (of seconds)."""
_SHIFT = 52 - MANTISSA_BITS
_LOWEST = int(np.float64(LEAST).view(np.int64)) >> _SHIFT
_BINS = (int(np.float64(MOST).view(np.int64)) >> _SHIFT) - _LOWEST


class Tally:
    """Counts values that are not negative, whatever their number, in half a megabyte.

    The bits of a float, cut after `MANTISSA_BITS` of its mantissa, are its bin: each power of two has
    1,024 of them, so a bin is at most 0.1 % wide. Counts, extremes and so percentiles do not depend on
    the order or the portions in which values come; means and deviations do by rounding alone.

    Attributes:
        count: values seen. low, high: the extremes.
    """

    def __init__(self) -> None:
        self.count = 0
        self.low, self.high = np.inf, -np.inf
        self._mean = self._squares = 0.0
        self._bins: I64 = np.zeros(_BINS, dtype=np.int64)

    def add(self, values: F64, weights: npt.NDArray[np.integer] | None = None) -> None:
        """Takes in values, each as often as it weighs.

        Args:
            values: shape `(n,)`, from 0.
            weights: whole numbers from 0, shape `(n,)`; None: once each.
        """
        if weights is not None:
            values, weights = values[weights > 0], weights[weights > 0]
        if not len(values):
            return
        count = len(values) if weights is None else int(weights.sum())
        mean = float(values.mean() if weights is None else dot(values, weights) / count)
        squares = (values - mean) ** 2
        self._merge(count, mean, float(squares.sum() if weights is None else dot(squares, weights)))
        self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))
        bins = (np.clip(values, LEAST, np.nextafter(MOST, 0)).view(np.int64) >> _SHIFT) - _LOWEST
        if weights is None:
            weights = np.ones(1, dtype=np.int64)
        np.add.at(self._bins, bins, weights.astype(np.int64, copy=False))

    def merge(self, other: Tally) -> None:
        """Takes in the values that another has seen."""
        if not other.count:
            return
        self._merge(other.count, other._mean, other._squares)
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self._bins += other._bins

    def _merge(self, count: int, mean: float, squares: float) -> None:
        total = self.count + count
        step = mean - self._mean
        self._squares += squares + step * step * (self.count * count / total)
        self._mean += step * (count / total)
        self.count = total

    def mean(self) -> float:
        """Returns the mean; 0 for none."""
        return self._mean

    def std(self) -> float:
        """Returns the population standard deviation; 0 for none."""
        return sqrt(self._squares / self.count) if self.count else 0.0

    def percentiles(self, percents: Sequence[float]) -> list[float]:
        """Returns percentiles as `numpy.percentile` would (linear), each within `ERROR` of its size."""
        if not self.count:
            return [0.0] * len(percents)
        places = np.asarray(percents) / 100.0 * (self.count - 1)
        below = np.floor(places)
        ends = np.cumsum(self._bins)
        low, high = (
            self._middle(np.searchsorted(ends, ranks, side="right"))
            for ranks in (below, np.minimum(below + 1, self.count - 1))
        )
        return [float(x) for x in low + (high - low) * (places - below)]

    def _middle(self, bins: I64) -> F64:
        edges = [(bins + _LOWEST + step << _SHIFT).view(np.float64) for step in (0, 1)]
        return np.clip((edges[0] + edges[1]) / 2, self.low, self.high)
