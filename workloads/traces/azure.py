"""The Azure LLM inference traces (Azure Public Dataset: 2023, 2024 and the multimodal ones).

CSV with the columns `TIMESTAMP, ContextTokens, GeneratedTokens`, found by name: multimodal files put
`NumImages` second. 2023 stamps have seven fractional digits and no zone, with CRLF and no newline at the end
of the file; 2024 stamps have a UTC offset and six digits, or none where the fraction is zero.
"""

from __future__ import annotations

from specfleet.workloads.traces.files import Record
from specfleet.workloads.traces.layout import TABLE, TraceFormat
from specfleet.workloads.traces.rows import Row


def _row(record: Record) -> Row:
    return Row(record["TIMESTAMP"], record["ContextTokens"], record["GeneratedTokens"])


read_azure = TraceFormat(
    "Azure LLM inference trace",
    TABLE,
    ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    _row,
    time_key="TIMESTAMP",
    unit="iso",
)
