"""The requests of what was collected: sorted, re-based, thinned or superposed, capped; and the report."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from specfleet.workloads.requests import FloatArray, IntArray, RequestTable
from specfleet.workloads.traces.collect import Collector
from specfleet.workloads.traces.report import LengthSummary, Trace, TraceError, TraceReport, gap_cv
from specfleet.workloads.traces.timestamps import NANOSECONDS_PER_SECOND
from specfleet.workloads.traces.turns import as_turns, sessions_of, several

LUCK_OF_READING = 0
"""Seed of what a reader draws: who is thinned out, how a copy is turned. One file gives the same requests."""


@dataclass(frozen=True)
class _Rows:
    """Columns of the kept rows in order of time; `blocks` are a flat list cut by `block_offset`."""

    arrival_s: FloatArray
    prompt: IntArray
    output: IntArray
    row: IntArray
    copy: IntArray

    def taken(self, chosen: IntArray) -> _Rows:
        """Some rows, in this order."""
        return _Rows(*(getattr(self, name)[chosen] for name in self.__dataclass_fields__))


def trace_of(reading: Collector, title: str, unused: list[str]) -> Trace:
    """The requests and the report; TraceError when nothing was kept."""
    if reading.first is None or reading.last is None:
        raise TraceError(_nothing_kept(reading))
    options, notices = reading.options, reading.notices()
    order = np.argsort(time_ns := np.array(reading.time_ns, dtype=np.int64), kind="stable")
    recorded_s = (time_ns[order] - reading.first.ns) / NANOSECONDS_PER_SECOND
    rows = _Rows(
        recorded_s,
        np.array(reading.prompt, dtype=np.int64)[order],
        np.array(reading.output, dtype=np.int64)[order],
        order,
        np.zeros(len(order), dtype=np.int64),
    )
    rows, said = _spread(rows, options.ties)
    notices += said
    alone = options.turns == "arrivals"
    together = np.arange(len(order)) if alone else sessions_of(reading, rows.row)
    rows, said = _scaled(rows, together, options.rate_scale, float(recorded_s[-1]))
    notices += said
    cap = int(rows.output.max()) if options.max_tokens is None else options.max_tokens
    if cut := int((rows.output > cap).sum()):
        notices.append(f"{cut:,} outputs cut at max_tokens {cap}")
    if unused:
        notices.append(f"columns not used: {', '.join(unused)[:400]}")
    classes = np.array(reading.traffic_class, dtype=np.int64)
    sessions = np.array(reading.session, dtype=np.int64)[order]
    report = TraceReport(
        path=reading.path,
        format=title,
        rows_read=reading.rows_read,
        rows_kept=len(time_ns),
        dropped=tuple(reading.dropped.values()),
        first_time="none" if reading.unit is None else reading.first.text,
        last_time="none" if reading.unit is None else reading.last.text,
        span_s=float(recorded_s[-1]),
        gap_cv=gap_cv(recorded_s),
        prompt=LengthSummary.of(np.array(reading.prompt)),
        output=LengthSummary.of(np.array(reading.output)),
        speed=options.speed,
        notices=tuple(notices),
        timed=reading.unit is not None,
        place=reading.place,
        classes={name: int((classes == i).sum()) for name, i in reading.classes.items()},
        sessions=len(reading.sessions),
        block_size=options.block_size if len(reading.blocks) else None,
        recorded_s=recorded_s,
        session=sessions,
    )
    table = RequestTable.of(
        rows.prompt,
        np.minimum(rows.output, cap),
        arrival_s=rows.arrival_s / options.speed,
        max_tokens=np.full(len(rows.output), cap, dtype=np.int64),
        segments=_segments(reading, rows),
    )
    if alone:
        return Trace(table, report)
    table, said = as_turns(reading, rows.arrival_s, rows.row, table, rows.copy)
    return Trace(table, dataclasses.replace(report, turns=tuple(said)))


def _spread(rows: _Rows, ties: str) -> tuple[_Rows, list[str]]:
    """Requests with one time stamp drawn evenly over the step of the clock, if that is asked for."""
    stamps, counts = np.unique(rows.arrival_s, return_counts=True)
    tied = len(rows.arrival_s) - len(stamps)
    if not tied or len(stamps) < 2:
        return rows, []
    step_s = float(np.median(np.diff(stamps)))
    said = f"{tied:,} requests share the time stamp of another; stamps are {step_s:g} s apart (median)"
    if ties == "keep":
        return rows, [f"{said}; kept as they are"] if tied > len(rows.arrival_s) / 2 else []
    ends = np.append(np.minimum(stamps[1:], stamps[:-1] + step_s), stamps[-1] + step_s)
    place = np.repeat(np.arange(len(stamps)), counts)
    drawn = stamps[place] + np.random.default_rng(LUCK_OF_READING).random(len(place)) * (ends - stamps)[place]
    drawn -= drawn.min()
    order = np.argsort(drawn, kind="stable")
    rest = rows.prompt[order], rows.output[order], rows.row[order], rows.copy[order]
    spread = _Rows(drawn[order], *rest)
    return spread, [f"{said}; spread over it"]


def _scaled(rows: _Rows, together: IntArray, rate_scale: float, span_s: float) -> tuple[_Rows, list[str]]:
    """More or fewer requests at the recorded clock.

    Args:
        rows: the requests.
        together: those of one number, turns of a session, are kept, left out and moved as one.
        rate_scale: so many times as many.
        span_s: of the recording.
    """
    if rate_scale == 1:
        return rows, []
    rng = np.random.default_rng(LUCK_OF_READING)
    _, group = np.unique(together, return_inverse=True)
    groups = int(group.max()) + 1
    begin_s = np.full(groups, np.inf)
    np.minimum.at(begin_s, group, rows.arrival_s)
    parts: list[_Rows] = []
    copies, rest = int(rate_scale), rate_scale - int(rate_scale)
    for copy in range(copies + (rest > 0)):
        kept = rng.random(groups) < rest if copy == copies else np.ones(groups, dtype=np.bool_)
        chosen = np.flatnonzero(kept[group])
        part = rows.taken(chosen)
        turned = part.arrival_s
        if copy:
            first_s = begin_s[group[chosen]]
            moved = (first_s + rng.random() * span_s) % (span_s or 1.0)
            turned = np.where(part.arrival_s == first_s, moved, moved + (part.arrival_s - first_s))
        parts.append(_Rows(turned, part.prompt, part.output, part.row, np.full(len(chosen), copy)))
    joined = _Rows(*(np.concatenate([getattr(p, f) for p in parts]) for f in _Rows.__dataclass_fields__))
    n, of = len(rows.row), "" if groups == len(rows.row) else f" of {several(groups, 'session')}"
    if not len(joined.row):
        raise TraceError(f"rate_scale {rate_scale:g} leaves none of {n:,} requests{of}; raise it")
    joined = joined.taken(np.argsort(joined.arrival_s, kind="stable"))
    each = "each" if not of else "each session"
    how = f"thinned, {each} kept by chance" if rate_scale < 1 else "superposed, copies turned round in time"
    text = f"rate_scale {rate_scale:g}: {n:,} requests{of} {how}: {len(joined.row):,}"
    return dataclasses.replace(joined, arrival_s=joined.arrival_s - joined.arrival_s[0]), [text]


def _segments(reading: Collector, rows: _Rows) -> tuple[IntArray, IntArray, IntArray] | None:
    """(offset, stream, tokens) of prompts whose blocks are recorded; None where none are.

    Block b is stream -1 - b: its id stands for itself and all before it, so that equal ids are equal tokens.
    A prompt without blocks is private. A copy made by `rate_scale` has the blocks of its original.
    """
    if not reading.blocks:
        return None
    size = reading.options.block_size
    assert size is not None
    counts = np.array(reading.num_hashes, dtype=np.int64)
    starts = np.concatenate(([0], np.cumsum(counts)))
    flat = np.array(reading.hashes, dtype=np.int64)
    here = counts[rows.row]
    pieces = np.maximum(here, 1)
    offset = np.concatenate(([0], np.cumsum(pieces)))
    owner = np.repeat(np.arange(len(pieces)), pieces)
    within = np.arange(offset[-1]) - offset[owner]
    known = here[owner] > 0
    place = np.where(known, starts[rows.row][owner] + within, 0)
    stream = np.where(known, -1 - flat[place], owner)
    last = within == pieces[owner] - 1
    tokens = np.where(last, rows.prompt[owner] - size * within, size)
    return offset, stream, np.where(known, tokens, rows.prompt[owner])


def _nothing_kept(reading: Collector) -> str:
    """Why a file gave no request, and what to do."""
    if not reading.rows_read:
        return f"{reading.path}: a header and no rows; the download may have been cut off"
    reasons = "; ".join(
        f"{d.rows:,} {d.reason} (first at {reading.place} {d.first_line})" for d in reading.dropped.values()
    )
    return f"{reading.path}: none of {reading.rows_read:,} rows is usable: {reasons}"
