"""The table that `vllm bench serve` and SGLang's client print at the end, saved from the terminal."""

from __future__ import annotations

import re

from specfleet.experiments.tools.file import ToolFile, Unreadable
from specfleet.experiments.tools.result import ToolResult, result
from specfleet.experiments.tools.sglang_bench import NO_ITL

_HEAD = re.compile(r"=+ Serving Benchmark Result =+")
_ROW = re.compile(r"^[#\s]*([A-Za-z0-9][^:|]*?):\s+([-+\d.eE]+|inf|nan|not set|None|[A-Za-z][\w-]*)\s*$")
_LATENCY = re.compile(r"(Mean|Median|P[\d.]+|Std) (TTFT|TPOT|ITL|E2EL|E2E Latency) \(ms\)")
_KEYS = {
    "successful requests": "completed",
    "failed requests": "failed",
    "maximum request concurrency": "max_concurrency",
    "max request concurrency": "max_concurrency",
    "request rate configured (rps)": "request_rate",
    "traffic request rate": "request_rate",
    "benchmark duration (s)": "duration",
    "total input tokens": "total_input_tokens",
    "total generated tokens": "total_output_tokens",
    "request throughput (req/s)": "request_throughput",
    "output token throughput (tok/s)": "output_throughput",
    "accept length": "spec_decode_acceptance_length",
    "acceptance length": "spec_decode_acceptance_length",
    "drafts": "spec_decode_num_drafts",
    "draft tokens": "spec_decode_draft_tokens",
    "accepted tokens": "spec_decode_accepted_tokens",
}
_POSITION = re.compile(r"position (\d+)(?: \(%\))?")


def recognises(file: ToolFile) -> bool:
    """Whether the table's head stands in the text."""
    return _HEAD.search(file.text) is not None


def read(file: ToolFile) -> list[ToolResult]:
    """Returns a result a table."""
    begins = [match.start() for match in _HEAD.finditer(file.text)]
    if not begins:
        raise Unreadable("has no table 'Serving Benchmark Result'; save all that the client prints")
    found = []
    for at, end in zip(begins, [*begins[1:], len(file.text)], strict=True):
        line = file.text.count("\n", 0, at) + 1
        name = file.name if len(begins) == 1 else f"{file.name}:{line}"
        found.append(_one(name, line, file.text[at:end]))
    return found


def _one(name: str, line: int, table: str) -> ToolResult:
    values: dict[str, object] = {}
    positions: dict[int, float] = {}
    sglang = False
    for row in table.splitlines():
        match = _ROW.match(row)
        if match is None:
            continue
        title, value = match[1].strip(), match[2]
        latency = _LATENCY.fullmatch(title)
        if latency is not None:
            kind = "e2el" if latency[2].startswith("E2E") else latency[2].lower()
            values[f"{latency[1].lower()}_{kind}_ms"] = value
        elif (key := _KEYS.get(title.lower())) is not None and value not in ("None", "not"):
            values[key] = value
        elif (place := _POSITION.fullmatch(title.lower())) is not None and len(place[1]) < 4:
            positions[int(place[1])] = _share(value, title)
        sglang |= "retokenized" in title.lower() or title.lower() == "backend"
    missing = [key for key in ("completed", "total_output_tokens") if key not in values]
    if missing:
        raise Unreadable(f"its table lacks {', '.join(missing)}; save all that the client prints", line=line)
    if positions and sorted(positions) == list(range(len(positions))):
        values["spec_decode_per_position_acceptance_rates"] = [positions[i] for i in sorted(positions)]
    if sglang:
        values = {key: value for key, value in values.items() if not key.endswith("_itl_ms")}
    rate = values.pop("request_rate", "inf")
    return result(name, values, line=line, request_rate=rate, notes=[NO_ITL] if sglang else [])


def _share(value: str, title: str) -> float:
    """Returns a share that is printed in percent."""
    try:
        return float(value) / 100.0
    except ValueError:
        raise Unreadable(f"is {value[:20]}, no percentage", title) from None
