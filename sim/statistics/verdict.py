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
    if not gain.enough:
        return "not settled"
    if gain.low > 1.0 + least_gain:
        return "pays"
    return "does not" if gain.high < 1.0 + least_gain else "not settled"
