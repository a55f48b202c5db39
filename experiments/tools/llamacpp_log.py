"""The log of llama.cpp's server: the times of each request, and what it accepted of its drafts.

A request's `eval time` is that after its first token. Drafts are as long as the drafter was sure, so K is the
mean length, where rounds are counted (`mean len`, or `#gen drafts` of the drafter's statistics).
"""

from __future__ import annotations

import re

import numpy as np

from specfleet.experiments.tools.file import ToolFile, Unreadable
from specfleet.experiments.tools.logs import float_of
from specfleet.experiments.tools.result import ToolResult, result

_COUNT = r"\s*(\d{1,12})"
_PROMPT = re.compile(rf"prompt eval time =\s*([\d.]+) ms /{_COUNT} tokens")
_OUTPUT = re.compile(rf"(?<!prompt )\beval time =\s*([\d.]+) ms /{_COUNT} (?:tokens|runs)")
_ACCEPTED = re.compile(
    rf"draft acceptance(?: rate)? =\s*[\d.]+ \({_COUNT} accepted /{_COUNT} generated\)"
    r"(?:, mean len =\s*([\d.]+))?"
)
_STATISTICS = re.compile(
    rf"statistics ([\w-]+):.*?#gen drafts ={_COUNT}.*?#gen tokens ={_COUNT}, #acc tokens ={_COUNT}"
)
_SLOTS = re.compile(r"n_slots = (\d{1,4})|n_parallel = (\d{1,4})|--parallel (\d{1,4})")


def recognises(file: ToolFile) -> bool:
    """Whether the times of a request stand in the text."""
    return _OUTPUT.search(file.text) is not None or _ACCEPTED.search(file.text) is not None


def read(file: ToolFile) -> list[ToolResult]:
    """Returns the log as one result over its requests."""
    prompts = [(float_of(ms), int(n)) for ms, n in _PROMPT.findall(file.text)]
    outputs = [(float_of(ms), int(n)) for ms, n in _OUTPUT.findall(file.text)]
    values: dict[str, object] = {}
    notes = ["llama.cpp log: means over its requests; TTFT is the time of the prompt, without waiting"]
    tpot = [ms / (n - 1) for ms, n in outputs if ms is not None and n > 1]
    if tpot:
        values |= {"completed": len(outputs), "output_lens": [n for _, n in outputs if n > 0]}
        values["total_output_tokens"] = sum(n for _, n in outputs)
        values |= {"mean_tpot_ms": float(np.mean(tpot)), "median_tpot_ms": float(np.median(tpot))}
    first = [ms for ms, n in prompts if ms is not None and n > 0]
    if first and len(prompts) == len(outputs):
        values |= {"mean_ttft_ms": float(np.mean(first)), "median_ttft_ms": float(np.median(first))}
        values["mean_input_tokens"] = float(np.mean([n for _, n in prompts]))
        notes.append(
            "prompt tokens are those that were computed; what a slot kept of the one before is not in them"
        )
    slots = {int(n) for found in _SLOTS.findall(file.text) for n in found if n}
    if slots == {1}:
        values["max_concurrency"] = 1
    found, drafts = _drafts(file.text)
    if not values and not found:
        raise Unreadable("no request was answered in this log; give one that has 'eval time' lines")
    if found.pop("unknown", None):
        notes.append(
            "drafts are counted, rounds are not, so acceptance is not read; a newer build prints 'mean len'"
        )
    return [result(file.name, values | found, drafts=drafts, notes=notes)]


def _drafts(text: str) -> tuple[dict[str, object], int | None]:
    """Returns what was accepted, and the mean draft where it is as good as whole."""
    lines = [(int(a), int(g), float_of(mean)) for a, g, mean in _ACCEPTED.findall(text) if int(g)]
    accepted, drafted = sum(a for a, _, _ in lines), sum(g for _, g, _ in lines)
    rounds = sum(a / (mean - 1.0) for a, _, mean in lines if mean is not None and mean > 1.0)
    if not lines or not all(mean is not None and mean > 1.0 for _, _, mean in lines):
        # The drafter's own counts grow with the server's life, so its last line has them all.
        last = {name: tuple(map(int, rest)) for name, *rest in _STATISTICS.findall(text)}
        if not last:
            return ({"unknown": True} if lines else {}), None
        rounds, drafted, accepted = (sum(entry[i] for entry in last.values()) for i in range(3))
    if not rounds or not drafted:
        return {}, None
    values: dict[str, object] = {
        "spec_decode_num_drafts": rounds,
        "spec_decode_draft_tokens": drafted,
        "spec_decode_accepted_tokens": accepted,
        "spec_decode_acceptance_length": 1.0 + accepted / rounds,
    }
    return values, max(1, round(drafted / rounds))
