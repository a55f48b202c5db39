"""The command lines that start what a plan chose: vLLM's and SGLang's own flags, nothing of ours."""

from __future__ import annotations

import json
import shlex

from specfleet.experiments.schema import lookups
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.blocks.serve import Serve, SpeculativeConfig

VLLM_SPECULATIVE = (
    "method",
    "model",
    "num_speculative_tokens",
    "draft_tensor_parallel_size",
    "max_model_len",
    "prompt_lookup_max",
    "prompt_lookup_min",
    "parallel_drafting",
    "rejection_sample_method",
    "synthetic_acceptance_rates",
    "synthetic_acceptance_length",
    "num_speculative_tokens_per_batch_size",
    "suffix_decoding_max_tree_depth",
    "suffix_decoding_max_cached_requests",
    "suffix_decoding_max_spec_factor",
    "suffix_decoding_min_token_prob",
    "dspark_draft_topk",
    "revision",
    "code_revision",
    "draft_load_config",
)
"""Fields of vLLM's SpeculativeConfig that are handed on where they differ from their default."""

SGLANG_ALGORITHMS = {
    "eagle": "EAGLE",
    "eagle3": "EAGLE3",
    "mtp": "NEXTN",
    "draft_model": "STANDALONE",
    "ngram": "NGRAM",
    "dspark": "DSPARK",
    "dflash": "DFLASH",
}
"""vLLM's method -> SGLang's --speculative-algorithm."""

WIDTH = 100
"""Characters of a line of a command."""


def speculative_json(speculative: SpeculativeConfig, serve: Serve, **changes: object) -> str:
    """Returns the `--speculative-config` JSON with the fields that differ from vLLM's defaults."""
    given = speculative.model_dump(mode="json", exclude_defaults=True) | changes
    if given.get("draft_tensor_parallel_size") == serve.tensor_parallel_size:
        del given["draft_tensor_parallel_size"]
    named = speculative.model
    if named is not None:
        given["model"] = _hf_id_of_drafter(named)
    if given.get("parallel_drafting") is False:
        del given["parallel_drafting"]
    return json.dumps({key: given[key] for key in VLLM_SPECULATIVE if key in given})


def _hf_id_of_drafter(named: str | dict[str, object]) -> str:
    record = lookups.drafter(named)
    return record.hf_id or (named if isinstance(named, str) else record.name)


def model_id(serve: Serve) -> str:
    """Returns the model's Hugging Face id, or its name where it has none."""
    record = lookups.model(serve.model)
    return record.hf_id or record.name


def vllm_command(config: Experiment) -> list[str]:
    """Returns the `vllm serve` command of one replica, a list of words."""
    serve = config.serve
    words = ["vllm", "serve", model_id(serve), "--tensor-parallel-size", str(serve.tensor_parallel_size)]
    if serve.quantization is not None:
        words += ["--quantization", serve.quantization]
    words += ["--dtype", serve.dtype]
    if serve.kv_cache_dtype != "auto":
        words += ["--kv-cache-dtype", serve.kv_cache_dtype]
    for key in ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization"):
        words += [_flag(key), str(getattr(serve, key))]
    words.append(_switch("enable_prefix_caching", serve.enable_prefix_caching))
    if not serve.enable_chunked_prefill:
        words.append(_switch("enable_chunked_prefill", False))
    words.append(_switch("async_scheduling", bool(serve.async_scheduling)))
    unlike = {"block_size": 16, "scheduling_policy": "fcfs", "long_prefill_token_threshold": 0}
    for key, default in unlike.items():
        if getattr(serve, key) != default:
            words += [_flag(key), str(getattr(serve, key))]
    for key in ("num_gpu_blocks_override", "kv_cache_memory_bytes"):
        if getattr(serve, key) is not None:
            words += [_flag(key), str(getattr(serve, key))]
    if serve.speculative_config is not None:
        words += ["--speculative-config", speculative_json(serve.speculative_config, serve)]
    return words


def sglang_command(config: Experiment) -> list[str] | None:
    """Returns the same for SGLang, a list of words; None where it has no such way to draft.

    Drafts form a chain: `--speculative-eagle-topk 1`, and verified tokens are K + 1, the root among them.
    """
    serve, speculative = config.serve, config.serve.speculative_config
    words = ["python", "-m", "sglang.launch_server", "--model-path", model_id(serve)]
    words += ["--tp-size", str(serve.tensor_parallel_size), "--dtype", serve.dtype]
    if serve.quantization is not None:
        words += ["--quantization", serve.quantization]
    words += ["--context-length", str(serve.max_model_len), "--max-running-requests", str(serve.max_num_seqs)]
    words += ["--chunked-prefill-size", str(serve.max_num_batched_tokens)]
    if not serve.enable_prefix_caching:
        words.append("--disable-radix-cache")
    if speculative is None:
        return words
    algorithm = SGLANG_ALGORITHMS.get(str(speculative.method))
    if algorithm is None:
        return None
    k = speculative.num_speculative_tokens or 0
    words += ["--speculative-algorithm", algorithm]
    if speculative.model is not None:
        words += ["--speculative-draft-model-path", _hf_id_of_drafter(speculative.model)]
    if algorithm != "NGRAM":
        words += ["--speculative-num-steps", str(k), "--speculative-eagle-topk", "1"]
    return [*words, "--speculative-num-draft-tokens", str(k + 1)]


def bench_command(config: Experiment, rate: float, prompts: int, seed: int) -> list[str]:
    """Returns the `vllm bench serve` command that measures one replica as it was simulated."""
    words = ["vllm", "bench", "serve", "--model", model_id(config.serve)]
    words += ["--dataset-name", "custom", "--dataset-path", "YOUR_PROMPTS.jsonl"]
    words += ["--request-rate", f"{rate:.3g}", "--num-prompts", str(prompts), "--seed", str(seed)]
    limits = config.slo.request_limits_ms if config.slo else {}
    if limits:
        words += ["--goodput", *(f"{name}:{limit:g}" for name, limit in limits.items())]
    words += ["--percentile-metrics", "ttft,tpot,itl,e2el", "--metric-percentiles", "50,90,99"]
    return [*words, "--save-result"]


def shell(words: list[str]) -> str:
    """Returns a command for a shell, broken before its flags."""
    lines, line = [], ""
    groups: list[str] = []
    for word in words:
        quoted = shlex.quote(word) if not word.startswith("{") else f"'{word}'"
        if word.startswith("--") or not groups:
            groups.append(quoted)
        else:
            groups[-1] += f" {quoted}"
    for group in groups:
        if line and len(line) + len(group) > WIDTH:
            lines.append(f"{line} \\")
            line = f"  {group}"
        else:
            line = f"{line} {group}" if line else group
    return "\n".join([*lines, line])


def _flag(key: str) -> str:
    return f"--{key.replace('_', '-')}"


def _switch(key: str, on: bool) -> str:
    return f"--{'' if on else 'no-'}{key.replace('_', '-')}"
