"""`vllm bench serve` and `sglang.bench_serving`: the traffic that they send.

Two flags have one name and two meanings: `--random-range-ratio` spreads lengths by +-r about the stated one
in vLLM (0 is fixed), and from r times the stated one up to it in SGLang (1 is fixed, and 0 its default).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from specfleet.experiments.flags.faults import LineFault
from specfleet.workloads.lengths import Uniform

_LENGTHS = {"random": (1024, 128), "sonnet": (550, 150), "custom": (0, 256)}
"""vLLM's dataset -> default prompt and output tokens."""
_PRESETS = {"sharegpt": "chat-sharegpt"}
_NUMBERS: dict[str, type] = {
    "num-prompts": int,
    "max-concurrency": int,
    "request-rate": float,
    "burstiness": float,
    "temperature": float,
    "num-warmups": int,
    "random-range-ratio": float,
    "random-prefix-len": int,
}
_FROM_0 = ("temperature", "num_warmups", "random_prefix_len")
"""Numbers that may be 0."""


class _Bench(argparse.ArgumentParser):
    """Says what is wrong in place of ending the process."""

    def __init__(self, tool: str) -> None:
        super().__init__(add_help=False)
        self.tool = tool

    def error(self, message: str) -> NoReturn:
        raise LineFault("bench", self.tool, message)


def bench_workload(words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The `workload:` of `vllm bench serve`'s arguments, and what is to be said of it.

    Raises:
        LineFault: a value of the wrong type, or out of range.
    """
    sizes = [f"{name}-{which}-len" for name in _LENGTHS for which in ("input", "output")]
    said = _read("vllm bench serve", words, dict.fromkeys(("input-len", "output-len", *sizes), int), "random")
    dataset = said.dataset_name
    prompt, output = _LENGTHS.get(dataset, (0, 0))
    prompt = said.input_len or getattr(said, f"{dataset}_input_len", None) or prompt
    output = said.output_len or getattr(said, f"{dataset}_output_len", None) or output
    found = _load(said)
    if not (prompt and output):
        return found | {"preset": _PRESETS["sharegpt"]}, [_unknown(dataset)]
    ratio = said.random_range_ratio or 0.0
    if not ratio or dataset != "random":
        found |= {"input_len": prompt, "output_len": output}
        notes = []
    else:
        spread = _checked(ratio, 0.0 <= ratio < 1.0, "from 0 to below 1", "vllm bench serve")
        around = (Uniform.around(tokens, spread) for tokens in (prompt, output))
        found |= {
            key: {"uniform": {"low": law.min, "high": law.max}}
            for key, law in zip(("input", "output"), around, strict=True)
        }
        notes = [
            f"--random-range-ratio {ratio:g} is read as vLLM's: lengths within {ratio:.0%} of those stated"
        ]
    return _with_prefix(found, said.random_prefix_len), notes


def sglang_workload(words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The `workload:` of `sglang.bench_serving`'s arguments, and what is to be said of it.

    Raises:
        LineFault: a value of the wrong type, or out of range.
    """
    tool = "sglang.bench_serving"
    sizes = {"random-input-len": int, "random-output-len": int, "random-input": int, "random-output": int}
    said = _read(tool, words, sizes, "sharegpt")
    found = _load(said)
    if not said.dataset_name.startswith("random"):
        return found | {"preset": _PRESETS["sharegpt"]}, [_unknown(said.dataset_name)]
    ratio = said.random_range_ratio if said.random_range_ratio is not None else 0.0
    ratio = _checked(ratio, 0.0 <= ratio <= 1.0, "from 0 to 1", tool)
    for key, given in (
        ("input", said.random_input_len or said.random_input or 1024),
        ("output", said.random_output_len or said.random_output or 1024),
    ):
        if ratio == 1.0:
            found[f"{key}_len"] = given
        else:
            found[key] = {"uniform": {"low": max(1, int(given * ratio)), "high": given}}
    note = f"--random-range-ratio {ratio:g} is read as SGLang's: lengths from {ratio:g} of those stated up"
    return found, [note]


def _read(tool: str, words: Sequence[str], more: Mapping[str, type], dataset: str) -> argparse.Namespace:
    """The flags that say what is sent; others of the tool are read past."""
    parser = _Bench(tool)
    for name, kind in {**_NUMBERS, **more}.items():
        parser.add_argument(f"--{name}", type=kind)
    parser.add_argument("--dataset-name", default=dataset)
    plain = []
    for word in words:
        name, equals, value = word.partition("=")
        plain.append(name.replace("_", "-") + equals + value if word.startswith("--") else word)
    said, _ = parser.parse_known_args(plain)
    for name, value in vars(said).items():
        if isinstance(value, int | float) and name in _FROM_0:
            _checked(value, value >= 0, "0 or more", tool, name)
        elif isinstance(value, int | float) and name != "random_range_ratio":
            _checked(value, value > 0, "above 0", tool, name)
    return said


def _load(said: argparse.Namespace) -> dict[str, Any]:
    """How many requests, and when they come: without a rate all are offered at once, as both tools do it."""
    found: dict[str, Any] = {"num_prompts": said.num_prompts or 1000}
    for name in ("max_concurrency", "request_rate", "burstiness", "temperature", "num_warmups"):
        if getattr(said, name) is not None:
            found[name] = getattr(said, name)
    if "request_rate" not in found and "max_concurrency" not in found:
        found["request_rate"] = math.inf
    return found


def _with_prefix(found: dict[str, Any], tokens: int | None) -> dict[str, Any]:
    """A prefix that all prompts share stands before each of them."""
    if not tokens:
        return found
    found["prefix"] = {"tokens": tokens}
    if "input_len" in found:
        found["input_len"] += tokens
    else:
        limits = found["input"]["uniform"]
        found["input"] = {"uniform": {name: value + tokens for name, value in limits.items()}}
    return found


def _checked(value: float, holds: bool, wanted: str, tool: str, name: str = "random_range_ratio") -> float:
    if not holds:
        raise LineFault("bench", tool, f"--{name.replace('_', '-')} must be {wanted}, got {value:g}")
    return value


def _unknown(dataset: str) -> str:
    return f"lengths of dataset {dataset} are not in the line: preset {_PRESETS['sharegpt']} is taken"
