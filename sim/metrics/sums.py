"""Sums over requests and over iterations, from which figures follow; at once or portion by portion."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

import numpy as np
import numpy.typing as npt

from specfleet.sim.config import Slo
from specfleet.sim.metrics.samples import F64, dot
from specfleet.sim.recorder import (
    ABORTED,
    FINISHED,
    GAVE_UP,
    LOST,
    REJECTED,
    TIMED_OUT,
    Columns,
    alone_s,
)


@dataclass(frozen=True)
class Counted:
    """The counted, finished requests of a run, a value each (seconds, client's clock).

    Attributes:
        sent_s, ttft_s, e2el_s, tpot_s: TPOT is 0 for a request of one token, as vLLM's goodput has it.
        prompt_tokens, output_tokens: lengths.
        class_id: traffic class.
    """

    sent_s: F64
    ttft_s: F64
    e2el_s: F64
    tpot_s: F64
    prompt_tokens: npt.NDArray[np.integer]
    output_tokens: npt.NDArray[np.integer]
    class_id: npt.NDArray[np.integer]

    @classmethod
    def of(cls, requests: Columns) -> Counted:
        """Selects them from a run's request columns."""
        chosen = (requests["counted"] == 1) & (requests["status"] == FINISHED)
        names = ("sent_s", "first_chunk_s", "last_chunk_s", "prompt_tokens", "output_tokens", "class_id")
        columns = [requests[name] if chosen.all() else requests[name][chosen] for name in names]
        sent, first, last = (np.asarray(column, dtype=np.float64) for column in columns[:3])
        prompt, output, class_id = columns[3:]
        tpot = last - first
        tpot /= np.maximum(output - 1, 1)
        tpot[output <= 1] = 0.0
        return cls(sent, first - sent, last - sent, tpot, prompt, output, class_id)

    @property
    def last_s(self) -> F64:
        """When the last chunk came."""
        return self.sent_s + self.e2el_s

    @property
    def tpot_sample_s(self) -> F64:
        """TPOT where there is one: of requests with more than one token."""
        return self.tpot_s[self.output_tokens > 1]

    def attained(self, slo: Slo) -> npt.NDArray[np.bool_]:
        """Returns which requests met all limits of `slo`."""
        met = np.ones(len(self.sent_s), dtype=bool)
        for latency in ("ttft_s", "tpot_s", "e2el_s"):
            met &= getattr(self, latency) <= slo.allowed(latency, self.class_id)
        return met


SUMMED = (
    *(
        "counted",
        "completed",
        "given_up",
        "missed",
        "prompt_tokens",
        "output_tokens",
        "asked_tokens",
        "cached_tokens",
    ),
    *("draft_tokens", "preemptions", "verifications", "accepted", "queue_s", "engine_ttft_s"),
)
"""Of `RequestSums`, what is added up."""


def _chosen(rows: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_] | slice:
    """Returns what picks these rows out of a column; where that is all, nothing is copied."""
    return slice(None) if rows.all() else rows


def _missed(columns: Columns) -> npt.NDArray[np.bool_]:
    """Returns which requests ended without an answer, and not for their length."""
    missed: npt.NDArray[np.bool_] = np.isin(columns["status"], (ABORTED, TIMED_OUT, LOST, GAVE_UP))
    if "turned_away" in columns:
        missed |= (columns["status"] == REJECTED) & (columns["turned_away"] > 0)
    return missed


class RequestSums:
    """Sums over some of the requests: all of them, those of a class, or those of a replica.

    Args:
        slo: limits of a request, or None.

    Attributes:
        counted, completed, given_up: requests that are measured; those of them that finished, and those that
            their clients gave up. impatient: clients may give up.
        missed: that could have been served and ended without an answer: turned away or held for too long at a
            gateway, lost with a replica, begun and ended with an error, given up.
        attained: of those completed, how many met the limits; None without limits.
        prompt_tokens, output_tokens: of those completed.
        asked_tokens, cached_tokens: prompt tokens of those counted, and what of them was in the prefix cache.
        draft_tokens, preemptions: of those counted.
        verifications, accepted: rounds and accepted drafts, warm-ups included.
        queue_s, engine_ttft_s: from the arrival to admission and to the first token, of those completed.
        first_sent_s, last_s: first send and last chunk of those completed.
    """

    def __init__(self, slo: Slo | None = None) -> None:
        self._slo = slo
        self.counted = self.completed = self.given_up = self.missed = 0
        self.impatient = False
        self.attained = None if slo is None else 0
        self.prompt_tokens = self.output_tokens = self.asked_tokens = self.cached_tokens = 0
        self.draft_tokens = self.preemptions = self.verifications = self.accepted = 0
        self.queue_s = self.engine_ttft_s = 0.0
        self.first_sent_s, self.last_s = inf, -inf

    @classmethod
    def of(cls, columns: Columns, counted: Counted, slo: Slo | None = None) -> RequestSums:
        """Returns the sums over requests that are all there; as `add`."""
        sums = cls(slo)
        sums.add(columns, counted)
        return sums

    def add(self, columns: Columns, counted: Counted) -> None:
        """Takes in requests that have ended.

        Args:
            columns: as `RunResult.requests`, any rows in any order.
            counted: those of them that are counted and finished.
        """
        mine = columns["counted"] == 1
        self.counted += int(mine.sum())
        measured, done = _chosen(mine), _chosen(mine & (columns["status"] == FINISHED))
        self.completed += len(counted.sent_s)
        if "gave_up_s" in columns:
            self.impatient = True
            self.given_up += int((columns["status"][measured] == GAVE_UP).sum())
        if len(counted.sent_s) < int(mine.sum()):
            self.missed += int(_missed(columns)[mine].sum())
        self.prompt_tokens += int(counted.prompt_tokens.sum())
        self.output_tokens += int(counted.output_tokens.sum())
        self.asked_tokens += int(columns["prompt_tokens"][measured].sum())
        self.cached_tokens += int(columns["cached_tokens"][measured].sum())
        self.draft_tokens += int(columns["draft_tokens"][measured].sum())
        self.preemptions += int(columns["preemptions"][measured].sum())
        self.verifications += int(columns["verifications"].sum())
        self.accepted += int(columns["accepted_tokens"].sum())
        arrived = columns["arrived_s"][done]
        self.queue_s += float((columns["admitted_s"][done] - arrived).sum())
        self.engine_ttft_s += float((columns["first_token_s"][done] - arrived).sum())
        if len(counted.sent_s):
            self.first_sent_s = min(self.first_sent_s, float(counted.sent_s.min()))
            self.last_s = max(self.last_s, float(counted.last_s.max()))
        if self._slo is not None and self.attained is not None:
            self.attained += int(counted.attained(self._slo).sum())

    def merge(self, other: RequestSums) -> None:
        """Takes in the sums over other requests."""
        for name in SUMMED:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        if self.attained is not None and other.attained is not None:
            self.attained += other.attained
        self.first_sent_s = min(self.first_sent_s, other.first_sent_s)
        self.last_s = max(self.last_s, other.last_s)

    @property
    def failed(self) -> int:
        """Counted requests that were refused."""
        return self.counted - self.completed

    @property
    def duration_s(self) -> float:
        """First send to last completion; 0 if nothing finished."""
        return self.last_s - self.first_sent_s if self.completed else 0.0

    @property
    def attainment(self) -> float | None:
        """Share of those completed or missed that met the limits; None without limits or requests."""
        ended = self.completed + self.missed
        return None if self.attained is None or not ended else self.attained / ended


class IterationSums:
    """Sums over iterations, of all replicas together.

    Args:
        stages: of a pipeline; with several, an iteration's seconds are those after the one before has ended.

    Attributes:
        steps, decoding_steps: iterations; those of them in which a sequence decodes.
        decode_sequences: sequences decoding, summed over iterations.
        running_s, waiting_s: sequences times the seconds of the iteration.
        most_blocks: KV blocks in use at the fullest.
        start_s, end_s: start of the first and end of the last.
    """

    def __init__(self, stages: int = 1) -> None:
        self._stages = stages
        self.steps = self.decoding_steps = self.decode_sequences = self.most_blocks = 0
        self.running_s = self.waiting_s = 0.0
        self.start_s, self.end_s = inf, -inf

    def add(self, columns: Columns) -> float:
        """Takes in iterations (columns as `RunResult.iterations`); returns the seconds that they took."""
        start, end = columns["start_s"], columns["end_s"]
        if not len(end):
            return 0.0
        seconds = alone_s(columns) if self._stages > 1 else end - start
        decoding = columns["decode_sequences"]
        self.steps += len(end)
        self.decoding_steps += int((decoding > 0).sum())
        self.decode_sequences += int(decoding.sum())
        self.most_blocks = max(self.most_blocks, int(columns["kv_blocks_used"].max()))
        self.running_s += dot(seconds, columns["running"])
        self.waiting_s += dot(seconds, columns["waiting"])
        self.start_s, self.end_s = min(self.start_s, float(start.min())), max(self.end_s, float(end.max()))
        return float(seconds.sum())

    def merge(self, other: IterationSums) -> None:
        """Takes in the sums over other iterations."""
        self.steps += other.steps
        self.decoding_steps += other.decoding_steps
        self.decode_sequences += other.decode_sequences
        self.most_blocks = max(self.most_blocks, other.most_blocks)
        self.running_s += other.running_s
        self.waiting_s += other.waiting_s
        self.start_s, self.end_s = min(self.start_s, other.start_s), max(self.end_s, other.end_s)


def step_gaps(iterations: Columns, before_s: float = inf) -> F64:
    """Returns the seconds from the end of an iteration to the end of the next on its replica.

    Args:
        iterations: columns as `RunResult.iterations`.
        before_s: end of the iteration before the first, where all are one replica's; inf if there is none,
            as before the first of each of several replicas.
    """
    end = np.asarray(iterations["end_s"], dtype=np.float64)
    replica = iterations["replica"]
    gaps = np.full(len(end), inf)
    if len(end) and (replica == replica[0]).all():
        np.subtract(end[1:], end[:-1], out=gaps[1:])
        gaps[0] = end[0] - before_s if before_s < inf else inf
        return gaps
    order = np.argsort(replica, kind="stable")
    sorted_s = end[order]
    gaps[order[1:]] = np.where(np.diff(replica[order]) == 0, sorted_s[1:] - sorted_s[:-1], inf)
    return gaps


def parts(columns: Columns, key: str, count: int) -> Iterator[Columns]:
    """Yields the rows in which the column `key` is 0, 1, ... `count` - 1; each part in its old order."""
    if count == 1 and not columns[key].any():
        yield columns
        return
    order = np.argsort(columns[key], kind="stable")
    bounds = np.searchsorted(columns[key][order], np.arange(count + 1))
    for low, high in itertools.pairwise(bounds.tolist()):
        yield {name: values[order[low:high]] for name, values in columns.items()}


def present(columns: Columns, key: str) -> Iterator[tuple[int, Columns]]:
    """Yields the values of a column that there are, rising, each with its rows in their old order.

    With a thousand replicas a portion holds the rows of one: nothing is done for the others.
    """
    values = columns[key]
    if not len(values):
        return
    if (values == values[0]).all():
        yield int(values[0]), columns
        return
    order = np.argsort(values, kind="stable")
    found, starts = np.unique(values[order], return_index=True)
    for value, rows in zip(found.tolist(), np.split(order, starts[1:]), strict=True):
        yield value, {name: column[rows] for name, column in columns.items()}
