"""What the laws cost that are always on, as shares of reference jobs: `python tests/perf/laws.py [NAME ...]`.

CPU time, the least and the median of twenty runs, metrics included; a run and its check alternate.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent))

from jobs import JOBS

from specfleet.sim import simulation
from specfleet.sim.laws.whole import check_run
from specfleet.sim.metrics.columns import benchmark
from specfleet.sim.simulation import simulate

NAMES = ("reference", "reference-spec", "reference-adaptive", "preempted")
RUNS = 20


def taken_s(work: Callable[[], object]) -> float:
    """Returns the CPU seconds of a piece of work."""
    started = time.process_time()
    work()
    return time.process_time() - started


def main() -> None:
    """Prints a line a job."""
    simulation.check_run = lambda result, table: None  # type: ignore[attr-defined] # timed apart
    print(f"{'job':22}{'run ms':>9}{'laws ms':>9}{'share, least':>14}{'median':>9}")
    for job in JOBS:
        if job.name not in (sys.argv[1:] or NAMES):
            continue
        scenario, table = job.scenario(), job.table()
        runs, laws = [], []
        for _ in range(RUNS):
            runs.append(taken_s(lambda: benchmark(simulate(scenario, table, 0))))  # noqa: B023
            result = simulate(scenario, table, 0)
            laws.append(taken_s(lambda: check_run(result, table)))  # noqa: B023
        share, middle = min(laws) / min(runs), median(laws) / median(runs)
        print(f"{job.name:22}{1e3 * min(runs):9.1f}{1e3 * min(laws):9.2f}{share:14.2%}{middle:9.2%}")


if __name__ == "__main__":
    main()
