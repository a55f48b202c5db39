"""The command lines that start what a plan chose: the engines' own flags and options, nothing of ours."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

import yaml

from specfleet.experiments.flags.fields import FIELDS
from specfleet.experiments.schema import lookups
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.blocks.serve import Serve, SpeculativeConfig

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

TRTLLM_DECODING = {"eagle3": "Eagle3", "mtp": "MTP", "draft_model": "DraftTarget", "ngram": "NGram"}
"""vLLM's method -> TensorRT-LLM's `decoding_type`."""
TRTLLM_FILE = "options.yaml"
"""What the file of options is called in a printed command."""

BY_BATCH = "num_speculative_tokens_per_batch_size"
"""vLLM's name for K by the number of sequences."""

TYPED_FOR = ("vllm-0.33", "sglang", "trtllm")
"""Engines whose flags the commands have."""

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
    policy = serve.draft_policy
    if policy is not None and policy.batch_size is not None:
        given.setdefault(BY_BATCH, policy.batch_size.model_dump(mode="json")["schedule"])
    first = [key for key in ("method", "model", "num_speculative_tokens") if key in given]
    return json.dumps({key: given[key] for key in dict.fromkeys([*first, *FIELDS]) if key in given})


def _hf_id_of_drafter(named: str | dict[str, object]) -> str:
    record = lookups.drafter(named)
    return record.hf_id or (named if isinstance(named, str) else record.name)


def model_id(serve: Serve) -> str:
    """Returns the model's Hugging Face id, or its name where it has none."""
    record = lookups.model(serve.model)
    return record.hf_id or record.name


def server_command(config: Experiment) -> list[str]:
    """Returns the command of one replica of the engine that was simulated, a list of words."""
    rules = lookups.engine(config.serve.engine).scheduler
    if rules == "trtllm":
        return trtllm_command(config)
    found = sglang_command(config) if rules == "sglang" else None
    return vllm_command(config) if found is None else found


def unsaid(config: Experiment) -> tuple[str, ...]:
    """Returns what was simulated and `server_command` cannot say, a clause each."""
    serve, found = config.serve, []
    profile = lookups.engine(serve.engine)
    chosen = serve.draft_policy.chosen if serve.draft_policy is not None else None
    if chosen is not None and (chosen[0] != "batch_size" or profile.scheduler != "vllm"):
        found.append(f"draft_policy {chosen[0]}, for which it has no flag")
    if profile.name not in TYPED_FOR:
        found.append(f"engine {profile.name}, whose flags may have other names")
    if profile.scheduler == "trtllm":
        found += _unsaid_to_trtllm(serve)
    if serve.reroll_on_reject:
        found.append("reroll_on_reject, which belongs to the build")
    if serve.draft_tree is not None and not _grown(serve):
        found.append("draft_tree, as SGLang grows its own by confidence (a tree of steps and topk it can)")
    for key in ("speculative_num_steps", "speculative_eagle_topk"):
        if _grown(serve) is None and serve.sglang is not None and getattr(serve.sglang, key) is not None:
            found.append(f"sglang.{key}, which sets the KV held in reserve and no drafts")
    speculative = serve.speculative_config
    drafter = lookups.drafter(speculative.model) if speculative and speculative.model else None
    for record in (lookups.model(serve.model), drafter):
        if record is not None and not record.hf_id:
            found.append(f"{record.name}, which is published nowhere: put its path in place of its name")
    return tuple(found)


def _unsaid_to_trtllm(serve: Serve) -> list[str]:
    """What TensorRT-LLM takes from the checkpoint, or has no option for, a clause each."""
    found = []
    if serve.quantization is not None:
        found.append(f"quantization {serve.quantization}, which TensorRT-LLM takes from the checkpoint")
    speculative = serve.speculative_config
    if speculative is not None and speculative.method not in TRTLLM_DECODING:
        found.append(f"drafts of {speculative.method}, which it does not have")
    for key in ("max_cudagraph_capture_size", "cudagraph_capture_sizes", "kv_cache_memory_bytes"):
        if getattr(serve, key) is not None:
            found.append(f"{key}, for which it has no option by this name")
    if serve.data_parallel_size > 1:
        found.append(f"data_parallel_size {serve.data_parallel_size}, which is not simulated there")
    return found


def server_text(config: Experiment, more: Sequence[str] = ()) -> str:
    """Returns what starts one replica in a shell: the command with more words, and the file of options that
    it names."""
    if lookups.engine(config.serve.engine).scheduler != "trtllm":
        return shell([*server_command(config), *more])
    options = yaml.safe_dump(trtllm_options(config), sort_keys=False)
    return f"cat > {TRTLLM_FILE} << 'EOF'\n{options}EOF\n{shell(server_command(config))}"


def trtllm_command(config: Experiment) -> list[str]:
    """Returns the `trtllm-serve` command of one replica, a list of words; `trtllm_options` is its file."""
    serve = config.serve
    words = ["trtllm-serve", model_id(serve), "--tp_size", str(serve.tensor_parallel_size)]
    if serve.expert_ranks > 1:
        words += ["--ep_size", str(serve.expert_ranks)]
    words += [
        "--max_batch_size",
        str(serve.max_num_seqs),
        "--max_num_tokens",
        str(serve.max_num_batched_tokens),
    ]
    return [*words, "--max_seq_len", str(serve.max_model_len), "--config", TRTLLM_FILE]


def trtllm_options(config: Experiment) -> dict[str, object]:
    """Returns what `trtllm-serve` reads from its file: names of its LLM API."""
    serve, speculative = config.serve, config.serve.speculative_config
    kv: dict[str, object] = {
        "free_gpu_memory_fraction": serve.gpu_memory_utilization,
        "tokens_per_block": serve.block_size,
        "enable_block_reuse": serve.enable_prefix_caching,
    }
    if serve.kv_cache_dtype != "auto":
        kv["dtype"] = serve.kv_cache_dtype
    if serve.num_gpu_blocks_override is not None:
        kv["max_tokens"] = serve.num_gpu_blocks_override * (serve.block_size or 1)
    found: dict[str, object] = {
        "dtype": serve.dtype,
        "enable_chunked_prefill": serve.enable_chunked_prefill,
        "disable_overlap_scheduler": not serve.async_scheduling,
        "kv_cache_config": kv,
        "scheduler_config": {"capacity_scheduler_policy": serve.capacity_scheduler_policy},
    }
    if speculative is None or speculative.method not in TRTLLM_DECODING:
        return found
    drafts: dict[str, object] = {"decoding_type": TRTLLM_DECODING[speculative.method]}
    drafts["max_draft_len"] = speculative.num_speculative_tokens
    if speculative.method in ("eagle3", "draft_model") and speculative.model is not None:
        drafts["speculative_model"] = _hf_id_of_drafter(speculative.model)
    if speculative.method == "ngram" and speculative.prompt_lookup_max is not None:
        drafts["max_matching_ngram_size"] = speculative.prompt_lookup_max
    return found | {"speculative_config": drafts}


def vllm_command(config: Experiment) -> list[str]:
    """Returns the `vllm serve` command of one replica, a list of words."""
    serve = config.serve
    words = ["vllm", "serve", model_id(serve), "--tensor-parallel-size", str(serve.tensor_parallel_size)]
    if serve.data_parallel_size > 1:
        words += ["--data-parallel-size", str(serve.data_parallel_size)]
    if serve.pipeline_parallel_size > 1:
        words += ["--pipeline-parallel-size", str(serve.pipeline_parallel_size)]
    if serve.enable_expert_parallel:
        words.append(_switch("enable_expert_parallel", True))
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
    words += _unlike(serve)
    if serve.speculative_config is not None:
        words += ["--speculative-config", speculative_json(serve.speculative_config, serve)]
    return words


def _unlike(serve: Serve) -> list[str]:
    """Flags whose values are not those that vLLM would take by itself."""
    words: list[str] = []
    defaults = {
        "block_size": 16,
        "scheduling_policy": "fcfs",
        "long_prefill_token_threshold": 0,
        "watermark": 0.0,
    }
    optional = ("num_gpu_blocks_override", "kv_cache_memory_bytes", "max_cudagraph_capture_size")
    for key, default in (defaults | dict.fromkeys(optional)).items():
        if getattr(serve, key) != default:
            words += [_flag(key), str(getattr(serve, key))]
    if serve.cudagraph_capture_sizes is not None:
        words += ["--cudagraph-capture-sizes", *map(str, serve.cudagraph_capture_sizes)]
    if serve.long_prefill_token_threshold_adaptive:
        words.append(_switch("long_prefill_token_threshold_adaptive", True))
    reserve = serve.scheduler_reserve_full_isl
    if reserve is not None and reserve != lookups.engine(serve.engine).scheduler_reserve_full_isl:
        words.append(_switch("scheduler_reserve_full_isl", reserve))
    return words


def sglang_command(config: Experiment) -> list[str] | None:
    """Returns the same for SGLang, a list of words; None where it has no such way to draft.

    Drafts form a chain, `--speculative-eagle-topk 1`, or a tree; K + 1 tokens are verified, with the root.
    """
    serve, speculative = config.serve, config.serve.speculative_config
    words = ["python", "-m", "sglang.launch_server", "--model-path", model_id(serve)]
    ranks = serve.data_parallel_size
    words += ["--tp-size", str(serve.tensor_parallel_size * ranks), "--dtype", serve.dtype]
    if ranks > 1:
        words += ["--dp-size", str(ranks), "--enable-dp-attention"]
    if serve.expert_ranks > 1:
        words += ["--ep-size", str(serve.expert_ranks)]
    if serve.quantization is not None:
        words += ["--quantization", serve.quantization]
    words += ["--context-length", str(serve.max_model_len), "--max-running-requests", str(serve.max_num_seqs)]
    chunk = serve.max_num_batched_tokens if serve.enable_chunked_prefill else -1
    words += ["--chunked-prefill-size", str(chunk)]
    if not serve.enable_prefix_caching:
        words.append("--disable-radix-cache")
    if _is_sglang(serve):
        words += _sglang_only(serve)
    if speculative is None:
        return words
    algorithm = SGLANG_ALGORITHMS.get(str(speculative.method))
    if algorithm is None:
        return None
    k = speculative.num_speculative_tokens or 0
    words += ["--speculative-algorithm", algorithm]
    if speculative.model is not None:
        words += ["--speculative-draft-model-path", _hf_id_of_drafter(speculative.model)]
    steps, topk = _grown(serve) or (k, 1)
    if algorithm != "NGRAM":
        words += ["--speculative-num-steps", str(steps), "--speculative-eagle-topk", str(topk)]
    return [*words, "--speculative-num-draft-tokens", str(k + 1)]


def _grown(serve: Serve) -> tuple[int, int] | None:
    """Steps and branches of a tree that SGLang grows; None for chains, and for trees of another form."""
    given = serve.sglang
    if serve.draft_tree is None or given is None:
        return None
    if given.speculative_num_steps is None or given.speculative_eagle_topk is None:
        return None
    return given.speculative_num_steps, given.speculative_eagle_topk


def _sglang_only(serve: Serve) -> list[str]:
    """What a file for SGLang says and vLLM has no word for, or another value of."""
    words = ["--mem-fraction-static", str(serve.gpu_memory_utilization), "--page-size", str(serve.block_size)]
    if serve.kv_cache_dtype == "fp8":
        words += ["--kv-cache-dtype", "fp8_e4m3"]
    if serve.num_gpu_blocks_override is not None:
        words += ["--max-total-tokens", str(serve.num_gpu_blocks_override * (serve.block_size or 1))]
    if not serve.async_scheduling:
        words.append("--disable-overlap-schedule")
    settings = serve.sglang.model_dump(exclude_defaults=True) if serve.sglang is not None else {}
    for key, value in settings.items():
        if key == "cuda_graph_bs":
            words += [_flag(key), *map(str, value)]
        elif not key.startswith("speculative_"):
            words += [_flag(key)] if value is True else [_flag(key), str(value)]
    return words


def _is_sglang(serve: Serve) -> bool:
    return lookups.engine(serve.engine).scheduler == "sglang"


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
