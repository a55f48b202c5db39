"""What requests wait at the client before they are sent, where a cap holds back what comes by itself."""

from __future__ import annotations

from specfleet.sim.metrics.figures import LatencyStats
from specfleet.sim.metrics.samples import F64, Samples
from specfleet.sim.metrics.sums import Counted
from specfleet.sim.scenario import Scenario
from specfleet.workloads.requests import RequestTable


def client_queue(scenario: Scenario, table: RequestTable, counted: Counted, due_s: F64) -> dict[str, float]:
    """Returns `vllm bench serve`'s figures of its client queue, `client_queue_time` and
    `e2el_including_client_queue` of `--percentile-metrics`, milliseconds; TTFT and E2EL leave that time out.

    Empty without a cap on requests in flight, and where all come at once: then a user takes the next request
    when it is free, and none of them waits for it.

    Args:
        scenario, table: of the run.
        counted: its counted requests that finished.
        due_s: when each of these was due.
    """
    if scenario.load.max_concurrency is None or not table.arrival_s.any():
        return {}
    waited = counted.sent_s - due_s
    return {
        **LatencyStats.of(Samples.of(waited)).as_dict("client_queue_time"),
        **LatencyStats.of(Samples.of(waited + counted.e2el_s)).as_dict("e2el_including_client_queue"),
    }
