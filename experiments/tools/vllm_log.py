"""The log of `vllm serve`: a line every 10 s about what runs, one about drafts, the KV pool at the start."""

from __future__ import annotations

import re

from specfleet.experiments.tools import counts
from specfleet.experiments.tools.file import ToolFile, Unreadable
from specfleet.experiments.tools.logs import LogLine, float_of, under_load
from specfleet.experiments.tools.result import ToolResult, result

_NUMBER = r"([\d.]+)"
_BUSY = re.compile(
    rf"(?:Engine (\d+): )?Avg prompt throughput: {_NUMBER} tokens/s, Avg generation throughput: {_NUMBER} "
    rf"tokens/s, Running: (\d+) reqs(?:, Swapped: \d+ reqs)?, (?:Waiting|Pending): (\d+) reqs"
)
_POOL = re.compile(r"GPU KV cache size: ([\d,]{1,20}) tokens")
DRAFTS = "SpecDecoding metrics"
_SIGNS = ("Avg generation throughput:", DRAFTS, "GPU KV cache size:")


def recognises(file: ToolFile) -> bool:
    """Whether one of vLLM's own lines stands in the text."""
    return any(sign in file.text for sign in _SIGNS)


def read(file: ToolFile) -> list[ToolResult]:
    """Returns the log as one result: throughput and time per token under full load, acceptance, KV pool."""
    values: dict[str, object] = {}
    notes: list[str] = []
    moments = [
        LogLine(engine or "", float(running), float(waiting), throughput)
        for engine, _, generated, running, waiting in _BUSY.findall(file.text)
        if (throughput := float_of(generated)) is not None and len(running) + len(waiting) < 20
    ]
    if any(moment.running and moment.throughput for moment in moments):
        found, said = under_load(moments, "line with 'Avg generation throughput'")
        values |= found
        notes.append(f"vLLM log: {said}")
    if pools := _POOL.findall(file.text):
        values["kv_pool_tokens"] = pools[-1].replace(",", "")
    drafts = None
    if DRAFTS in file.text:
        try:
            accepted = counts.from_log(file.text)
        except ValueError as error:
            raise Unreadable(str(error)) from None
        values["spec_decode_per_position_acceptance_rates"] = list(accepted.by_position)
        values["spec_decode_num_drafts"] = accepted.rounds
        values["spec_decode_acceptance_length"] = 1.0 + sum(accepted.by_position)
        drafts = len(accepted.by_position)
        notes += [f"left out {n}: {reason}" for reason, n in accepted.left_out]
    if not values:
        raise Unreadable(
            "no line of vLLM's about what runs; start the server without --disable-log-stats and give its log"
        )
    return [result(file.name, values, drafts=drafts, notes=notes)]
