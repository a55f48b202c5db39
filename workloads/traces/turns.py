"""Recorded requests as turns: each is sent when the one before it is answered and its pause is over.

A turn's place is its number where all of its session have one, else its time. Its pause is what the file
says, or the time between the recorded end of the answer before and its own beginning; a file with neither
needs `pause_s`.
Numbers that are missing are closed up, and a pause then is as long as what is missing took; a turn that began
before the answer before it ended comes at once. Requests of no session are single ones.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from specfleet.workloads.requests import FloatArray, IntArray, RequestTable
from specfleet.workloads.tables import reordered
from specfleet.workloads.traces.collect import Collector
from specfleet.workloads.traces.report import TraceError
from specfleet.workloads.traces.timestamps import NANOSECONDS_PER_SECOND

_UNKNOWN = -1


def several(count: int, what: str) -> str:
    """A number of things, with the plural where it takes one."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def sessions_of(reading: Collector, row: IntArray) -> IntArray:
    """A number for each of some rows that those of one session share; single requests have one each."""
    session = np.array(reading.session, dtype=np.int64)[row]
    return np.where(session >= 0, session, int(session.max(initial=-1)) + 1 + np.arange(len(session)))


def as_turns(
    reading: Collector, arrival_s: FloatArray, row: IntArray, table: RequestTable, copy: IntArray
) -> tuple[RequestTable, list[str]]:
    """Returns requests as turns of their sessions, and what is to be said of it.

    Args:
        reading: what was read.
        arrival_s: of the kept rows, seconds from the first, in order of time.
        row: which rows of the file they are.
        table: their requests, as single ones, at the speed asked for.
        copy: number of the copy of the recording that each is of.

    Raises:
        TraceError: where nothing says how long a pause is, or no request has a session.
    """
    session = np.array(reading.session, dtype=np.int64)[row]
    if not (session >= 0).any():
        raise TraceError(
            f"{reading.path}: no request names a session, so none waits for another; map columns.session, or "
            "leave turns out"
        )
    alone = np.arange(len(session)) + (int(session.max()) + 1) * (int(copy.max()) + 1)
    session = np.where(session >= 0, session + copy * (int(session.max()) + 1), alone)
    number = np.array(reading.turn, dtype=np.int64)[row]
    number = np.where(np.isin(session, session[number < 0]), _UNKNOWN, number)
    order = np.lexsort((np.arange(len(session)), number, session))
    first = np.concatenate([[True], np.diff(session[order]) != 0])
    start = arrival_s[order][first]
    group = np.cumsum(first) - 1
    order = order[np.lexsort((np.arange(len(order)), group, start[group]))]
    first = np.concatenate([[True], np.diff(session[order]) != 0])
    begins = np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))
    pause_s, said = _pauses(reading, row[order], first)
    missing = int(_gaps(number[order], first).sum())
    turn = np.arange(len(order)) - begins
    if missing:
        said.append(
            f"{several(missing, 'number')} of turns missing; those behind follow the turns before them"
        )
    moved = dataclasses.replace(
        reordered(table, order),
        arrival_s=table.arrival_s[order][begins],
        session_id=np.cumsum(first) - 1,
        turn=turn,
        think_s=pause_s,
    )
    sessions = int(first.sum())
    turns, these = several(len(order), "request"), several(sessions, "session")
    said.insert(0, f"{turns} as turns of {these}, each sent after its answer")
    if reading.options.speed != 1:
        said.append("speed brings sessions closer; pauses stay as recorded")
    if reading.options.context == "accumulate":
        moved, more = _accumulated(reading, moved)
        said += more
    return moved, said


def _pauses(reading: Collector, row: IntArray, first: npt.NDArray[np.bool_]) -> tuple[FloatArray, list[str]]:
    """Seconds before each row in order, 0 before a session, and what is to be said of them."""
    stated = np.array(reading.pause_ns, dtype=np.int64)[row]
    began, ended = (np.array(column, dtype=np.int64)[row] for column in (reading.time_ns, reading.end_ns))
    before = np.concatenate([[_UNKNOWN], ended[:-1]])
    between = began - before
    known = (stated >= 0) | ((before >= 0) & (reading.unit is not None))
    open_ = ~first & ~known
    if open_.any() and reading.options.pause_s is None:
        behind = several(int((~first).sum()), "turn")
        raise TraceError(
            f"{reading.path}: {int(open_.sum()):,} of {behind} behind another without a pause: nothing says "
            "when the answer before ended; map columns.think_s, end_s or duration_s, or give pause_s, seconds"
        )
    overlapping = ~first & known & (stated < 0) & (between < 0)
    pause_s = np.where(stated >= 0, stated, np.maximum(between, 0)) / NANOSECONDS_PER_SECOND
    pause_s = np.where(known, pause_s, reading.options.pause_s or 0.0)
    said = []
    if count := int(open_.sum()):
        said.append(f"{several(count, 'pause')} not recorded; {reading.options.pause_s:g} s each")
    if count := int(overlapping.sum()):
        said.append(f"{several(count, 'turn')} began before the answer before had ended; no pause")
    return np.where(first, 0.0, pause_s), said


def _gaps(number: IntArray, first: npt.NDArray[np.bool_]) -> IntArray:
    """How many numbers are left out before each turn, of those that have one."""
    step = np.diff(number, prepend=number[:1]) - 1
    return np.where(first | (number < 0) | (np.roll(number, 1) < 0), 0, np.maximum(step, 0))


def _accumulated(reading: Collector, table: RequestTable) -> tuple[RequestTable, list[str]]:
    """Prompts that begin with prompt and answer of the turn before, where they are long enough to."""
    if reading.blocks:
        raise TraceError(
            f"{reading.path}: hash_ids say what prompts share; remove context, or do not map hash_ids"
        )
    later = table.turn > 0
    held = np.concatenate([[0], (table.prompt_tokens + table.output_tokens)[:-1]])
    cut = later & (table.prompt_tokens < held)
    stream = -np.cumsum((~later | cut).astype(np.int64))
    grown = dataclasses.replace(
        table,
        segment_offset=np.arange(len(table) + 1),
        segment_stream=stream,
        segment_tokens=table.prompt_tokens,
        output_stream=stream,
    )
    grows = int((later & ~cut).sum())
    begin = "begins" if grows == 1 else "begin"
    said = [f"{several(grows, 'prompt')} {begin} with prompt and answer of the turn before"]
    if cut.any():
        short = several(int(cut.sum()), "prompt")
        said.append(f"{short} shorter than prompt and answer before: a context was cut, nothing is shared")
    return grown, said
