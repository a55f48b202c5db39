"""Scrapes of /metrics."""

from __future__ import annotations

from pathlib import Path

import pytest

from specfleet.experiments.schema.faults import InputFaults
from specfleet.experiments.tools.read import read_tool
from specfleet.experiments.tools.result import ToolResult

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 0.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 40000.0
vllm:generation_tokens_total{engine="0",model_name="m"} 20080.0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 60.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="m"} 20.0
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1",model_name="m"} 70.0
vllm:time_to_first_token_seconds_count{engine="0",model_name="m"} 80.0
vllm:time_to_first_token_seconds_sum{engine="0",model_name="m"} 8.0
vllm:inter_token_latency_seconds_count{engine="0",model_name="m"} 10000.0
vllm:inter_token_latency_seconds_sum{engine="0",model_name="m"} 200.0
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 10000.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 20000.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 10000.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 6000.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 4000.0
"""


def the_one(tmp_path: Path, text: str) -> ToolResult:
    path = tmp_path / "metrics.txt"
    path.write_text(text)
    reading = read_tool(path)
    assert reading.format == "prometheus"
    (found,) = reading.results
    return found


def test_vllm_s_pauses_are_steps_and_tpot_is_their_sum_by_tokens(tmp_path: Path) -> None:
    found = the_one(tmp_path, VLLM)
    assert found.completed == 80 and found.numbers["mean_ttft_ms"] == pytest.approx(100.0)
    assert found.numbers["mean_itl_ms"] == pytest.approx(20.0)
    assert found.numbers["mean_tpot_ms"] == pytest.approx(10.0), "200 s for the 20,000 tokens after the first"
    assert (found.drafts, found.per_position_acceptance_rates, found.max_concurrency) == (2, (0.6, 0.4), None)


def test_sglang_s_accept_length_is_counted_where_verifications_are(tmp_path: Path) -> None:
    text = (
        'sglang:generation_tokens_total{model_name="m"} 20080.0\n'
        'sglang:num_requests_total{model_name="m"} 80.0\n'
        'sglang:inter_token_latency_seconds_sum{model_name="m"} 200.0\n'
        'sglang:inter_token_latency_seconds_count{model_name="m"} 20000.0\n'
        'sglang:spec_accept_length{tp_rank="0"} 2.9\nsglang:spec_accept_length{tp_rank="1"} 2.9\n'
    )
    gauge = the_one(tmp_path, text)
    assert gauge.acceptance_length == pytest.approx(2.9) and "mean_itl_ms" not in gauge.numbers
    assert gauge.numbers["mean_tpot_ms"] == pytest.approx(10.0)
    counted = the_one(tmp_path, text + 'sglang:spec_verify_calls_total{model_name="m"} 8000.0\n')
    assert counted.acceptance_length == pytest.approx(2.5)


def test_tensorrt_llm_and_llama_cpp_have_names_of_their_own(tmp_path: Path) -> None:
    trt = the_one(
        tmp_path,
        "trtllm_time_per_output_token_seconds_sum 4.0\ntrtllm_time_per_output_token_seconds_count 200\n"
        "trtllm_spec_decode_num_draft_tokens_total 300\ntrtllm_spec_decode_num_accepted_tokens_total 150\n"
        "trtllm_spec_decode_acceptance_length 2.5\n",
    )
    assert trt.numbers["mean_tpot_ms"] == pytest.approx(20.0) and trt.acceptance_length == 2.5
    llama = the_one(
        tmp_path, "llamacpp:tokens_predicted_total 1000\nllamacpp:tokens_predicted_seconds_total 20.0\n"
    )
    assert llama.numbers["mean_tpot_ms"] == pytest.approx(20.0)


def test_a_count_that_nothing_counts_is_refused_by_name_and_line(tmp_path: Path) -> None:
    path = tmp_path / "m.txt"
    path.write_text(VLLM.replace("40000.0", "-5"))
    with pytest.raises(InputFaults, match=r"m.txt:4: vllm:prompt_tokens_total: is -5, which nothing counts"):
        read_tool(path)
