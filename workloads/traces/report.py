"""What a trace file held: counts, spans and lengths, and the error of a file that cannot be used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from specfleet.workloads.requests import FloatArray, IntArray, RequestTable


class TraceError(ValueError):
    """A trace file cannot be used; the message says what was found and what to do."""


class Dropped(NamedTuple):
    """Rows left out for one reason, and the line (counted from 1, header included) of the first."""

    reason: str
    rows: int
    first_line: int


class LengthSummary(NamedTuple):
    """Token counts of the kept rows."""

    mean: float
    p50: float
    p99: float
    maximum: int

    @classmethod
    def of(cls, tokens: IntArray) -> LengthSummary:
        """Summary of a non-empty column."""
        p50, p99 = np.percentile(tokens, [50, 99])
        return cls(float(tokens.mean()), float(p50), float(p99), int(tokens.max()))


@dataclass(frozen=True)
class TraceReport:
    """What one trace file held. Times are as recorded; `speed` says how fast they are replayed.

    `rows_read` = `rows_kept` + all dropped rows. `first_time` and `last_time` are the earliest and latest
    kept time stamps as the file spells them. `gap_cv` is the coefficient of variation of the gaps between
    arrivals (1 for Poisson), None with fewer than two gaps or no time between them.
    `timed`: the file records arrivals. `place`: what rows are counted in, lines or the requests of a list.
    `classes`: requests by traffic class. `sessions`: different ones. `block_size`: tokens of a recorded
    prompt block, None without any. `turns`: what is to be said of those that wait for
    answers. `recorded_s` and `session` (-1: of none), shape `(rows_kept,)`: by row in order of time, as
    recorded.
    """

    path: str
    format: str
    rows_read: int
    rows_kept: int
    dropped: tuple[Dropped, ...]
    first_time: str
    last_time: str
    span_s: float
    gap_cv: float | None
    prompt: LengthSummary
    output: LengthSummary
    speed: float = 1.0
    notices: tuple[str, ...] = ()
    timed: bool = True
    place: str = "line"
    classes: Mapping[str, int] = field(default_factory=dict)
    sessions: int = 0
    block_size: int | None = None
    turns: tuple[str, ...] = ()
    recorded_s: FloatArray | None = field(default=None, repr=False, compare=False)
    session: IntArray | None = field(default=None, repr=False, compare=False)

    @property
    def request_rate(self) -> float | None:
        """Recorded requests/s, 1 / mean gap; None when all arrive at once."""
        return (self.rows_kept - 1) / self.span_s if self.span_s > 0 else None

    def render(self) -> str:
        """The report as a few lines of text, without a final newline."""
        lines = [
            f"{self.path}: {self.format}",
            f"rows      {self.rows_read:,} read, {self.rows_kept:,} kept, "
            f"{self.rows_read - self.rows_kept:,} dropped",
        ]
        lines += [
            f"          {drop.rows:,} dropped: {drop.reason} (first at {self.place} {drop.first_line})"
            for drop in self.dropped
        ]
        lines += [
            f"time      {self._times()}",
            f"arrivals  {self._arrivals()}",
            f"prompt    {_tokens(self.prompt)}",
            f"output    {_tokens(self.output)}",
        ]
        return "\n".join([*lines, *(f"notice    {notice}" for notice in (*self.notices, *self.turns))])

    def _times(self) -> str:
        """From when to when."""
        if not self.timed:
            return "none recorded"
        return f"{self.first_time} to {self.last_time}, span {self.span_s:,.3f} s"

    def _arrivals(self) -> str:
        """Rate and burst in words."""
        if self.request_rate is None:
            return "all at the same time"
        cv = "" if self.gap_cv is None else f", CV of gaps {self.gap_cv:.2f}"
        replayed = "" if self.speed == 1 else f"; replayed at {self.request_rate * self.speed:.3f} requests/s"
        return f"{self.request_rate:.3f} requests/s{cv}{replayed}"


def _tokens(lengths: LengthSummary) -> str:
    """One line of length statistics."""
    return (
        f"mean {lengths.mean:,.1f}, p50 {lengths.p50:,.0f}, p99 {lengths.p99:,.0f}, "
        f"max {lengths.maximum:,} tokens"
    )


class Trace(NamedTuple):
    """The requests of a trace file and the report on how they were read."""

    requests: RequestTable
    report: TraceReport


def gap_cv(arrival_s: FloatArray) -> float | None:
    """Standard deviation over mean of the gaps; None with fewer than two gaps or none above 0."""
    gaps = np.diff(arrival_s)
    return float(gaps.std() / gaps.mean()) if len(gaps) > 1 and gaps.mean() > 0 else None
