"""AIPerf's `profile_export.jsonl`: a request a line, its start in nanoseconds since 1970.

Warm-up requests, cancelled ones and errors are dropped. Lines stand in the order in which requests ended.
"""

from __future__ import annotations

from specfleet.workloads.traces.files import Record
from specfleet.workloads.traces.layout import OBJECTS, TraceFormat, text
from specfleet.workloads.traces.rows import Row, rejected


def _row(record: Record) -> Row:
    about, metrics = record.get("metadata"), record.get("metrics")
    if not isinstance(about, dict) or not isinstance(metrics, dict):
        return rejected("no metadata or no metrics")
    if record.get("error"):
        return rejected("failed")
    if about.get("was_cancelled"):
        return rejected("cancelled")
    if about.get("benchmark_phase") not in (None, "profiling"):
        return rejected("of the warm-up")
    return Row(
        about.get("request_start_ns"),
        _value(metrics.get("input_sequence_length")),
        _value(metrics.get("output_sequence_length")),
        text(about.get("conversation_id")),
        turn=about.get("turn_index"),
        end=about.get("request_end_ns"),
    )


def _value(metric: object) -> object:
    """What a metric says, with its unit or without."""
    return metric.get("value") if isinstance(metric, dict) else metric


read_aiperf = TraceFormat(
    "AIPerf profile export", OBJECTS, ("metadata", "metrics"), _row, unit="ns", ordered=False
)
