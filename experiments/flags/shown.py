"""Resolved settings as a mapping, under vLLM's names."""

from __future__ import annotations

from typing import Any

from specfleet.experiments.flags.resolve import EngineSettings

SHOWN_BATCHES = (1, 8, 9, 10, 16, 17, 31, 32, 33, 64, 65, 128, 129, 1024)
"""Batch sizes at which K by batch is shown."""


def settings(engine: EngineSettings) -> dict[str, Any]:
    """The engine's settings; what is not set is left out."""
    values, drafting = engine.values, engine.speculation
    found = {
        "max_model_len": engine.max_model_len,
        "max_num_batched_tokens": engine.max_num_batched_tokens,
        "max_num_scheduled_tokens": (
            values["max_num_scheduled_tokens"] or (engine.max_num_batched_tokens if drafting else None)
        ),
        "max_num_seqs": engine.max_num_seqs,
        "block_size": values["block_size"] or 16,
        "enable_chunked_prefill": values["enable_chunked_prefill"] is not False,
        "enable_prefix_caching": values["enable_prefix_caching"] is not False,
        "async_scheduling": engine.async_scheduling,
        "scheduling_policy": values["scheduling_policy"],
        "long_prefill_token_threshold": values["long_prefill_token_threshold"],
        "gpu_memory_utilization": values["gpu_memory_utilization"],
        "kv_cache_dtype": engine.kv_cache_dtype,
        "dtype": engine.dtype,
        "quantization": engine.quantization,
        "tensor_parallel_size": values["tensor_parallel_size"],
        "pipeline_parallel_size": values["pipeline_parallel_size"],
        "data_parallel_size": values["data_parallel_size"],
        "enable_expert_parallel": values["enable_expert_parallel"],
        "enforce_eager": values["enforce_eager"],
        "cudagraph_mode": engine.graphs.mode,
        "max_cudagraph_capture_size": engine.graphs.largest,
        "cudagraph_capture_sizes": list(engine.graphs.sizes),
        "v2_model_runner": drafting is None or drafting.default_runner,
        "hf_max_position": engine.config.text.get("max_position_embeddings"),
    }
    return {key: value for key, value in found.items() if value is not None}


def drafting(engine: EngineSettings) -> dict[str, Any] | None:
    """The resolved `--speculative-config`; None without one."""
    this = engine.speculation
    if this is None:
        return None
    found: dict[str, Any] = {
        "method": this.method,
        "num_speculative_tokens": this.num_speculative_tokens,
        "draft_model": this.model if this.draft_tensor_parallel_size else None,
        "draft_architecture": this.architecture,
        "draft_tensor_parallel_size": this.draft_tensor_parallel_size,
        "draft_max_model_len": this.draft_max_model_len,
        "draft_max_position_embeddings": this.draft_positions,
        "draft_quantization": this.quantization,
        "n_predict": this.n_predict,
        "parallel_drafting": this.parallel if this.draft_tensor_parallel_size else None,
        "draft_slots_per_request": this.draft_slots,
        "lookahead_tokens": this.lookahead_tokens,
        "rejection_sample_method": this.fields["rejection_sample_method"],
    }
    if this.lookup is not None:
        found |= dict(zip(("prompt_lookup_min", "prompt_lookup_max"), this.lookup, strict=True))
    if this.draft_max_model_len is not None:
        found["drafter_runs_up_to_positions"] = this.skips_beyond or engine.max_model_len
    if this.method == "suffix":
        found["suffix"] = {name: value for name, value in this.fields.items() if name.startswith("suffix_")}
    if this.schedule:
        found["num_speculative_tokens_per_batch_size"] = [list(row) for row in this.schedule]
        found["k_at_batch"] = {str(batch): this.k_at(batch) for batch in SHOWN_BATCHES}
    if this.rates:
        found["synthetic_acceptance_rates"] = [round(rate, 12) for rate in this.rates]
    return {key: value for key, value in found.items() if value is not None}
