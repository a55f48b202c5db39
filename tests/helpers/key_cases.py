"""For every key of the schema: what stands around it, a value, and where the difference is seen."""

from __future__ import annotations

from key_cases_of_traffic import SESSIONS, WORKLOAD_CASES
from key_worlds import (
    AC,
    ASKED_FOR,
    BUSY,
    CLAIM,
    COLD,
    DP,
    FIGURES,
    HOT,
    LATENT,
    LISTED,
    LONG,
    MEASURED,
    MIX,
    MIXTURE,
    NEEDED,
    NGRAM,
    ON_A_DAY,
    OPEN,
    PLAIN,
    PLAN,
    RESOLVED,
    SC,
    SCALED,
    SCALING,
    SGLANG,
    SLO,
    SWEPT,
    SYNTHETIC,
    TIGHT,
    TREE,
    WL,
    Case,
    unmodelled,
)

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
            "serve.max_num_seqs": 60,
            f"{WL}.num_prompts": 60,
            f"{WL}.max_concurrency": 60,
            f"{AC}.conditional_acceptance": 0.3,  # with few users, or good drafts, all are verified
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
