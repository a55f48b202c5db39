"""BurstGPT: CSV, whole seconds from the first day's midnight; the third file puts two columns in between.

Failed requests have no output and are dropped by the rule for zeros. The traffic class is the `Log Type`, the
session the `Session ID`, which API requests lack.
"""

from __future__ import annotations

from specfleet.workloads.traces.files import Record
from specfleet.workloads.traces.layout import TABLE, TraceFormat, text
from specfleet.workloads.traces.rows import Row


def _row(record: Record) -> Row:
    return Row(
        record["Timestamp"],
        record["Request tokens"],
        record["Response tokens"],
        text(record.get("Session ID")),
        text(record.get("Log Type")),
        took=record.get("Elapsed time"),
    )


read_burstgpt = TraceFormat(
    "BurstGPT trace",
    TABLE,
    ("Timestamp", "Model", "Request tokens", "Response tokens"),
    _row,
    time_key="Timestamp",
    unit="s",
    used=("Session ID", "Log Type", "Elapsed time"),
)
