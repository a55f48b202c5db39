"""`vllm bench serve`: the traffic that it sends."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from specfleet.experiments.flags.faults import LineFault

_LENGTHS = {"random": ("random", 1024, 128), "sonnet": ("sonnet", 550, 150), "custom": ("custom", 0, 256)}
"""Dataset -> beginning of its length flags, default prompt and output tokens."""


class _Bench(argparse.ArgumentParser):
    """Says what is wrong in place of ending the process."""

    def error(self, message: str) -> NoReturn:
        raise LineFault("bench", "vllm bench serve", message)


def bench_workload(words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The `workload:` of a benchmark's arguments, and what is to be said of it.

    Raises:
        LineFault: a value of the wrong type.
    """
    parser = _Bench(add_help=False)
    for name in ("random-input-len", "random-output-len", "random-prefix-len", "sonnet-input-len"):
        parser.add_argument(f"--{name}", type=int)
    for name in ("sonnet-output-len", "custom-output-len", "input-len", "output-len", "seed", "num-warmups"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--dataset-name", default="random")
    parser.add_argument("--num-prompts", type=int, default=1000)
    parser.add_argument("--max-concurrency", type=int)
    parser.add_argument("--request-rate", type=float)
    parser.add_argument("--burstiness", type=float)
    parser.add_argument("--temperature", type=float)
    parser.add_argument("--ignore-eos", action="store_true")
    plain = [w.replace("_", "-", w.count("_")) if w.startswith("--") and "=" not in w else w for w in words]
    said, _ = parser.parse_known_args(plain)
    found: dict[str, Any] = {"num_prompts": said.num_prompts}
    notes = []
    prefix, prompt, output = _LENGTHS.get(said.dataset_name, ("", 0, 0))
    prompt = said.input_len or getattr(said, f"{prefix}_input_len", None) or prompt
    output = said.output_len or getattr(said, f"{prefix}_output_len", None) or output
    if prompt and output:
        found |= {"input_len": prompt, "output_len": output}
    else:
        found |= {"preset": "chat-sharegpt"}
        notes.append(
            f"lengths of dataset {said.dataset_name} are not in the line: preset chat-sharegpt is taken"
        )
    for name in ("max_concurrency", "request_rate", "burstiness", "temperature", "num_warmups"):
        if getattr(said, name) is not None:
            found[name] = getattr(said, name)
    if said.random_prefix_len:
        found["prefix"] = {"tokens": said.random_prefix_len}
        found["input_len"] = found.get("input_len", prompt) + said.random_prefix_len
    return found, notes
