"""One `specfleet run`: from a file to a results folder, and the table on stdout."""

from __future__ import annotations

import hashlib
import platform
import shutil
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from specfleet import __version__
from specfleet.experiments.load.config import Loaded, load, resolved
from specfleet.experiments.load.rules.own import used
from specfleet.experiments.load.sweep import Point, expand
from specfleet.experiments.run.progress import Reporter
from specfleet.experiments.run.results import Row, summarise, write_summary
from specfleet.experiments.run.runner import Task, run_tasks, tasks, write_json
from specfleet.experiments.schema.faults import COMMAND_LINE, Fault, InputFaults
from specfleet.experiments.schema.given import Given, said, text_of
from specfleet.experiments.schema.overrides import Override

LIBRARIES = ("numpy", "simpy", "pydantic", "pyyaml")


@dataclass
class Run:
    """A run: its experiment, its points and its folder.

    Args:
        file: the experiment's YAML, or what it would hold.
        overrides: `key=value` from the command line, or dotted keys with values.
        out: the results folder; None is `results/NAME`.
    """

    file: Given
    overrides: Sequence[Override] = ()
    out: Path | None = None
    failures: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.loaded: Loaded = load(self.file, self.overrides)
        self.points: tuple[Point, ...] = expand(self.loaded.experiment)
        experiment = self.loaded.experiment
        self.folder = self.out or Path("results") / experiment.name
        self.seeds = [experiment.seed + i for i in range(experiment.replications)]
        self.resolved = resolved(experiment)

    @property
    def tasks(self) -> list[Task]:
        """Every simulation of the run."""
        return tasks(self.points, len(self.seeds), self.seeds[0], self.folder)

    def prepare(self, resume: bool) -> list[Task]:
        """Makes the folder ready and returns what is left to run.

        Raises:
            InputFaults: if the folder belongs to something else, or a resumed run's settings changed.
        """
        folder = self.folder
        for unfinished in folder.glob("points/.*"):
            shutil.rmtree(unfinished)
        if resume and (folder / "resolved.yaml").exists():
            if (folder / "resolved.yaml").read_text() != self.resolved:
                raise self._fault(
                    f"{folder} was made with other settings; use another --out, or leave out --resume"
                )
            return [task for task in self.tasks if not task.done]
        if folder.exists() and any(folder.iterdir()):
            if not (folder / "manifest.json").exists() and not (folder / "resolved.yaml").exists():
                raise self._fault(f"{folder} is not empty and not a results folder; use another --out")
            for name in ("points", "plots"):
                shutil.rmtree(folder / name, ignore_errors=True)
        (folder / "points").mkdir(parents=True, exist_ok=True)
        (folder / "experiment.yaml").write_bytes(text_of(self.file))
        (folder / "resolved.yaml").write_text(self.resolved)
        return self.tasks

    def _fault(self, message: str) -> InputFaults:
        return InputFaults([Fault(COMMAND_LINE, 0, "--out", message)])

    def execute(self, todo: list[Task], jobs: int, reporter: Reporter) -> None:
        """Runs what is left; failures are noted and the other points go on."""

        def failed(task: Task, error: BaseException) -> None:
            text = f"{type(error).__name__}: {error}"
            self.failures.append((task.id, text))
            reporter.say(f"failed: {task.id}: {text}")

        with reporter, closing(run_tasks(todo, jobs, reporter.running, failed)) as finished:
            for task in finished:
                reporter.finished(task.id)

    def summary(self) -> list[Row]:
        """Summarises the finished points, writes summary.csv and manifest.json, and returns the rows."""
        rows = summarise(self.points, self.seeds, self.folder, self.loaded.experiment.report.baseline)
        write_summary(self.folder / "summary.csv", rows)
        write_json(self.folder / "manifest.json", self._manifest())
        return rows

    def _manifest(self) -> dict[str, object]:
        libraries = {name: _version(name) for name in LIBRARIES}
        experiment = self.loaded.experiment
        own = [mine.described() for mine in used([point.config for point in self.points])]
        return {
            "specfleet": __version__,
            "python": platform.python_version(),
            "libraries": libraries,
            "name": experiment.name,
            "experiment_sha256": hashlib.sha256(text_of(self.file)).hexdigest(),
            "resolved_sha256": hashlib.sha256(self.resolved.encode()).hexdigest(),
            "overrides": said(self.overrides),
            "seeds": self.seeds,
            "axes": {key: list(values) for key, values in experiment.sweep.axes.items()},
            "report": experiment.report.model_dump(),
            "points": [point.id for point in self.points],
            "failures": dict(self.failures),
            "notices": list(self.loaded.notices),
            **({"own": own} if own else {}),
        }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
