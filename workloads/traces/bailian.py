"""Qwen-Bailian traces: JSONL, Mooncake's keys and `chat_id`, but seconds and 16-token blocks.

A chat with a parent belongs to the session of its root. The traffic class is the `type`.
"""

from __future__ import annotations

from specfleet.workloads.traces.files import TraceFile
from specfleet.workloads.traces.layout import OBJECTS, Rows, TraceFormat, text
from specfleet.workloads.traces.options import ReadOptions
from specfleet.workloads.traces.rows import Row, rejected

BLOCK_SIZE = 16
"""Tokens (github.com/alibaba-edu/qwen-bailian-usagetraces-anon)."""
NO_PARENT = "-1"


def _rows(file: TraceFile, _: ReadOptions) -> Rows:
    """A row of every record; the root of each chat is known by then."""
    roots: dict[str, str] = {}
    for place, record in file.objects():
        if record is None:
            yield place, rejected("no JSON object"), None
            continue
        chat, parent = text(record.get("chat_id")), text(record.get("parent_chat_id"))
        root = chat if parent in ("", NO_PARENT) else roots.get(parent, parent)
        roots[chat] = root
        hashes = record.get("hash_ids")
        yield (
            place,
            Row(
                record.get("timestamp"),
                record.get("input_length"),
                record.get("output_length"),
                root,
                text(record.get("type")),
                hashes if isinstance(hashes, list) else None,
                turn=record.get("turn"),
            ),
            record,
        )


read_bailian = TraceFormat(
    "Qwen-Bailian trace",
    OBJECTS,
    ("chat_id", "timestamp", "input_length", "output_length"),
    unit="s",
    rows=_rows,
    block_size=BLOCK_SIZE,
)
