"""llmperf's `*_summary.json` (`token_benchmark_ray.py`): seconds, flat keys, tokens by its own tokenizer.

Its "inter token latency" is a request's whole time by output token, the first token's in it; TPOT is what is
left of the mean latency without TTFT, by mean output tokens less one.
"""

from __future__ import annotations

from collections.abc import Mapping

from specfleet.experiments.tools.file import ToolFile
from specfleet.experiments.tools.impossible import number
from specfleet.experiments.tools.result import ToolResult, result, scaled

_TIMES = {"ttft_ms": "ttft_s", "e2el_ms": "end_to_end_latency_s"}
_STATISTICS = {
    "mean": "mean",
    "median": "quantiles_p50",
    "std": "stddev",
    "p95": "quantiles_p95",
    "p99": "quantiles_p99",
}
_NOTES = (
    "llmperf's inter token latency has the first token in it; TPOT is derived from latency, TTFT and tokens",
    "llmperf counts tokens with one tokenizer for every model",
)


def recognises(file: ToolFile) -> bool:
    """Whether an object has llmperf's flat keys, or carries them nested under `results`."""
    return any(
        _flat(found).keys() & {"results_ttft_s_mean", "results_end_to_end_latency_s_mean"}
        for _, found in file.objects
    )


def _flat(found: Mapping[str, object]) -> dict[str, object]:
    """Returns an object without nesting: `results.ttft_s.mean` is `results_ttft_s_mean`."""
    flat: dict[str, object] = {}
    waiting: list[tuple[str, Mapping[str, object], int]] = [("", found, 0)]
    while waiting:
        prefix, entry, depth = waiting.pop()
        for key, value in entry.items():
            if isinstance(value, Mapping) and depth < 4:
                waiting.append((f"{prefix}{key}_", value, depth + 1))
            else:
                flat[f"{prefix}{key}"] = value
    return flat


def read(file: ToolFile) -> list[ToolResult]:
    """Returns a result a summary."""
    return [_one(file, line, _flat(found)) for line, found in file.objects]


def _one(file: ToolFile, line: int, found: Mapping[str, object]) -> ToolResult:
    values: dict[str, object] = {}
    theirs: dict[str, str] = {}
    for ours, key in _TIMES.items():
        for statistic, name in _STATISTICS.items():
            theirs[f"{statistic}_{ours}"] = f"results_{key}_{name}"
            values[f"{statistic}_{ours}"] = scaled(found.get(f"results_{key}_{name}"), 1e3)
    values |= {
        "completed": found.get("results_num_completed_requests", found.get("num_completed_requests")),
        "failed": found.get("results_number_errors"),
        "max_concurrency": found.get("num_concurrent_requests"),
        "mean_input_tokens": found.get("results_number_input_tokens_mean", found.get("mean_input_tokens")),
        "mean_output_tokens": found.get("results_number_output_tokens_mean", found.get("mean_output_tokens")),
        "output_throughput": found.get("results_mean_output_throughput_token_per_s"),
    }
    whole, first, tokens = (
        number(values[key]) for key in ("mean_e2el_ms", "mean_ttft_ms", "mean_output_tokens")
    )
    if whole is not None and first is not None and tokens is not None and tokens > 1.0 and whole > first:
        values["mean_tpot_ms"] = (whole - first) / (tokens - 1.0)
    name = file.name if len(file.objects) == 1 else f"{file.name}:{line}"
    return result(name, values, theirs, line=line, request_rate="inf", notes=_NOTES)
