"""What `specfleet breakeven` asks of an experiment, and the searches that answer it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from specfleet.experiments.breakeven.cell import Cell, Found, search, weight
from specfleet.experiments.load.config import Loaded, load
from specfleet.experiments.load.sweep import expand
from specfleet.experiments.run.files import FolderFault, write_text
from specfleet.experiments.run.folder import Manifest, ResultsFolder, figures_in, start_of_manifest
from specfleet.experiments.run.processes import WorkerLost, Workers
from specfleet.experiments.run.progress import Reporter
from specfleet.experiments.run.results import as_number, number
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.faults import COMMAND_LINE, Fault, InputFaults
from specfleet.experiments.schema.given import Given
from specfleet.experiments.schema.overrides import Override
from specfleet.sim.errors import Breach

CONCURRENCY, RATE = "workload.max_concurrency", "workload.request_rate"
DRAFTS = "serve.speculative_config.num_speculative_tokens"
FIGURES = ("speedup_map", "break_even")
SEARCH = re.compile(r"\.?[0-9a-f]{24}(\.json)?(\.[0-9]+)?")
"""Names of the files in `searches/`, those cut short among them."""
ITS_OWN: tuple[Override, ...] = (("report", {}), ("plan", None))
"""A report's baseline must lie on the axes, and the search brings its own; a plan asks something else."""


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
        given = load(self.file, (*self.overrides, *ITS_OWN)).experiment
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
        )
        others = [change for change in self.overrides if _key(change) not in (self.axis, DRAFTS)]
        self.loaded: Loaded = load(self.file, (*others, *ITS_OWN, *grid))
        experiment = self.loaded.experiment
        self._place = ResultsFolder("breakeven", f"{experiment.name}-breakeven", self.out, own_files)
        self.seeds = tuple(experiment.seed + i for i in range(experiment.replications))
        self.configs = {
            (number(point.axes, self.axis), int(number(point.axes, DRAFTS))): point.config
            for point in expand(experiment)
        }
        self.found: dict[tuple[float, int, int], Found] = {}
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
        return sum(1 + len(found.alphas) for found in self.found.values())

    def cells(self, drafts: Sequence[int]) -> list[Cell]:
        """Returns the searches for these K, longest first; those without a plain run are left out."""
        cells = []
        for at, k, seed in ((at, k, seed) for at in self.loads for k in drafts for seed in self.seeds):
            if k and (at, 0, seed) not in self.found:
                continue
            plain = self.found[at, 0, seed].own if k else {}
            cells.append(Cell(self.configs[at, k], seed, at, k, self.tolerance, plain))
        return sorted(cells, key=weight, reverse=True)

    def execute(self, jobs: int, reporter: Reporter) -> None:
        """Runs the plain points, then the searches; failures are noted and the others go on."""
        with reporter, Workers(jobs) as workers:
            for drafts in ((0,), self.drafts):
                cells = [cell for cell in self.cells(drafts) if not self._was_found(cell, reporter)]
                for at, found in workers.as_finished(search, cells):
                    cell = cells[at]
                    if isinstance(found, Found):
                        self._keep(cell, found)
                    else:
                        self.failures.append((cell.id, f"{type(found).__name__}: {found}"))
                        self.lost |= isinstance(found, WorkerLost | OSError | MemoryError | Breach)
                        reporter.say(f"failed: {cell.id}: {self.failures[-1][1]}")
                    reporter.finished(cell.id)

    def _was_found(self, cell: Cell, reporter: Reporter) -> bool:
        """Takes up what an interrupted search has found already."""
        if self._kept is None or not (path := self._kept / f"{cell.key}.json").is_file():
            return False
        try:
            self.found[cell.load, cell.k, cell.seed] = Found.from_json(path.read_text())
        except (ValueError, KeyError, TypeError) as error:
            raise FolderFault(path, f"is damaged: {error}; remove it, it will be searched again") from None
        reporter.finished(cell.id)
        return True

    def _keep(self, cell: Cell, found: Found) -> None:
        """A search is kept as soon as it has ended; its file appears whole or not at all."""
        self.found[cell.load, cell.k, cell.seed] = found
        if self._kept is not None:
            write_text(self._kept / f"{cell.key}.json", found.to_json())

    def prepare(self, resume: bool = False) -> None:
        """Makes the folder ready, for this process alone; without `resume` earlier searches go.

        Raises:
            InputFaults: if the folder belongs to something else.
        """
        self._manifest = start_of_manifest("breakeven", self.loaded.experiment, self.overrides)
        self._place.claim(resume, self._manifest)
        self._kept = self.folder / "searches"
        self._kept.mkdir(exist_ok=True)

    def finish(self) -> None:
        """Says in the folder that all is there, unless a search was lost, and lets others have it."""
        self._place.write_manifest(
            {**self._manifest, "whole": not self.lost, "failures": dict(self.failures)}
        )
        self._place.release()


def _key(change: Override) -> str:
    """The dotted key of a change; those of the grid are on its axes already."""
    return change.partition("=")[0].strip() if isinstance(change, str) else change[0]


def own_files(folder: Path, manifest: Manifest) -> Iterator[Path]:
    """Yields what `specfleet breakeven` writes into its folder, besides the manifest."""
    yield from (folder / "breakeven.csv", folder / "breakeven.json", folder / "report.html")
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
