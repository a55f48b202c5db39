"""A finished run in Python: its figures as pandas reads them, its plots, its answer in words."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from specfleet.experiments.run.files import read_object
from specfleet.experiments.run.folder import located
from specfleet.experiments.run.results import Results, read_results, summarise
from specfleet.experiments.run.run import Run
from specfleet.experiments.schema.faults import UserError, did_you_mean
from specfleet.experiments.words.mistakes import as_user_errors

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Result:
    """A finished run.

    Attributes:
        folder: with summary.csv, and bench.json, engine.json and requests.csv of each point and seed.
    """

    folder: Path
    _kept: TemporaryDirectory[str] | None = field(default=None, repr=False, compare=False)
    """A folder nobody asked for, which goes when nothing refers to the result any more."""
    _whole: bool = field(default=True, repr=False, compare=False)
    """Whether a run of which only a part is there is refused."""

    @cached_property
    def _read(self) -> Results:
        with as_user_errors():
            return read_results(self.folder, self._whole)

    @property
    def manifest(self) -> Mapping[str, object]:
        """Versions, seeds, points, notices."""
        return self._read.manifest

    @property
    def failures(self) -> Mapping[str, str]:
        """Simulations that could not be made, and why."""
        failures = self.manifest["failures"]
        assert isinstance(failures, dict)
        return failures

    @property
    def summary(self) -> pd.DataFrame:
        """A row a point: its axes, means over the seeds, and half widths of 95 % intervals (`_ci95`)."""
        return self._read.summary

    @cached_property
    def requests(self) -> pd.DataFrame:
        """A row a request of every point and seed, in columns `point` and `seed`; times in milliseconds."""
        import pandas as pd

        frames = {name: self.requests_of(name) for name in self.summary["point"]}
        every: pd.DataFrame = pd.concat(frames, names=["point"])
        return every.reset_index("point").reset_index(drop=True)

    def requests_of(self, point: str | None = None, seed: int | None = None) -> pd.DataFrame:
        """Returns the requests of one point, of all its seeds or of one.

        Args:
            point: its name in the summary; may be left out where there is one point.
            seed: one replication; None gives all.

        Raises:
            UserError: there is no such point, or the run kept no requests.
        """
        with as_user_errors():
            return self._read.requests(self._point(point), seed)

    def bench(self, point: str | None = None, seed: int | None = None) -> Mapping[str, object]:
        """Returns what `vllm bench serve --save-result` would have written, for the first or the given seed.

        Raises:
            UserError: there is no such point.
        """
        return self._read.bench(self._point(point), seed)

    def engine(self, point: str | None = None, seed: int | None = None) -> Mapping[str, object]:
        """Returns what only a simulation can tell: where a step's time goes, loads, replicas, intervals.

        Raises:
            UserError: there is no such point.
        """
        folder = self._read.folder_of(self._point(point), seed)
        with as_user_errors():
            return read_object(folder / "engine.json")

    def _point(self, name: str | None) -> str:
        """A point by its name, or the only one."""
        known = list(self.summary["point"])
        if name is None and len(known) == 1:
            return str(known[0])
        if name not in known:
            asked = f"there is no point {name!r}" if name else f"there are {len(known)} points"
            raise UserError(f"{asked}; {did_you_mean(name or '', known[:12])}")
        return str(name)

    @property
    def plots(self) -> tuple[str, ...]:
        """The figures that this run has something for."""
        from specfleet.experiments.figures.data import read
        from specfleet.experiments.figures.run import figures

        return tuple(name for name, figure in figures(read(self.folder)) if figure is not None)

    def plot(self, name: str | None = None) -> Figure:
        """Draws a figure.

        Args:
            name: one of `plots`, or a metric of the summary; the first of answer, speedup, throughput that
                the run has if left out.

        Raises:
            UserError: the run has nothing for it.
        """
        from specfleet.experiments.figures.data import read
        from specfleet.experiments.figures.run import figures, metric
        from specfleet.experiments.figures.style import styled
        from specfleet.experiments.schema.blocks.experiment import is_metric

        shown = read(self.folder)
        wanted = ("answer", "speedup", "throughput") if name is None else (name,)
        with styled():
            found: dict[str, Figure] = {}
            for known, drawn in figures(shown):
                if drawn is not None:
                    found[known] = drawn
                    if known == wanted[0]:
                        return drawn
            for known in wanted:
                if figure := found.get(known) or (metric(shown, known) if is_metric(known) else None):
                    return figure
        raise UserError(
            f"this run has no {wanted[0]}; {did_you_mean(wanted[0], found) if found else 'sweep a load'}"
        )

    @cached_property
    def answer(self) -> str:
        """What `specfleet run` prints: the table, the answer in words, what is backed by measurement."""
        from specfleet.experiments.words.run import run_text

        run = Run(self.folder / "resolved.yaml", out=self.folder)
        report = run.loaded.experiment.report
        rows = summarise(run.points, run.seeds, self.folder, report.baseline, report.least_gain)
        return run_text(run, rows)


def results(folder: Path | str, whole: bool = True) -> Result:
    """Returns the finished run in a results folder, with a warning where its files or release changed since.

    Args:
        folder: `results/NAME`, of which the latest run is read, or `results/NAME/2`.
        whole: whether the run must be whole; else what was there when it last ended is returned.

    Raises:
        UserError: it is not the folder of a finished run.
    """
    found = Result(located(Path(folder)), _whole=whole)
    for said in found._read.stale:
        warnings.warn(f"{found.folder}: {said}", stacklevel=2)
    return found
