"""What cannot be simulated is refused with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from experiment_texts import EAGLE3, SERVE, experiment_text, messages, speculative

SLO = "slo: {attainment: 0.9}"
AXES = "sweep: {axes: {serve.speculative_config.num_speculative_tokens: [1, 3]}}"
CONFLICTS = [
    (
        experiment_text(f"{SERVE}, max_num_seqs: 64, max_num_batched_tokens: 32"),
        "fewer than max_num_seqs, 64",
    ),
    (
        experiment_text(
            f"{SERVE}, enable_chunked_prefill: false, max_num_batched_tokens: 2048, max_model_len: 4096"
        ),
        "without chunked prefill a prompt of max_model_len, 4096 tokens, must fit",
    ),
    (experiment_text(f"{SERVE}, tensor_parallel_size: 3"), "cannot share the 32 attention heads"),
    (experiment_text(f"{SERVE}, max_model_len: 10000000"), "is beyond the 131072 positions"),
    (experiment_text(f"{SERVE}, pipeline_parallel_size: 33"), "has 32 layers; use at most 32 stages"),
    (
        experiment_text(f"{SERVE}, pipeline_parallel_size: 2, engine: sglang"),
        "stages are simulated under vLLM's scheduler alone",
    ),
    (
        experiment_text(f"{SERVE}, pipeline_parallel_size: 2, cost_model: roofline"),
        "stages are priced by kernels, not by roofline",
    ),
    (
        experiment_text(
            "model: qwen3-30b-a3b, gpu: h100-sxm, pipeline_parallel_size: 2, data_parallel_size: 2"
        ),
        "ranks that share the experts of each stage are not simulated",
    ),
    (
        experiment_text(f"{SERVE}, pipeline_parallel_size: 2, memory: {{weights_gib: 15}}"),
        "is a figure of one stage, and each has its own",
    ),
    (
        experiment_text(
            f"{SERVE}, pipeline_parallel_size: 2, engine: vllm-0.15, speculative_config: {{{EAGLE3}}}"
        ),
        "builds before vllm-0.33 would cut the drafter into stages",
    ),
    (
        experiment_text(
            f"{SERVE}, pipeline_parallel_size: 2, async_scheduling: false, speculative_config: {{{EAGLE3}}}"
        ),
        "drafts with stages are simulated under asynchronous scheduling alone",
    ),
    (experiment_text(SERVE.replace("h100-sxm", "h100-sxn")), "did you mean 'h100-sxm'"),
    (experiment_text(f"{SERVE}, engine: vllm-0.34"), "vllm-0.33"),
    (experiment_text(workload="preset: azure-conv-2032"), "closest: azure-conv-2023"),
    (experiment_text(workload="input_len: 10"), "has no output lengths; add output_len or output"),
    (experiment_text(workload="preset: mt-bench, input_len: 10"), "keep exactly one source"),
    (experiment_text(workload="num_prompts: 10"), "has no lengths"),
    (
        experiment_text(f"{SERVE}, max_model_len: 1000", "input_len: 1000, output_len: 1"),
        "leave no room in serve.max_model_len, 1000",
    ),
    (
        experiment_text(
            f"{SERVE}, max_model_len: 1000",
            "input: {uniform: {low: 1, high: 900}}, output: {quantiles: [[0, 1], [100, 101]]}",
        ),
        "prompts of up to 900 tokens and outputs of up to 101 exceed",
    ),
    (
        experiment_text(workload="input: {uniform: {low: 9, high: 1}}, output_len: 1"),
        "low, 9, is above high, 1",
    ),
    (
        experiment_text(workload="input: {fixed: 1, uniform: {low: 1, high: 2}}, output_len: 1"),
        "exactly one of",
    ),
    (experiment_text(workload="input_len: 1, output_len: 1, speed: 2"), "means something only for a trace"),
    (
        experiment_text(workload="input_len: 1, output_len: 1, num_prompts: {per_concurrency: 2}"),
        "needs workload.max_concurrency",
    ),
    (experiment_text(rest=SLO), "has no limit; give p99_ttft_ms"),
    (experiment_text(rest="replications: 0"), "must be at least 1, not 0"),
    (experiment_text(rest="seed:"), "must be a whole number, not nothing"),
    (speculative(EAGLE3, ""), "3 drafts a round and no acceptance: block"),
    (
        speculative("method: lookahead, num_speculative_tokens: 3"),
        "use one of eagle3, eagle, mtp, dflash, dspark, draft_model, medusa, ngram, suffix",
    ),
    (speculative("method: eagle3, num_speculative_tokens: 3"), "method eagle3 needs a drafter"),
    (speculative(f"method: draft_model, {EAGLE3}"), "is a drafter for method eagle3, not draft_model"),
    (speculative("method: ngram"), "num_speculative_tokens is required"),
    (speculative(f"{EAGLE3}, prompt_lookup_max: 4"), "belongs to method ngram"),
    (speculative(f"{EAGLE3}, tensor_parallel_size: 1"), "did you mean draft_tensor_parallel_size?"),
    (speculative(f"{EAGLE3}, draft_tensor_parallel_size: 2"), "neither 1 nor the target's"),
    (speculative(f"{EAGLE3}, enable_adaptive_verification: true"), "belongs to method dspark"),
    (
        speculative(
            f"{EAGLE3}, enable_adaptive_verification: true, "
            "num_speculative_tokens_per_batch_size: [[1, 4, 1]]"
        ),
        "choose drafts in one place",
    ),
    (
        experiment_text(
            f"{SERVE}, max_num_seqs: 256, max_num_batched_tokens: 512, "
            f"speculative_config: {{{EAGLE3}, enable_adaptive_verification: true}}"
        ),
        "256 requests with 3 drafts each are more tokens than a step has, 512",
    ),
    (
        experiment_text(
            f"{SERVE}, pipeline_parallel_size: 2, "
            f"speculative_config: {{{EAGLE3}, enable_adaptive_verification: true}}"
        ),
        "vLLM refuses it with stages",
    ),
    (speculative(f"{EAGLE3}, num_speculative_tokens_per_batch_size: [[2, 4, 1]]"), "start at 1"),
    (speculative(f"{EAGLE3}, num_speculative_tokens_per_batch_size: [[1, 4, 1], [4, 9, 0]]"), "overlap"),
    (speculative(f"{EAGLE3}, rejection_sample_method: block"), "block verification is not modelled yet"),
    (speculative(f"{EAGLE3}, rejection_sample_method: synthetic"), "remove one of the two"),
    (speculative(f"{EAGLE3}, synthetic_acceptance_length: 2"), "needs rejection_sample_method: synthetic"),
    (speculative(EAGLE3, "acceptance: {}"), "give exactly one of by_position"),
    (speculative(EAGLE3, "acceptance: {profile: eagle-chat}"), "no acceptance profile 'eagle-chat'"),
    (
        speculative(EAGLE3, "acceptance: {by_position: [0.5, 0.5, 0.5], acceptance_length: 2}"),
        "by_position and acceptance_length say the same thing twice",
    ),
    (speculative(EAGLE3, "acceptance: {by_position: [0.5, 0.6, 0.4]}"), "never increase"),
    (speculative(EAGLE3, "acceptance: {by_position: [0.5, 0.4], measured_at_k: 3}"), "has 2 entries"),
    (speculative(EAGLE3, "acceptance: {by_position: [1.2]}"), "must be at most 1, not 1.2"),
    (speculative(EAGLE3, "acceptance: {acceptance_length: 5}"), "more than 3 drafts and one; use at most 4"),
    (
        speculative(EAGLE3, f"acceptance: {{acceptance_length: 2}}\n{AXES}"),
        "1, 3 are swept; add measured_at_k",
    ),
    (speculative(EAGLE3, "acceptance: {conditional_acceptance: .nan}"), "finite number"),
    (
        speculative(EAGLE3, "acceptance: {conditional_acceptance: 0.5, context_multiplier: [[0, 1], [9]]}"),
        "acceptance.context_multiplier[1][1]: is required; add it",
    ),
    (
        speculative(
            EAGLE3, "acceptance: {conditional_acceptance: 0.5, context_multiplier: [[9, 1], [0, 1]]}"
        ),
        "tokens rising from 0 or more",
    ),
    (experiment_text(rest="sweep: {axes: {max_concurrency: [1]}}"), "did you mean workload.max_concurrency?"),
    (experiment_text(rest="sweep: {axes: {workload.max_concurrency: []}}"), "at least 1 entries"),
    (
        experiment_text(rest="sweep: {axes: {workload.max_concurrency: 4}}"),
        "must be a list, not 4; write [4]",
    ),
    (experiment_text(rest="sweep: {axes: {workload.max_concurrency: [4, 4]}}"), "has 4 twice"),
    (experiment_text(rest="sweep: {axes: {seed: [1, 2]}}"), "is the same for all points"),
    (experiment_text(rest="report: {baseline: {serve.gpu: a}}"), "nothing is swept"),
    (experiment_text(rest="report: {y: p99_tpot}"), "did you mean p99_tpot_ms?"),
]


@pytest.mark.parametrize(("text", "message"), CONFLICTS, ids=[message for _, message in CONFLICTS])
def test_what_cannot_be_simulated_is_refused_with_a_reason(tmp_path: Path, text: str, message: str) -> None:
    assert any(message in line for line in messages(tmp_path, text))
