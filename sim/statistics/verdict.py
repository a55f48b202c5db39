"""The answer to a comparison: it pays, it does not, or it is not settled."""

from __future__ import annotations

from typing import Literal

from specfleet.sim.statistics.interval import Interval

Verdict = Literal["pays", "does not", "not settled"]
LEAST_GAIN = 0.02
"""A gain below this is none: two per cent are within what a cluster differs from day to day."""


def verdict(gain: Interval, least_gain: float = LEAST_GAIN) -> Verdict:
    """Judges a ratio in which more than 1 is better (of throughputs, or of latencies without over with).

    Args:
        gain: the ratio.
        least_gain: what a ratio must exceed 1 by to count.

    Returns:
        `pays` or `does not` where the whole interval lies on one side of 1 + `least_gain` and enough was
        seen to trust it, else `not settled`.
    """
    side = side_of(gain, 1.0 + least_gain)
    return "not settled" if side == 0 else "pays" if side > 0 else "does not"


def side_of(found: Interval, boundary: float) -> int:
    """Returns on which side of a boundary the truth lies: 1 above, -1 below, 0 not settled."""
    if not found.enough:
        return 0
    return 1 if found.low > boundary else -1 if found.high < boundary else 0
