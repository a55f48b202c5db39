"""RAGPulse: JSONL, seconds as texts, a session, and `hash_ids` of the parts of a prompt.

The parts have no recorded lengths, so nothing is known of how many tokens two prompts share: they share
nothing here. The published file is two weeks put one behind the other: its clock is reset in between.
"""

from __future__ import annotations

from specfleet.workloads.traces.files import Record
from specfleet.workloads.traces.layout import OBJECTS, TraceFormat, text
from specfleet.workloads.traces.rows import Row


def _row(record: Record) -> Row:
    return Row(
        record.get("timestamp"),
        record.get("input_length"),
        record.get("output_length"),
        text(record.get("session_id")),
    )


read_ragpulse = TraceFormat(
    "RAGPulse trace",
    OBJECTS,
    ("timestamp", "input_length", "output_length", "session_id"),
    _row,
    unit="s",
    absent=("chat_id",),
)
