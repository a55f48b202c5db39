"""The cheapest candidate that meets the SLO: best first by a lower bound of its cost, on replicas.

Each candidate has a bracket of replicas: `low` are known to be too few, `high` to be enough. What is looked
at next is always the candidate that could be cheapest, and of those in short runs; only what stays in front
is simulated longer and on more seeds. So the first that has proved itself at full length is the cheapest,
whatever the others would have shown: their lower bounds are above it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from specfleet.experiments.plan.candidates import Candidate
from specfleet.experiments.plan.traffic import Traffic
from specfleet.experiments.plan.trials import Laboratory, TrialFigures, worst
from specfleet.experiments.point.bounds import Bound

TOGETHER = 4
"""Candidates simulated side by side; a constant, so that the search does not depend on the processes."""

MOST_REPLICAS = 4096

FURTHEST = 6
"""Doublings of the step upwards after failures."""

CENT = 0.005
"""Dollars an hour below which two costs are equal."""


@dataclass(frozen=True)
class Rung:
    """How long and on how many seeds a candidate is simulated.

    Attributes:
        part: of the requests.
        seeds: how many.
        fails_from: ratio to the SLO from which it has failed; short runs must fail clearly.
    """

    part: float
    seeds: int
    fails_from: float


def rungs(seeds: int) -> tuple[Rung, ...]:
    """Returns the successive halvings: a quarter of a run, one run, all seeds."""
    short = (Rung(0.25, 1, 1.3), Rung(1.0, 1, 1.05))
    return (*short, Rung(1.0, seeds, 1.0)) if seeds > 1 else (short[0], Rung(1.0, 1, 1.0))


@dataclass
class Entry:
    """What is known of a candidate.

    Attributes:
        candidate: what it is.
        bound: of one replica's rate.
        low: replicas known to be too few.
        high: replicas that have met the SLO, or None.
        rung: on which `high` was last simulated; -1 for none.
        ratio: to the SLO at `high`, of the limit that binds.
        limit: that limit.
        least: rung on which new numbers are looked at: shorter runs have been too kind before.
        failures: in a row, since replicas last met the SLO.
        tried: (replicas, rung, ratio), in order.
    """

    candidate: Candidate
    bound: Bound
    low: int
    high: int | None = None
    rung: int = -1
    ratio: float = math.inf
    limit: str = ""
    least: int = 0
    failures: int = 0
    tried: list[tuple[int, int, float]] = field(default_factory=list)

    @property
    def possible(self) -> bool:
        """Whether the plan allows more replicas than are known to be too few."""
        most = self.candidate.most_replicas
        return self.bound.rate > 0.0 and self.low < (MOST_REPLICAS if most is None else most)

    def confirmed(self, last: int) -> bool:
        """Whether the fewest replicas are known, at full length."""
        return self.high is not None and self.rung >= last and self.high == self.low + 1

    def next_replicas(self) -> int:
        """Returns the number to look at: the fewest possible, further up after failures, then the middle."""
        if self.high is not None:
            return (self.low + self.high + 1) // 2 if self.high > self.low + 1 else self.high
        ahead = self.low + 1 + int(0.05 * self.low * (2 ** min(self.failures, FURTHEST) - 1))
        most = self.candidate.most_replicas
        return ahead if most is None else min(ahead, most)


@dataclass(frozen=True)
class Probe:
    """One question to the simulator: do so many replicas of an entry meet the SLO on this rung?"""

    entry: Entry
    replicas: int
    rung: int


class Search:
    """Branch and bound over candidates.

    Args:
        laboratory: runs trials.
        traffic: what is asked.
        seeds: of the replications.
        spare: replicas bought beyond those needed.
        last: index of the rung that decides; None is the last.
        report: told of each answer.

    Attributes:
        observed: (candidate, replicas that share the traffic, figures of one) of every simulation.
    """

    def __init__(
        self,
        laboratory: Laboratory,
        traffic: Traffic,
        seeds: Sequence[int],
        spare: int = 0,
        last: int | None = None,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.laboratory = laboratory
        self.traffic = traffic
        self.seeds = tuple(seeds)
        self.spare = spare
        self.rungs = rungs(len(self.seeds))
        self.last = len(self.rungs) - 1 if last is None else min(last, len(self.rungs) - 1)
        self.observed: list[tuple[Candidate, int, TrialFigures]] = []
        self._report = report

    def entries(self, candidates: Sequence[Candidate], bounds: Mapping[str, Bound]) -> list[Entry]:
        """Returns an entry for each candidate that can be had; too few replicas are those below its bound."""
        found = []
        for candidate in candidates:
            bound = bounds[candidate.id]
            needed = math.ceil(self.traffic.rate / bound.rate) if bound.rate else MOST_REPLICAS + 1
            found.append(Entry(candidate, bound, needed - 1))
        return found

    def cost(self, entry: Entry, replicas: int | None = None) -> float:
        """Returns dollars an hour of `replicas`, spares added; by default of the fewest possible."""
        return entry.candidate.replica_usd * ((entry.low + 1 if replicas is None else replicas) + self.spare)

    def run(self, entries: Sequence[Entry]) -> Entry | None:
        """Returns the cheapest entry, and of equally cheap ones that with most room to the SLO; or None."""
        while True:
            best = self.best(entries)
            limit = math.inf if best is None else self.cost(best) + CENT
            open_ = [
                entry
                for entry in entries
                if entry.possible
                and not entry.confirmed(self.last)
                and self.cost(entry) <= limit
                and not self._outdone(entry, best)
            ]
            if not open_:
                return best
            open_.sort(
                key=lambda entry: (round(self.cost(entry), 2), entry.rung, entry.ratio, -entry.bound.rate)
            )
            front = round(self.cost(open_[0]), 2)
            chosen = [entry for entry in open_[:TOGETHER] if round(self.cost(entry), 2) <= 1.1 * front]
            self._answer([self._task(entry) for entry in chosen])

    def refuse(self, entry: Entry) -> None:
        """Notes that the replicas found for an entry are too few after all."""
        entry.low = max(entry.low, entry.high or 0)
        entry.high, entry.rung, entry.ratio = None, -1, math.inf

    def best(self, entries: Sequence[Entry]) -> Entry | None:
        """Returns the cheapest confirmed entry, most room first."""
        done = [entry for entry in entries if entry.confirmed(self.last)]
        return min(done, key=lambda e: (round(self.cost(e), 2), e.ratio, e.candidate.k), default=None)

    def _outdone(self, entry: Entry, best: Entry | None) -> bool:
        """Whether an equally cheap entry is no better than the best one by more than a rung's error."""
        if best is None or entry.high != entry.low + 1 or entry.rung < self.last - 1:
            return False
        same = abs(self.cost(entry) - self.cost(best)) < CENT
        rough = [
            ratio for replicas, rung, ratio in best.tried if replicas == best.high and rung == entry.rung
        ]
        return same and bool(rough) and entry.ratio > rough[-1] * self.rungs[entry.rung].fails_from

    def _task(self, entry: Entry) -> Probe:
        replicas = entry.next_replicas()
        return Probe(entry, replicas, entry.rung + 1 if replicas == entry.high else entry.least)

    def judge(self, asked: Sequence[tuple[Candidate, int]]) -> list[tuple[float, str]]:
        """Returns ratio and limit of candidates at so many replicas, on the last rung."""
        rung = self.rungs[self.last]
        return self._judge([(candidate, replicas, rung) for candidate, replicas in asked])

    def _judge(self, asked: Sequence[tuple[Candidate, int, Rung]]) -> list[tuple[float, str]]:
        trials = [
            (number, self.traffic.trial(candidate.config, replicas, seed, rung.part))
            for number, (candidate, replicas, rung) in enumerate(asked)
            for seed in self.seeds[: rung.seeds]
        ]
        found = self.laboratory.run([trial for _, trial in trials])
        self.observed += [(*asked[number][:2], run) for (number, _), run in zip(trials, found, strict=True)]
        return [
            worst([run for (n, _), run in zip(trials, found, strict=True) if n == number])
            for number in range(len(asked))
        ]

    def _answer(self, tasks: Sequence[Probe]) -> None:
        """Simulates and narrows the brackets; the answers are taken in order, whoever finishes first."""
        verdicts = self._judge([(t.entry.candidate, t.replicas, self.rungs[t.rung]) for t in tasks])
        for task, (ratio, limit) in zip(tasks, verdicts, strict=True):
            entry = task.entry
            entry.tried.append((task.replicas, task.rung, ratio))
            fails = ratio > self.rungs[task.rung].fails_from or (task.rung >= self.last and ratio > 1.0)
            entry.failures = entry.failures + 1 if fails else 0
            if fails:
                entry.least = max(entry.least, task.rung)
                entry.low = max(entry.low, task.replicas)
                if entry.high is not None and entry.high <= entry.low:
                    self.refuse(entry)
            elif entry.high is None or task.replicas <= entry.high:
                entry.high, entry.rung, entry.ratio, entry.limit = task.replicas, task.rung, ratio, limit
            self._report(
                f"{task.replicas} x ({entry.candidate.id}): {ratio:.2f} of {limit}"
                f"{', fails' if fails else ''}"
            )
