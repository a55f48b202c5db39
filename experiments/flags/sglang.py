"""`python -m sglang.launch_server`: its flags as keys of `serve:`. Names as in SGLang 0.5."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, NoReturn

from specfleet.experiments.flags.faults import LineFault

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
    "cuda-graph-max-bs": (int, "cuda_graph_max_bs"),
    "dp-size": (int, "dp"),
    "ep-size": (int, "expert_parallel_size"),
    "speculative-algorithm": (str, "algorithm"),
    "speculative-draft-model-path": (str, "draft"),
    "speculative-num-steps": (int, "steps"),
    "speculative-eagle-topk": (int, "topk"),
    "speculative-num-draft-tokens": (int, "drafts"),
}
_ALIASES = {
    "model-path": ("--model",),
    "tp-size": ("--tp", "--tensor-parallel-size"),
    "dp-size": ("--dp", "--data-parallel-size"),
    "ep-size": ("--ep", "--expert-parallel-size"),
    "speculative-draft-model-path": ("--speculative-draft-model",),
}
_SCHEDULER: dict[str, type] = {
    "schedule-policy": str,
    "schedule-conservativeness": float,
    "max-prefill-tokens": int,
    "prefill-max-requests": int,
    "priority-scheduling-preemption-threshold": int,
    "retraction-policy": str,
}
_SCHEDULER_SWITCHES = (
    "enable-mixed-chunk",
    "enable-priority-scheduling",
    "schedule-low-priority-values-first",
    "disable-priority-preemption",
)
_HARMLESS = (
    *("host", "port", "served-model-name", "chat-template", "tokenizer-path", "tokenizer-mode", "api-key"),
    *(
        "log-level",
        "log-level-http",
        "random-seed",
        "download-dir",
        "load-format",
        "revision",
        "watchdog-timeout",
    ),
    *("reasoning-parser", "tool-call-parser", "tokenizer-worker-num", "nccl-port", "dist-init-addr"),
    *(
        "decode-log-interval",
        "device",
        "base-gpu-id",
        "sampling-backend",
        "grammar-backend",
        "file-storage-path",
    ),
)
_HARMLESS_SWITCHES = (
    *("trust-remote-code", "skip-tokenizer-init", "log-requests", "enable-metrics", "show-time-cost"),
    *("skip-server-warmup", "enable-cache-report", "disable-fast-image-processor", "allow-auto-truncate"),
)
_OF_THE_SERVER = {
    "--max-running-requests": "max_num_seqs",
    "--chunked-prefill-size": "max_num_batched_tokens",
}
"""What SGLang divides among the ranks of DP attention."""
_STAGES = "stages under SGLang's scheduler are not simulated (vLLM's are); the nearest is --tp-size"
_REFUSED = {
    "pp-size": _STAGES,
    "pipeline-parallel-size": _STAGES,
    "nnodes": "links between nodes are not modelled",
    "attention-backend": "only the kernel that SGLang chooses by itself has been timed",
    "moe-runner-backend": "only the kernel that SGLang chooses by itself has been timed",
    "disaggregation-mode": "prefill and decode on different servers are not simulated",
    "stream-interval": "tokens are sent as they come",
    "lora-paths": "adapters are not modelled",
    "cpu-offload-gb": "weights in host memory are not priced",
    "hicache-ratio": "KV kept in host memory is not modelled",
    "speculative-token-map": "the head's vocabulary is that of the catalogue",
    "max-queued-requests": "requests turned away are not simulated: all wait",
}
_REFUSED_SWITCHES = {
    "disable-cuda-graph": "a step without CUDA graphs has not been timed",
    "enable-torch-compile": "compiled kernels have not been timed",
    "enable-two-batch-overlap": "half batches that overlap are not priced",
    "enable-hierarchical-cache": "KV kept in host memory is not modelled",
    "enable-lora": "adapters are not modelled",
    "enable-eplb": "moving experts is not priced",
}


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
        raise LineFault("sglang", "sglang.launch_server", message)


def read(words: Sequence[str], own_layers: Callable[[str], bool] = lambda model: False) -> Read:
    """The `serve:` keys of a launch line.

    Args:
        words: of the line, from its first flag on.
        own_layers: whether a model of this name has layers that draft.

    Raises:
        LineFault: an unknown flag, a value of the wrong type, or no model.
    """
    parser = _Server(add_help=False, argument_default=argparse.SUPPRESS)
    for flag, (kind, key) in _KEYS.items():
        parser.add_argument(f"--{flag}", *_ALIASES.get(flag, ()), type=kind, dest=key)
    for flag, kind in _SCHEDULER.items():
        parser.add_argument(f"--{flag}", type=kind, dest=f"sglang.{flag}")
    for flag in _SCHEDULER_SWITCHES:
        parser.add_argument(f"--{flag}", action="store_true", dest=f"sglang.{flag}")
    for flag in ("disable-radix-cache", "disable-overlap-schedule", "enable-dp-attention"):
        parser.add_argument(f"--{flag}", action="store_true")
    for flag in (*_HARMLESS, *_REFUSED):
        parser.add_argument(f"--{flag}", nargs="+", dest=f"x.{flag}")
    for flag in (*_HARMLESS_SWITCHES, *_REFUSED_SWITCHES):
        parser.add_argument(f"--{flag}", action="store_true", dest=f"x.{flag}")
    plain = [w.replace("_", "-") if w.startswith("--") and "=" not in w else w for w in words]
    said, rest = parser.parse_known_args(plain)
    if rest:
        known = [option for action in parser._actions for option in action.option_strings]
        near = get_close_matches(rest[0].split("=")[0], known, n=1)
        hint = f"did you mean {near[0]}?" if near else "remove it"
        raise LineFault("unknown_flag", rest[0], f"is not known here; {hint}")
    return _translated(vars(said), own_layers)


def _translated(said: dict[str, Any], own_layers: Callable[[str], bool]) -> Read:
    if "model" not in said:
        raise LineFault("missing_model", "model", "no model is named; write --model-path MODEL")
    names = {key for _, key in _KEYS.values()} - {"algorithm", "draft", "steps", "topk", "drafts", "dp"}
    serve = {key: value for key, value in said.items() if key in names and key != "cuda_graph_max_bs"}
    this = Read(serve)
    for name in ("dtype", "kv_cache_dtype"):
        if serve.get(name) == "auto":
            del serve[name]
    if str(serve.get("kv_cache_dtype", "")).startswith("fp8"):
        serve["kv_cache_dtype"] = "fp8"
    if serve.get("dtype") == "half":
        serve["dtype"] = "float16"
    if serve.get("max_num_batched_tokens") == -1:
        del serve["max_num_batched_tokens"]
        serve["enable_chunked_prefill"] = False
    if said.get("disable_radix_cache"):
        serve["enable_prefix_caching"] = False
    if said.get("disable_overlap_schedule"):
        serve["async_scheduling"] = False
    if (most := said.get("cuda_graph_max_bs")) is not None:
        this.refused["--cuda-graph-max-bs"] = (
            f"graphs up to {most} sequences; the profile's ladder is simulated"
        )
    _data_parallel(this, said.get("dp", 1), bool(said.get("enable_dp_attention")))
    own = {
        key.removeprefix("sglang.").replace("-", "_"): v
        for key, v in said.items()
        if key.startswith("sglang.")
    }
    if own:
        serve["sglang"] = own
    given = {key.removeprefix("x.") for key in said if key.startswith("x.")}
    for flag in sorted(given & {*_REFUSED, *_REFUSED_SWITCHES}):
        if said[f"x.{flag}"] == ["1"]:
            continue
        this.refused[f"--{flag}"] = f"is not simulated: {(_REFUSED | _REFUSED_SWITCHES)[flag]}"
    harmless = sorted(given & {*_HARMLESS, *_HARMLESS_SWITCHES})
    if harmless:
        this.notes.append(f"without effect on the prediction: {', '.join(harmless)}")
    _speculation(this, said, own_layers)
    return this


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
    this.serve["speculative_config"] = config | {"num_speculative_tokens": k}
    if "max_num_seqs" not in this.serve:
        this.notes.append(
            "SGLang runs 48 requests at most with speculation where --max-running-requests is left out, and "
            "thousands without: max_num_seqs is left out here, too"
        )
