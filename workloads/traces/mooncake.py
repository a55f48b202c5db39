"""Mooncake's FAST25 traces: JSONL, milliseconds, ids of 512-token blocks that stand for all before them too.

Other traces have the same keys with other units: they are told apart by `chat_id` and `session_id`.
"""

from __future__ import annotations

from specfleet.workloads.traces.files import Record
from specfleet.workloads.traces.layout import OBJECTS, TraceFormat
from specfleet.workloads.traces.rows import Row

BLOCK_SIZE = 512
"""Tokens (github.com/kvcache-ai/Mooncake, FAST25-release)."""


def _row(record: Record) -> Row:
    hashes = record.get("hash_ids")
    return Row(
        record.get("timestamp"),
        record.get("input_length"),
        record.get("output_length"),
        hashes=hashes if isinstance(hashes, list) else None,
    )


read_mooncake = TraceFormat(
    "Mooncake trace",
    OBJECTS,
    ("timestamp", "input_length", "output_length", "hash_ids"),
    _row,
    unit="ms",
    absent=("chat_id", "session_id"),
    block_size=BLOCK_SIZE,
)
