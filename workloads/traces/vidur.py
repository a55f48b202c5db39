"""Vidur's processed traces: CSV, seconds from the first request; the length-only files have no times."""

from __future__ import annotations

from specfleet.workloads.traces.files import Record
from specfleet.workloads.traces.layout import TABLE, TraceFormat
from specfleet.workloads.traces.rows import Row


def _row(record: Record) -> Row:
    return Row(record.get("arrived_at"), record["num_prefill_tokens"], record["num_decode_tokens"])


read_vidur = TraceFormat(
    "Vidur trace",
    TABLE,
    ("num_prefill_tokens", "num_decode_tokens"),
    _row,
    time_key="arrived_at",
    unit="s",
)
