"""What is paid for where replicas come and go, and what they did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from specfleet.experiments.point.built import Built, BuiltPool
from specfleet.experiments.run.analysis import StepTotals
from specfleet.experiments.run.costs.ratio import FIRST, STARTING_TTFT
from specfleet.sim.fleet.scaling import ScalingLog
from specfleet.sim.recorder import FINISHED
from specfleet.sim.scenario import RunResult

REPLICAS = ("mean_replicas", "peak_replicas", "scale_outs", "gpu_hours")
RATIO = "cost_x_on_demand"
ON_DEMAND = ("cost_usd", "cost_usd_on_demand", RATIO)
"""Where some replicas are on spot: dollars of the run, of the same GPU-hours on demand, and the ratio."""


@dataclass(frozen=True)
class PaidPool:
    """What is paid for of one pool, from the run's first step to its last.

    Attributes:
        pool: which.
        replica_s: seconds of all its replicas that are paid for; spot_s: of these, those on spot.
        whole_s: seconds of all that there may be.
        log: how many there were, where they come and go.
    """

    pool: BuiltPool
    replica_s: float
    spot_s: float
    whole_s: float
    log: ScalingLog | None

    @property
    def gpu_s(self) -> float:
        """GPU-seconds."""
        return self.pool.gpus * self.share * (self.whole_s / self.pool.replicas)

    @property
    def share(self) -> float:
        """Share of the time of all that there may be."""
        return self.replica_s / self.whole_s if self.log is not None and self.whole_s > 0.0 else 1.0

    def dollars(self, on_demand: bool = False) -> float | None:
        """Returns what it costs; `on_demand`: if none were on spot. None where a price is not known."""
        spot_s = 0.0 if on_demand else self.spot_s
        priced = ((self.replica_s - spot_s, self.pool.per_hour_usd), (spot_s, self.pool.spot_per_hour_usd))
        total = 0.0
        for seconds, price in priced:
            if price is not None:
                total += price * seconds / (3600.0 * self.pool.replicas)
            elif seconds > 0.0:
                return None
        return total


@dataclass(frozen=True)
class Paid:
    """What is paid for of a run.

    Attributes:
        pools: of each pool, in their order.
        seconds: from the first step to the last.
    """

    pools: tuple[PaidPool, ...]
    seconds: float

    @classmethod
    def of(cls, built: Built, steps: Mapping[str, StepTotals], result: RunResult | None = None) -> Paid:
        """Returns what is paid for.

        Args:
            built: the point.
            steps: of each pool, by name.
            result: the run; None where all replicas are there all the time.
        """
        from_s = min(totals.from_s for totals in steps.values())
        to_s = max(totals.to_s for totals in steps.values())
        seconds = max(to_s - from_s, 0.0) if to_s > from_s else 0.0
        logs = {} if result is None else scaling_logs(result)
        found = []
        for pool in built.pools:
            log, whole_s = logs.get(pool.name), pool.replicas * seconds
            if log is None:
                found.append(PaidPool(pool, whole_s, 0.0, whole_s, None))
                continue
            first = 0 if pool.spot is None else pool.spot.on_demand
            spot_s = 0.0 if pool.spot is None else log.paid_s(from_s, to_s, first)
            found.append(PaidPool(pool, log.paid_s(from_s, to_s), spot_s, whole_s, log))
        return cls(tuple(found), seconds)

    @property
    def replica_share(self) -> float:
        """Of the time of all replicas that there may be, the share that is paid for."""
        if all(one.log is None for one in self.pools):
            return 1.0
        whole_s = sum(one.whole_s for one in self.pools)
        return sum(one.replica_s for one in self.pools) / whole_s if whole_s > 0.0 else 1.0

    @property
    def gpu_share(self) -> float:
        """The same of GPUs."""
        if all(one.log is None for one in self.pools):
            return 1.0
        whole_s = sum(one.pool.gpus for one in self.pools) * self.seconds
        return self.gpu_s / whole_s if whole_s > 0.0 else 1.0

    @property
    def gpu_s(self) -> float:
        """GPU-seconds."""
        return sum(one.gpu_s for one in self.pools)

    def dollars(self, on_demand: bool = False) -> float | None:
        """As `PaidPool.dollars`, of all pools."""
        each = [one.dollars(on_demand) for one in self.pools]
        known = [dollars for dollars in each if dollars is not None]
        return sum(known) if len(known) == len(each) else None


def scaling_logs(result: RunResult) -> dict[str, ScalingLog]:
    """Returns how many replicas each pool had, by name, of those where they come and go."""
    pools = zip(result.scenario.pools, result.parts, strict=False)
    return {pool.name: part.scaling for pool, part in pools if part.scaling is not None}


def scaling_of(result: RunResult, paid: Paid) -> dict[str, float | None]:
    """Returns how many replicas were paid for, on average and at most, in how many decisions some were added
    and when first, hours of GPUs, and the P99 TTFT of requests that were sent while replicas were starting;
    from the first step to the last one. Nothing where their number is fixed."""
    logs = [one.log for one in paid.pools if one.log is not None]
    if not logs:
        return {}
    later = np.concatenate([log.added_s for log in logs])
    mean = sum(one.replica_s for one in paid.pools) / paid.seconds if paid.seconds else 0.0
    fixed = sum(one.pool.replicas for one in paid.pools if one.log is None)
    peak, outs = fixed + _peak(logs), sum(log.scale_outs for log in logs)
    figures = mean, peak, outs, paid.gpu_s / 3600.0
    found: dict[str, float | None] = dict(zip(REPLICAS, map(float, figures), strict=True))
    found |= {
        FIRST: float(later.min()) if len(later) else None,
        STARTING_TTFT: _while_starting(result, logs),
    }
    if any(one.pool.spot for one in paid.pools):
        dollars, as_is = paid.dollars(), paid.dollars(on_demand=True)
        ratio = None if dollars is None or not as_is else dollars / as_is
        found |= dict(zip(ON_DEMAND, (dollars, as_is, ratio), strict=True))
    return found


def pool_scaling(one: PaidPool, seconds: float) -> dict[str, float | None]:
    """Returns the same of one pool, with its dollars; nothing where its number of replicas is fixed."""
    if one.log is None:
        return {}
    mean = one.replica_s / seconds if seconds else 0.0
    figures = mean, one.log.peak(), one.log.scale_outs, one.gpu_s / 3600.0
    found: dict[str, float | None] = dict(zip(REPLICAS, map(float, figures), strict=True))
    return found | ({} if one.pool.spot is None else {"cost_usd_on_demand": one.dollars(on_demand=True)})


def _peak(logs: list[ScalingLog]) -> int:
    """Returns the most replicas of several pools together that were paid for at a time."""
    if len(logs) == 1:
        return logs[0].peak()
    times = np.unique(np.concatenate([log.changes["time_s"] for log in logs]))
    total = np.zeros(len(times))
    for log in logs:
        at = np.searchsorted(log.changes["time_s"], times, side="right") - 1
        total += log.paid_then()[np.maximum(at, 0)]
    return int(total.max())


def _while_starting(result: RunResult, logs: list[ScalingLog]) -> float | None:
    """Returns the P99 TTFT of requests that were sent while replicas were starting, ms; None of none."""
    requests = result.requests
    starting = np.zeros(len(requests["sent_s"]), dtype=np.bool_)
    for log in logs:
        at = np.searchsorted(log.changes["time_s"], requests["sent_s"], side="right") - 1
        starting |= log.changes["starting"][at] > 0
    asked = (requests["counted"] == 1) & (requests["status"] == FINISHED) & starting
    ttft_s = (requests["first_chunk_s"] - requests["sent_s"])[asked]
    return 1e3 * float(np.percentile(ttft_s, 99.0)) if len(ttft_s) else None
