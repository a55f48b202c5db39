"""The `requests.csv` that a run of this package writes: milliseconds, when each request was sent.

Requests that did not finish are dropped: what they would have written is not known.
"""

from __future__ import annotations

from specfleet.workloads.traces.files import Record
from specfleet.workloads.traces.layout import TABLE, TraceFormat, text
from specfleet.workloads.traces.rows import Row, rejected

FINISHED = "0"
"""`status` of a request that finished."""


def _row(record: Record) -> Row:
    if record["status"] != FINISHED:
        return rejected("did not finish")
    return Row(
        record["sent_ms"],
        record["prompt_tokens"],
        record["output_tokens"],
        session=text(record.get("session_id")),
        traffic_class=text(record["class_id"]),
        turn=record.get("turn"),
        pause=record.get("think_ms"),
        end=record.get("last_chunk_ms"),
    )


read_own = TraceFormat(
    "requests.csv of a run",
    TABLE,
    ("request_id", "class_id", "status", "prompt_tokens", "output_tokens", "sent_ms"),
    _row,
    time_key="sent_ms",
    unit="ms",
    used=("session_id", "turn", "think_ms", "last_chunk_ms"),
    ordered=False,
)
