"""Whether a limit is kept: the share of values beyond it, against the share that may be.

To ask whether P99 exceeds a limit does not take P99 to be known. It takes the share of values beyond the
limit to be clear of 1 %: where none is, a run tells so that is too short to bound P99 itself.
"""

from __future__ import annotations

from math import inf, sqrt
from typing import Literal

from specfleet.sim.statistics.figures import WIDER, Ranked, percentile_of
from specfleet.sim.statistics.interval import CONFIDENCE, WORTH, Interval, too_short
from specfleet.sim.statistics.series import Runs

Kept = Literal["met", "missed", "not settled"]


def share_beyond(
    data: Runs | Ranked, limit: float, allowed: float, confidence: float = CONFIDENCE
) -> Interval:
    """Returns the share of values above a limit with its interval.

    Values beyond it come in groups, so few of them are worth even fewer independent ones, whose number
    is a count with Poisson's bounds (by Wilson and Hilferty's cube root). How many make a group is seen
    where more values are beyond: at the limit, and where several times as many are as may be; the
    larger counts. Where as many are beyond the limit itself, it is seen there best, and counts alone.

    Args:
        data: one run or several.
        limit: in the values' unit.
        allowed: share of values that may be above it, such as 0.01; at most 0.5.
        confidence: of the interval.

    Raises:
        ValueError: if `allowed` is out of its range.
    """
    if not 0.0 < allowed <= 0.5:
        raise ValueError(f"of the values beyond a limit a share up to 0.5 may be allowed, not {allowed:g}")
    ranked = data if isinstance(data, Ranked) else Ranked(data)
    share = ranked.above(limit)
    wide = min(WIDER * allowed, 0.5)
    levels = (
        [1.0 - share] if wide < share < 1.0 else [1.0 - wide, *([1.0 - share] if 0.0 < share < wide else [])]
    )
    found = [ranked.memory(level) for level in levels]
    memory, spread = max(found, key=lambda each: each[0])
    worth = ranked.count / max(memory, 1.0)
    short = too_short(worth, spread)
    if not worth:
        return Interval(share, 0.0, 1.0, confidence, ranked.count, 0.0, spread.degrees, short)
    t = spread.t(confidence)
    low, high = poisson_bound(share * worth, -t), poisson_bound(share * worth + 1.0, t)
    return Interval(
        share,
        low / worth,
        min(high / worth, 1.0),
        confidence,
        ranked.count,
        worth,
        spread.degrees,
        short,
    )


def poisson_bound(count: float, t: float) -> float:
    """Returns a bound of the mean of a Poisson law.

    Args:
        count: how many were seen, for a lower bound; one more than that, for an upper one.
        t: standard deviations of a normal law, below 0 for a lower bound.
    """
    if count <= 0.0:
        return 0.0
    return count * max(1.0 - 1.0 / (9.0 * count) + t / (3.0 * sqrt(count)), 0.0) ** 3


FAR = 2.0
"""How many times as far above P90 as P90 lies above the median P99 is taken to lie, at most.

It is 0.8 times for a normal law, 1.4 for an exponential, 1.5 and 2.6 for lognormal ones, sigma 0.5 and 1."""
HARDLY = 0.25
"""Share of what may be beyond a limit that may be seen beyond it where the limit is taken to be far off."""
DOUBLE = 2.0
"""How many times as wide an interval must lie beyond where too little was seen to trust it."""


def far_within(data: Runs | Ranked, limit: float, allowed: float, confidence: float = CONFIDENCE) -> bool:
    """Whether a limit on P99 or beyond is so far off that it takes no values near it to know that it is kept.

    To bound the share beyond a limit takes values as rare as that share. Of a queue with a memory of 200
    requests that is 70,000, though none may ever come near. P90 and the median are known long before, and
    from them how far P99 may lie with a tail as heavy as `FAR`. Where the median alone is known, the largest
    value seen stands for P90: of `WORTH` independent values it lies above it in 199 of 200 cases.

    Args:
        data: one run or several.
        limit: in the values' unit.
        allowed: share of values that may be above it; only of 1 % it is asked, else the answer is no.
        confidence: of the intervals.
    """
    if not 0.01 - 1e-9 <= allowed <= 0.01 + 1e-9:
        return False
    ranked = data if isinstance(data, Ranked) else Ranked(data)
    if ranked.above(limit) > HARDLY * allowed:
        return False
    return far_bound(ranked, confidence) < limit


def far_bound(data: Runs | Ranked, confidence: float = CONFIDENCE) -> float:
    """Returns how far P99 may lie, as far as P90 and the median tell; inf where they do not.

    Args:
        data: one run or several.
        confidence: of the intervals.
    """
    ranked = data if isinstance(data, Ranked) else Ranked(data)
    middle, upper = (percentile_of(ranked, percent, confidence) for percent in (50.0, 90.0))
    if not middle.enough or (not upper.enough and middle.effective < WORTH):
        return inf
    high = upper.high if upper.enough else float(ranked.sorted[-1])
    return high + FAR * (high - middle.low)


def clearly_more(beyond: Interval, allowed: float) -> bool:
    """Whether a share is above what is allowed; one that is not to be trusted, with twice its interval.

    However correlated the values are, a share so many times as large as its mean is as seldom as that
    (Markov): 40 % where 1 % is allowed, at a confidence of 95 %.
    """
    if beyond.count and allowed <= beyond.value * (1.0 - beyond.confidence) / 2.0:
        return True
    if not beyond.count or beyond.effective < LEAST_WORTH:
        return False
    width = (1.0 if beyond.enough else DOUBLE) * (beyond.value - beyond.low)
    return beyond.value - width > allowed


LEAST_WORTH = 8.0
"""Independent values below which nothing is said."""


def limit_kept(data: Runs | Ranked, percent: float, limit: float, confidence: float = CONFIDENCE) -> Kept:
    """Judges a percentile that may not exceed a limit, such as P99 TPOT and its SLO.

    Args:
        data: one run or several.
        percent: from 50, below 100.
        limit: in the values' unit.
        confidence: with which it must be clear.

    Returns:
        `met` or `missed` where the share of values beyond the limit is clearly below or above what the
        percentile leaves, else `not settled`. Where the run is still filling `met` says nothing: the
        worst is to come.
    """
    allowed = 1.0 - percent / 100.0
    beyond = share_beyond(data, limit, allowed, confidence)
    if clearly_more(beyond, allowed):
        return "missed"
    return "met" if beyond.enough and beyond.high < allowed else "not settled"
