"""What is best done with GPUs that are there already: most room to the SLO, or the largest rate at it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from specfleet.experiments.plan.capacity import LoadCurve
from specfleet.experiments.plan.search import Entry, Search
from specfleet.experiments.plan.seen import Judged

CLOSE = 1.03
"""Largest rates that differ by less are not told apart: to so much they are bracketed."""


def best_of_owned(
    search: Search, entries: Sequence[Entry], objective: str, prompts: int | None
) -> tuple[Entry | None, list[Entry]]:
    """Returns the best way to use all GPUs that the plan allows, and those not told apart from it.

    Args:
        search: asks; its traffic is that of the whole deployment.
        entries: those whose replicas the plan limits are looked at, with as many as it allows.
        objective: `headroom` or `throughput`.
        prompts: requests of a simulation of which a largest rate is read off; None: as the file says.
    """
    owned = [e for e in entries if e.bound.rate > 0.0 and (e.candidate.most_replicas or 0) >= 1]
    found = search.judge([(e.candidate, e.candidate.most_replicas or 1) for e in owned])
    for entry, answer in zip(owned, found, strict=True):
        n, judged = entry.candidate.most_replicas or 1, answer.judged
        entry.tried[n], entry.ratio, entry.limit = answer, judged.ratio, judged.limit
        entry.low = n if judged.verdict == "missed" else n - 1
        if judged.verdict == "met":
            entry.high = n
    able = [(entry, entry.tried[entry.high].judged) for entry in owned if entry.high is not None]
    if not able:
        return None, []
    if objective == "headroom":
        return _roomiest(able)
    return _fastest(search, [entry for entry, _ in able], prompts)


def _roomiest(able: Sequence[tuple[Entry, Judged]]) -> tuple[Entry, list[Entry]]:
    best, judged = min(able, key=lambda each: (each[1].ratio, each[0].candidate.k))
    even = [entry for entry, other in able if entry is not best and not told_apart(judged, other)]
    return best, even


def told_apart(better: Judged, other: Judged) -> bool:
    """Whether one ratio to the SLO is clearly below another: the interval of their quotient lies above 1."""
    if not all(map(math.isfinite, (better.low, better.high, other.low, other.high))):
        return False
    gap = math.log(other.ratio / better.ratio)
    up, down = math.log(better.high / better.ratio), math.log(other.ratio / max(other.low, 1e-300))
    return gap > math.hypot(up, down)


def _fastest(search: Search, able: Sequence[Entry], prompts: int | None) -> tuple[Entry, list[Entry]]:
    """Looks at the most promising bounds first, and at none that cannot be the best any more."""
    reached: list[tuple[float, Entry]] = []
    for entry in sorted(able, key=_most, reverse=True):
        if reached and _most(entry) < max(rate for rate, _ in reached):
            break
        n = entry.high or 1
        curve = LoadCurve(search.laboratory, search.traffic, entry.candidate, n, search.seeds, prompts)
        low, _ = curve.bracket()
        reached.append((search.traffic.rate * min(low, curve.crossing(range(len(search.seeds)))), entry))
    top, best = max(reached, key=lambda each: (each[0], -each[1].candidate.k))
    even = [entry for rate, entry in reached if entry is not best and rate * CLOSE > top]
    return best, even


def _most(entry: Entry) -> float:
    return entry.bound.rate * (entry.high or 1)
