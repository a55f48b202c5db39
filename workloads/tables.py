"""Tables put together of tables, and their rows in another order, with what prompts and answers share."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from specfleet.workloads.requests import IntArray, RequestTable

Segments = tuple[IntArray, IntArray, IntArray]
"""(offset, stream, tokens) of prompts."""


def segments_of(table: RequestTable) -> Segments:
    """The segments of a table; a private one each where it has none."""
    if table.segment_offset is None or table.segment_stream is None or table.segment_tokens is None:
        return np.arange(len(table) + 1), np.arange(len(table)), table.prompt_tokens
    return table.segment_offset, table.segment_stream, table.segment_tokens


def joined(tables: Sequence[RequestTable], class_names: Sequence[str]) -> RequestTable:
    """The requests of several tables one behind the other, not yet in order of time, so not validated.

    No two tables share a token or a session. `class_id` and `luck_id` are taken as they are, but that the key
    of luck is the row's number in its own table where it has none.
    """
    columns = {
        name: np.concatenate([getattr(table, name) for table in tables])
        for name in RequestTable.column_names()
    }
    turns = any(table.think_s is not None for table in tables)
    known = turns or any(table.segment_offset is not None for table in tables)
    sessions, offsets, streams, outputs = [], [np.zeros(1, dtype=np.int64)], [], []
    rows = below = before = pieces = 0
    for table in tables:
        offset, stream, _ = segments_of(table)
        own = np.arange(len(table))
        output = own if table.output_stream is None else table.output_stream
        sessions.append(table.session_id + before)
        offsets.append(offset[1:] + pieces)
        streams.append(_renamed(stream, rows, below))
        outputs.append(_renamed(output, rows, below))
        before += int(table.session_id.max(initial=-1)) + 1
        below -= min(int(stream.min(initial=0)), int(output.min(initial=0)), 0)
        rows, pieces = rows + len(table), pieces + int(offset[-1])
    columns["session_id"] = np.concatenate(sessions)
    thought = [table.think_s if table.think_s is not None else np.zeros(len(table)) for table in tables]
    return RequestTable(
        **columns,
        segment_offset=np.concatenate(offsets) if known else None,
        segment_stream=np.concatenate(streams) if known else None,
        segment_tokens=np.concatenate([segments_of(table)[2] for table in tables]) if known else None,
        class_names=tuple(class_names),
        think_s=np.concatenate(thought) if turns else None,
        output_stream=np.concatenate(outputs) if turns else None,
        luck_id=np.concatenate([table.luck_ids for table in tables]),
    )


def _renamed(streams: IntArray, rows: int, below: int) -> IntArray:
    """Private streams behind `rows` others, and shared ones below `below` of them."""
    return np.where(streams >= 0, streams + rows, streams - below)


def reordered(table: RequestTable, order: IntArray) -> RequestTable:
    """Some rows in another order, sessions one behind the other, with what they share.

    A private stream goes with its request; sessions are numbered anew, from 0 in that order.
    """
    names = (*RequestTable.column_names(), "think_s", "luck_id")
    columns = {name: column[order] for name in names if (column := getattr(table, name)) is not None}
    found = dataclasses.replace(table, segment_offset=None, segment_stream=None, segment_tokens=None)
    place = np.full(len(table), -1, dtype=np.int64)
    place[order] = np.arange(len(order))
    columns["session_id"] = np.cumsum(columns["turn"] == 0) - 1
    output = table.output_stream
    columns["output_stream"] = None if output is None else _moved(output[order], place)
    if table.segment_offset is None:
        return dataclasses.replace(found, **columns)
    offset, stream, tokens = segments_of(table)
    counts = np.diff(offset)[order]
    there = np.concatenate(([0], np.cumsum(counts)))
    owner = np.repeat(np.arange(len(order)), counts)
    piece = offset[order][owner] + np.arange(there[-1]) - there[owner]
    return dataclasses.replace(
        found,
        **columns,
        segment_offset=there,
        segment_stream=_moved(stream[piece], place),
        segment_tokens=tokens[piece],
    )


def _moved(streams: IntArray, place: IntArray) -> IntArray:
    """Private streams by where their rows are now."""
    return np.where(streams >= 0, place[np.maximum(streams, 0)], streams)


def kept(table: RequestTable, rows: IntArray) -> RequestTable:
    """Some rows in their order, with what they share; turns left out are closed up.

    A turn that follows one that is left out, or begins its session then, keeps its own pause.
    """
    if table.think_s is None:
        return table.taken(rows)
    session = table.session_id[rows]
    first = np.concatenate([[True], np.diff(session) != 0])[: len(rows)]
    begins = np.maximum.accumulate(np.where(first, np.arange(len(rows)), 0))
    turns = dataclasses.replace(table, turn=_at(table, rows, np.arange(len(rows)) - begins))
    return reordered(turns, rows)


def _at(table: RequestTable, rows: IntArray, turns: IntArray) -> IntArray:
    """A column of turns with others in some rows."""
    column = np.array(table.turn)
    column[rows] = turns
    return column
