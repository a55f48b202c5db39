"""`guidellm benchmark` (0.2 and later): a file of benchmarks, one a rate.

Its "inter token latency" is (last - first token) / (tokens - 1) of a request, vLLM's TPOT, with requests
weighted by their tokens. Its "time per output token" has the first token in it and is no TPOT. Request
latency is in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping

from specfleet.experiments.tools.file import ToolFile, Unreadable
from specfleet.experiments.tools.result import ToolResult, found_key, part, result, scaled

CONSTANT = 1e6
"""Burstiness of a constant rate: the gamma law's gaps are then all alike."""

_LATENCIES = {
    "ttft_ms": ("time_to_first_token_ms", 1.0),
    "tpot_ms": ("inter_token_latency_ms", 1.0),
    "e2el_ms": ("request_latency", 1e3),
}
_STATISTICS = {
    "mean": ("mean",),
    "median": ("median",),
    "std": ("std_dev",),
    "p95": ("percentiles", "p95"),
    "p99": ("percentiles", "p99"),
}
_WEIGHTED = "guidellm weights a request's time per token by its tokens; vLLM's TPOT weighs requests alike"


def recognises(file: ToolFile) -> bool:
    """Whether an object holds guidellm's list of benchmarks."""
    return any(isinstance(found.get("benchmarks"), list) for _, found in file.objects)


def read(file: ToolFile) -> list[ToolResult]:
    """Returns a result a benchmark; those in which no request was completed are left out, if others are."""
    found = [
        (line, place, bench)
        for line, document in file.objects
        for place, bench in enumerate(_list(document.get("benchmarks")))
        if isinstance(bench, Mapping)
    ]
    if not found:
        raise Unreadable("holds no benchmark; the run was cut short before its first rate", "benchmarks")
    done = [entry for entry in found if _completed(entry[2]) != 0]
    return [_one(file, line, place, bench) for line, place, bench in done or found[:1]]


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _completed(bench: Mapping[str, object]) -> object:
    """Returns the requests that ended well, wherever the version counts them."""
    for path in (
        ("metrics", "request_totals", "successful"),
        ("request_totals", "successful"),
        ("run_stats", "requests_made", "successful"),
        ("scheduler_metrics", "requests_made", "successful"),
        ("metrics", "time_to_first_token_ms", "successful", "count"),
    ):
        if (value := part(bench, *path)) is not None:
            return value
    requests = part(bench, "requests", "successful")
    return len(requests) if isinstance(requests, list) else None


def _one(file: ToolFile, line: int, place: int, bench: Mapping[str, object]) -> ToolResult:
    metrics = bench.get("metrics")
    if not isinstance(metrics, Mapping):
        raise Unreadable(
            "has no metrics; read are results of guidellm 0.2 and later", f"benchmarks[{place}]", line
        )
    values: dict[str, object] = {"completed": _completed(bench), "duration": _duration(bench)}
    theirs: dict[str, str] = {}
    for ours, (key, factor) in _LATENCIES.items():
        for statistic, path in _STATISTICS.items():
            values[f"{statistic}_{ours}"] = scaled(_successful(metrics, key, *path), factor)
            theirs[f"{statistic}_{ours}"] = f"benchmarks[{place}].metrics.{key}.{'.'.join(path)}"
    values["mean_input_tokens"] = _successful(metrics, "prompt_token_count", "mean")
    values["mean_output_tokens"] = _successful(metrics, "output_token_count", "mean")
    values["output_throughput"] = _successful(metrics, "output_tokens_per_second", "mean")
    values["request_throughput"] = _successful(metrics, "requests_per_second", "mean")
    errored = part(metrics, "request_totals", "errored")
    values["failed"] = part(bench, "request_totals", "errored") if errored is None else errored
    kind, load = _load(bench)
    values |= {key: value for key, value in load.items() if key != "request_rate"}
    return result(
        f"{file.name} benchmark {place + 1} ({kind or 'load not stated'})",
        values,
        theirs,
        line=line,
        request_rate=load.get("request_rate"),
        notes=[_WEIGHTED],
    )


def _successful(metrics: Mapping[str, object], key: str, *path: str) -> object:
    """Returns a statistic of the requests that ended well; flat in some exports."""
    value = part(metrics, key, "successful", *path)
    return part(metrics, key, *path) if value is None else value


def _duration(bench: Mapping[str, object]) -> object:
    value = bench.get("duration")
    begin, end = bench.get("start_time"), bench.get("end_time")
    if value is None and isinstance(begin, int | float) and isinstance(end, int | float) and end > begin:
        return end - begin
    return value


def _load(bench: Mapping[str, object]) -> tuple[str, dict[str, object]]:
    """Returns the kind of load and what it is, as vLLM's client would be told."""
    strategy = next(
        (
            found
            for where in (("config", "strategy"), ("args", "strategy"), ("scheduler", "strategy"))
            if isinstance(found := part(bench, *where), Mapping)
        ),
        {},
    )
    kind = strategy.get("type_") or strategy.get("type")
    kind = kind if isinstance(kind, str) else ""
    cap = found_key(strategy, "max_concurrency")
    if kind == "synchronous":
        return kind, {"request_rate": "inf", "max_concurrency": 1}
    if kind == "concurrent":
        return kind, {
            "request_rate": "inf",
            "max_concurrency": found_key(strategy, "streams", "max_concurrency"),
        }
    if kind == "throughput":
        return kind, {"request_rate": "inf", "max_concurrency": cap}
    if kind in ("constant", "poisson", "async"):
        even = {"burstiness": 1.0 if kind == "poisson" else CONSTANT}
        return kind, {"request_rate": strategy.get("rate"), "max_concurrency": cap, **even}
    return "", {}
