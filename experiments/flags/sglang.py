"""`python -m sglang.launch_server`: its flags as keys of `serve:`. Names as in SGLang 0.5."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, NoReturn

from specfleet.experiments.flags import every
from specfleet.experiments.flags.faults import LineFault, together
from specfleet.experiments.flags.sglang_table import attention_by_itself, listed

METHODS = {
    "EAGLE": "eagle",
    "EAGLE3": "eagle3",
    "NEXTN": "mtp",
    "STANDALONE": "draft_model",
    "NGRAM": "ngram",
    "DFLASH": "dflash",
    "DSPARK": "dspark",
}
"""`--speculative-algorithm` -> vLLM's method."""
NAMED_DRAFTERS = ("eagle", "eagle3", "draft_model", "dflash")
"""Methods whose drafter has a name of its own."""

_KEYS: dict[str, tuple[type, str]] = {
    "model-path": (str, "model"),
    "tp-size": (int, "tensor_parallel_size"),
    "context-length": (int, "max_model_len"),
    "max-running-requests": (int, "max_num_seqs"),
    "chunked-prefill-size": (int, "max_num_batched_tokens"),
    "max-total-tokens": (int, "max_total_tokens"),
    "mem-fraction-static": (float, "gpu_memory_utilization"),
    "page-size": (int, "block_size"),
    "quantization": (str, "quantization"),
    "dtype": (str, "dtype"),
    "kv-cache-dtype": (str, "kv_cache_dtype"),
    "dp-size": (int, "dp"),
    "ep-size": (int, "expert_parallel_size"),
    "speculative-algorithm": (str, "algorithm"),
    "speculative-draft-model-path": (str, "draft"),
    "speculative-num-steps": (int, "steps"),
    "speculative-eagle-topk": (int, "topk"),
    "speculative-num-draft-tokens": (int, "drafts"),
    "speculative-dflash-block-size": (int, "dflash_block"),
    "speculative-dspark-block-size": (int, "dspark_block"),
}
_NOT_OF_SERVE = {"algorithm", "draft", "steps", "topk", "drafts", "dp", "dflash_block", "dspark_block"}
_ALIASES = {
    "model-path": ("--model",),
    "tp-size": ("--tp", "--tensor-parallel-size"),
    "dp-size": ("--dp", "--data-parallel-size"),
    "ep-size": ("--ep", "--expert-parallel-size"),
    "speculative-draft-model-path": ("--speculative-draft-model",),
    "cuda-graph-max-bs": ("--cuda-graph-max-bs-decode",),
}
_SCHEDULER: dict[str, type] = {
    "schedule-policy": str,
    "schedule-conservativeness": float,
    "max-prefill-tokens": int,
    "prefill-max-requests": int,
    "priority-scheduling-preemption-threshold": int,
    "retraction-policy": str,
    "cuda-graph-max-bs": int,
}
_SCHEDULER_SWITCHES = (
    "enable-mixed-chunk",
    "enable-priority-scheduling",
    "schedule-low-priority-values-first",
    "disable-priority-preemption",
)
_SWITCHES = ("disable-radix-cache", "disable-overlap-schedule", "enable-dp-attention", "speculative-adaptive")
_ADAPTIVE_STEPS = (1, 3, 7)
"""Among which `--speculative-adaptive` chooses, where its file of settings says nothing."""
_OF_THE_SERVER = {
    "--max-running-requests": "max_num_seqs",
    "--chunked-prefill-size": "max_num_batched_tokens",
}
"""What SGLang divides among the ranks of DP attention."""


@dataclass
class Read:
    """What a line says: keys of `serve:` and `deployment:`, what is to be said, what is refused (and why)."""

    serve: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    deployment: dict[str, Any] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


class _Server(argparse.ArgumentParser):
    """Says what is wrong in place of ending the process."""

    def error(self, message: str) -> NoReturn:
        match = re.match(r"argument ([^:]+): (.*)", message, re.DOTALL)
        if match is None:
            option = message.split()[2] if message.startswith("ambiguous option") else ""
            raise LineFault("sglang", "", message, option=option)
        name, said = match[1].split("/")[0], match[2]
        said = "needs a value; add it" if said.startswith("expected") else f"{said}; give a plain number"
        raise LineFault("wrong_type", name, said)


def _parser() -> _Server:
    parser = _Server(add_help=False, argument_default=argparse.SUPPRESS)
    for flag, (kind, key) in _KEYS.items():
        parser.add_argument(f"--{flag}", *_ALIASES.get(flag, ()), type=kind, dest=key)
    for flag, kind in _SCHEDULER.items():
        parser.add_argument(f"--{flag}", *_ALIASES.get(flag, ()), type=kind, dest=f"sglang.{flag}")
    parser.add_argument("--cuda-graph-bs", "--cuda-graph-bs-decode", type=int, nargs="+", dest="graphs")
    for flag in _SCHEDULER_SWITCHES:
        parser.add_argument(f"--{flag}", action="store_true", dest=f"sglang.{flag}")
    for flag in _SWITCHES:
        parser.add_argument(f"--{flag}", action="store_true")
    for one in listed().values():
        more: dict[str, Any] = {"action": "store_true"} if one.values == "0" else {"nargs": "+"}
        parser.add_argument(f"--{one.name}", dest=f"x.{one.name}", **more)
    return parser


def takes(option: str) -> int | None:
    """The values that an option takes: 0 of a switch, None where it is not known."""
    name = option.lstrip("-")
    if name in listed():
        return int(listed()[name].values != "0")
    if name in (*_SWITCHES, *_SCHEDULER_SWITCHES):
        return 0
    return 1 if name in {*_KEYS, *_SCHEDULER} else None


def is_harmless(option: str) -> bool:
    """Whether an option changes no prediction."""
    found = listed().get(option.lstrip("-"))
    return found is not None and found.harmless


def read(
    words: Sequence[str],
    own_layers: Callable[[str], bool] = lambda model: False,
    compute_capability: float = 9.0,
) -> Read:
    """The `serve:` keys of a launch line.

    Args:
        words: of the line, from its first flag on.
        own_layers: whether a model of this name has layers that draft.
        compute_capability: of the GPU that it runs on.

    Raises:
        LineFault: no model, with all else that is wrong.
    """
    parser = _parser()
    options = [option for action in parser._actions for option in action.option_strings]

    def spellings(name: str) -> Sequence[str]:
        return next((a.option_strings for a in parser._actions if name in a.option_strings), [])

    def unknown(word: str) -> str:
        if not word.startswith("-"):
            return "is no flag; quote it with the value it belongs to"
        near = get_close_matches(word.split("=")[0], options, n=1)
        return f"is not known here; {f'did you mean {near[0]}?' if near else 'remove it'}"

    plain = [_dashed(word) for word in words]
    said, faults = every.parsed(parser, plain, spellings, unknown)
    if "model" not in said:
        raise together(
            [LineFault("missing_model", "model", "no model is named; write --model-path MODEL"), *faults]
        )
    this = _translated(vars(said), own_layers, compute_capability)
    this.refused = {fault.name or fault.option: fault.message for fault in faults} | this.refused
    return this


def _dashed(word: str) -> str:
    """An option with dashes, whatever it was written with."""
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value if word.startswith("--") else word


def _translated(said: dict[str, Any], own_layers: Callable[[str], bool], capability: float) -> Read:
    names = {key for _, key in _KEYS.values()} - _NOT_OF_SERVE
    serve = {key: value for key, value in said.items() if key in names}
    this = Read(serve)
    for name in ("dtype", "kv_cache_dtype"):
        if serve.get(name) == "auto":
            del serve[name]
    if str(serve.get("kv_cache_dtype", "")).startswith("fp8"):
        serve["kv_cache_dtype"] = "fp8"
    if serve.get("kv_cache_dtype") in ("bf16", "bfloat16"):
        del serve["kv_cache_dtype"]
    if serve.get("dtype") == "half":
        serve["dtype"] = "float16"
    if serve.get("max_num_batched_tokens") == -1:
        del serve["max_num_batched_tokens"]
        serve["enable_chunked_prefill"] = False
    if said.get("disable_radix_cache"):
        serve["enable_prefix_caching"] = False
    if said.get("disable_overlap_schedule"):
        serve["async_scheduling"] = False
    _data_parallel(this, said.get("dp", 1), bool(said.get("enable_dp_attention")))
    own = {
        key.removeprefix("sglang.").replace("-", "_"): v
        for key, v in said.items()
        if key.startswith("sglang.")
    }
    if "graphs" in said:
        own["cuda_graph_bs"] = sorted(set(said["graphs"]))
    if own:
        serve["sglang"] = own
    _listed(this, said, attention_by_itself(capability, said.get("topk") or 1))
    _speculation(this, said, own_layers)
    return this


def _listed(this: Read, said: dict[str, Any], attention: tuple[str, ...]) -> None:
    """Flags that say nothing in `serve:`."""
    given = {key.removeprefix("x."): value for key, value in said.items() if key.startswith("x.")}
    harmless = []
    for name in sorted(given):
        if listed()[name].refuses(given[name], attention):
            this.refused[f"--{name}"] = f"is not simulated: {listed()[name].why}"
        else:
            harmless.append(name)
    if harmless:
        this.notes.append(f"without effect on the prediction: {', '.join(harmless)}")


def _data_parallel(this: Read, dp: int, attention: bool) -> None:
    """Data-parallel ranks: a part of the GPUs each with DP attention, else as many servers."""
    if dp <= 1:
        return
    if not attention:
        this.deployment = {"replicas": dp, "router": "round_robin"}
        this.notes.append(f"--dp-size {dp}: as many replicas behind a round_robin router")
        return
    gpus = this.serve.get("tensor_parallel_size", 1)
    if gpus % dp:
        this.refused["--dp-size"] = f"{dp} does not divide --tp-size {gpus}, as --enable-dp-attention needs"
        return
    this.serve |= {"tensor_parallel_size": gpus // dp, "data_parallel_size": dp}
    this.deployment = {"router": "round_robin"}
    each = "1 GPU" if gpus == dp else f"{gpus // dp} GPUs"
    this.notes.append(
        f"--enable-dp-attention: {dp} ranks of {each} for attention that share the experts and "
        "step together, behind a round_robin router"
    )
    for flag, key in _OF_THE_SERVER.items():
        if key not in this.serve or not this.serve[key]:
            continue
        if this.serve[key] < dp:
            this.refused[flag] = f"{this.serve[key]} leaves nothing for each of {dp} ranks; give {dp} or more"
            continue
        this.notes.append(f"{flag} {this.serve[key]} is the server's: each rank has {this.serve[key] // dp}")
        this.serve[key] //= dp


def _speculation(this: Read, said: dict[str, Any], own_layers: Callable[[str], bool]) -> None:
    """A chain of K drafts, or a tree by its three numbers.

    EAGLE without a drafter is what NEXTN is: layers of the model's own draft, where it has them.
    """
    algorithm = said.get("algorithm")
    if algorithm is None:
        return
    method = METHODS.get(algorithm.upper())
    if method is None:
        this.refused["--speculative-algorithm"] = f"{algorithm} is none of {', '.join(METHODS)}"
        return
    steps, topk, drafts = said.get("steps"), said.get("topk"), said.get("drafts")
    if method == "dflash":
        drafts = said.get("dflash_block", drafts)
    if method == "dspark" and "dspark_block" in said:
        drafts = said["dspark_block"] + 1
    if steps is None and topk is None and drafts is None and method != "ngram":
        llama = "llama" in str(said["model"]).lower()
        steps, topk, drafts = (5, 4, 8) if llama else (3, 1, 4)
        this.notes.append(
            f"SGLang's own steps, topk and draft tokens for this model: {steps}, {topk}, {drafts}"
        )
    if method == "eagle" and said.get("draft", said["model"]) == said["model"] and own_layers(said["model"]):
        method = "mtp"
        said.pop("draft", None)
        this.notes.append(f"{algorithm} without a drafter of its own: the model's MTP layers draft")
    if method in NAMED_DRAFTERS and "draft" not in said:
        this.refused["--speculative-draft-model-path"] = (
            f"{algorithm} needs a drafter; name it, or write NEXTN where the model's own layers draft"
        )
    k = steps if steps is not None else (drafts or 9) - 1
    config: dict[str, Any] = {"method": method, "model": said.get("draft")}
    if "draft" not in said:
        del config["model"]
    if (topk or 1) > 1:
        this.serve["draft_tree"] = {"sglang": {"steps": k, "topk": topk, "num_draft_tokens": drafts or k + 1}}
        k = (drafts or k + 1) - 1
    if said.get("speculative_adaptive"):
        k = max(k, *_ADAPTIVE_STEPS)
        this.serve["draft_policy"] = {"adaptive_tiers": {"tiers": sorted({*_ADAPTIVE_STEPS, k})}}
        this.notes.append(
            f"--speculative-adaptive: steps of {_ADAPTIVE_STEPS}, SGLang's own, as draft_policy"
        )
    this.serve["speculative_config"] = config | {"num_speculative_tokens": k}
    if "max_num_seqs" not in this.serve:
        this.notes.append(
            "SGLang runs 48 requests at most with speculation where --max-running-requests is left out, and "
            "thousands without: max_num_seqs is left out here, too"
        )
