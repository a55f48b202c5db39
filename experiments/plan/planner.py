"""Makes a plan: searches, confirms the winner and studies it."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from specfleet.experiments.load.config import Loaded, load
from specfleet.experiments.plan.candidates import Candidate, candidates
from specfleet.experiments.plan.capacity import capacity
from specfleet.experiments.plan.neighbours import BETTER, Neighbour, neighbours
from specfleet.experiments.plan.planned import Planned
from specfleet.experiments.plan.search import Entry, Search
from specfleet.experiments.plan.sensitivity import sensitivity
from specfleet.experiments.plan.speculation import best_by_load, break_even
from specfleet.experiments.plan.traffic import Traffic
from specfleet.experiments.plan.trials import Laboratory, worst
from specfleet.experiments.point.bounds import Bound, MeanLengths, bound
from specfleet.experiments.point.build import requests
from specfleet.experiments.run.folder import Manifest, ResultsFolder, figures_in, start_of_manifest
from specfleet.experiments.run.processes import Workers
from specfleet.experiments.schema.faults import COMMAND_LINE, Fault, InputFaults
from specfleet.experiments.schema.given import Given
from specfleet.experiments.schema.given import document as read_given
from specfleet.experiments.schema.overrides import Override, overridden

ANSWERS = ("plan.json", "rollout.md", "report.html")
FIGURES = ("cost", "pareto", "best_k", "slo")
SIMULATION = re.compile(r"\.?[0-9a-f]{24}(\.json)?(\.[0-9]+)?")
"""Names of the files in `simulations/`, those cut short among them."""


class Planner:
    """Makes a plan.

    Args:
        file: the experiment's YAML, with its `plan:` block.
        overrides: `key=value` from the command line.
        out: the folder of plan.json, rollout.md, plots/ and simulations/; None is `results/NAME-plan`.

    Raises:
        InputFaults: with all that is wrong with the file, or the folder.
    """

    def __init__(self, file: Given, overrides: Sequence[Override] = (), out: Path | None = None) -> None:
        self.file = file
        self.loaded: Loaded = load(file, overrides)
        experiment = self.loaded.experiment
        if experiment.plan is None:
            raise _fault("plan", "is not there; add plan: with candidates to choose from")
        given = overridden(read_given(file), overrides).data.get("serve")
        every = candidates(experiment, given if isinstance(given, dict) else {})
        base = every[0].config
        traffic = Traffic.of(experiment.model_copy(update={"serve": base.serve, "workload": base.workload}))
        seeds = tuple(experiment.seed + i for i in range(experiment.replications))
        self.planned = Planned(experiment, traffic, seeds, every)
        self._place = ResultsFolder("plan", f"{experiment.name}-plan", out, own_files, mixes=True)
        self._overrides = tuple(overrides)

    @property
    def folder(self) -> Path:
        """Where the plan is; of a numbered folder, known once it is prepared."""
        return self._place.path

    def prepare(self, resume: bool) -> None:
        """Makes the folder ready, for this process alone; without `resume` earlier simulations go.

        Raises:
            InputFaults: if the folder belongs to something else.
        """
        self._manifest = start_of_manifest("plan", self.loaded.experiment, self._overrides)
        self._place.claim(resume, self._manifest)
        for path in _answers(self.folder):
            path.unlink(missing_ok=True)

    def finish(self) -> None:
        """Says in the folder that the plan is there, and lets other processes have it."""
        self._place.write_manifest({**self._manifest, "whole": True})
        self._place.release()

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
        at = functools.partial(_bound, MeanLengths.of(table))
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
        ordered = [this.winner, *rival, *shortlist]
        this.changed = sensitivity(laboratory, this.traffic, seeds, this.plan.spare_replicas, ordered)


def own_files(folder: Path, manifest: Manifest) -> Iterator[Path]:
    """Yields what `specfleet plan` writes into its folder, besides the manifest."""
    yield from _answers(folder)
    yield from (path for path in folder.glob("simulations/*") if SIMULATION.fullmatch(path.name))


def _answers(folder: Path) -> Iterator[Path]:
    """What a plan says, without the simulations behind it."""
    yield from (folder / name for name in ANSWERS)
    yield from figures_in(folder, FIGURES)


def _promoted(this: Planned, found: Neighbour, last: int) -> Entry:
    """Returns the entry of a neighbour with what its simulation at full length showed."""
    entry = next(e for e in this.entries if e.candidate is found.candidate)
    entry.low, entry.high, entry.rung = found.replicas - 1, found.replicas, last
    entry.ratio, entry.limit = found.ratio, found.limit
    return entry


def _bound(lengths: MeanLengths, candidate: Candidate) -> Bound:
    return bound(candidate.config, lengths)


def _fault(key: str, message: str) -> InputFaults:
    return InputFaults([Fault(COMMAND_LINE, 0, key, message)])
