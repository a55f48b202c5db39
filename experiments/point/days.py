"""The day that a plan is made for: requests/s by five minutes, of a schedule, a log or a wave."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from specfleet.experiments.schema.blocks.plan import Day, Plan
from specfleet.workloads.rates import DAY_S, wave

F64 = npt.NDArray[np.float64]

STRETCH_S = 300.0
STRETCHES = round(DAY_S / STRETCH_S)
HOURS = 24
EACH = STRETCHES // HOURS
"""Stretches of an hour."""


@dataclass(frozen=True)
class RecordedDay:
    """What is known of the weekdays of a recorded week.

    Attributes:
        mean_per_s: requests/s.
        peak_to_trough: the busiest hour over the quietest.
        source: where that is from, and what is assumed.
    """

    mean_per_s: float
    peak_to_trough: float
    source: str


_WEEK = (
    "AzurePublicDataset, a week of May 2024 (CC-BY-4.0), weekdays: mean, and busiest hour over quietest, as "
    "a published analysis of the log has them; the log itself is not here, so the hours between are a wave"
)
DAYS = {
    "azure-conv-2024": RecordedDay(185_431 / 3600, 2.0, _WEEK),
    "azure-code-2024": RecordedDay(124_202 / 3600, 10.0, _WEEK),
}
"""Days by name."""


class DayError(ValueError):
    """A log that holds no such day."""


def stretches_of(plan: Plan) -> F64 | None:
    """Returns requests/s in stretches of `STRETCH_S`, shape `(288,)`, growth included; None without a day.

    Raises:
        DayError: for a log that does not hold the day.
    """
    if plan.day is not None:
        return plan.growth * _of_day(plan.day)
    if not plan.schedule:
        return None
    hours, rates = (np.array(column) for column in zip(*plan.schedule, strict=True))
    at = (np.arange(STRETCHES) + 0.5) * STRETCH_S / 3600.0
    return plan.growth * rates[np.searchsorted(hours, at, side="right") - 1]


def hourly(stretches: F64) -> F64:
    """Returns the mean of each hour, shape `(24,)`."""
    means: F64 = stretches.reshape(HOURS, EACH).mean(axis=1)
    return means


def peak_of(plan: Plan) -> float | None:
    """Returns requests/s of the busiest hour, to four digits, or of a schedule; None without one."""
    if plan.schedule:
        return float(plan.growth * max(rate for _, rate in plan.schedule))
    found = stretches_of(plan)
    return None if found is None else float(f"{hourly(found).max():.4g}")


def _of_day(day: Day) -> F64:
    if day.trace is not None:
        path = Path(day.trace)
        status = path.stat()
        rates = _counted(path, status.st_size, status.st_mtime_ns, day.date) / STRETCH_S
    else:
        known = DAYS[day.preset or ""]
        curve = wave(known.peak_to_trough, 3600.0 * day.peak_hour, DAY_S).scaled(known.mean_per_s)
        edges = np.array([curve.expected(i * STRETCH_S) for i in range(STRETCHES + 1)])
        rates = np.diff(edges) / STRETCH_S
    if day.mean_per_s is not None:
        rates = rates * (day.mean_per_s / rates.mean())
    return rates


@lru_cache(maxsize=8)
def _counted(path: Path, size: int, changed_ns: int, date: str | None) -> F64:
    """Requests of each stretch of a day; rows begin with `YYYY-MM-DD HH:MM`, as Azure's logs do."""
    minutes: Counter[str] = Counter()
    with path.open(encoding="utf-8") as rows:
        next(rows, None)
        for row in rows:
            minutes[row[:16]] += 1
    days: dict[str, F64] = {}
    for minute, count in minutes.items():
        here, clock = minute[:10], minute[11:]
        if not (
            len(clock) == 5 and clock[2] == ":" and (clock[:2] + clock[3:]).isdigit() and here[4:5] == "-"
        ):
            raise DayError(
                f"has a row that begins {minute!r}; rows must begin with a time such as 2024-05-14 09:30"
            )
        at = (60 * int(clock[:2]) + int(clock[3:])) * 60.0 / STRETCH_S
        days.setdefault(here, np.zeros(STRETCHES))[int(at)] += count
    whole = {
        day: counts for day, counts in days.items() if (counts.reshape(HOURS, EACH).sum(axis=1) > 0).all()
    }
    if date is None and len(whole) == 1:
        return next(iter(whole.values()))
    if date in whole:
        return whole[date]
    there = (
        f"whole days in it: {', '.join(sorted(whole))}"
        if whole
        else "it holds no day with requests in every hour"
    )
    raise DayError(f"{'says no date' if date is None else f'has no whole day {date}'}; {there}")
