"""`specfleet plan`: the cheapest deployment that meets the SLO, whether to speculate, how to roll it out."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from specfleet.experiments.plan.deploy.winner import winning_pools
from specfleet.experiments.plan.deploy.write import deployed_text
from specfleet.experiments.plan.figures import draw_plan
from specfleet.experiments.plan.planned import Planned
from specfleet.experiments.plan.planner import Planner
from specfleet.experiments.plan.report import plan_text
from specfleet.experiments.plan.write import write_plan
from specfleet.experiments.run.cluster.crew import crew
from specfleet.experiments.run.processes import WorkerLost, Workers
from specfleet.experiments.run.progress import Reporter
from specfleet.experiments.words.width import say
from specfleet.sim.errors import SimulationError

SAY_EVERY_S = 5.0


def plan_command(
    file: Path,
    overrides: Sequence[str] = (),
    jobs: int | None = None,
    out: Path | None = None,
    resume: bool = False,
    plots: bool = True,
    quiet: bool = False,
    as_json: bool = False,
    cluster: str | None = None,
) -> int:
    """Makes a plan, prints the answer, and writes plan.json, rollout.md and plots/.

    With `as_json` it prints what plan.json has, and nothing else on stdout.

    Returns:
        The exit code: 0 done, 1 nothing meets the SLO or a simulation failed, 130 interrupted.

    Raises:
        InputFaults: with all that is wrong with the file or the options.
    """
    planner, reporter = Planner(file, overrides, out), Reporter(0, quiet)
    with crew(jobs, cluster, reporter.say) as workers:
        planner.prepare(resume)
        for notice in planner.loaded.notices:
            reporter.say(f"note: {notice}")
        started = time.monotonic()
        planned = _planned(planner, workers, _rarely(reporter, started))
    if isinstance(planned, int):
        return planned
    write_plan(planned, planner.folder)
    if as_json:
        print((planner.folder / "plan.json").read_text().rstrip())
    else:
        say(plan_text(planned))
        if planned.winner is not None:
            say(deployed_text(*winning_pools(planned)))
    if plots and planned.winner is not None:
        draw_plan(planned, planner.folder)
    planner.finish()
    spent = time.monotonic() - started
    kept = planned.asked - planned.spent
    found = f" ({kept} more were kept)" if kept else ""
    where = sys.stderr if as_json else sys.stdout
    print(f"{planned.spent} simulations{found} in {spent:.0f} s\nplan: {planner.folder}", file=where)
    return 0 if planned.winner is not None else 1


def _planned(planner: Planner, workers: Workers, say: Callable[[str], None]) -> Planned | int:
    """Returns the plan, or the exit code where there is none."""
    try:
        return planner.execute(workers, say)
    except KeyboardInterrupt:
        print("interrupted: what is simulated is kept; go on with --resume", file=sys.stderr)
        return 130
    except WorkerLost as lost:
        print(f"{lost}; what is simulated is kept: go on with --resume", file=sys.stderr)
        return 1
    except SimulationError as error:
        planner.failed(error)
        print(f"no plan: {type(error).__name__}: {error}", file=sys.stderr)
        return 1


def _rarely(reporter: Reporter, started: float) -> Callable[[str], None]:
    """Says a line with the time, at most one every few seconds."""
    last = [started - SAY_EVERY_S]

    def say(message: str) -> None:
        now = time.monotonic()
        if now - last[0] >= SAY_EVERY_S:
            last[0] = now
            reporter.say(f"{now - started:4.0f} s: {message}")

    return say
