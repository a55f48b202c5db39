"""What handing KV over did: where the time to first tokens went, what the links did, who stood still."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from specfleet.sim.disaggregation.config import DECODE, PREFILL
from specfleet.sim.metrics.latency import until_first_token
from specfleet.sim.recorder import FINISHED, Columns
from specfleet.sim.scenario import RunResult


def ttft_split(result: RunResult) -> dict[str, float]:
    """Returns the parts of the mean TTFT of counted requests, milliseconds, as `ttft_PART_ms`.

    `client` is what sending and receiving take; the others are those of `latency.until_first_token`. Nothing
    without requests.
    """
    each = _Served(result.requests)
    if not len(each["sent_s"]):
        return {}
    found = {}
    for name, seconds in until_first_token(each):
        if name == "client_s":
            seconds = seconds + (each["first_chunk_s"] - each["first_token_s"])
        found[f"ttft_{name[:-2]}_ms"] = 1e3 * float(seconds.mean())
    return found


class _Served(dict[str, npt.NDArray[Any]]):
    """The columns of the counted requests that ended: a copy of one while it is asked for, if it must be."""

    def __init__(self, columns: Columns) -> None:
        super().__init__(columns)
        chosen = (columns["status"] == FINISHED) & (columns["counted"] == 1)
        self._rows = slice(None) if chosen.all() else np.flatnonzero(chosen)

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """The column of those requests."""
        return super().__getitem__(name)[self._rows]


@dataclass(frozen=True)
class HandoverFigures:
    """What became of KV in a run whose pools have roles.

    Attributes:
        kv_gb: handed over a request on average, 1e9 bytes.
        p99_transfer_ms: from when both sides were ready until it was there.
        link_out_busy, link_in_busy: bytes over what the links of the replicas of one side could move from the
            first step to the last.
        prefill_stood_still: share of that time in which a replica that computes prompts stood still with
            requests waiting, since KV that nobody had taken filled its pool.
        kv_given_up: requests whose KV had come and was given up, since nobody could go on otherwise.
    """

    kv_gb: float
    p99_transfer_ms: float
    link_out_busy: float
    link_in_busy: float
    prefill_stood_still: float
    kv_given_up: int

    def as_dict(self) -> dict[str, object]:
        """Returns the figures by name."""
        return asdict(self)


def handover_figures(result: RunResult) -> HandoverFigures | None:
    """Returns what became of KV; None where no pool has a role, or nothing was served."""
    requests, scenario = result.requests, result.scenario
    rows = np.flatnonzero((requests["status"] == FINISHED) & (requests["counted"] == 1))
    if scenario.deployment.handover is None or not len(rows):
        return None
    span_s = float(result.iterations["end_s"].max() - result.iterations["start_s"].min())
    moved = float(requests["kv_bytes"].sum())

    def busy(role: str) -> float:
        rate = sum(len(pool.members) * pool.bytes_per_s for pool in scenario.pools if pool.role == role)
        return moved / (rate * span_s)

    prompts = [member for pool in scenario.pools if pool.role == PREFILL for member in pool.members]
    still = np.isin(result.standing["replica"], prompts)
    stood_s = float((result.standing["end_s"] - result.standing["start_s"])[still].sum())
    transfer_s = dict(until_first_token(_Served(requests)))["transfer_s"]
    return HandoverFigures(
        kv_gb=float(requests["kv_bytes"][rows].mean()) / 1e9,
        p99_transfer_ms=1e3 * float(np.percentile(transfer_s, 99.0)),
        link_out_busy=busy(PREFILL),
        link_in_busy=busy(DECODE),
        prefill_stood_still=stood_s / (len(prompts) * span_s),
        kv_given_up=int((requests["kv_given_up"][rows] > 0).sum()),
    )
