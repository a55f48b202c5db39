"""A scrape of `/metrics`: vLLM, SGLang, TensorRT-LLM, llama.cpp. All since the server's start together.

A scrape says no load and no time, so of it come mean times and what was accepted. vLLM's
`inter_token_latency_seconds` (`time_per_output_token_seconds` before) is the pause between chunks; SGLang's
divides it among tokens. TPOT is the sum of pauses by the tokens after the first.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from specfleet.experiments.tools import counts
from specfleet.experiments.tools.file import ToolFile, Unreadable
from specfleet.experiments.tools.result import ToolResult, result

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(\{[^}]*\})?\s+(\S+)", re.MULTILINE)
_ENGINES = {"vllm:": "vLLM", "sglang:": "SGLang", "trtllm_": "TensorRT-LLM", "llamacpp:": "llama.cpp"}


def recognises(file: ToolFile) -> bool:
    """Whether a sample of one of the engines stands in the text."""
    return any(match[1].startswith(tuple(_ENGINES)) for match in _SAMPLE.finditer(file.text))


@dataclass(frozen=True)
class ScrapedSamples:
    """ScrapedSamples of one engine by bare name, summed over labels."""

    values: dict[str, float]

    def total(self, *names: str) -> float | None:
        """Returns the first of the names that is there, with or without `_total`."""
        for name in names:
            for spelled in (name, f"{name}_total"):
                if spelled in self.values:
                    return self.values[spelled]
        return None

    def mean_ms(self, *names: str) -> float | None:
        """Returns the mean of the first histogram of seconds that has counted anything, in ms."""
        for name in names:
            total, n = self.total(f"{name}_sum"), self.total(f"{name}_count")
            if total is not None and n:
                return 1e3 * total / n
        return None


def read(file: ToolFile) -> list[ToolResult]:
    """Returns the scrape as one result for each engine that it is of."""
    found = [
        _one(file, prefix, name, samples)
        for prefix, name in _ENGINES.items()
        if (samples := _samples(file.text, prefix))
    ]
    if not found:
        raise Unreadable("no sample of vLLM, SGLang, TensorRT-LLM or llama.cpp; give what /metrics answers")
    return found


def _samples(text: str, prefix: str) -> ScrapedSamples | None:
    """Returns an engine's samples; gauges by rank are summed too, and read by `gauge`."""
    values: dict[str, float] = {}
    for match in _SAMPLE.finditer(text):
        name, labels, value = match[1], match[2] or "", match[3]
        if not name.startswith(prefix) or name.endswith(("_bucket", "_created")):
            continue
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        bare = name.removeprefix(prefix)
        if not math.isfinite(number):
            if math.isnan(number) and value.lower() != "nan":
                line = text.count("\n", 0, match.start()) + 1
                raise Unreadable(f"is {value[:40]}, which nothing counts; correct the scrape", name, line)
            continue
        if number < 0.0 and bare.endswith(("_total", "_count", "_sum")):
            line = text.count("\n", 0, match.start()) + 1
            raise Unreadable(f"is {value[:40]}, which nothing counts; correct the scrape", name, line)
        if bare.startswith("spec_accept") or "acceptance_length" in bare:
            values[bare] = max(values.get(bare, 0.0), number)
        elif not ("_per_pos" in bare and "position" not in labels):
            values[bare] = values.get(bare, 0.0) + number
    return ScrapedSamples(values) if values else None


def _one(file: ToolFile, prefix: str, engine: str, samples: ScrapedSamples) -> ToolResult:
    done = samples.total("request_success", "num_requests", "e2e_request_latency_seconds_count")
    prompt = samples.total("prompt_tokens", "request_prompt_tokens_sum")
    output = samples.total("generation_tokens", "tokens_predicted", "request_generation_tokens_sum")
    values: dict[str, object] = {
        "completed": done or None,
        "total_input_tokens": prompt or None,
        "total_output_tokens": output or None,
        "mean_ttft_ms": samples.mean_ms("time_to_first_token_seconds"),
        "mean_e2el_ms": samples.mean_ms("e2e_request_latency_seconds"),
    }
    pauses = ("inter_token_latency_seconds", "time_per_output_token_seconds")
    own = samples.mean_ms("request_time_per_output_token_seconds")
    total = samples.total(*(f"{name}_sum" for name in pauses))
    if own is None and engine == "TensorRT-LLM":
        own = samples.mean_ms("time_per_output_token_seconds")
    elif own is None and total and output and done and output > done:
        own = 1e3 * total / (output - done)
    seconds = samples.total("tokens_predicted_seconds")
    if own is None and seconds and output:
        own = 1e3 * seconds / output
    values["mean_tpot_ms"] = own
    if engine == "vLLM":
        values["mean_itl_ms"] = samples.mean_ms(*pauses)
    values |= _accepted(file.text, engine, samples, output, done)
    notes = [f"{engine} counters since the server's start, warm-up included; a scrape states no load"]
    name = f"{file.name} ({engine})"
    return result(name, {key: value for key, value in values.items() if value}, notes=notes)


def _accepted(
    text: str, engine: str, samples: ScrapedSamples, output: float | None, done: float | None
) -> dict[str, object]:
    """Returns what was accepted, under vLLM's keys."""
    if engine == "vLLM":
        rounds = samples.total("spec_decode_num_drafts")
        if not rounds:
            return {}
        accepted = samples.total("spec_decode_num_accepted_tokens")
        values: dict[str, object] = {
            "spec_decode_num_drafts": rounds,
            "spec_decode_draft_tokens": samples.total("spec_decode_num_draft_tokens"),
            "spec_decode_accepted_tokens": accepted,
        }
        if samples.total("spec_decode_num_accepted_tokens_per_pos") is not None:
            try:
                values["spec_decode_per_position_acceptance_rates"] = list(
                    counts.from_prometheus(text).by_position
                )
            except ValueError as error:
                raise Unreadable(str(error)) from None
        if accepted is not None:
            values["spec_decode_acceptance_length"] = 1.0 + accepted / rounds
        return values
    length = samples.total("spec_decode_acceptance_length", "spec_accept_length")
    calls = samples.total("spec_verify_calls")
    if engine == "SGLang" and calls and output and done and output > done + calls:
        # Each verification gives its accepted tokens and one more; the first token comes with the prompt.
        return {"spec_decode_num_drafts": calls, "spec_decode_acceptance_length": (output - done) / calls}
    drafted, kept = (samples.total(f"spec_decode_num_{what}_tokens") for what in ("draft", "accepted"))
    values = {"spec_decode_draft_tokens": drafted, "spec_decode_accepted_tokens": kept}
    return values | ({"spec_decode_acceptance_length": length} if length and length >= 1.0 else {})
