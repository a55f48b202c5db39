"""`sweep.load: auto`: the axis of loads of a question, from an idle engine to past saturation.

Nothing is simulated for it: the price of a step bounds what each point serves (`point/ceiling.py`), and the
loads lie around these bounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

from specfleet.experiments.load.rules.base import Conflict
from specfleet.experiments.point.build import requests
from specfleet.experiments.point.ceiling import ceiling_of
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.blocks.workload import TrafficClass
from specfleet.experiments.schema.yamlfile import Value

CONCURRENCY, RATE, SPEED = "workload.max_concurrency", "workload.request_rate", "workload.speed"
LOADS = {"max_concurrency": CONCURRENCY, "request_rate": RATE, "speed": SPEED}
"""What may be written for `sweep.load` besides `auto`, and the axis that it makes."""

BELOW = (0.05, 0.2, 0.4, 0.6, 0.8, 0.9)
"""Rates below saturation, shares of what the weakest point serves."""
ABOVE = (0.9, 1.0, 1.15)
"""Rates around saturation, shares of what the strongest point serves."""
APART = 1.04
"""Two rates that are closer than that, as a ratio, are one."""
PAST = 1.25
"""Users past those who decode at saturation, as a ratio: from there on they wait for each other."""
DENSE = 8
"""Concurrencies are doubled from this part of the last on, and four times as large before."""
MOST_POINTS = 64
"""Points whose bounds are looked at: of more, as many, spread evenly."""


class Saturation(NamedTuple):
    """Where a point is saturated.

    Attributes:
        per_s: requests/s that all its replicas serve.
        users: requests that decode there, or are thought about.
        recorded_per_s: requests/s of its trace as recorded, None without one.
    """

    per_s: float
    users: float
    recorded_per_s: float | None


@dataclass(frozen=True)
class LoadAxis:
    """The loads of a question.

    Attributes:
        key: the axis.
        values: its values, rising.
        notice: how they were chosen, one sentence.
    """

    key: str
    values: tuple[int | float, ...]
    notice: str


def conflicts(experiment: Experiment) -> Iterator[Conflict]:
    """What cannot be asked beside a load that is found."""
    asked = experiment.sweep.load
    for key in (CONCURRENCY, RATE, SPEED):
        if key in experiment.sweep.axes:
            yield Conflict.at(
                f"finds the loads, and sweep.axes.{key} gives some; keep one of the two",
                "sweep.load",
                "sweep.axes",
            )
    if experiment.workload.phases is not None:
        yield Conflict.at(
            "finds one load for all of a run, and phases change it; remove one of the two",
            "sweep.load",
            "workload.phases",
        )
    if experiment.workload.has_sessions:
        yield Conflict.at(
            "does not know how much of their prompts sessions find in the cache; give the loads as an axis",
            "sweep.load",
            "workload.sessions",
            "workload.trace",
        )
    if experiment.workload.replayed:
        yield Conflict.at(
            f"finds one load for all, and {experiment.workload.replayed[0]} comes at its trace's own times; "
            "give it a request_rate, or the loads as an axis",
            "sweep.load",
            f"workload.mix.{experiment.workload.replayed[0]}.trace",
        )
    if asked == "speed" and experiment.workload.trace is None:
        yield Conflict.at("speed replays a trace faster, and there is none; write auto", "sweep.load")
    rate = experiment.workload.request_rate
    if asked == "max_concurrency" and rate is not None and math.isfinite(rate):
        yield Conflict.at(
            f"users beyond what {rate:g} requests/s need stay idle; set workload.request_rate to .inf, or "
            "write auto and let the rate be found",
            "sweep.load",
            "workload.request_rate",
        )
    if experiment.plan is not None:
        yield Conflict.at("a plan finds the loads itself; remove it", "sweep.load", "plan")


def axis_key(experiment: Experiment) -> str:
    """The axis of a file's loads: what it has one of, a rate before a concurrency; users if it has none."""
    asked, workload = experiment.sweep.load, experiment.workload
    if asked is not None and asked != "auto":
        return LOADS[asked]
    if workload.request_rate is not None and math.isfinite(workload.request_rate):
        return RATE
    classes = [each for each in (workload.mix or {}).values() if isinstance(each, TrafficClass)]
    if workload.arrivals is not None or any(each.request_rate for each in classes):
        return RATE
    if workload.trace is not None and workload.request_rate is None and workload.max_concurrency is None:
        return SPEED
    return CONCURRENCY


def stand_in(key: str, data: dict[str, Value]) -> dict[str, Value]:
    """The values of a file with an axis of one load in the place of `sweep.load`, to be checked with."""
    sweep, workload = cast("dict[str, Value]", data["sweep"]), data.get("workload")
    given = workload.get(key.partition(".")[2]) if isinstance(workload, dict) else None
    axes = sweep.get("axes") if isinstance(sweep.get("axes"), dict) else {}
    assert isinstance(axes, dict)
    return {**data, "sweep": {"axes": {key: (1 if given is None else given,), **axes}}}


def load_axis(key: str, points: Sequence[Experiment]) -> LoadAxis:
    """The loads at which the points are looked at.

    Args:
        key: the axis.
        points: complete and without faults, at any load.
    """
    step = max(math.ceil(len(points) / MOST_POINTS), 1)
    found = [_saturation(point) for point in points[::step]]
    rates = [one.per_s for one in found]
    served = " to ".join(dict.fromkeys(f"{_short(rate):g}" for rate in (min(rates), max(rates))))
    if key == CONCURRENCY:
        users = max(one.users for one in found)
        loads: tuple[int | float, ...] = concurrencies(users)
        thought = " or are thought about" if any(point.workload.think_time_s for point in points) else ""
        why = f"at most {users:,.0f} requests decode{thought} at once, and past them users wait"
    else:
        recorded = [one.recorded_per_s for one in found]
        factor = [1.0 / (each or 1.0) for each in recorded] if key == SPEED else [1.0] * len(found)
        scaled = [rate * each for rate, each in zip(rates, factor, strict=True)]
        loads, why = rates_between(min(scaled), max(scaled)), f"the price of steps allows {served} requests/s"
    shown = ", ".join(f"{load:g}" for load in loads)
    return LoadAxis(key, loads, f"sweep.load: {key} is {shown}: {why}")


def concurrencies(users: float) -> tuple[int, ...]:
    """Users of a closed loop, from one to past those who can decode at once."""
    last = 1
    while last < PAST * users:
        last *= 2
    loads, at = [], 1
    while at < last:
        loads.append(at)
        at *= 2 if at >= last / DENSE else 4
    return (*loads, last)


def rates_between(weakest: float, strongest: float) -> tuple[float, ...]:
    """Rates, of two digits, from an idle point to past what the strongest one serves.

    Args:
        weakest, strongest: what the points serve at most.
    """
    wanted = [share * weakest for share in BELOW] + [share * strongest for share in ABOVE]
    loads: list[float] = []
    for rate in sorted(_short(one) for one in wanted):
        if not loads or rate > APART * loads[-1]:
            loads.append(rate)
    return tuple(loads)


def _saturation(point: Experiment) -> Saturation:
    table = requests(point, point.seed)
    found = ceiling_of(point, table)
    assert found is not None, "sessions are refused"
    thinking = 0.0 if table.think_s is None else found.per_s * float(table.think_s.mean())
    span = float(table.arrival_s[-1]) * point.workload.speed if point.workload.trace is not None else 0.0
    recorded = (len(table) - 1) / span if span > 0.0 else None
    return Saturation(found.per_s, found.users + thinking, recorded)


def _short(value: float) -> float:
    """A number of two digits, or of three where it begins with a 1."""
    return float(f"{value:.{3 if f'{value:e}'[0] == '1' else 2}g}")
