"""Aggregates of InferenceX (InferenceMAX before): `agg_*.json`, one object a point or a list of them.

Times are in seconds without a unit in their names; throughput is by GPU; lengths are nominal, and its client
draws 0.8 to 1 of them. What a point says of its parallelism is kept.
"""

from __future__ import annotations

from collections.abc import Mapping

from specfleet.experiments.tools.file import ToolFile, Unreadable
from specfleet.experiments.tools.impossible import number
from specfleet.experiments.tools.result import ToolResult, result, scaled

_DRAWN = 0.9
"""Mean share of the nominal lengths: its client draws them uniformly from 0.8 to 1."""

_PROMPTS_BY_USER = 10
"""Requests for each concurrent one in its runs."""

_TIMES = ("ttft", "tpot", "itl", "e2el")
_STATISTICS = ("mean", "median", "std", "p90", "p95", "p99", "p99.9")


def recognises(file: ToolFile) -> bool:
    """Whether an object has a concurrency and a throughput by GPU."""
    return any(
        "conc" in found and ("tput_per_gpu" in found or "median_intvty" in found or "hw" in found)
        for _, found in file.objects
    )


def read(file: ToolFile) -> list[ToolResult]:
    """Returns a result a point."""
    return [_one(file, line, place, found) for place, (line, found) in enumerate(file.objects, 1)]


def _one(file: ToolFile, line: int, place: int, found: Mapping[str, object]) -> ToolResult:
    values: dict[str, object] = {
        f"{statistic}_{time}_ms": scaled(found.get(f"{statistic}_{time}"), 1e3)
        for statistic in _STATISTICS
        for time in _TIMES
    }
    theirs = {f"{statistic}_{time}_ms": f"{statistic}_{time}" for statistic in _STATISTICS for time in _TIMES}
    notes = []
    concurrency = number(found.get("conc"))
    values["max_concurrency"] = found.get("conc")
    if concurrency:
        values["num_prompts"] = _PROMPTS_BY_USER * concurrency
        notes.append(
            f"its file counts no requests; InferenceX runs {_PROMPTS_BY_USER} for each concurrent one"
        )
    for side, key in (("input", "isl"), ("output", "osl")):
        if found.get(key) is not None:
            values[f"mean_{side}_tokens"] = scaled(found.get(key), _DRAWN)
    if found.get("isl") is not None:
        notes.append(
            f"lengths are {_DRAWN:g} of the nominal isl and osl: its client draws from 0.8 to 1 of them"
        )
    gpus = _gpus(found)
    if gpus is not None:
        values["output_throughput"] = scaled(found.get("output_tput_per_gpu"), gpus)
    name = file.name if len(file.objects) == 1 else f"{file.name} point {place}"
    plain = str(found.get("spec_decoding", found.get("mtp") or "")).lower()
    return result(
        name,
        values,
        theirs | {"max_concurrency": "conc", "output_throughput": "output_tput_per_gpu"},
        line=line,
        label=found.get("hw"),
        request_rate="inf",
        drafts=0 if plain in ("none", "off", "false") else None,
        served={key: found.get(key) for key in ("tp", "ep", "pp", "dp_attention", "disagg", "model")},
        notes=notes,
    )


def _gpus(found: Mapping[str, object]) -> float | None:
    """Returns the GPUs that a throughput by GPU is divided by; None where prefill and decode are apart."""
    if str(found.get("disagg", "")).lower() == "true":
        decode = number(found.get("num_decode_gpu"))
        return decode
    counts = [number(found.get(key, 1)) for key in ("tp", "pp", "pcp_size")]
    if any(count is None or count <= 0.0 for count in counts):
        raise Unreadable("tp, pp or pcp_size is no number of GPUs; correct it")
    total = 1.0
    for count in counts:
        total *= count or 1.0
    return total if "tp" in found else None
