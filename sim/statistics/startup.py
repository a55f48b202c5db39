"""Where a run has become steady, and whether it ever does.

A run starts empty (or with all its users at once), and what it shows until it has filled is not what it
will show. The start-up ends where a series first crosses the level of the run's second half. Unlike MSER,
which leaves out what makes the rest look calm and so cuts away busy spells with the start-up (means of
M/M/1 queues came out 6 % low), a first crossing looks at nothing that is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import sqrt
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt

from specfleet.sim.statistics.batches import batch_sums
from specfleet.sim.statistics.flow import Flow
from specfleet.sim.statistics.series import F64
from specfleet.sim.statistics.student import student_t

Row = TypeVar("Row", bound=np.generic)
State = Literal["stationary", "still filling", "saturated", "changing"]
FINE, COARSE = 100, 20
"""Stretches of a run in which a crossing is looked for. Coarse ones are asked only where they differ."""
SEEN, NEAR = 3.0, 0.5
"""Standard deviations of a coarse stretch by which the first must differ, and within which it is there."""
LATEST = 0.5
"""A start-up that lasts longer than this share of the run has not ended."""
TREND_BATCHES, TREND_CONFIDENCE, TREND_LEAST = 16, 0.998, 0.05
"""What is kept still rises or falls where the slope over so many batches is not 0 with this confidence
and adds up to so much of the level."""
GROWTH_BATCHES, GROWTH_FROM = 20, 0.25
"""The number in the system is watched from this share of the run on, in so many stretches."""
GROWTH_CONFIDENCE, SLOWING_CONFIDENCE, SLOWER = 0.999, 0.98, 0.7
"""With which the number in the system must be seen to grow, and its growth to slow down, to such a share."""


@dataclass(frozen=True)
class Startup:
    """Which part of a run to count, and whether it is steady.

    Attributes:
        first, last: the rows that count are those from `first` up to, and without, `last`.
        state: `stationary`; `still filling` where the run ends before it is steady; `saturated` where
            more is offered than served and the number in the system grows without end; `changing` where the
            load is meant to change, so that all of the run counts.
        why: the figures behind the state; empty where it is stationary.
        from_s, to_s: when the first and the last row that count were sent; 0 without a flow.
        offered_per_s, served_per_s: requests sent and finished from a quarter of the run on; 0 without a
            flow.
        growth: low and high end of (offered - served) / offered there; 0 without a flow.
    """

    first: int
    last: int
    state: State
    why: str = ""
    from_s: float = 0.0
    to_s: float = 0.0
    offered_per_s: float = 0.0
    served_per_s: float = 0.0
    growth: tuple[float, float] = (0.0, 0.0)

    def kept(self, column: npt.NDArray[Row]) -> npt.NDArray[Row]:
        """Returns the rows of a column that count."""
        return column[self.first : self.last]


def everything(flow: Flow) -> Startup:
    """Returns all of a run whose load changes while it lasts: it is never steady, and nothing is start-up.

    Args:
        flow: when its requests were sent and finished.
    """
    begun, last, ended = float(flow.sent_s[0]), float(flow.sent_s[-1]), float(flow.finished_s.max())
    offered, _ = flow.per_second(begun, last)
    _, served = flow.per_second(begun, ended)
    return Startup(0, len(flow.sent_s), "changing", "", begun, ended, offered, served)


def startup(series: Mapping[str, F64], flow: Flow | None = None) -> Startup:
    """Finds from where on all of several series of a run are steady.

    Args:
        series: by name, a row a request in order of time, all of the same length.
        flow: when these requests were sent and finished. The number in the system is then one series
            more, saturation is looked for, and requests served while the system emptied do not count.

    Raises:
        ValueError: if there is no series and no flow, or they differ in length.
    """
    lengths = {len(column) for column in series.values()} | ({len(flow.sent_s)} if flow else set())
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError(f"a start-up is found in series of one length, not of {sorted(lengths)}")
    last = lengths.pop()
    if flow is None:
        return _steady(series, Startup(0, last, "stationary"))
    found = _flows(flow)
    if 2 * flow.whole < len(flow.sent_s) and found.state == "stationary":
        why = f"only the first {flow.whole} of {last} requests were served while others still came"
        found = replace(found, state="still filling", why=why)
    watched = {**series, "number in the system": flow.inside}
    found = _steady({name: column[: found.last] for name, column in watched.items()}, found)
    return replace(found, from_s=float(flow.sent_s[found.first]), to_s=float(flow.sent_s[found.last - 1]))


def _steady(series: Mapping[str, F64], found: Startup) -> Startup:
    """Cuts the start-up of the rows that are left, and says what is not steady after it."""
    share = max(start(column) for column in series.values())
    found = replace(found, first=min(round(share * found.last), found.last - 1))
    if found.state != "stationary":
        return found
    for name, column in series.items():
        if crossing(column) > LATEST:
            why = f"{name}: its level is reached only in the second half of the run"
            return replace(found, state="still filling", why=why)
    for name, column in series.items():
        rise = trend(found.kept(column))
        if rise:
            way = "rises" if rise > 0.0 else "falls"
            why = f"{name}: still {way}, by {abs(rise):.0%} over what is kept"
            return replace(found, state="still filling", why=why)
    return found


def crossing(column: F64) -> float:
    """Returns the share of a series after which it has first crossed the mean of its second half."""
    return _crossing(_means(column, FINE), 0.0)


def start(column: F64) -> float:
    """Returns the share of a series to leave out at its beginning, at most `LATEST`.

    Up to its first crossing. Where a longer stretch at the beginning clearly differs, the noise of short
    ones may cross the level before the series is there: then a longer one must be near it as well.
    """
    coarse = _means(column, COARSE)
    late = coarse[len(coarse) // 2 :]
    spread = float(late.std())
    if len(coarse) < COARSE or abs(coarse[0] - late.mean()) <= SEEN * spread:
        return min(crossing(column), LATEST)
    return min(max(crossing(column), _crossing(coarse, NEAR * spread)), LATEST)


def _crossing(means: F64, near: float) -> float:
    level = means[len(means) // 2 :].mean()
    side = np.sign(means[0] - level)
    if side == 0.0:
        return 0.0
    there = np.flatnonzero((means - level) * side <= near)
    return (int(there[0]) + 1) / len(means) if len(there) else 0.0  # none: they differ by rounding alone


def _means(column: F64, batches: int) -> F64:
    """Returns the means of stretches of a column, of one row at least."""
    m = min(batches, len(column))
    return np.asarray(batch_sums(column, m) / np.diff(np.arange(m + 1) * len(column) // m))


def trend(column: F64) -> float:
    """Returns by what share of its level a series rises (below 0: falls) from end to end; 0: not seen.

    A straight line through the means of its batches, whose residuals may be correlated.
    """
    y = _means(column, TREND_BATCHES)
    if len(y) < TREND_BATCHES:
        return 0.0
    level, d = float(y.mean()), y - y.mean()
    x = np.arange(len(y)) - (len(y) - 1) / 2.0
    squares = float((x * x).sum())
    slope = float((x * d).sum()) / squares
    residual = d - slope * x
    left = float((residual * residual).sum())
    if left <= 1e-24 * level * level:
        seen = slope != 0.0
    else:
        lag1 = float((residual[1:] * residual[:-1]).sum()) / left + 2.0 / len(y)
        lag1 = min(max(lag1, 0.0), 0.8)
        error = sqrt(left / (len(y) - 2) / squares * (1.0 + lag1) / (1.0 - lag1))
        seen = abs(slope) > student_t(TREND_CONFIDENCE, len(y) - 2) * error
    rise = slope * (len(y) - 1) / abs(level) if level else 0.0
    return rise if seen and abs(rise) > TREND_LEAST else 0.0


def _flows(flow: Flow) -> Startup:
    """Compares what is offered with what is served, and says whether it piles up."""
    n = len(flow.sent_s)
    found = Startup(0, max(flow.whole, 1), "stationary")
    first = int(GROWTH_FROM * n)
    if n - first <= GROWTH_BATCHES:
        return found
    ends = first + np.arange(GROWTH_BATCHES + 1) * (n - 1 - first) // GROWTH_BATCHES
    rises = np.diff(flow.inside[ends])
    offered = (int(ends[-1]) - first) / GROWTH_BATCHES
    rise, error = float(rises.mean()), float(rises.std(ddof=1)) / sqrt(GROWTH_BATCHES)
    reach = student_t(GROWTH_CONFIDENCE, GROWTH_BATCHES - 1) * error
    sent, finished = flow.per_second(float(flow.sent_s[first]), float(flow.sent_s[-1]))
    found = replace(
        found,
        offered_per_s=sent,
        served_per_s=finished,
        growth=((rise - reach) / offered, (rise + reach) / offered),
    )
    if rise > reach and finished > 0.0 and not _slows(rises):
        why = f"{sent:.3g} requests/s are offered and {finished:.3g} served"
        return replace(found, state="saturated", why=why)
    return found


def _slows(rises: F64) -> bool:
    """Says whether the number in the system grows ever more slowly: it fills, and will be full."""
    early, late = np.array_split(rises, 2)
    error = sqrt(early.var(ddof=1) / len(early) + late.var(ddof=1) / len(late))
    seen = early.mean() - late.mean() > student_t(SLOWING_CONFIDENCE, len(rises) - 2) * error
    return bool(seen and late.mean() < SLOWER * early.mean())
