"""`specfleet plan`: the cheapest deployment that meets the SLO, whether to speculate, how to roll it out."""

from __future__ import annotations

import functools
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specfleet.experiments.load.config import Loaded, load
from specfleet.experiments.plan.bounds import Bound, Lengths, bound
from specfleet.experiments.plan.candidates import Candidate, candidates
from specfleet.experiments.plan.capacity import Capacity, capacity
from specfleet.experiments.plan.neighbours import BETTER, Neighbour, neighbours
from specfleet.experiments.plan.search import MOST_REPLICAS, Entry, Search
from specfleet.experiments.plan.sensitivity import Changed, sensitivity
from specfleet.experiments.plan.speculation import BestK, BreakEven, best_by_load, break_even
from specfleet.experiments.plan.traffic import Traffic
from specfleet.experiments.plan.trials import Figures, Laboratory, worst
from specfleet.experiments.point.build import requests
from specfleet.experiments.run.processes import WorkerLost, Workers, default_jobs
from specfleet.experiments.run.progress import Reporter
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.blocks.plan import Plan
from specfleet.experiments.schema.faults import COMMAND_LINE, Fault, InputFaults
from specfleet.experiments.schema.overrides import overridden
from specfleet.experiments.schema.yamlfile import read_yaml

SAY_EVERY_S = 5.0


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
        winner: the cheapest; None where none meets the SLO.
        rival: the cheapest that drafts where the winner does not, or the other way round; None if none does.
        runs: candidate -> figures of one replica of the winner's number of them, a run a seed: the winner's
            engine with every K, and plain.
        whole: figures of the whole deployment behind its router, a run a seed.
        neighbours: one step away from the winner.
        capacity: of one replica of the winner.
        loads: best K by load.
        break_even: acceptance at which the winner's K stops paying; of the best K if it does not draft.
        changed: the choice under other traffic.
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
    rival: Entry | None = None
    runs: dict[str, list[Figures]] = field(default_factory=dict)
    whole: list[Figures] = field(default_factory=list)
    neighbours: list[Neighbour] = field(default_factory=list)
    capacity: Capacity | None = None
    loads: list[BestK] = field(default_factory=list)
    break_even: BreakEven | None = None
    changed: list[Changed] = field(default_factory=list)
    observed: list[tuple[Candidate, int, Figures]] = field(default_factory=list)
    spent: int = 0
    asked: int = 0

    @property
    def plan(self) -> Plan:
        """The `plan:` block."""
        return self.experiment.plan or Plan()

    @property
    def ways(self) -> list[Candidate]:
        """The winner's GPU, TP and weights: plain, and every K of its drafter, by K.

        A plain winner takes the drafter of the rival, or the first on the list.
        """
        assert self.winner is not None
        mine = self.winner.candidate
        alike = [
            c
            for c in self.every
            if not c.refusal
            and (c.gpu, c.tensor_parallel_size, c.quantization)
            == (mine.gpu, mine.tensor_parallel_size, mine.quantization)
        ]
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


class Planner:
    """Makes a plan.

    Args:
        file: the experiment's YAML, with its `plan:` block.
        overrides: `key=value` from the command line.
        out: the folder of plan.json, rollout.md, plots/ and simulations/; None is `results/NAME-plan`.

    Raises:
        InputFaults: with all that is wrong with the file, or the folder.
    """

    def __init__(self, file: Path, overrides: Sequence[str] = (), out: Path | None = None) -> None:
        self.file = file
        self.loaded: Loaded = load(file, overrides)
        experiment = self.loaded.experiment
        if experiment.plan is None:
            raise _fault("plan", "is not there; add plan: with candidates to choose from")
        given = overridden(read_yaml(file), overrides).data.get("serve")
        every = candidates(experiment, given if isinstance(given, dict) else {})
        base = every[0].config
        traffic = Traffic.of(experiment.model_copy(update={"serve": base.serve, "workload": base.workload}))
        seeds = tuple(experiment.seed + i for i in range(experiment.replications))
        self.planned = Planned(experiment, traffic, seeds, every)
        self.folder = out or Path("results") / f"{experiment.name}-plan"

    def prepare(self, resume: bool) -> None:
        """Makes the folder ready; without `resume` earlier simulations go.

        Raises:
            InputFaults: if the folder belongs to something else.
        """
        folder = self.folder
        if folder.exists() and any(folder.iterdir()) and not (folder / "simulations").is_dir():
            raise _fault("--out", f"{folder} is not empty and no plan's folder; use another --out")
        if not resume:
            shutil.rmtree(folder / "simulations", ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)

    def execute(self, jobs: int, say: Callable[[str], None]) -> Planned:
        """Searches, confirms and studies; says what it is at."""
        with Workers(jobs) as workers:
            laboratory = Laboratory(self.folder / "simulations", workers)
            self._execute(laboratory, say)
            self.planned.spent, self.planned.asked = laboratory.spent, laboratory.distinct
        return self.planned

    def _execute(self, laboratory: Laboratory, say: Callable[[str], None]) -> None:
        this = self.planned
        sound = [candidate for candidate in this.every if not candidate.refusal]
        say(f"{len(this.every)} candidates, {len(sound)} can be had")
        if not sound:
            return
        table = requests(sound[0].config, this.seeds[0])
        at = functools.partial(_bound, Lengths.of(table))
        this.bounds = dict(zip([c.id for c in sound], laboratory.each(at, sound), strict=True))
        search = Search(laboratory, this.traffic, this.seeds, this.plan.spare_replicas, report=say)
        this.entries = search.entries(sound, this.bounds)
        this.winner = search.run(this.entries)
        this.observed = search.observed
        if this.winner is None:
            return
        self._confirm(search, say)
        if this.winner is not None:
            self._study(laboratory, search, say)

    def _confirm(self, search: Search, say: Callable[[str], None]) -> None:
        """Holds the winner against its neighbours and the whole deployment against the SLO.

        A better neighbour becomes the winner; a deployment that fails as a whole is not enough, and the
        search goes on.
        """
        this = self.planned
        assert this.winner is not None
        for _ in range(len(this.every)):
            say(f"holding {this.winner.candidate.id} against its neighbours")
            this.neighbours = neighbours(search, this.winner, this.every)
            better = [n for n in this.neighbours if n.verdict == BETTER]
            if better:
                this.winner = _promoted(this, min(better, key=lambda n: (n.cost, n.ratio)), search.last)
                continue
            ratio, limit = self._deploy(search)
            if ratio <= 1.0:
                break
            say(f"the whole deployment has {ratio:.2f} of {limit}; searching on")
            search.refuse(this.winner)
            this.winner = search.run(this.entries)
            if this.winner is None:
                return
        drafts = bool(this.winner.candidate.k)
        others = [entry for entry in this.entries if bool(entry.candidate.k) != drafts]
        say(f"the cheapest {'without' if drafts else 'with'} drafting")
        this.rival = search.run(others)

    def _deploy(self, search: Search) -> tuple[float, str]:
        """Simulates all replicas behind the router; returns ratio to the SLO and the limit that binds."""
        this = self.planned
        assert this.winner is not None and this.winner.high is not None
        config = this.winner.candidate.config
        trials = [this.traffic.whole(config, this.winner.high, seed) for seed in this.seeds]
        this.whole = search.laboratory.run(trials)
        return worst(this.whole)

    def _study(self, laboratory: Laboratory, search: Search, say: Callable[[str], None]) -> None:
        this = self.planned
        assert this.winner is not None and this.winner.high is not None
        mine, replicas, seeds = this.winner.candidate, this.winner.high, this.seeds
        say("every K at the planned load")
        ways = this.ways
        trials = [this.traffic.trial(way.config, replicas, seed) for way in ways for seed in seeds]
        found = laboratory.run(trials)
        this.runs = {way.id: found[i * len(seeds) :][: len(seeds)] for i, way in enumerate(ways)}
        say("largest rate and concurrency")
        this.capacity = capacity(laboratory, this.traffic, mine, replicas, seeds)
        plain, drafting = this.plain, this.drafting
        if plain is not None and drafting is not None:
            say("best K by load")
            this.loads = best_by_load(laboratory, this.traffic, ways, seeds[0])
            say("break-even acceptance")
            this.break_even = break_even(laboratory, this.traffic, drafting, plain, replicas, seeds[0])
        say("sensitivity of the choice")
        shortlist = sorted(this.entries, key=lambda entry: (search.cost(entry), entry.ratio))
        rival = [this.rival] if this.rival else []
        this.changed = sensitivity(laboratory, this, [this.winner, *rival, *shortlist])


def _promoted(this: Planned, found: Neighbour, last: int) -> Entry:
    """Returns the entry of a neighbour with what its simulation at full length showed."""
    entry = next(e for e in this.entries if e.candidate is found.candidate)
    entry.low, entry.high, entry.rung = found.replicas - 1, found.replicas, last
    entry.ratio, entry.limit = found.ratio, found.limit
    return entry


def _bound(lengths: Lengths, candidate: Candidate) -> Bound:
    return bound(candidate.config, lengths)


def needed(entry: Entry) -> int | None:
    """Returns the fewest replicas found to meet the SLO, None where none were."""
    return entry.high if entry.high is not None and entry.high < MOST_REPLICAS else None


def _fault(key: str, message: str) -> InputFaults:
    return InputFaults([Fault(COMMAND_LINE, 0, key, message)])


def plan_command(
    file: Path,
    overrides: Sequence[str] = (),
    jobs: int | None = None,
    out: Path | None = None,
    resume: bool = False,
    plots: bool = True,
    quiet: bool = False,
) -> int:
    """Makes a plan, prints the answer, and writes plan.json, rollout.md and plots/.

    Returns:
        The exit code: 0 done, 1 nothing meets the SLO, 130 interrupted.

    Raises:
        InputFaults: with all that is wrong with the file or the options.
    """
    from specfleet.experiments.plan.report import report
    from specfleet.experiments.plan.write import write

    planner = Planner(file, overrides, out)
    planner.prepare(resume)
    reporter = Reporter(0, quiet)
    for notice in planner.loaded.notices:
        reporter.say(f"note: {notice}")
    started = time.monotonic()
    try:
        planned = planner.execute(jobs or default_jobs(), _rarely(reporter, started))
    except KeyboardInterrupt:
        print("interrupted: what is simulated is kept; go on with --resume", file=sys.stderr)
        return 130
    except WorkerLost as lost:
        print(f"{lost}; what is simulated is kept: go on with --resume", file=sys.stderr)
        return 1
    print(report(planned))
    write(planned, planner.folder)
    if plots and planned.winner is not None:
        from specfleet.experiments.plan.figures import draw_plan

        draw_plan(planned, planner.folder)
    spent = time.monotonic() - started
    kept = planned.asked - planned.spent
    found = f" ({kept} more were kept)" if kept else ""
    print(f"{planned.spent} simulations{found} in {spent:.0f} s\nplan: {planner.folder}")
    return 0 if planned.winner is not None else 1


def _rarely(reporter: Reporter, started: float) -> Callable[[str], None]:
    """Says a line with the time, at most one every few seconds."""
    last = [started - SAY_EVERY_S]

    def say(message: str) -> None:
        now = time.monotonic()
        if now - last[0] >= SAY_EVERY_S:
            last[0] = now
            reporter.say(f"{now - started:4.0f} s: {message}")

    return say
