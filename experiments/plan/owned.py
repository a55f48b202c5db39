"""What is best done with GPUs that are there already: most room to the SLO, or the largest rate at it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from specfleet.experiments.plan.asking import CONFIRMING
from specfleet.experiments.plan.capacity import RATE_STEP, ROUGH, LoadCurve
from specfleet.experiments.plan.search import Entry, Search
from specfleet.experiments.plan.seen import roomier, worst
from specfleet.experiments.plan.traffic import Traffic

CLOSE = 1.03
"""Largest rates that differ by less are not told apart: to so much they are bracketed."""
NEAR = 1.08
"""Short simulations tell the largest rates to so much: those nearer to the best are looked at again."""
PROMISING = 0.6
"""Share of its bound that an engine reaches, roughly."""
SEVERAL = 3
"""Seeds of these: the largest rate of one is known to some 5 %."""
RACE = (4_000, 16_000)
"""Requests of the simulations in which room to the limits is compared."""


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
    able = [entry for entry in owned if entry.high is not None]
    if not able:
        return None, []
    return _roomiest(search, able) if objective == "headroom" else _fastest(search, able, prompts)


def _roomiest(search: Search, able: Sequence[Entry]) -> tuple[Entry, list[Entry]]:
    """Lets all meet the same requests, then more of them those that are not told apart from the best."""
    left, lengths = list(able), search.lengths
    for prompts in (None,) if lengths is None else [min(n, lengths.most) for n in RACE]:
        trials = [
            search.traffic.trial(entry.candidate.config, entry.high or 1, seed, prompts)
            for entry in left
            for seed in search.seeds
        ]
        found, each = search.laboratory.run(trials), len(search.seeds)
        runs = [found[i * each : (i + 1) * each] for i in range(len(left))]
        best = min(range(len(left)), key=lambda i: (worst(runs[i])[0], left[i].candidate.k))
        even = [i for i in range(len(left)) if i != best and not roomier(runs[best], runs[i])]
        left = [left[i] for i in (best, *even)]
    return left[0], left[1:]


def _fastest(search: Search, able: Sequence[Entry], prompts: int | None) -> tuple[Entry, list[Entry]]:
    """Looks at the most promising bounds first, and at none that cannot be the best any more."""
    reached: list[tuple[float, Entry]] = []
    longer = None
    if prompts is not None and search.lengths is not None:
        longer = min(CONFIRMING, search.lengths.most)
    for entry in sorted(able, key=_most, reverse=True):
        if reached and _most(entry) < max(rate for rate, _ in reached):
            break
        n = entry.high or 1
        reach = reach_of(entry, search.traffic)
        curve = LoadCurve(search.laboratory, search.traffic, entry.candidate, n, search.seeds, prompts, reach)
        low, _ = curve.bracket(RATE_STEP if longer is None else ROUGH)
        crossing = curve.crossing(range(len(search.seeds)))
        reached.append((search.traffic.rate * min(low or math.inf, crossing), entry))
    if longer is not None:
        near = max(rate for rate, _ in reached) / NEAR
        reached = [(_rate(search, entry, rate, longer), entry) for rate, entry in reached if rate >= near]
    top, best = max(reached, key=lambda each: (each[0], -each[1].candidate.k))
    even = [entry for rate, entry in reached if entry is not best and rate * CLOSE > top]
    return best, even


def _rate(search: Search, entry: Entry, near: float, prompts: int) -> float:
    """Returns the largest rate of all replicas over several seeds, requests/s, looked for near another."""
    laboratory, traffic, n = search.laboratory, search.traffic, entry.high or 1
    seeds, reach = search.fresh[:SEVERAL], reach_of(entry, traffic)
    curve = LoadCurve(laboratory, traffic, entry.candidate, n, seeds, prompts, reach)
    curve.around(near / traffic.rate)
    return traffic.rate * curve.crossing(range(SEVERAL))


def reach_of(entry: Entry, traffic: Traffic) -> tuple[float, float]:
    """Returns where to begin to look for an entry's largest rate, and how far, in times of the traffic."""
    most = _most(entry) / traffic.rate
    return max(PROMISING * most, 1.0), max(most, 1.0)


def _most(entry: Entry) -> float:
    return entry.bound.rate * (entry.high or 1)
