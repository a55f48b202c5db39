"""Prints what each trick of the calendar costs, for the table in ARCHITECTURE.md."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from jobs import JOBS, Job

from specfleet.sim.calendar import crowd, quiet, stepper, trajectories
from specfleet.sim.calendar.footprints import Footprints
from specfleet.sim.calendar.plan import CalendarRun
from specfleet.sim.calendar.trajectories import Trajectories
from specfleet.sim.simulation import RunResult, simulate
from specfleet.sim.speculation.lives import Lives
from specfleet.workloads.requests import RequestTable

BY_NAME = {job.name: job for job in JOBS}


def seconds(work: Callable[[], object], times: int = 5) -> float:
    """Median seconds of a piece of work."""
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return median(taken)


def run(job: Job) -> RunResult:
    """Simulates a job."""
    return simulate(job.scenario(), job.table(), 0)


@contextmanager
def timed(owner: type, name: str) -> Iterator[list[float]]:
    """Collects the seconds of each call of a method."""
    method, taken = getattr(owner, name), []

    def timer(*args: object) -> object:
        started = time.perf_counter()
        found = method(*args)
        taken.append(time.perf_counter() - started)
        return found

    setattr(owner, name, timer)
    try:
        yield taken
    finally:
        setattr(owner, name, method)


def add_a_row() -> float:
    """Adds 95 differences to a calendar."""
    calendar, row = np.zeros(16384, dtype=np.int64), np.ones(95, dtype=np.int64)

    def work() -> None:
        for place in range(10_000):
            part = calendar[place : place + 95]
            np.add(part, row, part)

    return seconds(work) / 10_000


def draw_a_request(block: int) -> float:
    """Draws the rows of one request, `block` at a time."""
    job = replace(BY_NAME["reference-spec"], requests=2560)
    scenario, table = job.scenario(), job.table()
    plan = CalendarRun(scenario, table, 0, Lives(scenario.acceptance, table, job.k, 0))
    rules = Footprints.of(plan.config, plan.longest_tokens)
    assert rules is not None
    trajectories.BLOCK = block

    def work() -> None:
        lives = Trajectories(plan.table, plan.served, rules, plan.luck, False)
        for number in range(2560 // block):
            lives._draw(number)

    try:
        return seconds(work) / 2560
    finally:
        trajectories.BLOCK = 256


def turn(window: int) -> float:
    """One quiet turn, summed up in numpy from `window` of them on."""
    job = replace(BY_NAME["closed-1"], requests=200)
    before, quiet.WINDOW = quiet.WINDOW, window
    try:
        return seconds(lambda: run(job)) / len(run(job).iterations["end_s"])
    finally:
        quiet.WINDOW = before


def preemption() -> float:
    """One preemption with its return: what a short pool adds to a run."""
    short, ample = BY_NAME["preempted"], replace(BY_NAME["preempted"], blocks=200_000)
    count = int(run(short).requests["preemptions"].sum())
    return (seconds(lambda: run(short)) - seconds(lambda: run(ample))) / count


def main() -> None:
    """Prints the table."""
    print(f"a row added                      {1e6 * add_a_row():7.1f} us")
    for block in (256, 32):
        print(f"a request drawn, {block:3} at a time    {1e6 * draw_a_request(block):7.1f} us")
    print(f"a quiet turn                     {1e6 * turn(10**9):7.2f} us")
    print(f"a quiet turn in a window         {1e6 * turn(64):7.2f} us")
    print(f"a preemption with its return     {1e6 * preemption():7.0f} us, and the longer run")
    job = replace(BY_NAME["reference-adaptive"], requests=3000)
    with timed(crowd.CalendarCrowd, "change_k") as taken:
        running = run(job).iterations["running"].mean()
    print(f"a change of K at {running:3.0f} running     {1e3 * median(taken):7.2f} ms")
    job = replace(BY_NAME["reference-spec"], rate=None, concurrency=180)
    scenario = job.scenario()
    tight = replace(scenario, engine=replace(scenario.engine, max_num_batched_tokens=898))
    with timed(stepper.Stepper, "_hand_over") as over, timed(stepper.Stepper, "_take_back") as back:
        running = simulate(tight, RequestTable.of([10] * 2000, [250] * 2000), 0).iterations["running"].mean()
    print(f"over to Engine at {running:3.0f} running    {1e3 * median(over):7.2f} ms")
    print(f"and back                         {1e3 * median(back):7.2f} ms")


if __name__ == "__main__":
    main()
