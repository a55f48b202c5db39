"""`vllm bench serve --save-result`, and `benchmark_serving.py` before it: whose keys all are read into.

Which latencies a result holds depends on `--percentile-metrics`; with one output token there is no TPOT.
`--save-detailed` adds the lengths of every request, `--append-result` writes one result after another.
Speculation counters are there where the server drafts and the version asks it (0.12 and later).
"""

from __future__ import annotations

from collections.abc import Mapping

from specfleet.experiments.tools.file import ToolFile, Unreadable
from specfleet.experiments.tools.impossible import number
from specfleet.experiments.tools.result import ToolResult, result

_OFFLINE = {"avg_latency": "vllm bench latency", "tokens_per_second": "vllm bench throughput"}
_KEPT = ("completed", "total_input_tokens", "total_output_tokens")
_NO_FIGURES = ("date", "label", "request_rate", "endpoint_type", "backend", "model_id", "tokenizer_id")


def recognises(file: ToolFile) -> bool:
    """Whether the objects have the keys of a served benchmark; the last of the formats that are asked."""
    return any(_is_one(found) for _, found in file.objects)


def _is_one(found: Mapping[str, object]) -> bool:
    served = {*_KEPT, "output_throughput", "request_throughput", "duration", "num_prompts"}
    times = any(key.endswith(("_ttft_ms", "_tpot_ms", "_itl_ms", "_e2el_ms")) for key in found)
    return times or len(served & found.keys()) >= 2


def read(file: ToolFile) -> list[ToolResult]:
    """Returns the results of a file; one without `completed` or totals of tokens is not one."""
    return [_one(file, line, found) for line, found in file.objects]


def refuse_incomplete(found: Mapping[str, object], line: int) -> None:
    """Raises Unreadable, naming what an object lacks, if it is no result of a served benchmark."""
    offline = next(
        (tool for key, tool in _OFFLINE.items() if key in found and "completed" not in found), None
    )
    if offline is not None:
        message = f"is a result of `{offline}`, without a server; give one of `vllm bench serve`"
        raise Unreadable(message, line=line)
    missing = [key for key in _KEPT if number(found.get(key)) is None]
    if missing:
        message = f"lacks {', '.join(missing)}; give a result of `vllm bench serve --save-result`"
        raise Unreadable(message, line=line)


def _one(file: ToolFile, line: int, found: Mapping[str, object]) -> ToolResult:
    refuse_incomplete(found, line)
    values = {key: value for key, value in found.items() if key not in _NO_FIGURES}
    ramp = found.get("ramp_up_strategy")
    notes = (
        [f"the load was ramped up ({str(ramp)[:20]}); the rate stated is simulated throughout"]
        if ramp
        else []
    )
    return result(
        file.name if len(file.objects) == 1 else f"{file.name}:{line}",
        values,
        line=line,
        label=found.get("label"),
        request_rate=found.get("request_rate", "inf"),
        served={"model": found.get("model_id")},
        notes=notes,
    )
