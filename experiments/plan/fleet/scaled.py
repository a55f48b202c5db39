"""What a plan would buy at other traffic: the same search at so many times the rate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specfleet.experiments.plan.asking import Laboratory
from specfleet.experiments.plan.candidates import Candidate
from specfleet.experiments.plan.search import FIRST_LOOK, Entry, Search
from specfleet.experiments.plan.sensitivity import shortlist_of
from specfleet.experiments.plan.traffic import Traffic
from specfleet.sim.statistics.stopping import RunLengths

LONGEST = 4_000
"""Most requests of a simulation at other traffic, where the file does not say how many."""


@dataclass(frozen=True)
class AtTraffic:
    """What a plan would buy at other traffic.

    Attributes:
        factor: times the planned traffic.
        rate: requests/s.
        candidate: the cheapest that short simulations show to meet the SLO; None where none does.
        replicas: of it, spares included.
        cost: dollars an hour of them; 0 where there are none.
        ratio: to the SLO, of the limit that binds.
        limit: that limit.
        cheaper: what would be cheaper and of which it is not settled: name, replicas with spares.
        changes: what differs from the plan, a clause each; empty where it is the same engine.
    """

    factor: float
    rate: float
    candidate: Candidate | None
    replicas: int
    cost: float
    ratio: float
    limit: str
    cheaper: tuple[tuple[str, int], ...] = ()
    changes: tuple[str, ...] = ()


def at_other_traffic(
    laboratory: Laboratory,
    traffic: Traffic,
    seeds: Sequence[int],
    spare: int,
    lengths: RunLengths | None,
    ordered: Sequence[Entry],
    factors: Sequence[float],
) -> list[AtTraffic]:
    """Searches every engine again at each factor, with the K it did best with; the plan itself stands at 1.

    Of equally cheap ones the first that is found will do.

    Args:
        laboratory: answers questions.
        traffic: as planned.
        seeds: of the replications.
        spare: replicas bought beyond those needed.
        lengths: how long simulations may be; None: as the file says.
        ordered: what was found at the planned traffic, the winner first.
        factors: times the traffic, other than 1.
    """
    short = None
    if lengths is not None:
        most = min(lengths.most, LONGEST)
        short = RunLengths(min(FIRST_LOOK, most), most)
    planned, known = ordered[0], shortlist_of(ordered)
    bounds = {entry.candidate.id: entry.bound for entry in known}
    found = [_planned(traffic, planned, spare)]
    for factor in dict.fromkeys(factor for factor in factors if factor != 1.0):
        search = Search(laboratory, traffic.scaled(factor), seeds, spare, short, first=True)
        entries = search.entries([entry.candidate for entry in known], bounds)
        found.append(_at(search, factor, search.run(entries), entries, planned))
    return sorted(found, key=lambda each: each.factor)


def _planned(traffic: Traffic, planned: Entry, spare: int) -> AtTraffic:
    assert planned.high is not None
    bought = planned.high + spare
    cost = planned.candidate.replica_usd * bought
    return AtTraffic(1.0, traffic.rate, planned.candidate, bought, cost, planned.ratio, planned.limit)


def _at(
    search: Search, factor: float, best: Entry | None, entries: Sequence[Entry], planned: Entry
) -> AtTraffic:
    open_ = search.in_question(entries, best)
    cheaper = tuple((entry.candidate.id, n + search.spare) for entry, n in open_)
    rate = search.traffic.rate
    if best is None or best.high is None:
        return AtTraffic(factor, rate, None, 0, 0.0, 0.0, "", cheaper)
    bought, cost = best.high + search.spare, search.cost(best, best.high)
    changes = tuple(differences(planned.candidate, best.candidate))
    return AtTraffic(factor, rate, best.candidate, bought, cost, best.ratio, best.limit, cheaper, changes)


def differences(old: Candidate, new: Candidate) -> Iterator[str]:
    """Yields what of a candidate is other than before, a clause each."""
    pairs = {
        "": (old.gpu, new.gpu),
        "engine ": (old.config.serve.engine, new.config.serve.engine),
        "TP ": (str(old.tensor_parallel_size), str(new.tensor_parallel_size)),
        "DP ": (str(old.data_parallel_size), str(new.data_parallel_size)),
        "weights ": (old.weights, new.weights),
    }
    for name, (before, after) in pairs.items():
        if before != after:
            yield f"{name}{after} for {before}"
    if old.expert_parallel != new.expert_parallel:
        yield "whole experts" if new.expert_parallel else "experts in parts"
    if (*old.drafting, old.k) != (*new.drafting, new.k):
        yield f"{_way(new)} for {_way(old)}"


def _way(candidate: Candidate) -> str:
    if not candidate.k:
        return "no drafts"
    return f"{candidate.method} K = {candidate.k}{f' {candidate.how}' if candidate.how else ''}"
