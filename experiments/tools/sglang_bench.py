"""`python -m sglang.bench_serving --output-file`: a JSON line a run.

Its ITL divides the pause between two chunks among the tokens that came (backend `sglang`), so it is TPOT
again and no step; it is left out. `accept_length` counts the target's own token, as vLLM's acceptance length
does; K is `speculative_num_draft_tokens` less the root of the tree.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from specfleet.experiments.tools import vllm_bench
from specfleet.experiments.tools.file import ToolFile
from specfleet.experiments.tools.impossible import number
from specfleet.experiments.tools.result import ToolResult, found_key, result

_OWN = ("total_output_tokens_retokenized", "accept_length", "sharegpt_output_len")
_COPIED = (
    *("duration", "completed", "failed", "total_input_tokens", "total_output_tokens", "max_concurrency"),
    *("request_throughput", "output_throughput", "input_lens", "output_lens"),
)
_TIMES = re.compile(r"(mean|median|std|p\d+)_(ttft|tpot)_ms")
NO_ITL = "SGLang's ITL is a pause divided among its tokens, no step; it is not compared"


def recognises(file: ToolFile) -> bool:
    """Whether an object has a key that only SGLang's client writes."""
    return any(key in found for _, found in file.objects for key in _OWN)


def read(file: ToolFile) -> list[ToolResult]:
    """Returns a result a line."""
    return [_one(file, line, found) for line, found in file.objects]


def _one(file: ToolFile, line: int, found: Mapping[str, object]) -> ToolResult:
    name = file.name if len(file.objects) == 1 else f"{file.name}:{line}"
    vllm_bench.refuse_incomplete(found, line)
    values = {key: found.get(key) for key in found if key in _COPIED or _TIMES.fullmatch(key)}
    values["mean_e2el_ms"] = found.get("mean_e2e_latency_ms")
    length = found.get("accept_length")
    if not number(length):
        length = found_key(found.get("server_info"), "avg_spec_accept_length")
    # An engine that does not draft reports 1, or nothing.
    algorithm = found_key(found.get("server_info"), "speculative_algorithm")
    if number(length) and (number(length) or 0.0) > 1.0:
        values["spec_decode_acceptance_length"] = length
    nodes = number(found_key(found.get("server_info"), "speculative_num_draft_tokens"))
    drafts = round(nodes) - 1 if nodes and nodes < 1e6 and algorithm else None
    return result(
        name,
        values,
        {"spec_decode_acceptance_length": "accept_length"},
        line=line,
        label=found.get("tag"),
        request_rate=_rate(found),
        drafts=drafts,
        served={"tp": found_key(found.get("server_info"), "tp_size")},
        notes=[NO_ITL] if "mean_itl_ms" in found else [],
    )


def _rate(found: Mapping[str, object]) -> object:
    """Returns the rate; a replayed trace has none."""
    rate = found.get("request_rate", "inf")
    return None if rate == "trace" else rate
