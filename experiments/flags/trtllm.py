"""`trtllm-serve`: its flags, and the keys of its `--config` file, as keys of `serve:`.

Names after the pages "trtllm-serve", "LLM API Reference" and "Speculative Decoding" at
nvidia.github.io/TensorRT-LLM. What the file says stands in place of what the flags say, as there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from specfleet.experiments.flags.faults import LineFault, together
from specfleet.experiments.flags.sglang import Read

_KEYS: dict[str, tuple[type, str]] = {
    "tp_size": (int, "tensor_parallel_size"),
    "tensor_parallel_size": (int, "tensor_parallel_size"),
    "ep_size": (int, "expert_parallel_size"),
    "moe_expert_parallel_size": (int, "expert_parallel_size"),
    "max_batch_size": (int, "max_num_seqs"),
    "max_num_tokens": (int, "max_num_batched_tokens"),
    "max_seq_len": (int, "max_model_len"),
    "kv_cache_free_gpu_memory_fraction": (float, "gpu_memory_utilization"),
    "free_gpu_memory_fraction": (float, "gpu_memory_utilization"),
    "kv_cache_dtype": (str, "kv_cache_dtype"),
    "dtype": (str, "dtype"),
    "enable_chunked_prefill": (bool, "enable_chunked_prefill"),
    "disable_overlap_scheduler": (bool, "async_scheduling"),
}
_KV = {
    "free_gpu_memory_fraction": (float, "gpu_memory_utilization"),
    "tokens_per_block": (int, "block_size"),
    "enable_block_reuse": (bool, "enable_prefix_caching"),
    "dtype": (str, "kv_cache_dtype"),
    "max_tokens": (int, "num_gpu_blocks_override"),
}
_DECODING = {
    "EAGLE": "eagle3",
    "EAGLE3": "eagle3",
    "MTP": "mtp",
    "NGRAM": "ngram",
    "DRAFTTARGET": "draft_model",
}
"""`decoding_type` -> vLLM's method. Its PyTorch engine takes EAGLE-3 heads as either."""
_FILES = ("config", "extra_llm_api_options")
_SWITCHES = ("trust_remote_code", "enable_chunked_prefill", "fail_fast_on_attention_window_too_large")
_HARMLESS = (
    *("host", "port", "tokenizer", "custom_tokenizer", "log_level", "num_postprocess_workers", "revision"),
    *("trust_remote_code", "reasoning_parser", "tool_parser", "served_model_name", "chat_template"),
    *("otlp_traces_endpoint", "gpus_per_node", "fail_fast_on_attention_window_too_large"),
    *("print_iter_log", "enable_iter_perf_stats", "enable_iter_req_stats", "return_perf_metrics"),
)
_REFUSED = {
    "pp_size": "layers on several GPUs in turn are not simulated; the nearest is --tp_size",
    "cp_size": "contexts on several GPUs are not simulated",
    "max_beam_width": "beams are not simulated",
    "cluster_size": "links between nodes are not modelled",
    "stream_interval": "tokens are sent as they come",
    "enable_attention_dp": "attention that is data-parallel is not simulated under TensorRT-LLM",
}
"""What is refused unless it is 1 or false, and why."""
_KNOWN = frozenset((*_KEYS, *_FILES, *_HARMLESS, *_REFUSED, "backend"))
_GRAPHS, _EXPERTS = "cuda_graph_config", "moe_config"


def read(words: Sequence[str], files: Mapping[str, str], here: Path | None = None) -> Read:
    """The `serve:` keys of a line.

    Args:
        words: of the line, behind `trtllm-serve`.
        files: contents of files that the same text writes, by the name that it writes them to.
        here: where the path of `--config` is seen from.

    Raises:
        LineFault: an unknown flag, a value of the wrong type, a file that cannot be read, or no model.
    """
    model, flags, refused = _split(words)
    if model is None:
        missing = LineFault("missing_model", "model", "no model is named; write trtllm-serve MODEL ...")
        raise together([missing, *(LineFault("refused", name, said) for name, said in refused.items())])
    this = Read({"model": model}, refused=refused)
    paths = [flags.pop(name) for name in _FILES if name in flags]
    backend = flags.pop("backend", "pytorch")
    if backend != "pytorch":
        this.refused["--backend"] = f"{backend} is not simulated; use pytorch"
    for name, value in flags.items():
        _take(this, f"--{name}", name, _number(value))
    for path in paths:
        for name, value in _options(str(path), files, here).items():
            _from_file(this, str(name), value)
    block = this.serve.get("block_size", 32)
    if "num_gpu_blocks_override" in this.serve:
        this.serve["num_gpu_blocks_override"] //= block
    if "enable_chunked_prefill" not in this.serve:
        this.serve["enable_chunked_prefill"] = False
        this.notes.append("TensorRT-LLM does not cut prompts unless enable_chunked_prefill is given")
    return this


def takes(option: str) -> int | None:
    """The values that an option takes: 0 of a switch, None where it is not known."""
    name = option.lstrip("-").replace("-", "_")
    return 0 if name in _SWITCHES else 1 if name in _KNOWN else None


def is_harmless(option: str) -> bool:
    """Whether an option changes no prediction."""
    return option.lstrip("-").replace("-", "_") in _HARMLESS


def _split(words: Sequence[str]) -> tuple[str | None, dict[str, Any], dict[str, str]]:
    """The model, flags with their values, and what is wrong with the others."""
    model: str | None = None
    flags: dict[str, Any] = {}
    refused: dict[str, str] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            if model is not None:
                refused[word] = "is no flag; quote it with the value it belongs to"
            model = model or word
            continue
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        has_value = bool(rest) and not rest[0].startswith("--")
        if name not in _KNOWN:
            near = get_close_matches(name, _KNOWN, n=1)
            refused[word] = f"is not known here; {f'did you mean --{near[0]}?' if near else 'remove it'}"
            if has_value and not equals and model is not None:
                rest.pop(0)
        elif not equals and name not in _SWITCHES and not has_value:
            refused[word] = "needs a value"
        else:
            flags[name] = value if equals else True if name in _SWITCHES else rest.pop(0)
    return model, flags, refused


def _number(value: Any) -> Any:
    """A flag's value as YAML would read it."""
    try:
        return yaml.safe_load(value) if isinstance(value, str) else value
    except yaml.YAMLError:
        return value


def _options(path: str, files: Mapping[str, str], here: Path | None) -> dict[str, Any]:
    """What a file of options says: one that the text writes, else one on this machine."""
    text = files.get(path)
    if text is None and "$" in path and len(files) == 1:
        (text,) = files.values()
    try:
        content = yaml.safe_load(text if text is not None else ((here or Path()) / path).read_text("utf-8"))
    except OSError as error:
        raise LineFault("config", "--config", f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise LineFault("config", "--config", f"{path} is no YAML: {error}") from None
    if not isinstance(content, dict):
        raise LineFault("config", "--config", f"{path} must be a mapping of options to values")
    return content


def _from_file(this: Read, name: str, value: Any) -> None:
    """Takes an option of the file."""
    inside = {"kv_cache_config": _kv, "scheduler_config": _scheduler, "speculative_config": _speculation}
    if name in inside:
        if not isinstance(value, dict):
            raise LineFault("config", name, "must be a mapping")
        inside[name](this, value)
    elif name in (_GRAPHS, _EXPERTS):
        what = "the profile's ladder is" if name == _GRAPHS else "the kernels that were measured are"
        this.notes.append(f"{name} is read past: {what} simulated")
    else:
        _take(this, name, name, value)


def _take(this: Read, said: str, name: str, value: Any) -> None:
    """Takes a flag, or an option by the same name."""
    if name in _HARMLESS:
        start = "without effect on the prediction: "
        known = next((i for i, note in enumerate(this.notes) if note.startswith(start)), None)
        if known is None:
            this.notes.append(start + name)
        else:
            this.notes[known] += f", {name}"
    elif name in _REFUSED:
        if value is True or value not in (1, False):
            this.refused[said] = f"is not simulated: {_REFUSED[name]}"
    elif name in _KEYS:
        _set(this, said, *_KEYS[name], value)
    else:
        this.refused[said] = "is not simulated; remove it"


def _set(this: Read, said: str, kind: type, key: str, value: Any) -> None:
    """Sets a key of `serve:`; a value of another type is refused."""
    fits = isinstance(value, bool) if kind is bool else not isinstance(value, bool)
    if not fits or not isinstance(value, (int, float) if kind is float else kind):
        this.refused[said] = f"is {value!r}; give a value of type {kind.__name__}"
        return
    if key == "async_scheduling":
        value = not value
    if key in ("dtype", "kv_cache_dtype") and value == "auto":
        return
    if key in this.serve and this.serve[key] != value:
        this.notes.append(f"{said} stands in place of {key.replace('_', ' ')} {this.serve[key]} of the flags")
    this.serve[key] = value


def _kv(this: Read, block: dict[str, Any]) -> None:
    for name, value in block.items():
        if name in _KV:
            _set(this, f"kv_cache_config.{name}", *_KV[name], value)
        else:
            this.refused[f"kv_cache_config.{name}"] = "is not simulated; remove it"


def _scheduler(this: Read, block: dict[str, Any]) -> None:
    for name, value in block.items():
        if name == "capacity_scheduler_policy":
            this.serve[name] = value
        elif name != "context_chunking_policy" or value not in (None, "FIRST_COME_FIRST_SERVED"):
            this.refused[f"scheduler_config.{name}"] = f"{value!r} is not simulated; remove it"


def _speculation(this: Read, block: dict[str, Any]) -> None:
    """A chain of `max_draft_len` drafts."""
    kind = str(block.get("decoding_type", ""))
    method = _DECODING.get(kind.upper().replace("_", ""))
    if method is None:
        known = ", ".join(("Eagle3", "MTP", "NGram", "DraftTarget"))
        this.refused["speculative_config.decoding_type"] = f"is {kind!r}; use one of {known}"
        return
    k = block.get("max_draft_len", block.get("num_nextn_predict_layers"))
    if not isinstance(k, int):
        raise LineFault(
            "missing_value", "speculative_config.max_draft_len", "is missing; give the drafts a step"
        )
    config: dict[str, Any] = {"method": method}
    named = block.get("speculative_model", block.get("speculative_model_dir"))
    if method in ("eagle3", "draft_model"):
        if named is None:
            raise LineFault(
                "missing_value", "speculative_config.speculative_model", "is missing; name the drafter"
            )
        config["model"] = str(named)
    config["num_speculative_tokens"] = k
    if method == "ngram" and "max_matching_ngram_size" in block:
        config["prompt_lookup_max"] = block["max_matching_ngram_size"]
    taken = {"decoding_type", "max_draft_len", "num_nextn_predict_layers", "speculative_model"}
    taken |= {"speculative_model_dir", "max_matching_ngram_size", "eagle3_one_model"}
    for name in sorted(block.keys() - taken):
        this.refused[f"speculative_config.{name}"] = "is not simulated; remove it"
    this.serve["speculative_config"] = config
