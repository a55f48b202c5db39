"""A recorded trace run through the calendar without a stop, its sums held against the record.

Driven turn by turn, an engine never runs ahead. Here it does: quiet stretches are priced at once, and who
needs not remember who runs does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Any

import numpy as np
from calendar_engine import Price, Recording
from records import Differences, Step, Trace

from specfleet.sim.calendar.columns import LaneColumns
from specfleet.sim.calendar.plan import CalendarRun

COLUMNS = {
    "tokens": "tokens",
    "drafts": "draft_tokens",
    "output": "output_tokens",
    "num_running": "running",
    "num_waiting": "waiting",
    "used": "kv_blocks_used",
}
"""Sums of a batch, and the columns of an iteration that say the same."""


class Run:
    """One run from the first arrival to the last end.

    Args:
        recording: the inputs.
        arrival_s: when each request arrives, by row, seconds.
        splits: rows that arrive between the two batches of one turn.
    """

    def __init__(self, recording: Recording, arrival_s: list[float], splits: set[int]) -> None:
        price = Price()
        price.bell = self._priced
        self.lane = recording.lane(price, CalendarRun)
        self._arrival_s, self._splits = arrival_s, splits
        self._arrived = 0
        self._arrive()

    def _arrive(self) -> None:
        """Lets all arrive up to the next one who has to wait for the bell."""
        first, times = self._arrived, self._arrival_s
        while self._arrived < len(times):
            row = self._arrived
            with_the_last = row - 1 in self._splits and times[row - 1] == times[row]
            if row > first and row in self._splits and not with_the_last:
                return
            self.lane.submit(row, times[row])
            self._arrived += 1

    def _priced(self) -> None:
        log = self.lane.log
        due = self._arrived < len(self._arrival_s) and self._arrival_s[self._arrived]
        if log.wakes and log.wakes[-1] == len(log.end_s) and log.wake_s[-1] == due:
            self._arrive()

    def iterations(self) -> dict[str, list[int]]:
        """Runs; returns the sums of every iteration, named as in `COLUMNS`.

        Raises:
            Unsuited: the calendar cannot go on.
        """
        walk = self.lane.run()
        next(walk)
        assert walk.send(inf) == inf, "nothing is left to wait for"
        self.lane.lives.settle()
        self.lane.finish()
        everybody = np.ones(len(self._arrival_s), dtype=np.bool_)
        columns = LaneColumns(self.lane, slice(None), everybody).iterations()
        return {name: columns[column].tolist() for name, column in COLUMNS.items()}


def recorded_sums(trace: Trace, usable_blocks: int) -> Iterator[tuple[Step, dict[str, Any]]]:
    """Yields the sums of each recorded batch that has rows, with its step, as far as it has the fields.

    It ends where a step does not say whether it has rows: traces written by hand may say less.
    """
    steps, lag = trace["steps"], trace["config"]["async_scheduling"]
    outcomes = {step.get("processed_batch") if lag else step["step"]: step.get("rows") for step in steps}
    for step in steps:
        rows = outcomes.get(step.get("batch") if lag else step["step"])
        placed = step.get("sched_rows", None if lag else rows)
        tokens = step.get("tokens", placed)
        idle = "batch" in step and step["batch"] is None
        if tokens is None and not idle:
            return
        if not tokens:
            continue
        sums = {name: step[name] for name in ("tokens", "num_running", "num_waiting") if name in step}
        if "free_after_schedule" in step:
            sums["used"] = usable_blocks - step["free_after_schedule"]
        if placed is not None:
            sums["drafts"] = sum(row[2] for row in placed)
        if rows is not None and (not lag or "batch" in step):
            sums["output"] = sum(row[4] for row in rows)
        yield step, sums


def differences_of_sums(trace: Trace, run: Run, usable_blocks: int) -> Differences:
    """Compares the sums of every batch that was recorded with those of a run.

    Raises:
        Unsuited: as `Run.iterations`.
    """
    found, ours = Differences(), run.iterations()
    count = len(ours["tokens"])
    recorded = list(recorded_sums(trace, usable_blocks))
    for it, (step, sums) in enumerate(recorded[:count]):
        for name, expected in sums.items():
            if ours[name][it] != expected:
                line = (
                    f"step {step['step']}: without a stop: {name}: theirs {expected}, ours {ours[name][it]}"
                )
                found.note(name, line)
    if count < len(recorded) or (count > len(recorded) and not trace["truncated"]):
        found.note("truncated", f"without a stop: theirs {len(recorded)} iterations, ours {count}")
    return found
