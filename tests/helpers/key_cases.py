"""For every key of the schema: what stands around it, a value, and where the difference is seen.

In the figures of a run; in the resolved file alone (words, names, what is drawn); in a refusal (fields that
are not modelled); in the refusal of the rest without it (needed); or nowhere, as it is the only value.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

BASE = """\
serve:
  model: meta-llama/Llama-3.1-8B-Instruct
  gpu: h100-sxm
  max_model_len: 1024
  max_num_seqs: 8
  speculative_config:
    {model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, method: eagle3, num_speculative_tokens: 3}
acceptance: {conditional_acceptance: 0.7, concentration: 18}
workload:
  input: {uniform: {low: 40, high: 90}}
  output: {uniform: {low: 8, high: 24}}
  num_prompts: 24
  max_concurrency: 6
"""

Around = Mapping[str, Any]
NOTHING: Around = MappingProxyType({})
FIGURES, RESOLVED, REFUSED, NEEDED, ONLY = "figures", "resolved", "refused", "needed", "only"


class Case(NamedTuple):
    """A key's value, what else is set, and where the difference is seen."""

    value: Any
    around: Around = NOTHING
    seen: str = FIGURES


SC, WL, AC, DP = "serve.speculative_config", "workload", "acceptance", "serve.draft_policy"
PLAIN: Around = {SC: None, AC: None}
MIXTURE: Around = {"serve.model": "Qwen/Qwen3-30B-A3B"}
OPEN: Around = {f"{WL}.max_concurrency": None, f"{WL}.request_rate": 300.0}
SCHEDULE: Around = {**OPEN, f"{WL}.arrivals": {"schedule": {"every_s": 0.05, "requests_per_s": [1.0, 9.0]}}}
DIURNAL: Around = {**OPEN, f"{WL}.arrivals": {"diurnal": {"peak_to_trough": 3.0, "period_s": 0.1}}}
RAMP: Around = {
    **OPEN,
    f"{WL}.arrivals": {"ramp": {"from_per_s": 10.0, "to_per_s": 300.0, "over_s": 0.1}},
}
SPIKE: Around = {**OPEN, f"{WL}.arrivals": {"spike": {"at_s": 0.02, "for_s": 0.03, "factor": 4.0}}}
BUSY: Around = {f"{WL}.num_prompts": 60, f"{WL}.max_concurrency": 30, "serve.max_num_seqs": 4}
NGRAM: Around = {SC: {"method": "ngram", "num_speculative_tokens": 3}}
TIGHT: Around = {"serve.num_gpu_blocks_override": 34, "serve.max_model_len": 256}
SGLANG: Around = {
    "serve.engine": "sglang",
    "serve.num_gpu_blocks_override": 520,
    "serve.max_model_len": 256,
    f"{WL}.num_prompts": 60,
    f"{WL}.max_concurrency": 30,
}
SCALED: Around = {
    f"{WL}.max_concurrency": None,
    f"{WL}.request_rate": 200.0,
    f"{WL}.num_prompts": 260,
    f"{WL}.arrivals": {"spike": {"at_s": 0.1, "for_s": 0.2, "factor": 3.0}},
    "deployment.autoscale": {
        **{"metric": "concurrency", "target": 12.0, "min": 1, "max": 7, "start": 2, "every_s": 0.05},
        **{"window_s": 0.05, "tolerance": 0.1, "provision_s": 0.05, "load_s": 0.05, "down_after_s": 0.1},
        "up_most": 2,
    },
}
SCALING: Around = {
    **{"metric": "ttft", "target": 30.0, "max": 4, "start": 1, "every_s": 0.03, "window_s": 0.3},
    **{"tolerance": 5.0, "provision_s": 0.2, "load_s": 0.2, "up_most": 1, "down_after_s": 0.5},
}
HOT: Around = {f"{WL}.temperature": 1.2}
LONG: Around = {f"{WL}.output": {"fixed": 60}}
SYNTHETIC: Around = {AC: None, f"{SC}.rejection_sample_method": "synthetic"}
LATENT: Around = {AC: {"conditional_acceptance": 0.6, "concentration": 18, "overlap": {}}, **HOT}
COLD: Around = {
    **NGRAM,
    AC: {
        "conditional_acceptance": 0.5,
        "concentration": 18,
        "hot_cold": {"stay": 0.8, "enter": 0.3, "accept_hot": 0.8},
    },
}
TREE: Around = {f"{SC}.num_speculative_tokens": None}
SHORT: Around = {"input_len": 60, "output_len": 9}
MIX: Around = {f"{WL}.mix": {"a": {"share": 0.5}, "b": {"share": 0.5, **SHORT}}}
OF_TRACE: Around = {f"{WL}.mix": {"a": {"share": 0.5, "trace": "rows.csv"}, "b": 0.5}}
PHASES: Around = {
    f"{WL}.num_prompts": None,
    f"{WL}.max_concurrency": None,
    f"{WL}.phases": [{"num_prompts": 12, "request_rate": 100.0}, {"num_prompts": 12, "request_rate": 200.0}],
}
SLO: Around = {"slo": {"ttft_ms": 20.0, "tpot_ms": 6.0, "e2el_ms": 100.0}}
CLAIM = {
    "statement": "s",
    "source": "w",
    "expect": [{"figure": "output_throughput", "where": {f"{WL}.max_concurrency": 2}, "between": [0.0, 9e9]}],
}
ASKED = {"figure": "output_throughput", "where": {f"{WL}.max_concurrency": 2}}
MEASURED = {**CLAIM, "expect": [{**ASKED, "measured": 100.0}]}
ASKED_FOR = {**CLAIM, "expect": [{**ASKED}]}
SWEPT: Around = {"sweep": {"axes": {f"{WL}.max_concurrency": [2, 4]}}}
PLAN: Around = {
    f"{WL}.max_concurrency": None,
    f"{WL}.request_rate": 5.0,
    "slo": {"p99_ttft_ms": 500.0},
    "plan": {"candidates": {"gpu": ["h100-sxm", "h200-sxm"]}},
}
ON_A_DAY: Around = {**PLAN, f"{WL}.request_rate": None, "plan": {"day": {"preset": "azure-conv-2024"}}}
LISTED: Around = {
    **PLAN,
    "plan.candidates.drafting": [
        {
            "speculative_config": {
                "model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",
                "num_speculative_tokens": 3,
            }
        }
    ],
}
TRACE: Around = {
    f"{WL}.input": None,
    f"{WL}.output": None,
    f"{WL}.trace": "rows.csv",
    f"{WL}.num_prompts": None,
}

TR = f"{WL}.trace"
MAPPED: Around = {
    **{key: value for key, value in TRACE.items() if key != TR},
    f"{TR}.file": "rows.csv",
    f"{TR}.columns.arrival_s": "TIMESTAMP",
    f"{TR}.columns.input_tokens": "ContextTokens",
    f"{TR}.columns.output_tokens": "GeneratedTokens",
    f"{TR}.time_unit": "iso",
}
UNTIMED: Around = {
    **{key: value for key, value in MAPPED.items() if not key.endswith("arrival_s")},
    f"{WL}.request_rate": 5.0,
    f"{WL}.max_concurrency": None,
}
OF_USERS: Around = {**MAPPED, f"{TR}.columns.session": "User"}
WAITING: Around = {**OF_USERS, f"{TR}.turns": "after_answer"}


def unmodelled(value: Any) -> Case:
    """A field whose value would change the prediction and is refused by name."""
    return Case(value, seen=REFUSED)


SERVE_CASES = {
    "engine": Case("vllm-0.15", PLAIN),
    "model": Case("Qwen/Qwen3-8B", PLAIN),
    "quantization": Case("fp8"),
    "dtype": Case("float16", PLAIN, RESOLVED),
    "kv_cache_dtype": Case("fp8"),
    "gpu": Case("h200-sxm"),
    "pipeline_parallel_size": Case(2, PLAIN),
    "tensor_parallel_size": Case(2),
    "data_parallel_size": Case(2, {**PLAIN, **MIXTURE}),
    "enable_expert_parallel": Case(True, {**PLAIN, **MIXTURE, "serve.tensor_parallel_size": 2}),
    "expert_parallel_size": Case(
        2, {**PLAIN, **MIXTURE, "serve.engine": "sglang", "serve.tensor_parallel_size": 2}
    ),
    "gpu_memory_utilization": Case(0.5),
    "max_model_len": Case(114, {f"{WL}.input": {"fixed": 90}}),
    "max_num_seqs": Case(2),
    "max_num_batched_tokens": Case(64),
    "block_size": Case(32),
    "enable_chunked_prefill": Case(
        False, {"serve.max_num_batched_tokens": 1024, **BUSY, f"{WL}.input": {"fixed": 700}}
    ),
    "enable_prefix_caching": Case(False, {f"{WL}.prefix": {"tokens": 320}}),
    "long_prefill_token_threshold": Case(16, BUSY),
    "long_prefill_token_threshold_adaptive": Case(
        True, {**BUSY, "serve.long_prefill_token_threshold": 16, "serve.max_num_batched_tokens": 512}
    ),
    "cudagraph_capture_sizes": Case([1, 64]),
    "max_cudagraph_capture_size": Case(4),
    "scheduling_policy": Case("priority", TIGHT, RESOLVED),
    "scheduler_reserve_full_isl": Case(False, {**TIGHT, "serve.max_num_batched_tokens": 48}),
    "capacity_scheduler_policy": Case("STATIC_BATCH", {**BUSY, "serve.engine": "trtllm"}),
    "watermark": Case(0.5, TIGHT),
    "num_gpu_blocks_override": Case(40, {"serve.max_model_len": 256}),
    "kv_cache_memory_bytes": Case(100_000_000, {"serve.max_model_len": 256}),
    "memory.device_gib": Case(60.0),
    "memory.weights_gib": Case(30.0),
    "memory.activation_gib": Case(9.0),
    "memory.non_torch_gib": Case(9.0),
    "memory.available_gib": Case(1.0),
    "async_scheduling": Case(False),
    "sglang.schedule_policy": Case("lpm", SGLANG, RESOLVED),
    "sglang.schedule_conservativeness": Case(0.02, {**SGLANG, **BUSY, "serve.max_num_seqs": 20}),
    "sglang.max_prefill_tokens": Case(100, {**SGLANG, "serve.enable_chunked_prefill": False}),
    "sglang.prefill_max_requests": Case(1, SGLANG),
    "sglang.enable_mixed_chunk": Case(True, SGLANG),
    "sglang.enable_priority_scheduling": Case(True, SGLANG, RESOLVED),
    "sglang.schedule_low_priority_values_first": Case(True, SGLANG, RESOLVED),
    "sglang.priority_scheduling_preemption_threshold": Case(2, SGLANG, RESOLVED),
    "sglang.disable_priority_preemption": Case(True, SGLANG, RESOLVED),
    "sglang.retraction_policy": Case("priority", SGLANG, RESOLVED),
    "sglang.cuda_graph_max_bs": Case(2, SGLANG),
    "sglang.cuda_graph_bs": Case([3, 5], SGLANG),
    "sglang.speculative_num_steps": Case(60, {**SGLANG, **BUSY, "serve.max_num_seqs": 20}),
    "sglang.speculative_eagle_topk": Case(20, {**SGLANG, **BUSY, "serve.max_num_seqs": 20}),
    "draft_tree.shape": Case([2, 3], {**TREE, "serve.draft_tree": {"shape": [2, 2]}}),
    "draft_tree.paths": Case([[0], [1], [0, 0]], {**TREE, "serve.draft_tree": {"paths": [[0], [1]]}}),
    "draft_tree.optimal": Case(6, {**TREE, "serve.draft_tree": {"optimal": 4}}),
    "draft_tree.max_depth": Case(2, {**TREE, "serve.draft_tree": {"optimal": 6}}),
    "draft_tree.sglang.steps": Case(
        2, {**TREE, "serve.draft_tree": {"sglang": {"steps": 3, "topk": 2, "num_draft_tokens": 6}}}
    ),
    "draft_tree.sglang.topk": Case(
        4, {**TREE, "serve.draft_tree": {"sglang": {"steps": 3, "topk": 2, "num_draft_tokens": 11}}}
    ),
    "draft_tree.sglang.num_draft_tokens": Case(
        4, {**TREE, "serve.draft_tree": {"sglang": {"steps": 3, "topk": 2, "num_draft_tokens": 6}}}
    ),
    "draft_tree.by_rank": Case([0.6, 0.35], {**TREE, "serve.draft_tree": {"shape": [2, 2]}}),
    "reroll_on_reject": Case(True),
    "cost_model": Case("roofline"),
}
POLICY_CASES = {
    "batch_size.schedule": Case([[1, 3, 3], [4, 99, 1]]),
    "disable_above_queue.queue": Case(2, BUSY),
    "goodput.weight": Case(0.9, {**LONG, DP: {"goodput": {}}}, RESOLVED),
    "adaptive_tiers.tiers": Case([1, 2], {**LONG, DP: {"adaptive_tiers": {"tiers": [1, 3]}}}),
    "adaptive_tiers.smoothing": Case(
        1.0, {**LONG, DP: {"adaptive_tiers": {"tiers": [1, 2, 3], "warmup": 0, "interval": 1}}}
    ),
    "adaptive_tiers.warmup": Case(
        40, {**LONG, DP: {"adaptive_tiers": {"tiers": [1, 2, 3], "warmup": 0, "interval": 1}}}
    ),
    "adaptive_tiers.interval": Case(
        9, {**LONG, DP: {"adaptive_tiers": {"tiers": [1, 2, 3], "warmup": 0, "interval": 1}}}
    ),
    "adaptive_tiers.down": Case(
        0.0, {**LONG, DP: {"adaptive_tiers": {"tiers": [1, 2, 3], "warmup": 0, "interval": 1, "down": 2.0}}}
    ),
    "adaptive_tiers.up": Case(
        3.0, {**LONG, DP: {"adaptive_tiers": {"tiers": [1, 2, 3], "warmup": 0, "interval": 1}}}
    ),
    "early_stop.threshold": Case(0.9, {DP: {"early_stop": {}}}),
    "acceptance_gate.window": Case(2, {**LONG, DP: {"acceptance_gate": {"threshold": 0.8}}}),
    "acceptance_gate.threshold": Case(0.9, {**LONG, DP: {"acceptance_gate": {"window": 2}}}),
    "acceptance_gate.cooldown": Case(3, {**LONG, DP: {"acceptance_gate": {"window": 2, "threshold": 0.9}}}),
    "by_class": Case({"a": 0, "b": 2}, {f"{WL}.mix": {"a": 0.5, "b": 0.5}, DP: {"by_class": {"a": 3}}}),
    "temperature_gate.limit": Case(2.0, {**HOT, DP: {"temperature_gate": {}}}),
    "slo_budget.tpot_ms": Case(100.0, {**LONG, DP: {"slo_budget": {"tpot_ms": 0.1, "budget": 6}}}),
    "slo_budget.budget": Case(2, {DP: {"slo_budget": {"tpot_ms": 5.0, "budget": 18}}}),
    "bandit.exploration": Case(9.0, {**LONG, DP: {"bandit": {}}}),
    "oracle": Case({}),
}
SPECULATIVE_CASES = {
    "method": Case("ngram", {SC: {"num_speculative_tokens": 3, "method": "suffix"}}, RESOLVED),
    "model": Case({"eagle3_for": "meta-llama/Llama-3.1-8B-Instruct", "draft_vocab_size": 128000}),
    "num_speculative_tokens": Case(2),
    "draft_tensor_parallel_size": Case(
        1,
        {
            "serve.tensor_parallel_size": 2,
            SC: {
                "model": "meta-llama/Llama-3.2-1B-Instruct",
                "num_speculative_tokens": 3,
                "method": "draft_model",
            },
        },
    ),
    "max_model_len": Case(60, {"serve.engine": "vllm-2026-01"}),
    "prompt_lookup_max": Case(7, NGRAM, RESOLVED),
    "prompt_lookup_min": Case(2, NGRAM, RESOLVED),
    "parallel_drafting": Case(True),
    "rejection_sample_method": Case(
        "synthetic", {AC: None, f"{SC}.synthetic_acceptance_length": 2.0}, "needed"
    ),
    "synthetic_acceptance_rates": Case(
        [0.9, 0.8, 0.1], {**SYNTHETIC, f"{SC}.synthetic_acceptance_rates": [0.5, 0.2, 0.1]}
    ),
    "synthetic_acceptance_length": Case(3.5, {**SYNTHETIC, f"{SC}.synthetic_acceptance_length": 2.0}),
    "draft_sample_method": Case(
        "probabilistic",
        {AC: {"conditional_acceptance": 0.6, "concentration": 18, "overlap": {"rule": "sampled"}}},
        "needed",
    ),
    "num_speculative_tokens_per_batch_size": Case([[1, 3, 3], [4, 99, 1]]),
    "quantization": unmodelled("fp8"),
    "kv_cache_dtype": unmodelled("fp8"),
    "enforce_eager": unmodelled(True),
    "disable_padded_drafter_batch": unmodelled(True),
    "disable_eagle_block_drop": unmodelled(True),
    "use_local_argmax_reduction": unmodelled(True),
    "use_heterogeneous_vocab": unmodelled(True),
    "enable_adaptive_verification": Case(
        True,
        {
            "serve.model": "deepseek-ai/DeepSeek-V4-Flash",
            "serve.gpu": "b200",
            "serve.tensor_parallel_size": 4,
            SC: {"num_speculative_tokens": 3, "method": "dspark"},
        },
    ),
    "suffix_decoding_max_tree_depth": unmodelled(9),
    "suffix_decoding_max_cached_requests": unmodelled(9),
    "suffix_decoding_max_spec_factor": unmodelled(2.0),
    "suffix_decoding_min_token_prob": unmodelled(0.2),
    "dspark_draft_topk": unmodelled(2),
    "index_share_for_mtp_iteration": unmodelled(True),
    "disable_lookahead_block_hashes": unmodelled(True),
    "draft_lm_head_quantization": unmodelled("fp8"),
    "xpress_topc": unmodelled(2),
    "fly_window_size": unmodelled(2),
    "fly_entropy_threshold": Case(0.4, seen=RESOLVED),
    "fly_entropy_top_k": Case(4, seen=RESOLVED),
    "moe_backend": Case("x", seen=RESOLVED),
    "attention_backend": Case("x", seen=RESOLVED),
    "revision": Case("x", seen=RESOLVED),
    "code_revision": Case("x", seen=RESOLVED),
    "draft_load_config": Case({"a": 1}, seen=RESOLVED),
}
SS = f"{WL}.sessions"
SESSIONS: Around = {f"{SS}.turns": {"fixed": 3}, f"{SS}.think_time_s": {"fixed": 0.3}}
ACCEPTANCE_CASES = {
    "source": Case("x", seen=RESOLVED),
    "by_position": Case([0.9, 0.2, 0.1], {AC: {"by_position": [0.7, 0.5, 0.3], "concentration": 18}}),
    "conditional_acceptance": Case(0.4),
    "acceptance_length": Case(2.0, {AC: {"acceptance_length": 3.0, "concentration": 18}}),
    "draft_acceptance_rate": Case(0.3, {AC: {"draft_acceptance_rate": 0.6, "concentration": 18}}),
    "replay": Case("other.jsonl", {AC: {"replay": "traces.jsonl"}}),
    "replay_counts": Case("tokens", {AC: {"replay": "tokens.jsonl"}}),
    "profile": Case("eagle3-llama-3.3-70b-code-edit", {AC: {"profile": "eagle-llama-3.1-8b-chat"}}),
    "measured_at_k": Case(5, {AC: {"acceptance_length": 2.2, "concentration": 18, "measured_at_k": 3}}),
    "concentration": Case(2.0),
    "measured_on.model": Case("qwen3-32b", {f"{AC}.measured_on": {"method": "mtp"}}, RESOLVED),
    "measured_on.method": Case("mtp", {f"{AC}.measured_on": {"model": "qwen3-32b"}}, RESOLVED),
    "measured_on.dataset": Case("gsm8k", {f"{AC}.measured_on": {"model": "qwen3-32b"}}, RESOLVED),
    "concentration_range": Case([9, 40], {AC: {"conditional_acceptance": 0.7}}),
    "low_atom.weight": Case(0.6, {f"{AC}.low_atom": {"weight": 0.1, "low": 0.1, "high": 0.3}}),
    "low_atom.low": Case(0.29, {f"{AC}.low_atom": {"weight": 0.5, "low": 0.0, "high": 0.3}}),
    "low_atom.high": Case(0.6, {f"{AC}.low_atom": {"weight": 0.5, "low": 0.1, "high": 0.2}}),
    "decay": Case(0.5),
    "burst.rho": Case(0.95, {f"{AC}.burst": {"rho": 0.1, "sigma": 2.0}, **LONG}),
    "burst.sigma": Case(3.0, {f"{AC}.burst": {"rho": 0.5, "sigma": 0.5}, **LONG}),
    "hot_cold.stay": Case(0.5, COLD),
    "hot_cold.enter": Case(0.7, COLD),
    "hot_cold.accept_hot": Case(0.99, COLD),
    "hot_cold.propose_cold": Case(0.5, COLD),
    "context_multiplier": Case([[0.0, 1.0], [50.0, 0.3]]),
    "turn_multiplier": Case([[0.0, 1.0], [2.0, 0.2]], SESSIONS),
    "context_knee": Case(30),
    "temperature_multiplier": Case([[0.0, 1.0], [1.0, 0.5]], HOT),
    "overlap.rule": Case("sampled", {**LATENT, f"{SC}.draft_sample_method": "probabilistic"}, NEEDED),
    "overlap.sharpness": Case(1.2, LATENT),
    "overlap.noise": Case(2.0, LATENT),
    "overlap.top_p": Case(0.3, LATENT),
    "overlap.measured_at_temperature": Case(1.2, LATENT),
    "length_rank_correlation": Case(0.9, {f"{AC}.concentration": 2.0}),
    "scale": Case(0.5),
    "proposal_probability": Case(0.3, NGRAM),
    "proposal_persistence": Case(0.9, {**NGRAM, f"{AC}.proposal_probability": 0.5}),
}
TOOL: Around = {
    **SESSIONS,
    f"{SS}.tool": {
        "probability": 0.5,
        "pause_s": {"fixed": 0.1},
        "result": {"fixed": 20},
        "call": {"fixed": 3},
    },
}
LAWS_OF_TURNS = (
    ("fixed", 4, {"fixed": 2}),
    ("uniform.low", 1, {"uniform": {"low": 4, "high": 5}}),
    ("uniform.high", 6, {"uniform": {"low": 2, "high": 3}}),
    ("lognormal.mu", 0.5, {"lognormal": {"mu": 1.5, "sigma": 0.5, "max": 6}}),
    ("lognormal.sigma", 0.1, {"lognormal": {"mu": 1.0, "sigma": 2.0, "max": 6}}),
    ("lognormal.min", 4, {"lognormal": {"mu": 1.0, "sigma": 1.0, "max": 6}}),
    ("lognormal.max", 2, {"lognormal": {"mu": 1.0, "sigma": 1.0, "max": 6}}),
    ("quantiles", [[0, 1], [100, 2]], {"quantiles": [[0, 2], [100, 6]]}),
)
LAWS_OF_PAUSES = (
    ("fixed", 0.5, {"fixed": 0.1}),
    ("uniform.low", 0.1, {"uniform": {"low": 0.5, "high": 0.6}}),
    ("uniform.high", 0.9, {"uniform": {"low": 0.1, "high": 0.2}}),
    ("exponential", 0.2, {"exponential": 1.0}),
    ("lognormal.median", 0.1, {"lognormal": {"median": 0.5, "sigma": 1.0, "max": 5.0}}),
    ("lognormal.sigma", 0.1, {"lognormal": {"median": 0.5, "sigma": 1.0, "max": 5.0}}),
    ("lognormal.max", 0.6, {"lognormal": {"median": 0.5, "sigma": 1.0, "max": 5.0}}),
    ("quantiles", [[0, 0.1], [100, 0.2]], {"quantiles": [[0, 0.5], [100, 0.6]]}),
)
SESSION_CASES = {
    **{
        f"sessions.{at}.{law}": Case(value, {**around, f"{SS}.{at}": given})
        for at, laws, around in (
            ("turns", LAWS_OF_TURNS, SESSIONS),
            ("first_input", LAWS_OF_TURNS, SESSIONS),
            ("think_time_s", LAWS_OF_PAUSES, SESSIONS),
            ("tool.pause_s", LAWS_OF_PAUSES, TOOL),
            ("tool.result", LAWS_OF_TURNS, TOOL),
            ("tool.call", LAWS_OF_TURNS, TOOL),
        )
        for law, value, given in laws
    },
    **{
        f"sessions.context.{how}.{key}": Case(
            value, {**SESSIONS, f"{SS}.context": {how: {"above_tokens": 200, "to_tokens": 60}}}
        )
        for how in ("trim", "compact")
        for key, value in (("above_tokens", 150), ("to_tokens", 120 if how == "trim" else 20))
    },
    "sessions.system_prompt.tokens": Case(100, {**SESSIONS, f"{SS}.system_prompt": {"tokens": 40}}),
    "sessions.system_prompt.pools": Case(9, {**SESSIONS, f"{SS}.system_prompt": {"tokens": 320}}),
    "sessions.tool.probability": Case(1.0, TOOL),
    "sessions.reasoning_share": Case(0.8, {**SESSIONS, **LONG}),
    **{
        f"think_time_s.{law}": Case(value, {f"{WL}.think_time_s": given})
        for law, value, given in LAWS_OF_PAUSES
    },
    "sessions.on_full": Case("end", {**SESSIONS, f"{SS}.turns": {"fixed": 20}}, NEEDED),
}
WORKLOAD_CASES = {
    "preset": Case("mt-bench", {f"{WL}.input": None, f"{WL}.output": None, f"{WL}.preset": "instructcoder"}),
    "input_len": Case(50, {f"{WL}.input": None, f"{WL}.input_len": 90}),
    "output_len": Case(9, {f"{WL}.output": None, f"{WL}.output_len": 20}),
    **{
        f"{side}.{law}": Case(value, {f"{WL}.{side}": around})
        for side in ("input", "output")
        for law, value, around in (
            ("fixed", 30, {"fixed": 60}),
            ("uniform.low", 3, {"uniform": {"low": 20, "high": 60}}),
            ("uniform.high", 90, {"uniform": {"low": 20, "high": 60}}),
            ("lognormal.mu", 2.0, {"lognormal": {"mu": 4.0, "sigma": 1.0, "max": 200}}),
            ("lognormal.sigma", 0.2, {"lognormal": {"mu": 4.0, "sigma": 1.0, "max": 200}}),
            ("lognormal.min", 50, {"lognormal": {"mu": 4.0, "sigma": 1.0, "max": 200}}),
            ("lognormal.max", 60, {"lognormal": {"mu": 4.0, "sigma": 1.0, "max": 200}}),
            ("quantiles", [[0, 1], [100, 90]], {"quantiles": [[0, 30], [50, 40], [100, 90]]}),
        )
    },
    "rank_correlation": Case(0.9),
    "trace.file": Case("other.csv", MAPPED),
    "trace.columns.arrival_s": Case("TIMESTAMP", UNTIMED, RESOLVED),
    "trace.columns.input_tokens": Case("GeneratedTokens", MAPPED),
    "trace.columns.output_tokens": Case("ContextTokens", MAPPED),
    "trace.columns.session": Case("ContextTokens", MAPPED, RESOLVED),
    **{
        f"trace.columns.{name}": Case("ContextTokens", MAPPED, RESOLVED)
        for name in ("turn", "think_s", "end_s", "duration_s")
    },
    "trace.turns": Case("after_answer", {**OF_USERS, f"{TR}.columns.end_s": "Done"}),
    "trace.pause_s": Case(9.0, WAITING, NEEDED),
    "trace.context": Case(
        "accumulate", {**WAITING, f"{TR}.pause_s": 0.5, f"{TR}.columns.output_tokens": "User"}
    ),
    "trace.columns.traffic_class": Case("ContextTokens", MAPPED, RESOLVED),
    "trace.columns.hash_ids": Case("ContextTokens", {**MAPPED, f"{TR}.block_size": 16}, RESOLVED),
    "trace.time_unit": Case("iso", {**MAPPED, f"{TR}.time_unit": None}, NEEDED),
    "trace.block_size": Case(16, MAPPED, RESOLVED),
    "trace.characters_per_token": Case(4.0, MAPPED, RESOLVED),
    "trace.rate_scale": Case(0.5, MAPPED),
    "trace.window": Case([2.0, 9.0], MAPPED),
    "trace.where": Case({"ContextTokens": "33"}, MAPPED),
    "trace.on_reset": Case("sort", MAPPED, RESOLVED),
    "trace.on_zero": Case("clip1", MAPPED, RESOLVED),
    "trace.ties": Case("spread", MAPPED, RESOLVED),
    "trace_format": Case("azure", TRACE, ONLY),
    "speed": Case(50.0, {**TRACE, f"{WL}.max_concurrency": None}),
    "limit": Case(5, TRACE),
    "on_too_long": Case("drop", {**TRACE, f"{WL}.trace": "long.csv"}, NEEDED),
    "max_concurrency": Case(2),
    "request_rate": Case(20.0, OPEN),
    "burstiness": Case(0.2, OPEN),
    "cv": Case(2.0, OPEN),
    "arrivals.schedule.every_s": Case(0.01, SCHEDULE),
    "arrivals.schedule.requests_per_s": Case([9.0, 1.0], SCHEDULE),
    "arrivals.schedule.repeats": Case(False, SCHEDULE),
    "arrivals.diurnal.peak_to_trough": Case(9.0, DIURNAL),
    "arrivals.diurnal.peak_at_s": Case(0.05, DIURNAL),
    "arrivals.diurnal.period_s": Case(0.03, DIURNAL),
    "arrivals.ramp.from_per_s": Case(200.0, RAMP),
    "arrivals.ramp.to_per_s": Case(20.0, RAMP),
    "arrivals.ramp.over_s": Case(0.01, RAMP),
    "arrivals.spike.at_s": Case(0.0, SPIKE),
    "arrivals.spike.for_s": Case(0.005, SPIKE),
    "arrivals.spike.factor": Case(9.0, SPIKE),
    "arrivals.preset": Case("azure-conv-2023", OPEN),
    "num_prompts.per_concurrency": Case(3, {f"{WL}.num_prompts": {"per_concurrency": 5}}),
    "num_prompts.min": Case(50, {f"{WL}.num_prompts": {"per_concurrency": 5}}),
    "num_warmups.per_concurrency": Case(1, {f"{WL}.num_warmups": {"per_concurrency": 2}}),
    "num_warmups.min": Case(20, {f"{WL}.num_warmups": {"per_concurrency": 1}}),
    "max_tokens": Case(9),
    "output_cap": Case(9),
    "ignore_eos": Case(True),
    "mix.share": Case(0.25, {f"{WL}.mix": {"a": {}, "b": {"share": 0.75, **SHORT}}}, NEEDED),
    "mix.request_rate": Case(80.0, {**OPEN, f"{WL}.mix": {"a": {}, "b": {"request_rate": 40.0}}}, NEEDED),
    "mix.burstiness": Case(
        0.2,
        {**OPEN, f"{WL}.mix": {"a": {"request_rate": 80.0}, "b": {"request_rate": 40.0}}},
    ),
    "mix.cv": Case(2.0, {**OPEN, f"{WL}.mix": {"a": {"request_rate": 80.0}, "b": {"request_rate": 40.0}}}),
    "mix.preset": Case("mt-bench", {f"{WL}.mix": {"a": {"share": 0.5}, "b": 0.5}}),
    "mix.input_len": Case(70, {f"{WL}.mix": {"a": {"share": 0.5, "output_len": 9}, "b": 0.5}}, NEEDED),
    "mix.output_len": Case(9, {f"{WL}.mix": {"a": {"share": 0.5, "input_len": 70}, "b": 0.5}}, NEEDED),
    "mix.rank_correlation": Case(0.9, MIX),
    "mix.trace_format": Case("azure", OF_TRACE, ONLY),
    "mix.limit": Case(5, OF_TRACE),
    "mix.speed": Case(
        50.0,
        {f"{WL}.max_concurrency": None, f"{WL}.mix": {"a": {"trace": "rows.csv"}, "b": {"request_rate": 9}}},
    ),
    "mix.on_too_long": Case(
        "drop", {f"{WL}.mix": {"a": {"share": 0.5, "trace": "long.csv"}, "b": 0.5}}, NEEDED
    ),
    "mix.max_tokens": Case(9, MIX),
    "mix.output_cap": Case(9, MIX),
    "mix.ignore_eos": Case(True, MIX),
    "mix.temperature": Case(1.2, {**MIX, AC: LATENT[AC]}),
    "mix.priority": Case(1, {**MIX, **BUSY, "serve.scheduling_policy": "priority"}),
    "phases.num_prompts": Case(20, PHASES),
    "phases.request_rate": Case(9.0, PHASES),
    "phases.traffic_class": Case(
        "b",
        {
            **PHASES,
            AC: {
                "default": {"conditional_acceptance": 0.7, "concentration": 18},
                "b": {"conditional_acceptance": 0.2, "concentration": 18},
            },
        },
    ),
    "prefix.tokens": Case(200, {f"{WL}.prefix": {"tokens": 20}}),
    "prefix.groups": Case(9, {f"{WL}.prefix": {"tokens": 320}}),
    **SESSION_CASES,
    "temperature": Case(1.2, {AC: LATENT[AC]}),
}
OTHER_CASES = {
    "name": Case("y", seen=RESOLVED),
    "seed": Case(5, seen=RESOLVED),
    "replications": Case(2, seen=RESOLVED),
    **{f"client.{name}_ms": Case(30.0, BUSY) for name in ("send", "receive", "turn", "send_serial", "chunk")},
    "deployment.replicas": Case(2),
    **{f"deployment.autoscale.{key}": Case(value, SCALED) for key, value in SCALING.items()},
    "deployment.autoscale.min": Case(4, {**SCALED, "deployment.autoscale.start": 4}),
    **{f"slo.{name}_ms": Case(1.0, SLO) for name in ("ttft", "tpot", "e2el")},
    "slo.attainment": Case(0.1, SLO, RESOLVED),
    **{
        f"slo.{p}_{latency}_ms": Case(
            2.0, {"slo": {f"{p}_{latency}_ms": 90.0}}, RESOLVED if latency == "itl" else FIGURES
        )
        for p in ("p50", "p90", "p95", "p99")
        for latency in ("ttft", "tpot", "itl", "e2el")
    },
    "sweep.axes": Case({"serve.block_size": [16, 32]}, seen=RESOLVED),
    "sweep.load": Case("auto", seen=RESOLVED),
    "run.precision.mean": Case("1 %", seen=RESOLVED),
    "run.precision.p50": Case(0.05, seen=RESOLVED),
    "run.precision.p90": Case("5 %", seen=RESOLVED),
    "run.precision.p95": Case("5 %", seen=RESOLVED),
    "run.precision.p99": Case("10 %", seen=RESOLVED),
    "run.bill": Case(True, MIX, RESOLVED),
    "run.at_most": Case(20_000, seen=RESOLVED),
    "report.x": Case("output_throughput", SWEPT, RESOLVED),
    "report.lines": Case(f"{WL}.max_concurrency", {**SWEPT, "report.x": "output_throughput"}, RESOLVED),
    "report.y": Case(["p99_ttft_ms"], SWEPT, RESOLVED),
    "report.baseline": Case({f"{WL}.max_concurrency": 2}, SWEPT, RESOLVED),
    "report.least_gain": Case(0.05, SWEPT, RESOLVED),
    "report.requests": Case("none", {**PLAIN, **OPEN}, RESOLVED),
    "report.formats": Case(["png", "svg"], {}, RESOLVED),
    "plan.candidates.engine": Case(["vllm-0.33", "sglang"], PLAN, RESOLVED),
    "plan.candidates.gpu": Case(["h200-sxm"], PLAN, RESOLVED),
    "plan.candidates.tensor_parallel_size": Case([1, 2], PLAN, RESOLVED),
    "plan.candidates.data_parallel_size": Case([1, 2], {**PLAN, **PLAIN, **MIXTURE}, RESOLVED),
    "plan.candidates.enable_expert_parallel": Case(
        [True], {**PLAN, **PLAIN, **MIXTURE, "plan.candidates.data_parallel_size": [2]}, RESOLVED
    ),
    "plan.candidates.pipeline_parallel_size": Case([1, 2], {**PLAN, **PLAIN}, RESOLVED),
    "plan.candidates.quantization": Case(["fp8"], PLAN, RESOLVED),
    "plan.candidates.drafting.num_speculative_tokens": Case([1, 2], LISTED, RESOLVED),
    "plan.candidates.router": Case(["least_outstanding"], PLAN, RESOLVED),
    "plan.candidates.pools": Case(
        [{"x": ["a"], "y": ["b"]}], {**PLAN, f"{WL}.mix": {"a": 0.5, "b": 0.5}}, RESOLVED
    ),
    "plan.prices_per_hour_usd": Case({"h100-sxm": 9.0}, PLAN, RESOLVED),
    "plan.prices_file": Case("prices.csv", PLAN, RESOLVED),
    "plan.price_kind": Case("spot", {**PLAN, "plan.prices_file": "prices.csv"}, RESOLVED),
    "plan.also_at": Case([3.0], PLAN, RESOLVED),
    "plan.gpus_available": Case({"h100-sxm": 2}, PLAN, RESOLVED),
    "plan.max_gpus": Case(4, PLAN, RESOLVED),
    "plan.schedule": Case(
        [[0, 2.0], [12, 3.0]],
        {**PLAN, f"{WL}.request_rate": None, "plan": {"schedule": [[0, 2.0]]}},
        RESOLVED,
    ),
    "plan.day.preset": Case("azure-code-2024", ON_A_DAY, RESOLVED),
    "plan.day.trace": Case("day.csv", {**ON_A_DAY, "plan.day": {"trace": "other_day.csv"}}, RESOLVED),
    "plan.day.date": Case(
        "2024-05-15", {**ON_A_DAY, "plan.day": {"trace": "days.csv", "date": "2024-05-14"}}, RESOLVED
    ),
    "plan.day.mean_per_s": Case(7.0, ON_A_DAY, RESOLVED),
    "plan.day.peak_hour": Case(9.0, ON_A_DAY, RESOLVED),
    "plan.day.faster": Case(2.0, ON_A_DAY, RESOLVED),
    "plan.objective": Case("headroom", {**PLAN, "plan.max_gpus": 2}, RESOLVED),
    "plan.growth": Case(1.5, PLAN, RESOLVED),
    "plan.spare_replicas": Case(1, PLAN, RESOLVED),
    "claim.statement": Case("x", {**SWEPT, "claim": CLAIM}, RESOLVED),
    "claim.source": Case("x", {**SWEPT, "claim": CLAIM}, RESOLVED),
    **{
        f"claim.expect.{key}": Case(value, {**SWEPT, "claim": CLAIM}, RESOLVED)
        for key, value in (
            ("figure", "p99_ttft_ms"),
            ("where", {f"{WL}.max_concurrency": 4}),
            ("over", {f"{WL}.max_concurrency": 4}),
            ("over_figure", "p99_ttft_ms"),
            ("between", [0.0, 1.0]),
            ("said", "x"),
        )
    },
    **{
        f"claim.expect.{key}": Case(100.0, {**SWEPT, "claim": ASKED_FOR}, NEEDED)
        for key in ("measured", "at_least", "at_most")
    },
    "claim.expect.within": Case(0.1, {**SWEPT, "claim": MEASURED}, RESOLVED),
    "claim.expect.not_reproduced": Case(9.0, {**SWEPT, "claim": MEASURED}, RESOLVED),
}
CASES: dict[str, Case] = {
    **{f"serve.{key}": case for key, case in SERVE_CASES.items()},
    **{f"{DP}.{key}": case for key, case in POLICY_CASES.items()},
    **{f"{SC}.{key}": case for key, case in SPECULATIVE_CASES.items()},
    **{f"{AC}.{key}": case for key, case in ACCEPTANCE_CASES.items()},
    **{f"{WL}.{key}": case for key, case in WORKLOAD_CASES.items()},
    **OTHER_CASES,
}
ELSEWHERE = ("plugins.file", "plugins.module", "plugins.sha256", "acceptance.process")
"""Keys that need code of one's own: `test_own_code.py` has them."""
