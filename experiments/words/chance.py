"""Chances in words, and which count of acceptance would narrow an answer most."""

from __future__ import annotations

from collections.abc import Sequence

from specfleet.sim.speculation.depth import Depth, narrows_most


def chance_said(chance: float) -> str:
    """Returns such as `93 %`; what no law of this kind can tell from certainty is said as a bound."""
    if chance > 0.99:
        return "more than 99 %"
    return f"{100 * chance:.0f} %" if chance >= 0.01 else "less than 1 %"


def next_count(depth: Depth, ks: Sequence[int]) -> str:
    """Returns which count would narrow the lengths at these K most, and by how much at the largest."""
    if not ks:
        return "No count of acceptance would change these answers: every chance is near 0 or 100 %."
    best, deepest = narrows_most(depth, ks), max(ks)
    before, after = (100.0 * _half(each, deepest) for each in (depth, depth.after(best)))
    return (
        f"Counting 10,000 rounds at K = {best} would narrow it most: the length at K = {deepest} from "
        f"+-{before:.1f} % to +-{after:.1f} %."
    )


def _half(depth: Depth, k: int) -> float:
    length = depth.length(k)
    return (length.high - length.low) / 2.0 / length.value
