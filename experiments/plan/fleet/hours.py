"""What a simulated day shows hour by hour: how near the limits, and how many replicas were paid for."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from specfleet.experiments.plan.seen import Allowed
from specfleet.experiments.point.days import HOURS
from specfleet.sim.simulation import RunResult

F64 = npt.NDArray[np.float64]


def hour_figures(
    result: RunResult, hour_s: float, sent_s: F64, series: Mapping[str, F64], limits: Mapping[str, Allowed]
) -> dict[str, float]:
    """Returns `day:LIMIT` and `hour:H:LIMIT`, measured over allowed, and `hour:H:replicas`, paid on average.

    Args:
        result: of the day.
        hour_s: how long an hour of it lasts, seconds.
        sent_s: when each request was sent, shape `(n,)`.
        series: latency -> milliseconds, in the same order; a TPOT of 0 is none.
        limits: of the SLO.
    """
    found = {}
    hour = np.minimum((sent_s / hour_s).astype(np.int64), HOURS - 1)
    for name, allowed in limits.items():
        values = series[allowed.series]
        if len(values) != len(sent_s):  # pauses, which belong to no hour
            found[f"day:{name}"] = float(np.quantile(values, allowed.share)) / allowed.limit
            continue
        counts = values > 0.0
        found[f"day:{name}"] = _over(values[counts], allowed)
        for h in range(HOURS):
            there = values[counts & (hour == h)]
            if len(there):
                found[f"hour:{h}:{name}"] = _over(there, allowed)
    for h in range(HOURS):
        found[f"hour:{h}:replicas"] = _paid(result, h, hour_s)
    return found


def _over(values: F64, allowed: Allowed) -> float:
    return float(np.quantile(values, allowed.share)) / allowed.limit if len(values) else 0.0


def _paid(result: RunResult, hour: int, hour_s: float) -> float:
    log = result.parts[0].scaling if result.parts else None
    if log is None:
        return float(result.scenario.deployment.replicas)
    return log.paid_s(hour * hour_s, (hour + 1) * hour_s) / hour_s
