"""What `specfleet breakeven` asks of an experiment, and the searches that answer it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from specfleet.experiments.breakeven.cell import Cell, Found, search, weight
from specfleet.experiments.breakeven.judge import Asked, Verdicts, judge, with_requests
from specfleet.experiments.breakeven.judge import weight as weight_of_verdict
from specfleet.experiments.breakeven.search import QUESTIONS
from specfleet.experiments.load.config import Loaded, load, resolved
from specfleet.experiments.load.sweep import expand
from specfleet.experiments.run.files import FolderFault, write_text
from specfleet.experiments.run.folder import (
    Manifest,
    ResultsFolder,
    figures_in,
    manifest_of,
    start_of_manifest,
)
from specfleet.experiments.run.inputs import input_files
from specfleet.experiments.run.processes import WorkerLost, Workers, at_hand
from specfleet.experiments.run.progress import Reporter
from specfleet.experiments.run.results import as_number, number
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.faults import COMMAND_LINE, Fault, InputFaults
from specfleet.experiments.schema.given import Given
from specfleet.experiments.schema.given import document as read_given
from specfleet.experiments.schema.overrides import Override, overridden
from specfleet.sim.errors import Breach

Work = TypeVar("Work", Cell, Asked)
Kept = TypeVar("Kept", Found, Verdicts)
CONCURRENCY, RATE = "workload.max_concurrency", "workload.request_rate"
DRAFTS = "serve.speculative_config.num_speculative_tokens"
FIGURES = ("speedup_map", "break_even")
SEARCH = re.compile(r"\.?[0-9a-f]{24}(\.json)?(\.[0-9]+)?")
"""Names of the files in `searches/`, those cut short among them."""
COUNTED = "verdicts, plain runs and searches"
"""What progress counts; a search is some ten simulations."""
TAILS = ("P99 TPOT", "goodput")
"""Questions that the spread between requests decides; asked at both ends of it where it is not given."""
MOST_SEARCHED = 5_000
"""Requests of a search at most, where the file does not say how many: its verdict may have had more."""


@dataclass
class Breakeven:
    """The whole search: loads by draft lengths by seeds.

    Args:
        file: the experiment's YAML.
        overrides: `key=value` from the command line.
        out: the results folder; None is `results/NAME-breakeven`.
        tolerance: width to which a crossing is bracketed.

    Raises:
        InputFaults: with all that is wrong with the file, or why no search can be made of it.
    """

    file: Given
    overrides: Sequence[Override] = ()
    out: Path | None = None
    tolerance: float = 0.01

    def __post_init__(self) -> None:
        if not 0.0 < self.tolerance <= 0.2:
            raise _fault("--tolerance", f"is {self.tolerance:g}; it must lie in (0, 0.2]")
        self.overrides = tuple(self.overrides)
        own = _its_own(self.file, self.overrides)
        given = load(self.file, (*self.overrides, *own)).experiment
        self.axis = load_axis(given)
        self.loads = tuple(map(float, _values(given, self.axis)))
        self.drafts = tuple(sorted({int(k) for k in _values(given, DRAFTS)} - {0}))
        if not self.drafts:
            raise _fault(DRAFTS, "names no K above 0; give at least one")
        _check_others(given, (self.axis, DRAFTS))
        loads = self.loads if self.axis == RATE else tuple(map(int, self.loads))
        grid: tuple[Override, ...] = (
            (f"sweep.axes.{DRAFTS}", (0, *self.drafts)),
            (f"sweep.axes.{self.axis}", loads),
            ("sweep.load", None),
        )
        others = [c for c in self.overrides if _key(c) not in (self.axis, DRAFTS, "sweep.load")]
        self.loaded: Loaded = load(self.file, (*others, *own, *grid))
        experiment = self.loaded.experiment
        self._place = ResultsFolder("breakeven", f"{experiment.name}-breakeven", self.out, own_files)
        self.seeds = tuple(experiment.seed + i for i in range(experiment.replications))
        self.points = {
            (number(point.axes, self.axis), int(number(point.axes, DRAFTS))): point
            for point in expand(experiment)
        }
        self.configs = {at: point.config for at, point in self.points.items()}
        self.verdicts: dict[tuple[float, int], Verdicts] = {}
        self.found: dict[tuple[float, int, int], Found] = {}
        self.ends: dict[tuple[float, int, int], list[Found]] = {}
        self._kept: Path | None = None
        self.failures: list[tuple[str, str]] = []
        self.lost = False

    @property
    def folder(self) -> Path:
        """The results folder; of a numbered one, known once it is prepared."""
        return self._place.path

    @property
    def broken_law(self) -> str | None:
        """The law that a simulation broke; None if none did."""
        said = (text for _, text in self.failures if text.startswith(f"{Breach.__name__}: "))
        return next(said, None)

    @property
    def simulations(self) -> int:
        """Simulations made so far."""
        every = [*self.found.values(), *(found for ends in self.ends.values() for found in ends)]
        return sum(1 + len(found.alphas) for found in every)

    @property
    def total(self) -> int:
        """Verdicts, plain runs and searches to be made."""
        searches = [1 + len(self.points[at, k].ends) for at in self.loads for k in self.drafts]
        return len(searches) + len(self.seeds) * (len(self.loads) + sum(searches))

    def asked(self) -> list[Asked]:
        """Returns what is judged at the file's own acceptance, longest first."""
        gain = self.loaded.experiment.report.least_gain
        every = [
            Asked(self.points[at, k], self.points[at, 0], self.seeds, at, k, gain)
            for at in self.loads
            for k in self.drafts
        ]
        return sorted(every, key=weight_of_verdict, reverse=True)

    def cells(self, drafts: Sequence[int]) -> list[Cell]:
        """Returns the searches for these K, longest first; those without a plain run are left out."""
        return self._cells(drafts, False)

    def _cells(self, drafts: Sequence[int], at_ends: bool) -> list[Cell]:
        """The searches themselves, or those at the ends of the range of spreads."""
        cells = []
        for at, k, seed in ((at, k, seed) for at in self.loads for k in drafts for seed in self.seeds):
            if k and (at, 0, seed) not in self.found:
                continue
            plain = self.found[at, 0, seed].own if k else {}
            point = self.points[at, k]
            configs = [end.config for end in point.ends] if at_ends else [point.config]
            asked = TAILS if at_ends else tuple(QUESTIONS)
            for config in configs:
                lasting = self._lasting(at, config)
                cells.append(Cell(lasting, seed, at, k, self.tolerance, plain, asked))
        return sorted(cells, key=weight, reverse=True)

    def _lasting(self, load: float, config: Experiment) -> Experiment:
        """A point with as many requests as its load's verdicts took, within bounds; as it is, where the file
        says how many."""
        used = [verdicts.requests for (at, _), verdicts in self.verdicts.items() if at == load]
        if not config.workload.goes_on or not used:
            return config
        return with_requests(config, min(max(used), MOST_SEARCHED))

    def execute(self, jobs: int | Workers, reporter: Reporter) -> None:
        """Judges the file's own acceptance, runs the plain points, the searches, and those at the ends of a
        range of spreads; failures are noted and the others go on.

        Args:
            jobs: processes, or those to work in; 0 only takes up what the folder holds.
            reporter: told of progress.
        """
        with reporter, nullcontext() if jobs == 0 else at_hand(jobs) as workers:
            self._each(judge, self.asked(), Verdicts, self._judged, workers, reporter)
            for drafts, at_ends in (((0,), False), (self.drafts, False), (self.drafts, True)):
                keep = self._found_at_end if at_ends else self._found
                self._each(search, self._cells(drafts, at_ends), Found, keep, workers, reporter)

    def _each(
        self,
        work: Callable[[Work], Kept],
        items: Sequence[Work],
        kind: type[Kept],
        keep: Callable[[Work, Kept], None],
        workers: Workers | None,
        reporter: Reporter,
    ) -> None:
        """Does what is not there yet. What is found is kept at once, its file whole or not at all."""
        todo = []
        for item in items:
            known = self._was_found(item, kind)
            if known is None:
                todo.append(item)
            else:
                keep(item, known)
                reporter.kept()
        if workers is None:
            self.failures += [(item.id, "is not there") for item in todo]
            return

        def running(at: Sequence[int]) -> None:
            reporter.running(", ".join(todo[i].id for i in at))

        for at, found in workers.as_finished(work, todo, running):
            item = todo[at]
            if isinstance(found, Exception):
                self.failures.append((item.id, f"{type(found).__name__}: {found}"))
                self.lost |= isinstance(found, WorkerLost | OSError | MemoryError | Breach)
                reporter.say(f"failed: {item.id}: {self.failures[-1][1]}")
            else:
                keep(item, found)
                if self._kept is not None:
                    write_text(self._kept / f"{item.key}.json", found.to_json())
            reporter.finished(item.id + _simulated(found))

    def _was_found(self, item: Cell | Asked, kind: type[Kept]) -> Kept | None:
        """Takes up what was found before."""
        if self._kept is None or not (path := self._kept / f"{item.key}.json").is_file():
            return None
        try:
            return kind.from_json(path.read_text())
        except (ValueError, KeyError, TypeError) as error:
            raise FolderFault(path, f"is damaged: {error}; remove it, it will be searched again") from None

    def _judged(self, asked: Asked, found: Verdicts) -> None:
        self.verdicts[asked.load, asked.k] = found

    def _found(self, cell: Cell, found: Found) -> None:
        self.found[cell.load, cell.k, cell.seed] = found

    def _found_at_end(self, cell: Cell, found: Found) -> None:
        self.ends.setdefault((cell.load, cell.k, cell.seed), []).append(found)

    def prepare(self, resume: bool = False) -> None:
        """Makes the folder ready, for this process alone; without `resume` earlier searches go.

        Raises:
            InputFaults: if the folder belongs to something else.
        """
        asked, text = self.loaded.experiment, resolved(self.loaded.experiment)
        start = start_of_manifest("breakeven", asked.name, self.overrides, text, input_files(asked))
        self._manifest = {**start, "tolerance": self.tolerance}
        self._place.claim(resume, self._manifest)
        self._kept = self.folder / "searches"
        with self._place.held():
            write_text(self.folder / "resolved.yaml", text)
            self._kept.mkdir(exist_ok=True)

    @classmethod
    def read(cls, folder: Path) -> Breakeven:
        """Returns a search that has ended, as its folder has it; nothing is simulated.

        Raises:
            FolderFault: it is not whole, or was made of other files or with another release.
        """
        tolerance = (manifest_of(folder) or {}).get("tolerance")
        if not (folder / "resolved.yaml").is_file() or not isinstance(tolerance, float):
            raise FolderFault(folder, "has no resolved.yaml with its tolerance; search again")
        this = cls(folder / "resolved.yaml", out=folder, tolerance=tolerance)
        this._kept = folder / "searches"
        this.execute(0, Reporter(this.total, quiet=True))
        if this.failures:
            raise FolderFault(folder, "does not hold all of its searches; go on with breakeven --resume")
        return this

    def finish(self) -> None:
        """Says in the folder that all is there, unless a search was lost, and lets others have it."""
        self._place.write_manifest(
            {**self._manifest, "whole": not self.lost, "failures": dict(self.failures)}
        )
        self._place.release()


def _simulated(found: object) -> str:
    """How many simulations a search took, behind its name."""
    several = 1 + len(found.alphas) if isinstance(found, Found) else 1
    return f" ({several} simulations)" if several > 1 else ""


def _its_own(file: Given, overrides: Sequence[Override]) -> tuple[Override, ...]:
    """What the search brings itself: of a report its least gain counts, not a baseline, which must lie on the
    axes; a plan and a claim ask something else."""
    given = overridden(read_given(file), overrides).data.get("report")
    gain = given.get("least_gain") if isinstance(given, dict) else None
    return ("report", {} if gain is None else {"least_gain": gain}), ("plan", None), ("claim", None)


def _key(change: Override) -> str:
    """The dotted key of a change; those of the grid are on its axes already."""
    return change.partition("=")[0].strip() if isinstance(change, str) else change[0]


def own_files(folder: Path, manifest: Manifest) -> Iterator[Path]:
    """Yields what `specfleet breakeven` writes into its folder, besides the manifest."""
    names = ("breakeven.csv", "breakeven.json", "report.html", "resolved.yaml")
    yield from (folder / name for name in names)
    yield from (path for path in folder.glob("searches/*") if SEARCH.fullmatch(path.name))
    yield from figures_in(folder, FIGURES)


def load_axis(experiment: Experiment) -> str:
    """Returns the key that varies the load: the swept one, else the one given."""
    axes, workload = experiment.sweep.axes, experiment.workload
    for key in sorted((key for key in (CONCURRENCY, RATE) if key in axes), key=lambda k: -len(axes[k])):
        return key
    if workload.max_concurrency is not None:
        return CONCURRENCY
    if workload.phases is not None:
        raise _fault(
            "workload.phases", "have loads of their own, and break-even looks at one; give max_concurrency"
        )
    if workload.request_rate is not None:
        return RATE
    raise _fault(CONCURRENCY, "and request_rate are not given; break-even needs a load: give one of them")


def _values(experiment: Experiment, key: str) -> tuple[float, ...]:
    """The values of an axis, or the file's one value."""
    if key in experiment.sweep.axes:
        values: Sequence[object] = experiment.sweep.axes[key]
    elif key == DRAFTS:
        speculative = experiment.serve.speculative_config
        values = [speculative.num_speculative_tokens if speculative else 0]
    else:
        values = [getattr(experiment.workload, key.rpartition(".")[2])]
    return tuple(as_number(value or 0) for value in dict.fromkeys(values))


def _check_others(experiment: Experiment, used: Sequence[str]) -> None:
    """Every other axis must have one value."""
    wide = {key: v for key, v in experiment.sweep.axes.items() if key not in used and len(v) > 1}
    if wide:
        message = "has {} values, and break-even looks at one setup; choose one, as in sweep.axes.{}=[{}]"
        raise InputFaults(
            Fault(COMMAND_LINE, 0, f"sweep.axes.{key}", message.format(len(v), key, v[0]))
            for key, v in wide.items()
        )


def _fault(key: str, message: str) -> InputFaults:
    return InputFaults([Fault(COMMAND_LINE, 0, key, message)])
