"""What an autoscaler decides by, and what it did. Pure: no clock, no engine.

The law is that of Kubernetes' Horizontal Pod Autoscaler (kubernetes.io/docs/concepts/workloads/autoscaling/
horizontal-pod-autoscale, "Algorithm details"): desired = ceil(current x metric / target), nothing within a
tolerance of 0.1 around the target, and in a stabilization window of 300 s the largest wish. What is a sum
over replicas counts those that start as idle ones; what is seen of requests is set against the replicas that
are up.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import ceil

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

CONCURRENCY, QUEUE, KV_USAGE = "concurrency", "queue", "kv_usage"
TTFT, ATTAINMENT = "ttft", "slo_attainment"
FIXED = "fixed"
"""Nothing is looked at: as many as there are from the start, and who is lost is replaced."""
SUMS = (CONCURRENCY, QUEUE, KV_USAGE)
"""Metrics that are shared out: twice the replicas have half of it each."""
LOOKS = (QUEUE, KV_USAGE)
"""Metrics that engines report, which only those that are stepped show."""
AT_ONCE = 4
"""Replicas that Kubernetes adds in 15 s at least; or it doubles them, whatever is more (its default
`scaleUp` policies: 100 percent, 4 pods, period 15 s)."""
ROUNDING = 1e-9
"""A quotient that is a whole number but for this is that number."""
LOG_COLUMNS = ("time_s", "metric", "wish", "starting", "up", "draining", "noticed", "missing")
STAY_COLUMNS = ("replica", "ordered_s", "up_s", "draining_s", "gone_s", "replaces")


@dataclass(frozen=True, slots=True)
class AutoscaleConfig:
    """How the number of replicas follows the load.

    Args:
        on: what is looked at: `concurrency` (requests in the cluster that have not ended), `queue` (requests
            waiting in engines, and at the gateway), `kv_usage` (shares of KV blocks in use), each a replica;
            `ttft` (seconds, the 90th percentile of requests that ended in the window), `slo_attainment`
            (share of them that met their limits); or `FIXED`.
        target: of it.
        least, most: replicas that are ordered, at any time.
        start: replicas that are up when the run begins.
        every_s: between two decisions.
        window_s: over which is averaged what is looked at.
        tolerance: how far metric / target may be from 1 before anything is done.
        start_s: from an order until the replica serves.
        up_most: replicas added in a decision at most; None: as many as there are, and 4 at least.
        down_after_s: how long a smaller number must have been wished for.
        limits: (TTFT, TPOT, end to end) of a request of each class, s; one for all; of `slo_attainment`.
        spare: replicas that may be there beyond `most`, while others of which notice was given drain.
    """

    on: str
    target: float
    least: int
    most: int
    start: int
    start_s: float
    every_s: float = 15.0
    window_s: float = 60.0
    tolerance: float = 0.1
    up_most: int | None = None
    down_after_s: float = 300.0
    limits: tuple[tuple[float, float, float], ...] = ()
    spare: int = 0

    @property
    def slots(self) -> int:
        """Replicas that there may be at a time, whatever they do."""
        return self.most + self.spare


@dataclass(frozen=True)
class ScalingLog:
    """How many replicas there were.

    Attributes:
        changes: `LOG_COLUMNS`, a row a decision, and a row whenever a replica has come up, has drained or was
            lost, for which metric and wish are nan. Counts are those from that time on: those that drain by
            themselves, those of which notice was given, and those that are to be replaced and cannot be yet.
        stays: `STAY_COLUMNS`, a row each time a replica was ordered; nan is what never happened. Replicas by
            number within their pool; `replaces` is 1 of one that was ordered in place of one that was lost.
    """

    changes: dict[str, F64]
    stays: dict[str, F64]

    def paid_s(self, from_s: float, to_s: float, first: int = 0) -> float:
        """Returns the replica-seconds that are paid for between two times: from an order to the end of the
        drain; of the replicas from number `first` on."""
        return self._within(from_s, to_s, "ordered_s", first)

    def up_s(self, from_s: float, to_s: float) -> float:
        """Returns the replica-seconds between two times in which replicas were up or drained."""
        return self._within(from_s, to_s, "up_s", 0)

    def _within(self, from_s: float, to_s: float, since: str, first: int) -> float:
        stays = self.stays
        chosen = (stays["replica"] >= first) & ~np.isnan(stays[since])
        gone = np.where(np.isnan(stays["gone_s"]), to_s, stays["gone_s"])
        within = np.minimum(gone, to_s) - np.maximum(stays[since], from_s)
        return float(np.maximum(within[chosen], 0.0).sum())

    def peak(self) -> int:
        """Returns the most replicas that were paid for at a time."""
        return int(self.paid_then().max())

    def paid_then(self) -> F64:
        """Returns the replicas that are paid for from each change on."""
        rows = self.changes
        return np.asarray(rows["starting"] + rows["up"] + rows["draining"] + rows["noticed"])

    @property
    def scale_outs(self) -> int:
        """Decisions in which replicas were added."""
        return len(np.unique(self.added_s))

    @property
    def added_s(self) -> F64:
        """When replicas were ordered since the start, but for those in place of others."""
        stays = self.stays
        added: F64 = stays["ordered_s"][(stays["ordered_s"] > 0.0) & (stays["replaces"] == 0.0)]
        return added


class Law:
    """The number of replicas that is wished for, decision after decision.

    Args:
        config: target, bounds, and how quickly.
    """

    def __init__(self, config: AutoscaleConfig) -> None:
        self.config = config
        self._wishes: deque[tuple[float, int]] = deque([(0.0, config.start)])

    def ratio(self, metric: float, ordered: int) -> float:
        """Returns how many times its target a metric is.

        Args:
            metric: a sum over all replicas (`SUMS`), or what is seen of requests.
            ordered: replicas that are up or start.
        """
        target, on = self.config.target, self.config.on
        if on in SUMS:
            return metric / (target * ordered)
        if on == ATTAINMENT:
            return (1.0 - metric) / (1.0 - target)
        return metric / target

    def wish(self, metric: float | None, ordered: int, up: int) -> int:
        """Returns the number wished for, within the bounds; None as a metric wishes for no change."""
        config = self.config
        if metric is None:
            return ordered
        ratio = self.ratio(metric, ordered)
        if abs(ratio - 1.0) <= config.tolerance + ROUNDING:
            return ordered
        current = ordered if config.on in SUMS else up
        wish = ceil(ratio * current - ROUNDING)
        return min(max(wish, config.least), config.most)

    def decide(self, now: float, wish: int, ordered: int) -> int:
        """Returns how many replicas are to be ordered from now on: more at once, up to a limit; fewer when
        that has been wished for throughout `down_after_s`."""
        config, wishes = self.config, self._wishes
        wishes.append((now, wish))
        while wishes[0][0] < now - config.down_after_s:
            wishes.popleft()
        if wish > ordered:
            most = config.up_most if config.up_most is not None else max(ordered, AT_ONCE)
            return min(wish, ordered + most)
        return min(ordered, max(wished for _, wished in wishes))
