"""Laws of a run of several pools: what each did is checked as a run of its own; here, that nothing is lost
between them."""

from __future__ import annotations

import numpy as np

from specfleet.sim.errors import Breach
from specfleet.sim.laws.names import CAUSES, ENDS_ONCE, first, request_breach
from specfleet.sim.laws.whole import check_due, check_in_flight
from specfleet.sim.recorder import GAVE_UP, REJECTED, TIMED_OUT
from specfleet.sim.scenario import RunResult
from specfleet.workloads.requests import RequestTable


def check_fleet(result: RunResult, table: RequestTable) -> None:
    """Checks that every request is in exactly one pool, or was refused, for a reason that is counted.

    Args:
        result: the run, with its parts.
        table: its requests.

    Raises:
        Breach: a law does not hold.
    """
    requests = result.requests
    ends = np.zeros(len(table), dtype=np.int64)
    given_up = 0
    for part in result.parts:
        ends[part.requests["request_id"]] += 1
        given_up += sum(part.refusals.values())
    ended_before = np.isin(requests["status"], (REJECTED, TIMED_OUT, GAVE_UP))
    nowhere = ended_before & ~np.isfinite(requests["finished_s"]) & (requests["pool"] < 0)
    ends[nowhere] += 1
    if (ends != 1).any():
        at = first(ends != 1)
        said = "it ended in no pool, and was not refused" if ends[at] == 0 else f"it ended {ends[at]} times"
        raise request_breach(ENDS_ONCE, said, requests, at)
    refused, reasons = int(nowhere.sum()), sum(result.refusals.values()) - given_up
    if refused != reasons:
        raise Breach(ENDS_ONCE, f"{refused} requests were refused, for {reasons} reasons")
    early = ~(requests["sent_s"] <= requests["arrived_s"])
    if early.any():
        raise request_breach(CAUSES, "it arrived before it was sent", requests, first(early))
    check_due(requests, table)
    check_in_flight(result.scenario, requests)
