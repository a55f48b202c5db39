"""Traces of splitwise-sim: CSV, seconds."""

from __future__ import annotations

from specfleet.workloads.traces.files import Record
from specfleet.workloads.traces.layout import TABLE, TraceFormat
from specfleet.workloads.traces.rows import Row


def _row(record: Record) -> Row:
    return Row(record["arrival_timestamp"], record["prompt_size"], record["token_size"])


read_splitwise = TraceFormat(
    "splitwise-sim trace",
    TABLE,
    ("arrival_timestamp", "prompt_size", "token_size"),
    _row,
    time_key="arrival_timestamp",
    unit="s",
)
