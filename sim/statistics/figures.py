"""Means, ratios of means and percentiles of correlated values, each with its interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, inf, isfinite, sqrt

import numpy as np
import numpy.typing as npt

from specfleet.sim.statistics.batches import BatchSpread, batch_sums, fine_batches, spread
from specfleet.sim.statistics.interval import CONFIDENCE, Estimate, Interval, too_short
from specfleet.sim.statistics.series import F64, Runs, Series, runs_of, weighed

GROUPS = 10.0
"""Independent groups of values beyond a percentile, from which on its interval is to be trusted."""
WIDER = 5.0
"""The memory of the values beyond a percentile is judged by so many times as many of them as well."""


def mean_estimate(data: Runs) -> Estimate:
    """Estimates the mean of all values, each as often as it weighs."""
    runs = runs_of(data)
    sums, counts = _by_batch(runs)
    count, value = float(counts.sum()), float(sums.sum() / counts.sum())
    values, weights = weighed(runs)
    squares = (values - value) ** 2
    variance = float(squares.mean() if weights is None else (squares * weights).sum() / count)
    return Estimate(value, (sums - value * counts) / count, count, sqrt(variance / count))


def mean(data: Runs, confidence: float = CONFIDENCE) -> Interval:
    """Returns the mean of all values with its interval."""
    return mean_estimate(data).interval(confidence)


def ratio_estimate(above: Runs, below: Runs) -> Estimate:
    """Estimates a ratio of means, such as tokens over the seconds between completions: a throughput.

    Raises:
        ValueError: if the two do not have the same rows, or the lower one adds up to nothing.
    """
    tops, bottoms = runs_of(above), runs_of(below)
    if [len(run) for run in tops] != [len(run) for run in bottoms]:
        raise ValueError("a ratio needs the same rows above and below")
    top, bottom = _by_batch(tops)[0], _by_batch(bottoms)[0]
    total = float(bottom.sum())
    if not total:
        raise ValueError("a ratio to a sum of 0")
    value = float(top.sum()) / total
    return Estimate(value, (top - value * bottom) / total, float(sum(len(run) for run in tops)))


def ratio(above: Runs, below: Runs, confidence: float = CONFIDENCE) -> Interval:
    """Returns a ratio of means with its interval."""
    return ratio_estimate(above, below).interval(confidence)


def _batches(runs: Sequence[Series]) -> int:
    """Returns in how many batches each run is cut to begin with."""
    return fine_batches([len(run) for run in runs]) if all(run.ordered for run in runs) else 1


def _by_batch(runs: Sequence[Series]) -> tuple[F64, F64]:
    """Returns sums of the values and of the weights by run and fine batch."""
    m = _batches(runs)
    sums, counts = np.empty((len(runs), m)), np.empty((len(runs), m))
    for row, run in enumerate(runs):
        if run.weights is None:
            sums[row] = batch_sums(run.values, m)
            counts[row] = np.diff(np.arange(m + 1) * len(run) // m)
        else:
            sums[row] = batch_sums(run.values * run.weights, m)
            counts[row] = batch_sums(run.weights, m)
    return sums, counts


class Ranked:
    """All values of some runs in order of size: percentiles are read off, their errors by batch too.

    A percentile is linear between ranks, as `numpy.percentile` has it. How far it may be off is not
    asked of the values but of their number: the share of values beyond it is a mean of correlated zeros
    and ones, whose interval, by batches, is one of ranks; the values at these ranks bound the percentile.
    So no density is estimated and the interval is as lopsided as the tail.

    Args:
        data: one run or several.
    """

    def __init__(self, data: Runs) -> None:
        self.runs = runs_of(data)
        values, weights = weighed(self.runs)
        if weights is None:
            self.sorted, self._ends = np.sort(values), None
            self.count = float(len(values))
        else:
            order = np.argsort(values)
            self.sorted, self._ends = values[order], np.cumsum(weights[order])
            self.count = float(self._ends[-1])
        self._batches = _batches(self.runs)
        self._counts = _by_batch(self.runs)[1]

    def at(self, share: float) -> float:
        """Returns the value at a share of the ranks; infinite outside of 0 to 1."""
        if not 0.0 <= share <= 1.0:
            return -inf if share < 0.0 else inf
        place = share * (self.count - 1.0)
        below = floor(place)
        low, high = self._rank(below), self._rank(min(below + 1, self.count - 1))
        return low + (high - low) * (place - below)

    def _rank(self, rank: float) -> float:
        if self._ends is None:
            return float(self.sorted[int(rank)])
        return float(self.sorted[np.searchsorted(self._ends, rank, side="right")])

    def beyond(self, share: float) -> F64:
        """Returns by run and batch how many values lie beyond a share of the ranks, less as many as
        would by chance; in values, summing to 0. Of those equal to the percentile a part is beyond."""
        level = self.at(share)
        beyond = np.empty_like(self._counts)
        equal = np.zeros_like(self._counts)
        tied = self._tied(level)
        for row, run in enumerate(self.runs):
            beyond[row] = self._sums(run, run.values > level)
            if tied:
                equal[row] = self._sums(run, run.values == level)
        if tied:
            wanted = (1.0 - share) * self.count - beyond.sum()
            beyond += equal * min(max(wanted / equal.sum(), 0.0), 1.0)
        return np.asarray(beyond - self._counts * (beyond.sum() / self.count))

    def above(self, level: float) -> float:
        """Returns the share of values above a level."""
        place = int(np.searchsorted(self.sorted, level, side="right"))
        if self._ends is None:
            return 1.0 - place / self.count
        return 1.0 - (float(self._ends[place - 1]) if place else 0.0) / self.count

    def memory(self, share: float) -> tuple[float, BatchSpread]:
        """Returns how many values are worth one, of the zeros and ones beyond a share of the ranks."""
        found = spread(self.beyond(share) / self.count)
        return self.count * found.standard_error**2 / (share * (1.0 - share)), found

    def _tied(self, level: float) -> bool:
        place = np.searchsorted(self.sorted, level)
        return bool(place < len(self.sorted) and self.sorted[place] == level)

    def _sums(self, run: Series, chosen: npt.NDArray[np.bool_]) -> F64:
        column = chosen.astype(np.float64) if run.weights is None else np.where(chosen, run.weights, 0.0)
        return batch_sums(column, self._batches)


@dataclass(frozen=True)
class _Rank:
    """How well the rank of a percentile is known: the standard error of the share beyond it."""

    found: BatchSpread
    effective: float
    short: str


def _rank_error(ranked: Ranked, share: float) -> _Rank:
    if not 0.0 < share < 1.0:
        raise ValueError(f"a percentile of {100.0 * share:g}; above 0 and below 100 it has an interval")
    memory, found = ranked.memory(share)
    outer = min(share, 1.0 - share)
    wider = memory
    if WIDER * outer <= 0.5:
        wider = ranked.memory(WIDER * outer if share < 0.5 else 1.0 - WIDER * outer)[0]
    effective = ranked.count / memory if memory else ranked.count
    groups = outer * ranked.count / max(memory, wider, 1.0)
    short = too_short(inf, found)
    if not short and groups < GROUPS:
        side = "beyond" if share >= 0.5 else "below"
        short = f"the values {side} it are worth {groups:.0f} independent ones, fewer than {GROUPS:.0f}"
    return _Rank(found, effective, short)


def percentile_of(ranked: Ranked, percent: float, confidence: float = CONFIDENCE) -> Interval:
    """Returns a percentile of ranked values with its interval.

    Args:
        ranked: the values.
        percent: above 0 and below 100.
        confidence: of the interval.

    Raises:
        ValueError: for the smallest or the largest value, which no interval bounds.
    """
    share = percent / 100.0
    rank = _rank_error(ranked, share)
    reach = rank.found.standard_error
    reach = rank.found.t(confidence) * reach if isfinite(reach) else inf
    low, high = ranked.at(share - reach), ranked.at(share + reach)
    short = rank.short
    if not short and not (isfinite(low) and isfinite(high)):
        short = "the interval reaches beyond the smallest or largest value seen"
    return Interval(
        ranked.at(share), low, high, confidence, ranked.count, rank.effective, rank.found.degrees, short
    )


def percentiles(data: Runs, percents: Sequence[float], confidence: float = CONFIDENCE) -> list[Interval]:
    """Returns percentiles with their intervals; the values are sorted once."""
    ranked = Ranked(data)
    return [percentile_of(ranked, percent, confidence) for percent in percents]


def percentile(data: Runs, percent: float, confidence: float = CONFIDENCE) -> Interval:
    """Returns a percentile with its interval."""
    return percentile_of(Ranked(data), percent, confidence)


def percentile_estimate(data: Runs | Ranked, percent: float) -> Estimate:
    """Estimates a percentile, to be set against another: its error by batch, to first order.

    The share of values beyond it, times how far the value moves with a share of the ranks. That slope
    is read off two standard errors of the rank to either side, and is endless where they reach beyond
    what was seen.
    """
    ranked = data if isinstance(data, Ranked) else Ranked(data)
    share = percent / 100.0
    rank = _rank_error(ranked, share)
    beyond = ranked.beyond(share) / ranked.count
    reach = max(2.0 * rank.found.standard_error, 1.0 / ranked.count)
    low, high = ranked.at(share - reach), ranked.at(share + reach)
    slope = (high - low) / (2.0 * reach) if isfinite(low) and isfinite(high) else inf
    short = rank.short
    if not isfinite(slope):
        short = short or "the interval reaches beyond the smallest or largest value seen"
        slope, beyond = 0.0, np.full_like(beyond, np.nan)
    independent = slope * sqrt(share * (1.0 - share) / ranked.count)
    return Estimate(ranked.at(share), beyond * slope, ranked.count, independent, short)
