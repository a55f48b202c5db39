"""An experiment in Python: loaded, checked, run, or taken apart to be simulated by hand."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from specfleet.experiments.api.result import Result
from specfleet.experiments.load.config import Loaded, resolved
from specfleet.experiments.load.config import load as load_given
from specfleet.experiments.load.sweep import Point, expand
from specfleet.experiments.schema.faults import UserError, did_you_mean
from specfleet.experiments.schema.given import Change, Given, changes
from specfleet.experiments.words.mistakes import as_user_errors
from specfleet.experiments.words.values import counted

if TYPE_CHECKING:
    from specfleet.sim.simulation import Scenario
    from specfleet.workloads.requests import RequestTable

UNGUARDED = (
    "Each worker imports the script that started it: it must be a file, and what starts processes must stand "
    'below `if __name__ == "__main__":`'
)


@dataclass(frozen=True)
class Experiment:
    """An experiment without faults.

    Attributes:
        given: the file, or what it would hold.
        changes: over the file's own values.
        points: every combination of the axes' values, each with all its settings in `config`.
    """

    given: Given
    changes: tuple[Change, ...]
    _loaded: Loaded
    points: tuple[Point, ...]

    def __repr__(self) -> str:
        size = f"{counted(len(self.points), 'point')} x {counted(len(self.seeds), 'seed')}"
        return f"<Experiment {self.name}: {size}>"

    @property
    def name(self) -> str:
        """Names the results folder."""
        return self._loaded.experiment.name

    @property
    def seeds(self) -> tuple[int, ...]:
        """Of the replications of each point."""
        experiment = self._loaded.experiment
        return tuple(experiment.seed + i for i in range(experiment.replications))

    @property
    def notices(self) -> tuple[str, ...]:
        """Assumptions made for the user, one sentence each."""
        return self._loaded.notices

    @cached_property
    def yaml(self) -> str:
        """The whole experiment as a file, with every default written out."""
        return resolved(self._loaded.experiment)

    def check(self) -> str:
        """Returns the points and what fits in memory, as `specfleet check` prints them."""
        from specfleet.experiments.run.check import checked
        from specfleet.experiments.words.check import check_text

        name = self.name if isinstance(self.given, Mapping) else str(self.given)
        with as_user_errors():
            return check_text(checked(name, self._loaded, self.points))

    def run(
        self,
        jobs: int = 1,
        out: Path | str | None = None,
        progress: bool = False,
        cluster: str | None = None,
    ) -> Result:
        """Simulates every point.

        Args:
            jobs: processes. More than one need what every Python program needs that starts processes: what a
                script does at its top level stands below `if __name__ == "__main__":`.
            out: the results folder; left out, a temporary one that goes with the result.
            progress: says on stderr how far it is.
            cluster: address of a Dask scheduler whose workers simulate; or `local`, which starts one with
                `jobs` workers here; with 1, as many as there are processors.

        Raises:
            UserError: the folder belongs to something else, no point could be simulated, other processes
                cannot import what was registered, or the cluster cannot be worked with.
            WorkersGone: nobody answers at the address, or nobody is left to work.
        """
        from specfleet.experiments.load.rules.own import refuse_unreachable
        from specfleet.experiments.run.cluster.crew import of_python
        from specfleet.experiments.run.processes import WorkerLost
        from specfleet.experiments.run.progress import Reporter
        from specfleet.experiments.run.run import Run

        refuse_unreachable([point.config for point in self.points], 2 if cluster else jobs)
        kept = TemporaryDirectory(prefix="specfleet-") if out is None else None
        folder = Path(kept.name) if kept else Path(str(out))
        reporter = Reporter(0, quiet=not progress)
        with as_user_errors(), of_python(jobs, cluster, reporter.say) as workers:
            run = Run(self.given, self.changes, folder)
            todo = run.prepare(resume=False)
            reporter.total = len(todo)
            try:
                run.execute(todo, workers, reporter)
                rows = run.summary()
            finally:
                run.release()
        if run.failures:
            said = "; ".join(f"{task}: {why}" for task, why in run.failures[:3])
            message = f"{len(run.failures)} of {len(todo)} simulations failed: {said}"
            if jobs > 1 and WorkerLost.__name__ in said:
                message += f". {UNGUARDED}"
            if not rows:
                raise UserError(message)
            warnings.warn(message, stacklevel=2)
        return Result(folder, kept, run.whole)

    def scenario(self, point: Point | str | None = None) -> Scenario:
        """Returns what one point simulates: engine, prices, acceptance, replicas, client, load.

        Args:
            point: one of `points` or its name; may be left out where there is one.
        """
        from specfleet.experiments.point.built import build

        with as_user_errors():
            return build(self._point(point).config).scenario

    def requests(self, point: Point | str | None = None, seed: int | None = None) -> RequestTable:
        """Returns the requests of one point and seed (the first if left out), as `simulate` takes them."""
        from specfleet.experiments.point.build import requests

        with as_user_errors():
            return requests(self._point(point).config, self.seeds[0] if seed is None else seed)

    def _point(self, point: Point | str | None) -> Point:
        if isinstance(point, Point):
            return point
        known = {known.id: known for known in self.points}
        if point is None and len(known) == 1:
            return self.points[0]
        if point not in known:
            asked = f"there is no point {point!r}" if point else f"there are {len(known)} points"
            raise UserError(f"{asked}; {did_you_mean(point or '', list(known)[:12])}")
        return known[point]


def load(given: Given, overrides: Mapping[str, object] | None = None, /, **blocks: object) -> Experiment:
    """Returns an experiment, checked.

        load("demo.yaml", {"workload.max_concurrency": 8}, seed=7, serve={"max_num_seqs": 64})

    Args:
        given: the path of an experiment file, or a mapping with what such a file holds.
        overrides: dotted keys with their values, in place of the file's.
        **blocks: top-level keys; of a block, each key that is given takes the place of the file's.

    Raises:
        UserError: with everything that is wrong, as `specfleet check` prints it.
    """
    changed = tuple(changes(overrides, blocks))
    with as_user_errors():
        loaded = load_given(given, changed)
    return Experiment(given, changed, loaded, expand(loaded.experiment))
