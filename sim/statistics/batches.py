"""How far a figure of correlated values may be off: its error as a sum over batches.

The error of a mean, a ratio or a percentile is, to first order, a sum over what was seen. Summed by
batches of neighbours, its terms are nearly independent once a batch is longer than the memory of the
process. How long that is the data say: from 64 batches on, neighbours are merged until the correlation
of a batch with the next is no longer seen, down to 8. What correlation is left, seen or not, widens the
interval as in an autoregression of first order; heavy tails of the batches lower the degrees of freedom.

Several runs are cut alike, and their batches are pooled: within a run and between runs at once. Where
there are many runs, or some that are not like each other, a batch is a whole run: the classical interval
of independent replications.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, inf, isfinite, log2, sqrt

import numpy as np

from specfleet.sim.statistics.series import F64
from specfleet.sim.statistics.student import student_t

MOST, LEAST = 64, 8
"""Batches over all runs to begin with, and to which neighbours are merged at most."""
RUNS = 5
"""Runs of which each may be one batch."""
SEEN = 1.28
"""A lag-1 correlation below so many standard errors is not seen (a one-sided test at 10 %)."""
CLIP = 0.8
"""Most correlation of neighbouring batches that is corrected for."""


def fine_batches(lengths: Sequence[int]) -> int:
    """Returns in how many batches each of several runs is cut to begin with: a power of two."""
    most = min(MOST // len(lengths), min(lengths) // 2)
    return 1 << floor(log2(most)) if most >= 1 else 1


def batch_sums(column: F64, batches: int) -> F64:
    """Returns the sums over so many stretches of a column, as equal as can be, in order."""
    return np.add.reduceat(column, np.arange(batches) * len(column) // batches)


@dataclass(frozen=True)
class BatchSpread:
    """How far a sum over batches strays.

    Attributes:
        standard_error: of the sum; 0 if all batches agree, inf if there is one batch alone.
        degrees: of freedom of the standard error.
        batches: in how many it was measured, over all runs.
        lag1: correlation of a batch with the next that is left; 0 where none is seen.
        skewness: of a batch.
        separate: whether batches are long enough for the correlation of neighbours not to be seen.
    """

    standard_error: float
    degrees: float
    batches: int
    lag1: float
    skewness: float
    separate: bool

    def t(self, confidence: float) -> float:
        """Returns Student's t for these degrees of freedom."""
        return student_t(confidence, max(floor(10.0 * self.degrees) / 10.0, 0.5))

    def deviations(self, confidence: float) -> tuple[float, float]:
        """Returns how far the truth may lie below and above what was found.

        Student's t, made lopsided for the skewness of the batches (Johnson 1978 as inverted by Hall
        1992 and Willink 2005): an estimate that strays far above more readily than below has its
        interval reach farther above.
        """
        if not isfinite(self.standard_error):
            return inf, inf
        t = self.t(confidence)
        lean = self.skewness / (6.0 * sqrt(self.batches))
        below, above = (_leaning(t, lean), -_leaning(-t, lean))
        return below * self.standard_error, above * self.standard_error


def _leaning(t: float, lean: float) -> float:
    if abs(lean) < 1e-6:
        return t
    return (float(np.cbrt(1.0 + 6.0 * lean * (t - lean))) - 1.0) / (2.0 * lean)


def spread(influence: F64) -> BatchSpread:
    """Measures how far a sum strays from what its batches contributed.

    Args:
        influence: what each batch adds to the error, in order of time, shape `(runs, batches)`; the
            batches of a run are a power of two, and all of them sum to 0.
    """
    x = influence
    while True:
        runs, each = x.shape
        d = x - x.mean()
        squares = float((d * d).sum())
        lag1 = _lag1(d, squares)
        separate = lag1 < SEEN / sqrt(x.size)
        if separate or each == 1 or (x.size // 2 < LEAST and runs < RUNS):
            break
        whole = x.size // 2 < LEAST
        x = x.sum(axis=1, keepdims=True) if whole else x.reshape(runs, each // 2, 2).sum(axis=2)
    n = x.size
    if n < 2:
        return BatchSpread(inf, 1.0, n, 0.0, 0.0, False)
    if squares <= 0.0:
        return BatchSpread(0.0, n - 1.0, n, 0.0, 0.0, separate)
    z = d / sqrt(squares / n)
    left = min(max(lag1, 0.0), CLIP)
    error = sqrt(n / (n - 1) * squares * (1.0 + left) / (1.0 - left))
    tails = float((z**4).mean()) - 3.0
    skewness = float((z**3).mean()) * sqrt(n * (n - 1)) / (n - 2) if n > 2 else 0.0
    degrees = 2.0 / (2.0 / (n - 1) + max(tails, 0.0) / n)
    return BatchSpread(error, degrees, n, left, skewness, separate)


def _lag1(d: F64, squares: float) -> float:
    """Returns the correlation of a batch with the next of its run, its bias of -1/n taken away."""
    runs, each = d.shape
    if each == 1 or squares <= 0.0:
        return 0.0
    products = float((d[:, 1:] * d[:, :-1]).sum()) / (runs * (each - 1))
    return float(products / (squares / d.size) + 1.0 / d.size)
