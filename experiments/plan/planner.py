"""Makes a plan: searches, confirms the winner and studies it."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from specfleet.experiments.load.config import Loaded, as_given, load, resolved
from specfleet.experiments.plan.asking import Laboratory, Question, Reply
from specfleet.experiments.plan.band import doubted, over_the_band, reconsider
from specfleet.experiments.plan.candidates import Candidate, candidates
from specfleet.experiments.plan.capacity import REACH, capacity
from specfleet.experiments.plan.contest import contest
from specfleet.experiments.plan.deploy.write import FILES
from specfleet.experiments.plan.fleet.apart import cheapest_apart, engines_apart, splits_of
from specfleet.experiments.plan.fleet.day import day_of
from specfleet.experiments.plan.fleet.fleets import fleets_of
from specfleet.experiments.plan.fleet.scaled import at_other_traffic
from specfleet.experiments.plan.neighbours import BETTER, Neighbour, neighbours
from specfleet.experiments.plan.owned import SEVERAL, best_of_owned, reach_of
from specfleet.experiments.plan.planned import Planned
from specfleet.experiments.plan.search import CENT, FIRST_LOOK, Entry, Search
from specfleet.experiments.plan.seen import Judged, of_limit
from specfleet.experiments.plan.sensitivity import sensitivity
from specfleet.experiments.plan.speculation import best_by_load, break_even
from specfleet.experiments.plan.traffic import Traffic
from specfleet.experiments.point.bounds import Bound, MeanLengths, bound
from specfleet.experiments.point.build import requests
from specfleet.experiments.run.files import write_text
from specfleet.experiments.run.folder import Manifest, ResultsFolder, figures_in, start_of_manifest
from specfleet.experiments.run.inputs import input_files
from specfleet.experiments.run.processes import Workers, at_hand
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.faults import COMMAND_LINE, Fault, InputFaults
from specfleet.experiments.schema.given import Given
from specfleet.experiments.schema.given import document as read_given
from specfleet.experiments.schema.overrides import Override, overridden
from specfleet.sim.statistics.stopping import RunLengths

ASKED = "asked.yaml"
"""What was planned, in the folder of the plan."""
ANSWERS = ("plan.json", "rollout.md", "report.html", *FILES)
FIGURES = ("cost", "pareto", "best_k", "slo", "day")
STUDY = (2_000, 5_000)
"""Fewest and most requests of a simulation that studies the winner, where the file does not say how many."""
CHANGED = (16_000, 4_000)
"""Most requests of a simulation under a change: of the winner, and of what would do in its place."""
PAIRED = 3
"""Seeds on which drafting is held against plain decoding."""
LEAST_EACH = 200
"""Fewest requests for each replica of a whole deployment."""
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
        given = overridden(read_given(file), overrides).data
        every = candidates(experiment, _block(given, "serve"))
        base = every[0].config
        traffic = Traffic.of(experiment.model_copy(update={"serve": base.serve, "workload": base.workload}))
        seeds = tuple(experiment.seed + i for i in range(experiment.replications))
        self.planned = Planned(experiment, traffic, seeds, every)
        self.planned.lengths = _lengths(experiment, traffic, _block(given, "workload"))
        self._place = ResultsFolder("plan", f"{experiment.name}-plan", out, own_files, mixes=True)
        self._overrides = tuple(overrides)
        self._precision = _precision(experiment, _block(given, "run"))

    @property
    def folder(self) -> Path:
        """Where the plan is; of a numbered folder, known once it is prepared."""
        return self._place.path

    def prepare(self, resume: bool) -> None:
        """Makes the folder ready, for this process alone; without `resume` earlier simulations go.

        Raises:
            InputFaults: if the folder belongs to something else.
        """
        asked = self.loaded.experiment
        self._manifest = start_of_manifest(
            "plan", asked.name, self._overrides, resolved(asked), input_files(asked)
        )
        self._place.claim(resume, self._manifest)
        with self._place.held():
            for path in _answers(self.folder):
                path.unlink(missing_ok=True)
            write_text(self.folder / ASKED, as_given(self.file, self._overrides))

    def finish(self) -> None:
        """Says in the folder that the plan is there, and lets other processes have it."""
        with self._place.held():
            self._place.write_manifest({**self._manifest, "whole": True})
        self._place.release()

    def failed(self, error: Exception) -> None:
        """Says in the folder why there is no plan, and lets other processes have it."""
        failures = {"plan": f"{type(error).__name__}: {error}"}
        with self._place.held():
            self._place.write_manifest({**self._manifest, "whole": False, "failures": failures})
        self._place.release()

    def execute(self, jobs: int | Workers, say: Callable[[str], None]) -> Planned:
        """Searches, confirms and studies; says what it is at."""
        with at_hand(jobs) as workers:
            return self.made_in(Laboratory(self.folder / "simulations", workers), say)

    def made_in(self, laboratory: Laboratory, say: Callable[[str], None]) -> Planned:
        """Returns the plan that the simulations of a laboratory make."""
        self._execute(laboratory, say)
        self.planned.spent, self.planned.asked = laboratory.spent, laboratory.asked
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
        search = Search(laboratory, this.traffic, this.seeds, this.plan.spare_replicas, this.lengths, say)
        this.entries = search.entries(sound, this.bounds)
        this.observed = search.observed
        objective = this.plan.objective
        if objective == "cost":
            this.winner = search.run(this.entries)
        else:
            looked = None if this.lengths is None else STUDY[1]
            this.winner, this.even = self._owned(search, objective, looked)
        if this.winner is not None:
            self._confirm(search, say)
        if objective == "cost":
            reconsider(search, this.entries, this.winner)
            this.cheaper = search.in_question(this.entries, this.winner)
        if this.winner is not None:
            self._study(laboratory, search, say)
        else:
            this.alone = {e.candidate.id: run for e in this.entries if (run := search.alone(e)) is not None}

    def _confirm(self, search: Search, say: Callable[[str], None]) -> None:
        """Holds the winner against equally cheap ones and its neighbours, and the whole deployment against
        the SLO.

        A better neighbour becomes the winner; a deployment that fails as a whole is not enough, and the
        search goes on.
        """
        this = self.planned
        cheapest = this.plan.objective == "cost"
        for _ in range(len(this.every)):
            if this.winner is None:
                return
            if not cheapest:
                self._deploy(search)
                break
            this.winner, this.even = contest(search, this.winner, this.entries)
            if not self._stands(search):
                this.winner = search.run(this.entries)
                continue
            say(f"holding {this.winner.candidate.id} against its neighbours")
            this.neighbours = neighbours(search, this.winner, this.every)
            better = [n for n in this.neighbours if n.verdict == BETTER]
            if better:
                this.winner = _promoted(search, this, min(better, key=lambda n: (n.cost, n.ratio)))
                continue
            judged = self._deploy(search)
            if judged.verdict != "missed":
                break
            say(f"the whole deployment has {of_limit(judged)}; searching on")
            search.refuse(this.winner)
            this.winner = search.run(this.entries)
        assert this.winner is not None
        if not cheapest:
            return
        drafts = bool(this.winner.candidate.k)
        others = [entry for entry in this.entries if bool(entry.candidate.k) != drafts]
        say(f"the cheapest {'without' if drafts else 'with'} drafting")
        this.rival = search.run(others)

    def _owned(self, search: Search, objective: str, looked: int | None) -> tuple[Entry | None, list[Entry]]:
        """Returns the best use of what is owned that is confirmed, and those not told apart from it."""
        this, left = self.planned, list(self.planned.entries)
        while True:
            this.winner, this.even = best_of_owned(search, left, objective, looked)
            if this.winner is None or self._stands(search):
                return this.winner, this.even
            left = [
                entry for entry in left if entry.high is not None or entry not in (this.winner, *this.even)
            ]

    def _stands(self, search: Search) -> bool:
        """Simulates the winner, and those not told apart from it, again; whether all meet the SLO, the winner
        with whatever spread requests may have."""
        this = self.planned
        assert this.winner is not None and this.winner.high is not None
        this.ends = over_the_band(search, this.winner.candidate, this.winner.high)
        if doubted(this.winner, this.ends):
            return False
        if this.traffic.recorded or this.experiment.workload.changes:
            return True
        this.confirmed = search.again(this.winner, self._precision)
        others = [search.again(entry) for entry in this.even if entry.known]
        return all(found.judged.verdict == "met" for found in (this.confirmed, *others))

    def _deploy(self, search: Search) -> Judged:
        """Simulates all replicas behind the router."""
        this = self.planned
        assert this.winner is not None and this.winner.high is not None
        replicas, lengths = this.winner.high, this.lengths
        if lengths is not None:
            least = max(lengths.least // replicas, LEAST_EACH)
            lengths = RunLengths(least, max(lengths.most // replicas, least))
        question = Question(
            this.traffic, this.winner.candidate.config, replicas, this.seeds, lengths, whole=replicas > 1
        )
        (answer,) = search.laboratory.ask([question])
        this.whole = answer.runs
        return answer.judged

    def _study(self, laboratory: Laboratory, search: Search, say: Callable[[str], None]) -> None:
        this = self.planned
        assert this.winner is not None and this.winner.high is not None
        mine, replicas, seeds = this.winner.candidate, this.winner.high, this.seeds
        say("every K at the planned load")
        answer = this.confirmed or this.winner.tried[replicas]
        this.prompts = None if answer.used is None else min(max(answer.used, STUDY[0]), STUDY[1])
        self._pair(laboratory, answer, search.fresh if this.confirmed else seeds)
        say("largest rate and concurrency")
        several, reach = seeds, REACH
        if this.plan.objective == "throughput":
            several, reach = search.fresh[:SEVERAL], reach_of(this.winner, this.traffic)
        this.capacity = capacity(
            laboratory, this.traffic, mine, replicas, several, this.prompts, answer.used, reach
        )
        plain, drafting = this.plain, this.drafting
        if plain is not None and drafting is not None:
            say("best K by load")
            this.loads = best_by_load(laboratory, this.traffic, this.ways, seeds[0])
            say("break-even acceptance")
            this.break_even = break_even(
                laboratory, this.traffic, drafting, plain, replicas, seeds[0], this.prompts
            )
        say("sensitivity of the choice")
        shortlist = sorted(this.entries, key=lambda entry: (search.cost(entry), entry.ratio))
        rival = [this.rival] if this.rival else []
        ordered = [this.winner, *rival, *shortlist]
        spare = this.plan.spare_replicas
        this.changed = sensitivity(laboratory, this.traffic, seeds, spare, ordered, self._under_a_change())
        if this.plan.candidates.router or this.plan.candidates.pools:
            say("routers and pools")
            this.fleets = fleets_of(search, this.plan, this.every, this.winner)
        if this.plan.candidates.disaggregated:
            say("prompts on GPUs of their own")
            self._part(search)
        if this.plan.candidates.autoscale:
            say("the day")
            router = this.fleets.router or mine.config.deployment.routing.then
            this.day = day_of(laboratory, this.plan, this.winner, this.capacity, router, seeds)
        if this.plan.objective == "cost" and this.plan.also_at:
            say("other traffic")
            this.elsewhere = at_other_traffic(
                laboratory, this.traffic, seeds, spare, this.lengths, ordered, this.plan.also_at
            )

    def _part(self, search: Search) -> None:
        """Tries prompts on GPUs of their own; what is cheaper than all before is to be bought."""
        this = self.planned
        assert this.winner is not None and this.winner.high is not None
        mine = this.winner.candidate
        engines = engines_apart(this.every, mine, this.rival.candidate if this.rival else None)
        this.splits = splits_of(search, this.plan, engines, this.winner, mine.config.deployment.routing.then)
        limit, best = search.cost(this.winner, this.winner.high), cheapest_apart(this.splits)
        if this.fleets.chosen is not None:
            limit = this.fleets.chosen.cost
        if best is not None and best.best is not None and best.best.cost < limit - CENT:
            this.fleets = dataclasses.replace(this.fleets, chosen=best.best)

    def _under_a_change(self) -> tuple[int, int] | None:
        lengths = self.planned.lengths
        return None if lengths is None else (min(lengths.most, CHANGED[0]), min(lengths.most, CHANGED[1]))

    def _pair(self, laboratory: Laboratory, answer: Reply, seeds: Sequence[int]) -> None:
        """Simulates every K once, and what drafting is held against on the winner's own requests."""
        this = self.planned
        assert this.winner is not None and this.winner.high is not None
        mine, replicas = this.winner.candidate, this.winner.high

        def run(ways: Sequence[Candidate | None], chosen: Sequence[int], prompts: int | None) -> None:
            for way in ways:
                if way is not None and way.id != mine.id:
                    trials = [this.traffic.trial(way.config, replicas, seed, prompts) for seed in chosen]
                    this.runs[way.id] = laboratory.run(trials)

        this.runs = {mine.id: answer.runs}
        run(this.ways, seeds[:1], this.prompts)
        run([this.plain, this.drafting], seeds[:PAIRED], answer.used)


def own_files(folder: Path, manifest: Manifest) -> Iterator[Path]:
    """Yields what `specfleet plan` writes into its folder, besides the manifest."""
    yield from _answers(folder)
    yield folder / ASKED
    yield from (path for path in folder.glob("simulations/*") if SIMULATION.fullmatch(path.name))


def _answers(folder: Path) -> Iterator[Path]:
    """What a plan says, without the simulations behind it."""
    yield from (folder / name for name in ANSWERS)
    yield from figures_in(folder, FIGURES)


def _promoted(search: Search, this: Planned, found: Neighbour) -> Entry:
    """Returns the entry of a neighbour with what its simulation showed."""
    entry = next(e for e in this.entries if e.candidate is found.candidate)
    entry.low, entry.high = found.replicas - 1, found.replicas
    entry.ratio, entry.limit = found.ratio, found.limit
    (entry.tried[found.replicas],) = search.judge([(found.candidate, found.replicas)])
    return entry


def _block(data: Mapping[str, object], name: str) -> Mapping[str, object]:
    """The keys of a block as written."""
    given = data.get(name)
    return given if isinstance(given, dict) else {}


def _precision(experiment: Experiment, given: Mapping[str, object]) -> tuple[float, float] | None:
    """Returns how well mean and P99 of the winner must be known; None where the file does not ask for it."""
    wanted = experiment.run.precision
    return (wanted.mean or math.inf, wanted.p99 or math.inf) if given.get("precision") is not None else None


def _lengths(experiment: Experiment, traffic: Traffic, given: Mapping[str, object]) -> RunLengths | None:
    """Returns how long simulations may be; None where the file says how many requests they have."""
    if given.get("num_prompts") is not None or experiment.workload.changes or traffic.recorded:
        return None
    return RunLengths(least=FIRST_LOOK, most=experiment.run.at_most)


def _bound(lengths: MeanLengths, candidate: Candidate) -> Bound:
    return bound(candidate.config, lengths)


def _fault(key: str, message: str) -> InputFaults:
    return InputFaults([Fault(COMMAND_LINE, 0, key, message)])
