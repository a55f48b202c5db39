"""What was offered and what was served in the simulations of a point, read back from their requests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from specfleet.experiments.run.numberfiles import read_numbers
from specfleet.experiments.schema.blocks.workload import Workload
from specfleet.sim.config import Slo
from specfleet.sim.recorder import FINISHED, Columns
from specfleet.sim.statistics.flow import Flow
from specfleet.sim.statistics.series import F64
from specfleet.sim.statistics.startup import Startup, everything, startup

COUNTS, TIMES = ("class_id", "output_tokens"), ("sent_s", "first_chunk_s", "last_chunk_s")
COLUMNS = ("request_id", "class_id", "output_tokens", "sent_ms", "first_chunk_ms", "last_chunk_ms")
HARDLY = 0.25
"""Share of the requests that must end before the last came, for a rate of ends in the window of arrivals."""
STRETCHES = 256
"""Into which the window of arrivals is cut where a throughput is measured over it."""


def is_open(workload: Workload) -> bool:
    """Whether requests come when they come, and not because others were answered."""
    if workload.max_concurrency is not None:
        return False
    rate = workload.request_rate
    recorded = workload.trace is not None or bool(workload.replayed)
    return recorded or workload.phases is not None or (rate or math.inf) < math.inf


@dataclass(frozen=True)
class Served:
    """The counted, finished requests of one simulation in the order in which they were made.

    Attributes:
        request_id, class_id, output_tokens: shape `(n,)`.
        sent_s, first_s, last_s: sending, first and last chunk on the client's clock, shape `(n,)`.
    """

    request_id: F64
    class_id: F64
    output_tokens: F64
    sent_s: F64
    first_s: F64
    last_s: F64

    @classmethod
    def read(cls, path: Path) -> Served:
        """Reads a `requests.csv`."""
        table = read_numbers(path, COLUMNS, {"counted": 1, "status": FINISHED})
        if (table[1:, 0] < table[:-1, 0]).any():
            table = table[np.argsort(table[:, 0], kind="stable")]
        return cls(*table[:, :3].T, *(table[:, 3:].T / 1e3))

    @classmethod
    def of(cls, requests: Columns) -> Served:
        """Takes them from the columns of a simulation, to the nanosecond of a `requests.csv`."""
        chosen = (requests["counted"] == 1) & (requests["status"] == FINISHED)
        ids = np.asarray(requests["request_id"][chosen], dtype=np.float64)
        order = np.argsort(ids, kind="stable")
        counts = (np.asarray(requests[name][chosen], dtype=np.float64)[order] for name in COUNTS)
        times = (np.round(1e3 * requests[name][chosen][order], 6) / 1e3 for name in TIMES)
        return cls(ids[order], *counts, *times)

    def __len__(self) -> int:
        """Requests."""
        return len(self.request_id)

    def taken(self, chosen: npt.NDArray[np.bool_]) -> Served:
        """Returns some of the requests."""
        return Served(*(getattr(self, name)[chosen] for name in self.__dataclass_fields__))

    @property
    def tpot_s(self) -> F64:
        """Time per output token after the first, to a nanosecond; 0 for a request of one token.

        Times are kept to a nanosecond, and as floats ever more coarsely as a run goes on: without rounding,
        equal requests would differ by when they came, and the interval of a percentile take that for memory.
        """
        tokens = np.maximum(self.output_tokens - 1.0, 1.0)
        return np.asarray(np.round((self.last_s - self.first_s) / tokens, 9))

    @property
    def ttft_s(self) -> F64:
        """Time to the first chunk, to a nanosecond."""
        return np.asarray(np.round(self.first_s - self.sent_s, 9))

    @cached_property
    def steady(self) -> Startup:
        """From where on the requests in the system are as many as they stay, and whether they do."""
        return startup({}, Flow.of(self.sent_s, self.last_s)[0])

    def by_stretch(self, amounts: F64, from_s: float, to_s: float) -> F64:
        """Returns amounts, such as the output tokens, of the requests that ended in each of `STRETCHES` equal
        stretches of time."""
        places = np.floor((self.last_s - from_s) / (to_s - from_s) * STRETCHES)
        inside = (places >= 0) & (places < STRETCHES)
        counts = np.bincount(places[inside].astype(np.intp), weights=amounts[inside], minlength=STRETCHES)
        return counts.astype(np.float64)

    def good(self, slo: Slo) -> F64:
        """Returns 1 for each request within all limits, 0 for the others."""
        tpot = np.where(self.output_tokens > 1, self.tpot_s, 0.0)
        met = np.ones(len(self), dtype=bool)
        took = {"ttft_s": self.ttft_s, "tpot_s": tpot, "e2el_s": self.last_s - self.sent_s}
        for latency, seconds in took.items():
            met &= seconds <= slo.allowed(latency, self.class_id.astype(np.int64))
        return met.astype(np.float64)


def common(a: Served, b: Served) -> tuple[Served, Served]:
    """Returns the requests that ended in both."""
    return a.taken(np.isin(a.request_id, b.request_id)), b.taken(np.isin(b.request_id, a.request_id))


def state(runs: Sequence[Served]) -> str:
    """Says whether the replications of an open loop are `stationary`, `still filling` or `saturated`.

    Saturated where most are; still filling where one is, or too few requests came to tell.
    """
    states = [run.steady.state if len(run) else "still filling" for run in runs]
    if 2 * states.count("saturated") > len(states):
        return "saturated"
    return "stationary" if set(states) == {"stationary"} else "still filling"


def over_all(runs: Sequence[Served]) -> tuple[float, float]:
    """Returns requests sent and finished per second of all of a run, whose load is meant to change."""
    found = [everything(Flow.of(run.sent_s, run.last_s)[0]) for run in runs if len(run) > 1]
    count = max(len(found), 1)
    return sum(one.offered_per_s for one in found) / count, sum(one.served_per_s for one in found) / count


def offered_and_served(runs: Sequence[Served]) -> tuple[float, float]:
    """Returns requests sent and finished per second from a quarter of the window of arrivals on.

    Where hardly any ended before the last came, those finished are counted from the first to the last
    quarter of the completions.
    """
    rates = np.zeros(2)
    for run in runs:
        if len(run) > 1:
            flow = Flow.of(run.sent_s, run.last_s)[0]
            first, last = float(flow.sent_s[len(run) // 4]), float(flow.sent_s[-1])
            sent, finished = flow.per_second(first, last) if last > first else (0.0, 0.0)
            if np.count_nonzero(run.last_s <= last) < HARDLY * len(run):
                early, late = np.percentile(run.last_s, [25.0, 75.0])
                finished = len(run) / 2.0 / float(late - early) if late > early else 0.0
            rates += sent, finished
    offered, served = (rates / len(runs)).tolist()
    return offered, served
