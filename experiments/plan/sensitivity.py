"""Whether a plan's choice holds when acceptance, output length, rate or steps are not as expected."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass

from specfleet.experiments.plan.asking import Laboratory, Question
from specfleet.experiments.plan.candidates import Candidate
from specfleet.experiments.plan.predicted import predicted_acceptance_of
from specfleet.experiments.plan.search import FIRST_LOOK, Entry, Search
from specfleet.experiments.plan.traffic import Traffic
from specfleet.experiments.point.beyond import Beyond
from specfleet.experiments.point.bounds import Bound, MeanLengths, bound
from specfleet.experiments.point.build import requests
from specfleet.sim.statistics.limits import Kept
from specfleet.sim.statistics.stopping import RunLengths

SHORTLIST = 8
"""Candidates searched again: the winner, its rival, and the next cheapest, one K each."""


@dataclass(frozen=True)
class Changed:
    """The choice under other traffic.

    Attributes:
        name: what is different.
        ratio: to the SLO of the plan as chosen, and the limit that binds.
        limit: that limit.
        verdict: whether it meets the SLO: `met`, `missed`, `not settled`.
        replicas: of the winner's engine that meet the SLO; None where the plan allows too few, or where it is
            not known to fail.
        cost: dollars an hour of them.
        best: the cheapest of the shortlist that is soon seen to meet the SLO, its replicas and its cost; None
            where there is none, or the plan holds.
        best_replicas, best_cost: of it.
    """

    name: str
    ratio: float
    limit: str
    verdict: Kept
    replicas: int | None
    cost: float
    best: Candidate | None
    best_replicas: int
    best_cost: float


EASIER = "step time -10 %"
"""The change under which fewer replicas may be enough; under all others too few remain too few."""


LOW_END = "acceptance at the low end of its interval"
"""The change of a plan whose acceptance is predicted."""


def changes(traffic: Traffic, law: Beyond | None = None) -> dict[str, Traffic]:
    """Returns what may turn out differently, by name; `law`: the plan's acceptance, where predicted."""
    low = {} if law is None else {LOW_END: dataclasses.replace(traffic, acceptance_factor=law.low_factor)}
    return low | {
        "acceptance -20 %": dataclasses.replace(traffic, acceptance_factor=0.8),
        "output length +30 %": dataclasses.replace(traffic, output_factor=1.3),
        "request rate +25 %": traffic.scaled(1.25),
        "step time +10 %": dataclasses.replace(traffic, step_factor=1.1),
        EASIER: dataclasses.replace(traffic, step_factor=0.9),
    }


def sensitivity(
    laboratory: Laboratory,
    traffic: Traffic,
    seeds: Sequence[int],
    spare: int,
    ordered: Sequence[Entry],
    most: tuple[int, int] | None,
) -> list[Changed]:
    """Searches a shortlist again under each change.

    Args:
        laboratory: runs trials.
        traffic: what the plan is made for.
        seeds: of its replications.
        spare: replicas bought beyond those that the SLO needs.
        ordered: entries, the winner first.
        most: requests of the longest simulations of the winner, and of the others; None: as the file says.
    """
    winner = ordered[0].candidate
    known = shortlist_of(ordered)[:SHORTLIST]
    shortlist = [entry.candidate for entry in known]
    found = []
    for name, changed in changes(traffic, predicted_acceptance_of(winner)).items():
        means = MeanLengths.of(requests(winner.config, seeds[0]), changed.output_factor)
        at = functools.partial(_bound, means, changed.acceptance_factor)
        bounds = dict(zip([c.id for c in shortlist], laboratory.each(at, shortlist), strict=True))
        search = Search(laboratory, changed, seeds, spare, _lengths(most and most[1]), first=True)
        entries = search.entries(shortlist, bounds)
        if name != EASIER:
            for entry, before in zip(entries, known, strict=True):
                entry.low = max(entry.low, before.low)
        n = ordered[0].high or 1
        asked = Question(changed, winner.config, n, tuple(seeds), _lengths(most and most[0]))
        judged = laboratory.ask([asked])[0].judged
        # of what meets the SLO as planned it takes no proof that it does with faster steps
        verdict: Kept = "met" if name == EASIER and judged.verdict != "missed" else judged.verdict
        if verdict != "met":
            entries[0].low = max(entries[0].low, n)
        best = None if verdict == "met" else search.run(entries)
        mine = search.run(entries[:1]) if verdict == "missed" else None
        found.append(
            Changed(
                name=name,
                ratio=judged.ratio,
                limit=judged.limit,
                verdict=verdict,
                replicas=mine.high if mine else None,
                cost=search.cost(mine, mine.high) if mine else 0.0,
                best=best.candidate if best else None,
                best_replicas=(best.high or 0) if best else 0,
                best_cost=search.cost(best, best.high) if best else 0.0,
            )
        )
    return found


def _lengths(most: int | None) -> RunLengths | None:
    return RunLengths(min(FIRST_LOOK, most), most) if most else None


def _bound(lengths: MeanLengths, acceptance_factor: float, candidate: Candidate) -> Bound:
    return bound(candidate.config, lengths, acceptance_factor)


def shortlist_of(ordered: Sequence[Entry]) -> list[Entry]:
    """The first entry of every engine with each way to draft: the K it did best with, and plain."""
    chosen: dict[tuple[object, ...], Entry] = {}
    for entry in ordered:
        candidate = entry.candidate
        chosen.setdefault((*candidate.kind, candidate.method), entry)
    return list(chosen.values())
