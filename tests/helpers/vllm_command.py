"""What vLLM itself would refuse in a `vllm serve` command: flags, speculative config, and rules.

Written from vLLM's own fields and checks, apart from the code that writes the commands.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator

FLAGS = {
    "--tensor-parallel-size": int,
    "--quantization": str,
    "--dtype": str,
    "--kv-cache-dtype": str,
    "--max-model-len": int,
    "--max-num-seqs": int,
    "--max-num-batched-tokens": int,
    "--gpu-memory-utilization": float,
    "--block-size": int,
    "--scheduling-policy": str,
    "--long-prefill-token-threshold": int,
    "--num-gpu-blocks-override": int,
    "--kv-cache-memory-bytes": int,
    "--speculative-config": str,
    "--kv-transfer-config": str,
}
TRANSFER_FIELDS = {
    "kv_connector", "engine_id", "kv_buffer_device", "kv_buffer_size", "kv_role", "kv_rank",
    "kv_parallel_size", "kv_ip", "kv_port", "kv_connector_extra_config", "kv_connector_module_path",
    "enable_permute_local_kv", "kv_load_failure_policy",
}  # fmt: skip
SWITCHES = {"enable-prefix-caching", "enable-chunked-prefill", "async-scheduling"}
CHOICES = {
    "--dtype": {"auto", "half", "float16", "bfloat16", "float", "float32"},
    "--quantization": {"fp8", "awq", "gptq", "compressed-tensors", "bitsandbytes"},
    "--kv-cache-dtype": {"auto", "fp8", "fp8_e4m3", "fp8_e5m2", "bfloat16"},
    "--scheduling-policy": {"fcfs", "priority"},
}
METHODS = {
    "ngram", "ngram_gpu", "medusa", "mlp_speculator", "draft_model", "suffix", "custom_class", "eagle",
    "eagle3", "mtp", "dflash", "dspark", "extract_hidden_states",
}  # fmt: skip
WITHOUT_MODEL = {"ngram", "ngram_gpu", "suffix", "mtp", "dspark"}
FIELDS = {
    "method", "model", "num_speculative_tokens", "draft_tensor_parallel_size", "quantization",
    "moe_backend", "attention_backend", "kv_cache_dtype", "max_model_len", "enforce_eager", "revision",
    "code_revision", "draft_load_config", "disable_padded_drafter_batch", "disable_eagle_block_drop",
    "use_local_argmax_reduction", "use_heterogeneous_vocab", "prompt_lookup_max", "prompt_lookup_min",
    "parallel_drafting", "num_speculative_tokens_per_batch_size", "suffix_decoding_max_tree_depth",
    "suffix_decoding_max_cached_requests", "suffix_decoding_max_spec_factor",
    "suffix_decoding_min_token_prob", "rejection_sample_method", "draft_sample_method",
    "synthetic_acceptance_rates", "synthetic_acceptance_length", "enable_adaptive_verification",
    "dspark_draft_topk", "index_share_for_mtp_iteration",
}  # fmt: skip


def faults(command: str) -> list[str]:
    """Returns everything that vLLM would refuse in a command line; empty if it would start."""
    words = shlex.split(command.replace("\\\n", " "))
    if words[:2] != ["vllm", "serve"] or len(words) < 3 or words[2].startswith("--"):
        return ["not a `vllm serve MODEL` command"]
    values, found = _read(words[3:])
    return [*found, *_rules(values)]


def _read(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """Flags with their values, switches as "true" or "false", and what is wrong with them."""
    values: dict[str, str] = {}
    found: list[str] = []
    rest = iter(words)
    for flag in rest:
        name = flag.removeprefix("--").removeprefix("no-")
        if name in SWITCHES:
            values[f"--{name}"] = "false" if flag.startswith("--no-") else "true"
            continue
        if flag not in FLAGS:
            found.append(f"unrecognized argument {flag}")
            continue
        value = next(rest, None)
        if value is None or value.startswith("--"):
            found.append(f"{flag} expects a value")
            continue
        if flag in values:
            found.append(f"{flag} is given twice")
        try:
            FLAGS[flag](value)
        except ValueError:
            found.append(f"{flag} {value} is no {FLAGS[flag].__name__}")
            continue
        if value not in CHOICES.get(flag, {value}):
            found.append(f"{flag} {value} is no choice")
        values[flag] = value
    return values, found


def _rules(values: dict[str, str]) -> Iterator[str]:
    seqs, tokens = (int(values.get(f"--max-num-{key}", 0)) for key in ("seqs", "batched-tokens"))
    if tokens and seqs and tokens < seqs:
        yield "max_num_batched_tokens is below max_num_seqs"
    length = int(values.get("--max-model-len", 0))
    if values.get("--enable-chunked-prefill") == "false" and tokens and tokens < length:
        yield "without chunked prefill max_num_batched_tokens must be at least max_model_len"
    share = float(values.get("--gpu-memory-utilization", 0.9))
    if not 0.0 < share <= 1.0:
        yield "gpu_memory_utilization must be in (0, 1]"
    text = values.get("--speculative-config")
    if text is not None:
        try:
            config = json.loads(text)
        except json.JSONDecodeError:
            yield "--speculative-config is no JSON"
            return
        yield from _speculative(config, values)


def _speculative(config: dict[str, object], values: dict[str, str]) -> Iterator[str]:
    unknown = sorted(config.keys() - FIELDS)
    if unknown:
        yield f"speculative_config has no field {', '.join(unknown)}"
    method, k = config.get("method"), config.get("num_speculative_tokens")
    if method is not None and method not in METHODS:
        yield f"unknown method {method}"
    if not isinstance(k, int) or k < 1:
        yield "num_speculative_tokens must be at least 1"
        return
    if config.get("model") is None and method not in WITHOUT_MODEL:
        yield "model is required"
    if config.get("model") is not None and method in ("ngram", "suffix"):
        yield f"{method} takes no model"
    tp = int(values.get("--tensor-parallel-size", 1))
    if config.get("draft_tensor_parallel_size", tp) not in (1, tp):
        yield "draft_tensor_parallel_size must be 1 or the target's"
    if method == "suffix" and values.get("--async-scheduling") == "true":
        yield "suffix does not go with async scheduling"
    yield from _lookup(config)
    yield from _synthetic(config, k)
    yield from _schedule(config.get("num_speculative_tokens_per_batch_size"), k)


def _lookup(config: dict[str, object]) -> Iterator[str]:
    shortest, longest = config.get("prompt_lookup_min"), config.get("prompt_lookup_max")
    if isinstance(shortest, int) and isinstance(longest, int) and shortest > longest:
        yield "prompt_lookup_min is above prompt_lookup_max"


def _synthetic(config: dict[str, object], k: int) -> Iterator[str]:
    rates, length = config.get("synthetic_acceptance_rates"), config.get("synthetic_acceptance_length")
    if config.get("rejection_sample_method", "standard") not in ("standard", "synthetic", "block"):
        yield "unknown rejection_sample_method"
    if rates is not None and length is not None:
        yield "synthetic rates and length exclude each other"
    if isinstance(rates, list) and (len(rates) != k or rates != sorted(rates, reverse=True)):
        yield "synthetic_acceptance_rates must be K values that do not increase"
    if isinstance(length, int | float) and not 1.0 <= length <= k + 1.0:
        yield "synthetic_acceptance_length must be in [1, K + 1]"


def _schedule(table: object, k: int) -> Iterator[str]:
    """[lowest, highest, K]: no gap between lines, no overlap, K at most num_speculative_tokens."""
    if table is None:
        return
    if not isinstance(table, list) or not all(isinstance(line, list) and len(line) == 3 for line in table):
        yield "num_speculative_tokens_per_batch_size must be a list of [lowest, highest, K]"
        return
    previous = 0
    for low, high, drafts in table:
        if low != previous + 1 or high < low or not 0 <= drafts <= k:
            yield f"[{low}, {high}, {drafts}] does not follow {previous} or has a wrong K"
        previous = high
