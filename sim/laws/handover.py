"""Laws of a run in which KV is handed over: what each pool did is checked as a run of its own; here, that
each request goes from one to the other, with its KV, once."""

from __future__ import annotations

import numpy as np

from specfleet.sim.disaggregation.config import AFTER
from specfleet.sim.errors import Breach
from specfleet.sim.laws.names import CAUSES, ENDS_ONCE, HANDOVER, first, request_breach
from specfleet.sim.laws.requests import ORDER, finished
from specfleet.sim.laws.whole import check_due, check_in_flight
from specfleet.sim.recorder import REJECTED
from specfleet.sim.rules import SchedulerRules
from specfleet.sim.scenario import RunResult
from specfleet.workloads.requests import RequestTable

ORDER_OF_ANY = (
    ("admitted_s", "prefilled_s"),
    ("handed_s", "opened_s"),
    ("opened_s", "moved_s"),
    ("prefilled_s", "moved_s"),
    ("moved_s", "decode_admitted_s"),
    ("decode_admitted_s", "first_token_s"),
)
"""What comes before what, where equal times are no fault."""
ROUNDING = 1e-9


def check_handover(result: RunResult, table: RequestTable) -> None:
    """Checks that every request was in one pool of each role, or was refused, and that its KV went between.

    Raises:
        Breach: a law does not hold.
    """
    requests = result.requests
    pools = list(zip(result.scenario.pools, result.parts, strict=True))
    for role in dict.fromkeys(pool.role for pool, _ in pools):
        ends = np.zeros(len(table), dtype=np.int64)
        for pool, part in pools:
            if pool.role == role:
                ends[part.requests["request_id"]] += 1
        ends[requests["status"] == REJECTED] += 1
        if (ends != 1).any():
            at = first(ends != 1)
            raise request_breach(ENDS_ONCE, f"it ended {ends[at]} times in {role} pools", requests, at)
    refused, reasons = int((requests["status"] == REJECTED).sum()), sum(result.refusals.values())
    if refused != reasons:
        raise Breach(ENDS_ONCE, f"{refused} requests were refused, for {reasons} reasons")
    config = result.scenario.deployment.handover
    assert config is not None
    rows = finished(requests)
    order: tuple[tuple[str, str], ...] = (*ORDER, *ORDER_OF_ANY)
    if config.overlap == AFTER:
        order = (*order, ("prefilled_s", "handed_s"))
    for before, after in order:
        early = ~(rows[before] <= rows[after])
        if early.any():
            at = first(early)
            said = f"{before} {rows[before][at]:.9g} comes after {after} {rows[after][at]:.9g}"
            raise request_breach(CAUSES, said, rows, at)
    _check_bytes(result)
    check_due(requests, table)
    check_in_flight(result.scenario, requests)


def _check_bytes(result: RunResult) -> None:
    """The KV of every prompt is sent, in whole blocks, and no link moves more than it can."""
    rows, scenario = finished(result.requests), result.scenario
    config = scenario.deployment.handover
    assert config is not None
    if not len(rows["status"]):
        return
    received = SchedulerRules.of(scenario.pools[0].engine).blocks_received
    blocks = np.array([received(prompt) for prompt in rows["prompt_tokens"].tolist()])
    whole = blocks * config.block_bytes + rows["prompt_tokens"] * config.token_bytes
    for name, value, due in (("blocks", rows["kv_blocks"], blocks), ("bytes", rows["kv_bytes"], whole)):
        if (value != due).any():
            at = first(value != due)
            raise request_breach(HANDOVER, f"{value[at]} {name} were sent, of {due[at]}", rows, at)
    links = {member: pool.bytes_per_s for pool in scenario.pools for member in pool.members}
    ready_s = rows["admitted_s"] if config.overlap != AFTER else rows["prefilled_s"]
    begun_s = np.maximum(np.minimum(ready_s, rows["moved_s"]), rows["opened_s"])
    for of in ("prefill_replica", "replica"):
        for replica in np.unique(rows[of]).tolist():
            mine = rows[of] == replica
            _check_link(replica, links[replica], begun_s[mine], rows["moved_s"][mine], rows["kv_bytes"][mine])


def _check_link(
    replica: int,
    bytes_per_s: float,
    begun_s: np.typing.NDArray[np.float64],
    moved_s: np.typing.NDArray[np.float64],
    sizes: np.typing.NDArray[np.int64],
) -> None:
    """What began after a time and ended before another fits into the time between them: looked at from the
    start of each stretch in which transfers overlap."""
    order = np.argsort(begun_s, kind="stable")
    begun_s, moved_s, sizes = begun_s[order], moved_s[order], sizes[order]
    latest = np.maximum.accumulate(moved_s)
    starts = np.flatnonzero(np.concatenate([[True], begun_s[1:] >= latest[:-1]]))
    for low, high in zip(starts, [*starts[1:], len(begun_s)], strict=True):
        span_s, moved = float(latest[high - 1] - begun_s[low]), float(sizes[low:high].sum())
        slack = ROUNDING * moved + bytes_per_s * 1e-12 * max(float(latest[high - 1]), 1.0)
        if moved > bytes_per_s * span_s + slack:
            said = f"{moved:.9g} bytes went over a link of {bytes_per_s:.9g} bytes/s in {span_s:.9g} s"
            raise Breach(HANDOVER, said, time_s=float(begun_s[low]), replica=replica)
