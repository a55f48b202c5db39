"""The steady part of a finished run, as series in the order of time: what conclusions are drawn from.

`vllm bench serve` measures from the first request to the last answer. So it counts the time in which the
system fills and that in which it empties: in an open loop its throughput is less than what is offered by
the last stragglers alone, and its tail that of a system not yet full. Here both are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from specfleet.sim.metrics.sums import Counted, step_gaps
from specfleet.sim.recorder import FINISHED
from specfleet.sim.scenario import RunResult
from specfleet.sim.statistics.flow import Flow
from specfleet.sim.statistics.series import F64, Series
from specfleet.sim.statistics.startup import Startup, everything, startup

NANOSECOND = 9
"""Decimals of a second to which latencies are judged. Times are floats, ever coarser as a run goes on: equal
requests would differ by when they came, and the interval of a percentile take that for memory."""


@dataclass(frozen=True)
class Steady:
    """What a run shows once it is steady. Times are seconds on the client's clock, to a nanosecond.

    Attributes:
        startup: which requests count, and whether the run is steady, still filling or saturated.
        request_id: of those that count, in order of sending.
        ttft_s, tpot_s, e2el_s: of these requests; TPOT is 0 for an answer of one token.
        several: which of them were answered with more than one token.
        pauses: `itl` and `itl_per_token`, a weighted row an iteration.
        ended_tokens, between_s: of the answers that ended in the steady part, in order of their end:
            tokens, and the time from one end to the next. The ratio of their sums is the throughput.
    """

    startup: Startup
    request_id: npt.NDArray[np.integer]
    ttft_s: F64
    tpot_s: F64
    e2el_s: F64
    several: npt.NDArray[np.bool_]
    pauses: Mapping[str, Series]
    ended_tokens: F64
    between_s: F64

    def metrics(self) -> dict[str, Series]:
        """Returns all latencies by name; one of which nothing was seen is left out."""
        by_request = {"ttft": self.ttft_s, "tpot": self.tpot_s[self.several], "e2el": self.e2el_s}
        every = {name: Series(column) for name, column in by_request.items()} | dict(self.pauses)
        return {name: series for name, series in every.items() if len(series)}


def paired(a: Steady, b: Steady) -> dict[str, tuple[F64, F64]]:
    """Returns TTFT, TPOT and E2EL of the requests that count in both of two runs, row by row.

    Raises:
        ValueError: if there is no such request.
    """
    ids, left, right = np.intersect1d(a.request_id, b.request_id, assume_unique=True, return_indices=True)
    if not len(ids):
        raise ValueError("the steady parts of the two runs share no request")
    several = a.several[left] & b.several[right]
    return {
        "ttft": (a.ttft_s[left], b.ttft_s[right]),
        "tpot": (a.tpot_s[left][several], b.tpot_s[right][several]),
        "e2el": (a.e2el_s[left], b.e2el_s[right]),
    }


def steady(result: RunResult, changing: bool = False) -> Steady:
    """Returns the steady part of a finished run.

    Warm-ups and requests refused do not count, though the former are in the system as well.

    Args:
        result: the run.
        changing: whether its load is meant to change, so that all of it counts.

    Raises:
        ValueError: if no counted request was served.
    """
    requests = result.requests
    done = requests["status"] == FINISHED
    if not (done & (requests["counted"] == 1)).any():
        raise ValueError("no counted request was served: nothing is steady")
    every = Counted.of({**requests, "counted": np.ones(len(done), dtype=np.bool_)})
    flow, order = Flow.of(every.sent_s, every.last_s)
    ttft, tpot, e2el = (
        np.round(column[order], NANOSECOND) for column in (every.ttft_s, every.tpot_s, every.e2el_s)
    )
    output = every.output_tokens[order]
    found = everything(flow) if changing else startup({"ttft": ttft, "tpot": tpot}, flow)
    warmups = np.flatnonzero(requests["counted"][done][order] != 1)
    if len(warmups) and warmups[-1] >= found.first:
        later = min(int(warmups[-1]) + 1, len(order) - 1)
        found = replace(found, first=later, last=max(found.last, later + 1), from_s=float(flow.sent_s[later]))
        found = replace(found, to_s=float(flow.sent_s[found.last - 1]))
    tokens, between = flow.completions(output.astype(np.float64), found.from_s, found.to_s)
    return Steady(
        found,
        found.kept(requests["request_id"][done][order]),
        found.kept(ttft),
        found.kept(tpot),
        found.kept(e2el),
        found.kept(output) > 1,
        _pauses(result, found),
        tokens,
        between,
    )


def _pauses(result: RunResult, found: Startup) -> dict[str, Series]:
    """Returns ITL by chunk and by token, in order of time."""
    end_s = np.asarray(result.iterations["end_s"], dtype=np.float64)
    inside = (end_s > found.from_s) & (end_s <= found.to_s)
    chunks = result.iterations["gaps_by_tokens"]
    inside &= chunks.sum(axis=1) > 0
    gaps = np.round(step_gaps(result.iterations)[inside], NANOSECOND)
    chunks, end_s = chunks[inside], end_s[inside]
    odd_end_s = np.asarray(result.odd_gaps["end_s"], dtype=np.float64)
    odd = (odd_end_s > found.from_s) & (odd_end_s <= found.to_s) & (result.odd_gaps["counted"] == 1)
    odd_s = np.round(np.asarray(result.odd_gaps["gap_s"], dtype=np.float64)[odd], NANOSECOND)
    odd_tokens = np.maximum(result.odd_gaps["tokens"][odd], 1).astype(np.float64)
    by_token = Series.by_token(gaps, chunks)
    times = np.concatenate([np.repeat(end_s, chunks.shape[1] - 1), odd_end_s[odd]])
    assert by_token.weights is not None
    return {
        "itl": Series.in_order(
            np.concatenate([end_s, odd_end_s[odd]]),
            np.concatenate([gaps, odd_s]),
            np.concatenate([chunks.sum(axis=1), np.ones(len(odd_s))]),
        ),
        "itl_per_token": Series.in_order(
            times,
            np.concatenate([by_token.values, odd_s / odd_tokens]),
            np.concatenate([by_token.weights, odd_tokens]),
        ),
    }
