"""The cheapest candidate that meets the SLO: best first by a lower bound of its cost, on replicas.

Each candidate has a bracket of replicas: `low` are known to be too few, `high` to be enough; between them
there may be some of which no simulation that is allowed can tell. What is looked at next is always the
candidate that could be cheapest. So the first of which it is settled that it meets the SLO is the cheapest of
which it is, and the cheaper ones that are not settled are known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from specfleet.experiments.plan.asking import Laboratory, Question, Reply
from specfleet.experiments.plan.candidates import Candidate
from specfleet.experiments.plan.seen import TrialFigures, judge, of_limit
from specfleet.experiments.plan.traffic import Traffic
from specfleet.experiments.point.bounds import Bound
from specfleet.sim.statistics.stopping import RunLengths

TOGETHER = 4
"""Candidates simulated side by side; a constant, so that the search does not depend on the processes."""

MOST_REPLICAS = 4096

FURTHEST = 6
"""Doublings of the step upwards after failures."""

CENT = 0.005
"""Dollars an hour below which two costs are equal."""

TRIES = 2
"""Failures in a row after which it is asked whether any number of replicas would do."""

ALONE = 400
"""Requests of a simulation of one at a time."""

FIRST_LOOK = 1_000
"""Requests of the first simulation of a question."""

AGAIN = 5
"""Fresh seeds with which a winner is simulated again: what was chosen of many may have been lucky."""


@dataclass
class Entry:
    """What is known of a candidate.

    Attributes:
        candidate: what it is.
        bound: of one replica's rate.
        low: replicas known to be too few.
        high: replicas known to meet the SLO, or None.
        ratio: to the SLO at `high`, of the limit that binds; of what was looked at last where there is none.
        limit: that limit.
        failures: in a row, since replicas last met the SLO.
        tried: replicas -> what was found with them, in the order of looking.
    """

    candidate: Candidate
    bound: Bound
    low: int
    high: int | None = None
    ratio: float = math.inf
    limit: str = ""
    failures: int = 0
    tried: dict[int, Reply] = field(default_factory=dict)

    @property
    def unsettled(self) -> list[int]:
        """Replicas of which it is not settled whether they meet the SLO, ascending."""
        verdicts = {n: answer.judged.verdict for n, answer in self.tried.items()}
        top = self.high if self.high is not None else math.inf
        return sorted(n for n, said in verdicts.items() if said == "not settled" and self.low < n < top)

    @property
    def floor(self) -> int:
        """Most replicas that are not known to meet the SLO: too few, or not settled."""
        return max([self.low, *self.unsettled])

    @property
    def fewest(self) -> int:
        """Fewest replicas that may meet the SLO; whether they do need not have been looked at."""
        return self.low + 1

    @property
    def possible(self) -> bool:
        """Whether the plan allows more replicas than are known not to be enough for certain."""
        most = self.candidate.most_replicas
        return self.bound.rate > 0.0 and self.floor < (MOST_REPLICAS if most is None else most)

    @property
    def known(self) -> bool:
        """Whether the fewest replicas that meet the SLO for certain are known."""
        return self.high is not None and self.high == self.floor + 1

    @property
    def shown(self) -> int:
        """Replicas to name: the fewest that meet the SLO where they are known, else the fewest that may."""
        return self.high if self.high is not None and self.known else self.fewest

    def next_replicas(self) -> int:
        """Returns the number to look at: the fewest possible, further up after failures, then the middle."""
        if self.high is not None:
            return (self.floor + self.high) // 2
        ahead = self.floor + 1 + int(0.05 * self.floor * (2 ** min(self.failures, FURTHEST) - 1))
        most = self.candidate.most_replicas
        return ahead if most is None else min(ahead, most)


class Search:
    """Branch and bound over candidates.

    Args:
        laboratory: answers questions.
        traffic: what is asked.
        seeds: of the replications.
        spare: replicas bought beyond those needed.
        lengths: how long a simulation may be; None: as long as the file says.
        report: told of each answer.
        first: of equally cheap ones the first that is found will do.

    Attributes:
        observed: (candidate, replicas that share the traffic, figures of one) of the last simulations of
            every question.
    """

    def __init__(
        self,
        laboratory: Laboratory,
        traffic: Traffic,
        seeds: Sequence[int],
        spare: int = 0,
        lengths: RunLengths | None = None,
        report: Callable[[str], None] = lambda _: None,
        first: bool = False,
    ) -> None:
        self.laboratory = laboratory
        self.traffic = traffic
        self.seeds = tuple(seeds)
        self.spare = spare
        self.lengths = lengths
        self.observed: list[tuple[Candidate, int, TrialFigures]] = []
        self._report = report
        self._margin = -CENT if first else CENT
        self._together = 1 if first else TOGETHER

    def entries(self, candidates: Sequence[Candidate], bounds: Mapping[str, Bound]) -> list[Entry]:
        """Returns an entry for each candidate that can be had; too few replicas are those below its bound."""
        found = []
        for candidate in candidates:
            bound = bounds[candidate.id]
            needed = math.ceil(self.traffic.rate / bound.rate) if bound.rate else MOST_REPLICAS + 1
            found.append(Entry(candidate, bound, needed - 1))
        return found

    def cost(self, entry: Entry, replicas: int | None = None) -> float:
        """Returns dollars an hour of `replicas`, spares added; by default of the fewest that are enough."""
        counted = entry.floor + 1 if replicas is None else replicas
        return entry.candidate.replica_usd * (counted + self.spare)

    def run(self, entries: Sequence[Entry]) -> Entry | None:
        """Returns the cheapest entry that meets the SLO, of equals one with most room, or the first."""
        while True:
            best = self.best(entries)
            limit = math.inf if best is None else self.cost(best) + self._margin
            open_ = [e for e in entries if e.possible and not e.known and self.cost(e) <= limit]
            if not open_:
                return best
            open_.sort(key=lambda entry: (round(self.cost(entry), 2), -entry.bound.rate))
            front = round(self.cost(open_[0]), 2)
            chosen = [entry for entry in open_[: self._together] if round(self.cost(entry), 2) <= 1.1 * front]
            self._look([(entry, entry.next_replicas()) for entry in chosen])

    def refuse(self, entry: Entry) -> None:
        """Notes that the replicas found for an entry are too few after all."""
        entry.low = max(entry.low, entry.high or 0)
        entry.high, entry.ratio = None, math.inf

    def again(self, entry: Entry, precision: tuple[float, float] | None = None) -> Reply:
        """Simulates the replicas found for an entry again, with fresh seeds.

        What does not come out as `met` again is noted in the entry: it has no replicas then that are enough.

        Args:
            entry: with such replicas.
            precision: see `Question`.
        """
        assert entry.high is not None
        n = entry.high
        question = Question(
            self.traffic,
            entry.candidate.config,
            n,
            self.fresh,
            self.lengths,
            precision=precision,
            confirms=entry.bound,
        )
        (found,) = self.laboratory.ask([question])
        judged = found.judged
        if judged.verdict != "met":
            entry.tried[n], entry.high = found, None
            entry.low = n if judged.verdict == "missed" else entry.low
        entry.ratio, entry.limit = judged.ratio, judged.limit
        self._report(f"again {n} x ({entry.candidate.id}): {of_limit(judged)}, {judged.verdict}")
        return found

    @property
    def fresh(self) -> tuple[int, ...]:
        """Seeds that the search does not use."""
        return tuple(max(self.seeds) + 1 + i for i in range(AGAIN))

    def best(self, entries: Sequence[Entry]) -> Entry | None:
        """Returns the cheapest entry that meets the SLO, most room first."""
        done = [entry for entry in entries if entry.known]
        return min(done, key=lambda e: (round(self.cost(e), 2), e.ratio, e.candidate.k), default=None)

    def in_question(self, entries: Sequence[Entry], winner: Entry | None) -> list[tuple[Entry, int]]:
        """Returns those that would be cheaper than the winner if they meet the SLO, which is not settled.

        With each the fewest replicas that may: after a jump upwards fewer than the fewest looked at.
        """
        limit = math.inf if winner is None or winner.high is None else self.cost(winner, winner.high) - CENT
        found = [(e, e.fewest) for e in entries if e.unsettled and self.cost(e, e.fewest) < limit]
        return sorted(found, key=lambda each: self.cost(*each))

    def alone(self, entry: Entry) -> TrialFigures | None:
        """Returns what an engine shows to one request at a time; None where it refuses them."""
        trial = self.traffic.closed(entry.candidate.config, 1, self.seeds[0], ALONE)
        (found,) = self.laboratory.run([trial])
        return found if found.series else None

    def _hopeless(self, entry: Entry) -> None:
        """Ends the search for replicas where one request at a time misses the SLO already."""
        run = self.alone(entry)
        if run is None:
            return
        judged = judge([run])
        if judged.verdict == "missed":
            why = f"{judged.ratio:.2f} times {judged.limit} with one request at a time"
            entry.bound = Bound(0.0, 1.0, why)

    def judge(self, asked: Sequence[tuple[Candidate, int]], most: int | None = None) -> list[Reply]:
        """Returns what is found of candidates with so many replicas, in at most `most` requests."""
        found = self.ask(asked, most)
        for (candidate, n), answer in zip(asked, found, strict=True):
            self.observed += [(candidate, n, run) for run in answer.runs]
        return found

    def ask(self, asked: Sequence[tuple[Candidate, int]], most: int | None = None) -> list[Reply]:
        """As `judge`, of engines that are no candidates themselves."""
        lengths = self.lengths
        if lengths is not None and most is not None and most < lengths.most:
            lengths = replace(lengths, least=min(lengths.least, most), most=most)
        return self.laboratory.ask(
            [Question(self.traffic, candidate.config, n, self.seeds, lengths) for candidate, n in asked]
        )

    def _look(self, asked: Sequence[tuple[Entry, int]]) -> None:
        """Simulates and narrows the brackets; the answers are taken in order, whoever finishes first."""
        found = self.judge([(entry.candidate, n) for entry, n in asked])
        for (entry, n), answer in zip(asked, found, strict=True):
            judged = answer.judged
            entry.tried[n] = answer
            entry.failures = 0 if judged.verdict == "met" else entry.failures + 1
            if judged.verdict == "missed":
                entry.low = max(entry.low, n)
            if judged.verdict == "met" and (entry.high is None or n <= entry.high):
                entry.high = n
            if judged.verdict == "met" or entry.high is None:
                entry.ratio, entry.limit = judged.ratio, judged.limit
            if entry.high is None and entry.failures == TRIES:
                self._hopeless(entry)
            self._report(f"{n} x ({entry.candidate.id}): {of_limit(judged)}, {judged.verdict}")
