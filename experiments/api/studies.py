"""The studies in Python: what may be bought, and where the gain ends."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from specfleet.experiments.api.experiment import Experiment
from specfleet.experiments.schema.given import Change, Given, changes
from specfleet.experiments.words.mistakes import as_user_errors

if TYPE_CHECKING:
    from specfleet.experiments.breakeven.question import Breakeven
    from specfleet.experiments.plan.planned import Planned


def plan(
    given: Given | Experiment,
    overrides: Mapping[str, object] | None = None,
    /,
    *,
    jobs: int = 1,
    cluster: str | None = None,
    out: Path | str | None = None,
    progress: bool = False,
    **blocks: object,
) -> Planned:
    """Finds the cheapest deployment that meets the SLO, as `specfleet plan`.

    Args:
        given: the path of an experiment file with its `plan:` block, what such a file holds, or one loaded.
        overrides: dotted keys with their values, in place of the file's.
        jobs, cluster: as for `Experiment.run`.
        out: a folder for plan.json, rollout.md and every simulation; left out, nothing is kept.
        progress: says on stderr what it is at.
        **blocks: as for `load`.

    Returns:
        The winner, the rival, their figures, capacity, best K by load, and what else was looked at.

    Raises:
        UserError: with everything that is wrong with the file or the folder.
    """
    from specfleet.experiments.load.rules.own import refuse_unreachable
    from specfleet.experiments.plan.planner import Planner
    from specfleet.experiments.plan.write import write_plan
    from specfleet.experiments.run.cluster.crew import of_python
    from specfleet.experiments.run.progress import Reporter

    with TemporaryDirectory(prefix="specfleet-") as kept, as_user_errors():
        planner = Planner(*_asked(given, overrides, blocks), Path(kept if out is None else out))
        refuse_unreachable([planner.loaded.experiment], 2 if cluster else jobs)
        reporter = Reporter(0, quiet=not progress)
        with of_python(jobs, cluster, reporter.say) as workers:
            planner.prepare(resume=False)
            planned = planner.execute(workers, reporter.say)
        if out is not None:
            write_plan(planned, planner.folder)
    return planned


def breakeven(
    given: Given | Experiment,
    overrides: Mapping[str, object] | None = None,
    /,
    *,
    jobs: int = 1,
    cluster: str | None = None,
    tolerance: float = 0.01,
    progress: bool = False,
    **blocks: object,
) -> Breakeven:
    """Finds the acceptance at which speculation stops paying at each load, as `specfleet breakeven`.

    Args:
        given: the path of an experiment file, what such a file holds, or one loaded.
        overrides: dotted keys with their values, in place of the file's.
        jobs, cluster: as for `Experiment.run`.
        tolerance: width to which a crossing is bracketed.
        progress: says on stderr how far it is.
        **blocks: as for `load`.

    Returns:
        The search: `found` has, by load, K and seed, the crossings, and the figures at the file's acceptance.

    Raises:
        UserError: with everything that is wrong with the file, or why no search can be made of it.
    """
    from specfleet.experiments.breakeven.question import COUNTED, Breakeven
    from specfleet.experiments.load.rules.own import refuse_unreachable
    from specfleet.experiments.run.cluster.crew import of_python
    from specfleet.experiments.run.progress import Reporter

    with as_user_errors():
        search = Breakeven(*_asked(given, overrides, blocks), tolerance=tolerance)
        refuse_unreachable([search.loaded.experiment], 2 if cluster else jobs)
        reporter = Reporter(search.total, not progress, COUNTED)
        with of_python(jobs, cluster, reporter.say) as workers:
            search.execute(workers, reporter)
    return search


def _asked(
    given: Given | Experiment, overrides: Mapping[str, object] | None, blocks: Mapping[str, object]
) -> tuple[Given, tuple[Change, ...]]:
    """The file or mapping, and all changes to it."""
    more = tuple(changes(overrides, blocks))
    return (given.given, given.changes + more) if isinstance(given, Experiment) else (given, more)
