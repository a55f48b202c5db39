"""AIPerf's and GenAI-Perf's `profile_export_*.json`, and AIPerf's records of single requests (`.jsonl`).

Each figure states its unit. Their "inter token latency" is (latency - TTFT) / (tokens - 1) of a request,
vLLM's TPOT; the pause between two chunks, vLLM's ITL, is AIPerf's "inter chunk latency".
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from specfleet.experiments.tools.file import ToolFile, Unreadable
from specfleet.experiments.tools.impossible import number
from specfleet.experiments.tools.result import ToolResult, found_key, part, result, scaled

_KEYS = ("time_to_first_token", "inter_token_latency", "request_latency", "output_token_throughput")
_LATENCIES = {
    "ttft_ms": "time_to_first_token",
    "tpot_ms": "inter_token_latency",
    "itl_ms": "inter_chunk_latency",
    "e2el_ms": "request_latency",
}
_STATISTICS = {"mean": "avg", "median": "p50", "std": "std", "p90": "p90", "p95": "p95", "p99": "p99"}
_MILLISECONDS = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3, "sec": 1e3, "seconds": 1e3, "milliseconds": 1.0}
_MEANS = {
    "mean_input_tokens": ("input_sequence_length",),
    "mean_output_tokens": ("output_sequence_length", "output_token_count"),
    "output_throughput": ("output_token_throughput",),
    "request_throughput": ("request_throughput",),
    "duration": ("benchmark_duration",),
    "completed": ("request_count", "good_request_count"),
    "failed": ("error_request_count",),
}


def recognises(file: ToolFile) -> bool:
    """Whether an object has two of the figures, or is a record with metrics that has one."""
    return any(
        sum(_is_figure(found.get(key)) for key in _KEYS) >= 2 or _is_record(found)
        for _, found in file.objects
    )


def _is_figure(found: object) -> bool:
    return isinstance(found, Mapping) and bool(found.keys() & {"avg", "p50", "value"})


def _is_record(found: Mapping[str, object]) -> bool:
    """Whether an object is one request of `profile_export.jsonl`."""
    metrics = found.get("metrics")
    return (
        isinstance(metrics, Mapping) and "metadata" in found and any(_is_figure(m) for m in metrics.values())
    )


def read(file: ToolFile) -> list[ToolResult]:
    """Returns a result an object; records of requests are one result together."""
    records = [
        found
        for _, found in file.objects
        if isinstance(found.get("metadata"), Mapping) and "metrics" in found
    ]
    if records:
        return [_of_records(file, records)]
    return [_one(file, line, found) for line, found in file.objects]


def _one(file: ToolFile, line: int, found: Mapping[str, object]) -> ToolResult:
    values: dict[str, object] = {}
    theirs: dict[str, str] = {}
    for ours, key in _LATENCIES.items():
        for statistic, name in _STATISTICS.items():
            values[f"{statistic}_{ours}"] = scaled(part(found, key, name), _factor(found.get(key), key, line))
            theirs[f"{statistic}_{ours}"] = f"{key}.{name}"
    for ours, keys in _MEANS.items():
        values[ours] = next((v for key in keys if (v := part(found, key, "avg")) is not None), None)
        theirs[ours] = f"{keys[0]}.avg"
    settings = found.get("input_config")
    values["max_concurrency"] = found_key(settings, "concurrency")
    rate = found_key(settings, "request_rate")
    if rate is None and values["max_concurrency"] is not None:
        rate = "inf"
    if rate is not None and found_key(settings, "request_rate_mode", "arrival_pattern") == "constant":
        values["burstiness"] = 1e6
    if not _length(file):
        raise Unreadable("holds no result", line=line)
    name = file.name if _length(file) == 1 else f"{file.name}:{line}"
    return result(name, values, theirs, line=line, request_rate=rate)


def _length(file: ToolFile) -> int:
    return len(file.objects)


def _factor(figure: object, key: str, line: int) -> float:
    """Returns milliseconds of a figure's unit; milliseconds where it states none."""
    unit = part(figure, "unit")
    if unit is None:
        return 1.0
    factor = _MILLISECONDS.get(unit.strip().lower()) if isinstance(unit, str) else None
    if factor is None:
        raise Unreadable(f"unit {str(unit)[:20]!r} is not known; use ms, s, us or ns", f"{key}.unit", line)
    return factor


def _of_records(file: ToolFile, records: list[Mapping[str, object]]) -> ToolResult:
    """Returns the result of single requests; warm-ups and those that failed are left out."""
    counted = [one for one in records if part(one, "metadata", "benchmark_phase") != "warmup"]
    good = [one for one in counted if not one.get("error")]
    values: dict[str, object] = {"completed": len(good), "failed": len(counted) - len(good)}
    for ours, key in _LATENCIES.items():
        times = [
            time * _factor(part(one, "metrics", key), key, 0)
            for one in good
            if (time := number(part(one, "metrics", key, "value"))) is not None
        ]
        if times and all(np.isfinite(times)):
            values |= {f"mean_{ours}": float(np.mean(times)), f"median_{ours}": float(np.median(times))}
            values[f"p99_{ours}"] = float(np.percentile(times, 99))
    for ours, key in (("input_lens", "input_sequence_length"), ("output_lens", "output_sequence_length")):
        lengths = [n for one in good if (n := number(part(one, "metrics", key, "value"))) is not None]
        if lengths:
            values[ours] = lengths
            values[f"total_{ours.removesuffix('_lens')}_tokens"] = sum(lengths)
    begins = [n for one in good if (n := number(part(one, "metadata", "request_start_ns"))) is not None]
    ends = [n for one in good if (n := number(part(one, "metadata", "request_end_ns"))) is not None]
    if begins and ends and max(ends) > min(begins) and "total_output_tokens" in values:
        values["output_throughput"] = scaled(values["total_output_tokens"], 1e9 / (max(ends) - min(begins)))
    return result(file.name, values, notes=["computed from the records of single requests"])
