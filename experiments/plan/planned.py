"""A finished plan: everything its report, its figures and plan.json are made of."""

from __future__ import annotations

from dataclasses import dataclass, field

from specfleet.experiments.plan.asking import Reply
from specfleet.experiments.plan.band import AtEnd
from specfleet.experiments.plan.candidates import Candidate
from specfleet.experiments.plan.capacity import Capacity
from specfleet.experiments.plan.fleet.apart import TriedSplits
from specfleet.experiments.plan.fleet.day import DayPlan
from specfleet.experiments.plan.fleet.fleets import Fleets
from specfleet.experiments.plan.fleet.scaled import AtTraffic
from specfleet.experiments.plan.neighbours import Neighbour
from specfleet.experiments.plan.search import Entry
from specfleet.experiments.plan.seen import TrialFigures
from specfleet.experiments.plan.sensitivity import Changed
from specfleet.experiments.plan.speculation import BestK, BreakEven
from specfleet.experiments.plan.traffic import Traffic
from specfleet.experiments.point.bounds import Bound
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.blocks.plan import Plan
from specfleet.sim.statistics.stopping import RunLengths


@dataclass
class Planned:
    """A finished plan: everything the report, the figures and plan.json are made of.

    Attributes:
        experiment: as read, defaults filled in.
        traffic: what is asked.
        seeds: of the replications.
        every: all candidates.
        bounds: candidate -> what one replica can do at most.
        entries: what the search knows of those that can be had.
        winner: the cheapest of which it is settled that it meets the SLO; None where there is none.
        cheaper: entries, with replicas, that would be cheaper than the winner and may meet the SLO.
        even: entries as cheap as the winner that are not told apart from it.
        alone: candidate -> figures of one request at a time, where the SLO was missed at any load.
        confirmed: what simulating the winner again with fresh seeds showed; None where its requests are
            recorded or come in phases.
        ends: what the winner shows at the other ends of the spreads that requests may have; empty where their
            spread is given.
        prompts: requests of the simulations that study the winner; None: as the file says.
        lengths: how long simulations may be; None: as the file says.
        rival: the cheapest that drafts where the winner does not, or the other way round; None if none does.
        runs: candidate -> figures of one replica of the winner's number of them, a run a seed: the winner's
            engine with every K, and plain.
        whole: figures of the whole deployment behind its router, a run a seed.
        neighbours: one step away from the winner.
        capacity: of one replica of the winner.
        loads: best K by load.
        break_even: acceptance at which the winner's K stops paying; of the best K if it does not draft.
        changed: the choice under other traffic.
        day: the fleet over the plan's day; None where nothing is to follow its load.
        fleets: routers and pools tried around the winner.
        splits: prompts on GPUs of their own, tried around the winner.
        elsewhere: what would be bought at other traffic, the plan among it.
        observed: (candidate, replicas, figures) of every simulation of the search.
        spent: simulations made; the others that were asked for were found in the folder.
        asked: different simulations asked for.
    """

    experiment: Experiment
    traffic: Traffic
    seeds: tuple[int, ...]
    every: tuple[Candidate, ...]
    bounds: dict[str, Bound] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    winner: Entry | None = None
    cheaper: list[tuple[Entry, int]] = field(default_factory=list)
    even: list[Entry] = field(default_factory=list)
    alone: dict[str, TrialFigures] = field(default_factory=dict)
    confirmed: Reply | None = None
    ends: list[AtEnd] = field(default_factory=list)
    prompts: int | None = None
    lengths: RunLengths | None = None
    rival: Entry | None = None
    runs: dict[str, list[TrialFigures]] = field(default_factory=dict)
    whole: list[TrialFigures] = field(default_factory=list)
    neighbours: list[Neighbour] = field(default_factory=list)
    capacity: Capacity | None = None
    loads: list[BestK] = field(default_factory=list)
    break_even: BreakEven | None = None
    changed: list[Changed] = field(default_factory=list)
    day: DayPlan | None = None
    fleets: Fleets = field(default_factory=Fleets)
    splits: tuple[TriedSplits, ...] = ()
    elsewhere: list[AtTraffic] = field(default_factory=list)
    observed: list[tuple[Candidate, int, TrialFigures]] = field(default_factory=list)
    spent: int = 0
    asked: int = 0

    @property
    def settled(self) -> bool:
        """Whether it is known what to buy, or that nothing meets the SLO."""
        return not self.cheaper and not self.even

    @property
    def between(self) -> list[str]:
        """What it is not settled between, the cheapest first; empty where it is settled."""
        if self.settled:
            return []
        named = [replicas_of(n + self.plan.spare_replicas, e.candidate) for e, n in self.cheaper]
        as_dear = [entry for entry in (self.winner, *self.even) if entry is not None]
        return named + [replicas_of(e.shown + self.plan.spare_replicas, e.candidate) for e in as_dear]

    @property
    def plan(self) -> Plan:
        """The `plan:` block."""
        return self.experiment.plan or Plan()

    @property
    def ways(self) -> list[Candidate]:
        """The winner's GPUs and weights: plain, and every K of its drafter, by K.

        A plain winner takes the drafter of the rival, or the first on the list.
        """
        assert self.winner is not None
        mine = self.winner.candidate
        alike = [c for c in self.every if not c.refusal and c.kind == mine.kind]
        drafting = mine.drafting
        if not mine.k:
            rival = self.rival.candidate if self.rival and self.rival.candidate.k else None
            drafting = rival.drafting if rival else next((c.drafting for c in alike if c.k), drafting)
        return sorted((c for c in alike if not c.k or c.drafting == drafting), key=lambda c: c.k)

    @property
    def plain(self) -> Candidate | None:
        """The winner's engine without drafting."""
        return next((way for way in self.ways if not way.k), None)

    @property
    def drafting(self) -> Candidate | None:
        """The winner where it drafts, else the K with the lowest P99 TPOT at the planned load."""
        assert self.winner is not None
        if self.winner.candidate.k:
            return self.winner.candidate
        ways = [way for way in self.ways if way.k and way.id in self.runs]
        return min(ways, key=lambda way: self.runs[way.id][0]["p99_tpot_ms"], default=None)


def replicas_of(count: int, candidate: Candidate) -> str:
    """Returns a deployment in words: `2 replicas of 1 x h200 bf16, plain`."""
    return f"{count} replica{'s' if count > 1 else ''} of {candidate.id}"
