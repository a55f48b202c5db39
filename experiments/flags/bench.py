"""`vllm bench serve` and `sglang.bench_serving`: the traffic that they send.

Two flags have one name and two meanings: `--random-range-ratio` spreads lengths by +-r about the stated one
in vLLM (0 is fixed), and from r times the stated one up to it in SGLang (1 is fixed, and 0 its default).
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from specfleet.experiments.flags.faults import LineFault
from specfleet.experiments.flags.loops import Looped, Sent, unlooped
from specfleet.workloads import profiles
from specfleet.workloads.lengths import Empirical, Uniform

_LENGTHS = {
    "random": (1024, 128),
    "sonnet": (550, 150),
    "custom": (0, 256),
    "prefix-repetition": (256, 128),
}
"""vLLM's dataset -> default prompt and output tokens; of repeated prefixes what follows the prefix."""
_SHAREGPT = "chat-sharegpt"
_DATASETS = {"philschmid/mt-bench": "mt-bench", "likaixin/InstructCoder": "instructcoder"}
"""Hugging Face datasets whose lengths a preset has."""
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
_VLLM: dict[str, type] = {
    **dict.fromkeys(("input-len", "output-len", "sharegpt-output-len", "hf-output-len"), int),
    **{
        f"{name}-{which}-len": int for name in ("random", "sonnet", "custom") for which in ("input", "output")
    },
    **{
        f"prefix-repetition-{what}": int
        for what in ("prefix-len", "suffix-len", "num-prefixes", "output-len")
    },
    **dict.fromkeys(("ramp-up-start-rps", "ramp-up-end-rps"), float),
}
_SGLANG: dict[str, type] = {
    **dict.fromkeys(("random-input-len", "random-output-len", "random-input", "random-output"), int),
    **{f"gsp-{what}": int for what in ("num-groups", "prompts-per-group", "system-prompt-len")},
    **dict.fromkeys(("gsp-question-len", "gsp-output-len", "sharegpt-output-len"), int),
}
_FROM_0 = ("temperature", "num_warmups", "random_prefix_len")
"""Numbers that may be 0."""
_RAMP_STRETCHES = 20
"""A rate that grows from request to request is as many stretches of one rate each."""
_LIMITS = {"ttft": "ttft_ms", "tpot": "tpot_ms", "e2el": "e2el_ms"}
"""`--goodput` -> key of `slo`."""


class _Bench(argparse.ArgumentParser):
    """Says what is wrong in place of ending the process."""

    def __init__(self, tool: str) -> None:
        super().__init__(add_help=False)
        self.tool = tool

    def error(self, message: str) -> NoReturn:
        raise LineFault("bench", self.tool, message)


def vllm_bench(words: Sequence[str], loops: Mapping[str, Sequence[str]]) -> Sent:
    """What `vllm bench serve` sends.

    Args:
        words: its arguments.
        loops: variables of shell loops around it, and their values.

    Raises:
        LineFault: a value of the wrong type, or out of range.
    """
    looped = unlooped(words, loops)
    said = _read("vllm bench serve", looped.words, _VLLM, "random")
    sent = _lengths(said, said.dataset_name.replace("_", "-"))
    sent.workload = _load(said) | sent.workload
    _ramp(sent, said)
    _goodput(sent, said.goodput or [])
    return _swept(sent, looped)


def sglang_bench(words: Sequence[str], loops: Mapping[str, Sequence[str]]) -> Sent:
    """What `sglang.bench_serving` sends; arguments and errors as of `vllm_bench`."""
    tool, looped = "sglang.bench_serving", unlooped(words, loops)
    said = _read(tool, looped.words, _SGLANG, "sharegpt")
    sent = Sent(_load(said))
    if said.dataset_name == "generated-shared-prefix":
        groups, each = said.gsp_num_groups or 64, said.gsp_prompts_per_group or 16
        prefix, question = said.gsp_system_prompt_len or 2048, said.gsp_question_len or 128
        sent.workload |= {
            "num_prompts": groups * each,
            "input_len": prefix + question,
            "output_len": said.gsp_output_len or 256,
            "prefix": {"tokens": prefix, "groups": groups},
        }
    elif said.dataset_name.startswith("random"):
        _from_ratio(sent, said, tool)
    else:
        _preset(sent, said.dataset_name, said.sharegpt_output_len)
    return _swept(sent, looped)


def _lengths(said: argparse.Namespace, dataset: str) -> Sent:
    """Lengths of vLLM's datasets."""
    sent, named = Sent({}), dataset.replace("-", "_")
    prompt, output = _LENGTHS.get(dataset, (0, 0))
    prompt = said.input_len or getattr(said, f"{named}_input_len", None) or prompt
    output = said.output_len or getattr(said, f"{named}_output_len", None) or output
    if dataset == "prefix-repetition":
        before = said.prefix_repetition_prefix_len or 256
        prompt = said.prefix_repetition_suffix_len or prompt
        sent.workload = {"input_len": before + prompt, "output_len": output}
        sent.workload["prefix"] = {"tokens": before, "groups": said.prefix_repetition_num_prefixes or 10}
    elif not (prompt and output):
        _preset(sent, said.dataset_path if dataset == "hf" else dataset, output)
    elif not (ratio := said.random_range_ratio or 0.0) or dataset != "random":
        sent.workload = _with_prefix({"input_len": prompt, "output_len": output}, said.random_prefix_len)
    else:
        spread = _checked(ratio, 0.0 <= ratio < 1.0, "from 0 to below 1", "vllm bench serve")
        around = (Uniform.around(tokens, spread) for tokens in (prompt, output))
        laws = {
            key: {"uniform": {"low": law.min, "high": law.max}}
            for key, law in zip(("input", "output"), around, strict=True)
        }
        sent.workload = _with_prefix(laws, said.random_prefix_len)
        sent.notes.append(
            f"--random-range-ratio {ratio:g} is read as vLLM's: lengths within {ratio:.0%} of those stated"
        )
    return sent


def _from_ratio(sent: Sent, said: argparse.Namespace, tool: str) -> None:
    """SGLang's random lengths."""
    ratio = said.random_range_ratio if said.random_range_ratio is not None else 0.0
    ratio = _checked(ratio, 0.0 <= ratio <= 1.0, "from 0 to 1", tool)
    for key, given in (
        ("input", said.random_input_len or said.random_input or 1024),
        ("output", said.random_output_len or said.random_output or 1024),
    ):
        if ratio == 1.0:
            sent.workload[f"{key}_len"] = given
        else:
            sent.workload[key] = {"uniform": {"low": max(1, int(given * ratio)), "high": given}}
    sent.notes.append(
        f"--random-range-ratio {ratio:g} is read as SGLang's: lengths from {ratio:g} of those stated up"
    )


def _preset(sent: Sent, dataset: str | None, output: int | None) -> None:
    """A dataset whose lengths the line does not have: those of its preset, or of chat."""
    preset = _DATASETS.get(str(dataset), _SHAREGPT)
    law, prompts = profiles.preset(preset).input, "lengths"
    if output and isinstance(law, Empirical):
        pairs = [[percentile, round(at)] for percentile, at in zip(law.percentiles, law.values, strict=True)]
        sent.workload |= {"input": {"quantiles": pairs}, "output_len": output}
        prompts = "prompts"
    else:
        sent.workload["preset"] = preset
    if preset == _SHAREGPT:
        sent.notes.append(f"{prompts} of dataset {dataset} are not in the line: preset {preset} is taken")


def _read(tool: str, words: Sequence[str], more: Mapping[str, type], dataset: str) -> argparse.Namespace:
    """The flags that say what is sent; others of the tool are read past."""
    parser = _Bench(tool)
    for name, kind in {**_NUMBERS, **more}.items():
        parser.add_argument(f"--{name}", type=kind)
    parser.add_argument("--dataset-name", default=dataset)
    parser.add_argument("--dataset-path")
    parser.add_argument("--ramp-up-strategy", choices=("linear", "exponential"))
    parser.add_argument("--goodput", nargs="+")
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


def _ramp(sent: Sent, said: argparse.Namespace) -> None:
    """`--ramp-up-strategy`: a rate that grows with each request, from the first to the last."""
    if said.ramp_up_strategy is None:
        return
    begin, end = said.ramp_up_start_rps, said.ramp_up_end_rps
    if begin is None or end is None:
        raise LineFault(
            "bench", "vllm bench serve", "--ramp-up-strategy needs --ramp-up-start-rps and --ramp-up-end-rps"
        )
    total = sent.workload.pop("num_prompts")
    sent.workload.pop("request_rate", None)
    stretches = min(_RAMP_STRETCHES, total)
    edges = [total * i // stretches for i in range(stretches + 1)]
    phases = []
    for first, last in itertools.pairwise(edges):
        progress = ((first + last - 1) / 2) / max(total - 1, 1)
        rate = (
            begin + (end - begin) * progress
            if said.ramp_up_strategy == "linear"
            else begin * (end / begin) ** progress
        )
        phases.append({"num_prompts": last - first, "request_rate": round(rate, 4)})
    sent.workload["phases"] = phases
    sent.notes.append(f"--ramp-up-strategy: {stretches} stretches from {begin:g} to {end:g} requests/s")


def _goodput(sent: Sent, limits: Sequence[str]) -> None:
    """`--goodput ttft:500 tpot:50`: limits of a request."""
    for limit in limits:
        name, _, value = limit.partition(":")
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if name not in _LIMITS or not number > 0:
            known = ", ".join(_LIMITS)
            raise LineFault(
                "bench", "vllm bench serve", f"--goodput {limit}: write NAME:MS, with one of {known}"
            )
        sent.slo[_LIMITS[name]] = number


def _swept(sent: Sent, looped: Looped) -> Sent:
    """Loops around the benchmark as axes of a sweep."""
    for flag, values in looped.axes.items():
        if flag in sent.workload:
            sent.axes[f"workload.{flag}"] = values
    if looped.per_concurrency and "num_prompts" in sent.workload:
        sent.workload["num_prompts"] = {"per_concurrency": looped.per_concurrency}
    return sent


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
