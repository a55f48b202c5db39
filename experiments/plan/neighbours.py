"""Holding a plan's winner against every candidate one step away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specfleet.experiments.plan.candidates import Candidate
from specfleet.experiments.plan.search import CENT, Entry, Search

COSTS_MORE, CANNOT, FAILS, LESS_ROOM, BETTER, MEETS, EVEN, OPEN = (
    "costs more even with one replica",
    "cannot be had",
    "fails",
    "as cheap, less room to the SLO",
    "better",
    "meets the SLO, costs more",
    "as cheap, room not told apart",
    "not settled whether it meets the SLO",
)

ROOM = 4_000
"""Most requests of a simulation of one replica more: that it meets the SLO is known."""


@dataclass(frozen=True)
class Neighbour:
    """One candidate that differs from the winner in one thing.

    Attributes:
        step: what differs: engine, gpu, tp, ranks (data-parallel ones and experts), stages, dtype, method, k
            or replicas.
        candidate: what it is.
        replicas: the most that cost no more than the winner; 0 where one already does.
        cost: dollars an hour of them.
        verdict: one of the words above.
        ratio: to the SLO, of the limit that binds; 0 where nothing was simulated.
        limit: that limit; the reason where it cannot be had.
    """

    step: str
    candidate: Candidate
    replicas: int
    cost: float
    verdict: str
    ratio: float = 0.0
    limit: str = ""


def steps(winner: Candidate, every: Sequence[Candidate]) -> Iterator[tuple[str, Candidate]]:
    """Returns all candidates one step away: other GPU, dtype, method, ranks, stages, next listed TP or K."""
    sizes = sorted({candidate.tensor_parallel_size for candidate in every})
    drafts = sorted({c.k for c in every if c.drafting == winner.drafting})
    for other in every:
        same = {
            "engine": other.build == winner.build,
            "gpu": other.gpu == winner.gpu,
            "ranks": _ranks(other) == _ranks(winner),
            "stages": other.pipeline_parallel_size == winner.pipeline_parallel_size,
            "tp": other.tensor_parallel_size == winner.tensor_parallel_size,
            "dtype": other.quantization == winner.quantization,
            "method": other.drafting == winner.drafting,
            "k": other.k == winner.k,
        }
        differs = [name for name, alike in same.items() if not alike]
        if differs == ["tp"]:
            places = [sizes.index(c.tensor_parallel_size) for c in (winner, other)]
            if abs(places[0] - places[1]) == 1:
                yield "tp", other
        elif differs == ["k"]:
            if abs(drafts.index(winner.k) - drafts.index(other.k)) == 1:
                yield "k", other
        elif len(differs) > 1 and {*differs} <= {"ranks", "stages", "tp"} and other.gpus == winner.gpus:
            yield "stages" if "stages" in differs else "ranks", other
        elif len(differs) == 1:
            yield differs[0], other
        elif differs == ["method", "k"] and _nearest(winner, other, every):
            yield "method", other


def _ranks(candidate: Candidate) -> tuple[int, bool]:
    return candidate.data_parallel_size, candidate.expert_parallel


def _nearest(winner: Candidate, other: Candidate, every: Sequence[Candidate]) -> bool:
    """Whether a way to draft that lacks the winner's K has none nearer to it; plain decoding has only 0."""
    drafts = {c.k for c in every if c.drafting == other.drafting}
    nearest = min(drafts, key=lambda k: (abs(k - winner.k), k))
    return winner.k not in drafts and other.k == nearest


def neighbours(search: Search, winner: Entry, every: Sequence[Candidate]) -> list[Neighbour]:
    """Simulates every neighbour with as many replicas as the winner's money buys.

    More replicas than that would cost more, so one that fails with them cannot be cheaper. The winner itself
    is looked at with one replica less, and, to see how much room it gives, with one more.
    """
    assert winner.high is not None
    budget = search.cost(winner, winner.high)
    found: list[Neighbour] = []
    asked: list[tuple[str, Candidate, int]] = []
    for step, other in steps(winner.candidate, every):
        affordable = int((budget + CENT) / other.replica_usd) - search.spare
        if other.refusal:
            found.append(Neighbour(step, other, 0, 0.0, CANNOT, limit=other.refusal))
        elif affordable < 1:
            cost = other.replica_usd * (1 + search.spare)
            found.append(Neighbour(step, other, 0, cost, COSTS_MORE))
        else:
            most = other.most_replicas
            asked.append((step, other, affordable if most is None else min(affordable, most)))
    if winner.high > 1:
        asked.append(("replicas", winner.candidate, winner.high - 1))
    answers = search.judge([(candidate, replicas) for _, candidate, replicas in asked])
    asked.append(("replicas", winner.candidate, winner.high + 1))
    answers += search.judge([(winner.candidate, winner.high + 1)], ROOM)
    for (step, other, replicas), answer in zip(asked, answers, strict=True):
        cost, judged = other.replica_usd * (replicas + search.spare), answer.judged
        verdict = {"missed": FAILS, "not settled": OPEN, "met": MEETS}[judged.verdict]
        if other is winner.candidate and replicas > winner.high and judged.verdict == "not settled":
            verdict = MEETS  # fewer are known to
        if judged.verdict == "met" and cost < budget - CENT:
            verdict = BETTER
        elif judged.verdict == "met" and cost <= budget + CENT:
            verdict = LESS_ROOM if judged.ratio >= winner.ratio else EVEN
        found.append(Neighbour(step, other, replicas, cost, verdict, judged.ratio, judged.limit))
    return found
