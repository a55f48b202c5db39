"""What failures of replicas, and spot instances that are taken, cost: time down, work done twice, and the
tail while the fleet recovers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import inf

import numpy as np

from specfleet.sim.fleet.failing import DIES, HANGS, SLOW, TAKEN
from specfleet.sim.metrics.samples import F64
from specfleet.sim.metrics.sums import Counted, RequestSums
from specfleet.sim.recorder import FINISHED, LOST
from specfleet.sim.scenario import Outage, RunResult

SPOT = ("interruptions", "drained")
"""Figures of spot instances."""


@dataclass(frozen=True)
class FailureFigures:
    """Failures of a run, and what they did to its requests (counted ones).

    Attributes:
        failures: that happened while there were requests.
        downtime_s: seconds in which replicas were dead or hung, or, where they are replaced, in which nobody
            served in their place, summed over replicas, within the run.
        availability: 1 - downtime over replicas x the run's duration; over the time that those that come and
            go were up or missed, in its place.
        retried: requests that were sent anew; lost: those that failed in the end.
        wasted_tokens: output tokens thrown away.
        recomputed_tokens: tokens whose KV was lost with a replica.
        recovery_s: mean, over failures that lost requests, from the loss to the end of the last of these.
        recovering_requests: requests sent while the fleet recovers: from each failure until the replica is
            back (or, if it never is, is found to be down) and all it lost have ended.
        p99_ttft_recovering_ms, p99_ttft_otherwise_ms, p99_e2el_recovering_ms, p99_e2el_otherwise_ms: of those
            that were served; None without any.
        interruptions: notices that a spot instance is taken; drained: those at whose end nothing was left
            inside. None where none is on spot.
    """

    failures: int
    downtime_s: float
    availability: float
    retried: int
    lost: int
    wasted_tokens: int
    recomputed_tokens: int
    recovery_s: float | None
    recovering_requests: int
    p99_ttft_recovering_ms: float | None
    p99_ttft_otherwise_ms: float | None
    p99_e2el_recovering_ms: float | None
    p99_e2el_otherwise_ms: float | None
    interruptions: int | None = None
    drained: int | None = None

    def as_dict(self) -> dict[str, object]:
        """Returns the figures by name, without those of spot instances where there are none."""
        return {name: value for name, value in asdict(self).items() if name not in SPOT or value is not None}


def failure_figures(result: RunResult) -> FailureFigures | None:
    """Returns what failures did to a run; None where no replica may fail."""
    if result.scenario.deployment.failures is None:
        return None
    requests = result.requests
    measured = requests["counted"] == 1
    served = Counted.of(requests)
    sums = RequestSums.of(requests, served)
    start_s, end_s = (sums.first_sent_s, sums.last_s) if sums.completed else (0.0, 0.0)
    down_s = sum(down(outage, start_s, end_s) for outage in result.outages)
    span_s = _span(result, start_s, end_s)
    recovered = [one.settled_s - one.gone_s for one in result.outages if one.lost]
    taken = [one for one in result.outages if one.kind == TAKEN]
    on_spot = any(pool.spot is not None for pool in result.scenario.pools)
    sent = requests["sent_s"][measured & (requests["status"] == FINISHED)]
    during = recovering(result.outages, sent)
    return FailureFigures(
        failures=len(result.outages) - len(taken),
        downtime_s=down_s,
        availability=1.0 - down_s / span_s if span_s else 1.0,
        retried=int((requests["retries"][measured] > 0).sum()),
        lost=int((requests["status"][measured] == LOST).sum()),
        wasted_tokens=int(requests["wasted_tokens"][measured].sum()),
        recomputed_tokens=int(requests["recomputed_tokens"][measured].sum()),
        recovery_s=float(np.mean(recovered)) if recovered else None,
        recovering_requests=int(during.sum()),
        p99_ttft_recovering_ms=_p99_ms(served.ttft_s[during]),
        p99_ttft_otherwise_ms=_p99_ms(served.ttft_s[~during]),
        p99_e2el_recovering_ms=_p99_ms(served.e2el_s[during]),
        p99_e2el_otherwise_ms=_p99_ms(served.e2el_s[~during]),
        interruptions=len(taken) if on_spot else None,
        drained=sum(not one.lost for one in taken) if on_spot else None,
    )


def _span(result: RunResult, start_s: float, end_s: float) -> float:
    """Returns the replica-seconds in which replicas were there, or should have been."""
    if not result.parts:
        return result.scenario.deployment.replicas * (end_s - start_s)
    total = 0.0
    for pool, part in zip(result.scenario.pools, result.parts, strict=True):
        if part.scaling is None:
            total += len(pool.members) * (end_s - start_s)
            continue
        total += part.scaling.up_s(start_s, end_s)
        mine = [one for one in result.outages if one.replica in pool.members]
        total += sum(down(one, start_s, end_s) - _still_there(one, start_s, end_s) for one in mine)
    return total


def _still_there(outage: Outage, start_s: float, end_s: float) -> float:
    """Returns the seconds in which a replica did not work, and was taken for one that does."""
    if outage.kind in (SLOW, TAKEN):
        return 0.0
    found_s = min(outage.found_s, outage.back_s)
    return max(min(found_s, end_s) - max(outage.at_s, start_s), 0.0)


def down(outage: Outage, start_s: float, end_s: float) -> float:
    """Returns the seconds between two times in which a failure kept a replica from working."""
    if outage.kind == SLOW:
        return 0.0
    assert outage.kind in (DIES, HANGS, TAKEN)
    return max(min(outage.back_s, end_s) - max(outage.gone_s, start_s), 0.0)


def recovering(outages: tuple[Outage, ...], time_s: F64) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Returns whether the fleet recovers from a failure at each of some times."""
    found = np.zeros(len(time_s), dtype=np.bool_)
    for outage in outages:
        over_s = max(outage.back_s if outage.back_s < inf else outage.found_s, outage.settled_s)
        found |= (time_s >= outage.at_s) & (time_s < over_s)
    return found


def _p99_ms(seconds: F64) -> float | None:
    return 1e3 * float(np.percentile(seconds, 99.0)) if len(seconds) else None
