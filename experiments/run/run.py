"""One `specfleet run`: from a file to a results folder, and the table on stdout."""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from specfleet.experiments.load.config import Loaded, load, resolved
from specfleet.experiments.load.rules.own import used
from specfleet.experiments.load.sweep import Point, expand, with_ends
from specfleet.experiments.run.files import sha256_of, write_bytes, write_text, write_whole
from specfleet.experiments.run.folder import (
    Manifest,
    ResultsFolder,
    figures_in,
    manifest_of,
    start_of_manifest,
    task_names,
)
from specfleet.experiments.run.growth import LOOKS, groups, grow
from specfleet.experiments.run.inputs import changed_files, input_files
from specfleet.experiments.run.processes import WorkerLost, Workers, at_hand
from specfleet.experiments.run.progress import Reporter
from specfleet.experiments.run.results import Row, summarise, write_summary
from specfleet.experiments.run.runner import Task, run_tasks, tasks
from specfleet.experiments.schema.given import Given, text_of
from specfleet.experiments.schema.overrides import Override
from specfleet.sim.errors import Breach

LIBRARIES = ("numpy", "simpy", "pydantic", "pyyaml")
FIGURES = (
    *("answer", "throughput", "speedup", "tails", "tasks", "step_time", "two_sides", "measured"),
    *("scaling", "apart", "failures"),
)
"""Names of a run's figures, beside those of the metrics that `report.y` asks for."""


@dataclass
class Run:
    """A run: its experiment, its points and its folder.

    Args:
        file: the experiment's YAML, or what it would hold. The experiment.yaml in a run's folder repeats the
            run, changes by overrides and all.
        overrides: `key=value` from the command line, or dotted keys with values.
        out: exactly the results folder; None is the next number below `results/NAME`.
        every_turn: whether laws are checked after every turn of an engine, and not at the end alone.

    Attributes:
        folder: where the run is; of a numbered one, known once it is prepared.
        whole: whether every simulation was made, or cannot be made, and no law was broken in any; known once
            it is summarised.
    """

    file: Given
    overrides: Sequence[Override] = ()
    out: Path | None = None
    every_turn: bool = False
    failures: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        file, repeated = _repeated(self.file)
        self.loaded: Loaded = load(file, self.overrides)
        self.overrides = (*repeated, *self.overrides)
        self._text = text_of(self.file)
        self.points: tuple[Point, ...] = expand(self.loaded.experiment)
        experiment = self.loaded.experiment
        self._place = ResultsFolder("run", experiment.name, self.out, own_files)
        self.seeds = [experiment.seed + i for i in range(experiment.replications)]
        self.resolved = resolved(experiment)
        self.whole = False
        self._lost: set[str] = set()

    @property
    def folder(self) -> Path:
        """The results folder."""
        return self._place.path

    @property
    def tasks(self) -> list[Task]:
        """Every simulation of the run."""
        points = with_ends(self.points)
        return tasks(points, len(self.seeds), self.seeds[0], self.folder, self.every_turn)

    def prepare(self, resume: bool) -> list[Task]:
        """Makes the folder ready, for this process alone, and returns what is left to run.

        Raises:
            InputFaults: if the folder belongs to something or somebody else, or a resumed run's settings,
                files or release changed.
        """
        self._inputs = input_files(self.loaded.experiment)
        self._place.claim(resume, self._manifest())
        with self._place.held():
            for unfinished in _unfinished(self.folder, [task.id for task in self.tasks]):
                shutil.rmtree(unfinished)
            (self.folder / "points").mkdir(exist_ok=True)
            write_bytes(self.folder / "experiment.yaml", self._text)
            write_text(self.folder / "resolved.yaml", self.resolved)
        return [task for task in self.tasks if not task.done]

    def execute(self, todo: list[Task], jobs: int | Workers, reporter: Reporter) -> None:
        """Runs what is left; failures are noted and the other points go on.

        Args:
            todo: what is left.
            jobs: processes to start, or those to run in.
            reporter: told of progress.
        """

        def failed(task: Task, error: BaseException) -> None:
            text = f"{type(error).__name__}: {error}"
            self.failures.append((task.id, text))
            if isinstance(error, WorkerLost | OSError | MemoryError | Breach):
                self._lost.add(task.id)
            reporter.say(f"failed: {task.id}: {text}")

        fixed = [task for task in todo if not task.point.config.workload.goes_on]
        with reporter, at_hand(jobs) as workers:
            with closing(run_tasks(fixed, workers, reporter.running, failed)) as finished:
                for task in finished:
                    reporter.finished(task.id)
            self._grow({task.id for task in todo}, workers, reporter, failed)

    def _grow(
        self,
        left: set[str],
        workers: Workers,
        reporter: Reporter,
        failed: Callable[[Task, BaseException], None],
    ) -> None:
        """Simulates the points that go on until they are settled, those of whose group some are left."""
        report, tasks = self.loaded.experiment.report, self.tasks
        wanted = []
        for group in groups(self.points, report.baseline):
            names = {point.id for point in with_ends(group.points)}
            if any(task.id in left and task.point.id in names for task in tasks):
                wanted.append(group)
        growing = grow(wanted, tasks, workers, report.least_gain, reporter.running, failed)
        with closing(growing):
            for ended in growing:
                if isinstance(ended, int):
                    reporter.more(ended)
                else:
                    reporter.finished(ended.id)
        shutil.rmtree(self.folder / LOOKS, ignore_errors=True)

    def summary(self) -> list[Row]:
        """Summarises the finished points, writes summary.csv and manifest.json, and returns the rows."""
        report = self.loaded.experiment.report
        rows = summarise(self.points, self.seeds, self.folder, report.baseline, report.least_gain)
        changed = changed_files(self._inputs)
        self.failures += [(name, "changed while the run was going on; run it again") for name in changed]
        failed = {name for name, _ in self.failures} - self._lost
        self.whole = not changed and all(task.done or task.id in failed for task in self.tasks)
        write_whole(self.folder / "summary.csv", lambda path: write_summary(path, rows))
        digest = sha256_of(self.folder / "summary.csv")
        self._place.write_manifest({**self._manifest(), "whole": self.whole, "summary_sha256": digest})
        return rows

    def release(self) -> None:
        """Lets other processes have the folder."""
        self._place.release()

    def _manifest(self) -> dict[str, object]:
        experiment = self.loaded.experiment
        own = [mine.described() for mine in used([point.config for point in self.points])]
        return {
            **start_of_manifest("run", experiment.name, self.overrides, self.resolved, self._inputs),
            "experiment_sha256": hashlib.sha256(self._text).hexdigest(),
            "python": platform.python_version(),
            "libraries": {name: _version(name) for name in LIBRARIES},
            "seeds": self.seeds,
            "axes": {key: list(values) for key, values in experiment.sweep.axes.items()},
            "report": experiment.report.model_dump(),
            "points": [point.id for point in self.points],
            **({"ends": ends} if (ends := _besides(self.points)) else {}),
            "failures": dict(self.failures),
            "notices": list(self.loaded.notices),
            **({"own": own} if own else {}),
        }


def _besides(points: Sequence[Point]) -> list[str]:
    """Names what is simulated besides the points themselves."""
    mine = {point.id for point in points}
    return [one.id for one in with_ends(points) if one.id not in mine]


def _repeated(given: Given) -> tuple[Given, tuple[str, ...]]:
    """Returns what to load for an experiment, and the overrides that are in it already.

    Of the experiment.yaml that a run left as it was that is the resolved.yaml beside it: paths are seen from
    where the experiment once lay, and its changes stand in the manifest.
    """
    if not isinstance(given, Path | str):
        return given, ()
    file = Path(given)
    beside = file.with_name("resolved.yaml")
    if file.name != "experiment.yaml" or not beside.is_file() or not file.is_file():
        return file, ()
    manifest = manifest_of(file.parent) or {}
    unchanged = manifest.get("experiment_sha256"), manifest.get("resolved_sha256")
    if unchanged != (sha256_of(file), sha256_of(beside)):
        return file, ()
    overrides = manifest.get("overrides")
    return beside, tuple(map(str, overrides)) if isinstance(overrides, list) else ()


def own_files(folder: Path, manifest: Manifest) -> Iterator[Path]:
    """Yields what a run writes into its folder, besides experiment.yaml, resolved.yaml and the manifest."""
    yield from (folder / "summary.csv", folder / "report.html")
    if (folder / LOOKS).is_dir():
        yield folder / LOOKS
    names = task_names(manifest)
    yield from (folder / "points" / name for name in names)
    yield from _unfinished(folder, names)
    report = manifest.get("report")
    asked = report.get("y") if isinstance(report, dict) else None
    yield from figures_in(folder, [*FIGURES, *(map(str, asked) if isinstance(asked, list) else ())])


def _unfinished(folder: Path, names: Sequence[str]) -> Iterator[Path]:
    """Yields the folders of simulations that were cut short."""
    ours = {f".{name}" for name in names}
    for path in sorted(folder.glob("points/.*")):
        stem, _, process = path.name.rpartition(".")
        if stem in ours and re.fullmatch("[0-9]+", process) and path.is_dir():
            yield path


@cache
def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
