"""llmperf."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specfleet.experiments.tools.read import read_tool

SUMMARY = {
    **{"version": "2023-08-31", "model": "m", "mean_input_tokens": 550, "mean_output_tokens": 150},
    **{"num_concurrent_requests": 5, "results_inter_token_latency_s_mean": 0.0133},
    **{"results_ttft_s_mean": 0.2, "results_ttft_s_quantiles_p50": 0.18, "results_ttft_s_quantiles_p99": 0.5},
    **{"results_end_to_end_latency_s_mean": 1.69, "results_number_output_tokens_mean": 150.0},
    **{"results_number_input_tokens_mean": 548.0, "results_mean_output_throughput_token_per_s": 440.0},
    **{
        "results_num_completed_requests": 50,
        "results_number_errors": 0,
        "results_error_code_frequency": "{}",
    },
}


def test_seconds_become_milliseconds_and_tpot_is_without_the_first_token(tmp_path: Path) -> None:
    path = tmp_path / "m_550_150_summary.json"
    path.write_text(json.dumps(SUMMARY))
    reading = read_tool(path)
    (found,) = reading.results
    assert reading.format == "llmperf" and (found.max_concurrency, found.completed) == (5, 50)
    assert found.numbers["mean_ttft_ms"] == pytest.approx(200) and found.numbers[
        "p99_ttft_ms"
    ] == pytest.approx(500)
    assert found.numbers["mean_tpot_ms"] == pytest.approx(10.0), "(1.69 s - 0.2 s) / 149"
    assert any("derived" in note for note in found.notes)


def test_the_nested_form_says_the_same(tmp_path: Path) -> None:
    nested = {
        "num_concurrent_requests": 5,
        "results": {
            "ttft_s": {"mean": 0.2, "quantiles": {"p50": 0.18, "p99": 0.5}},
            "end_to_end_latency_s": {"mean": 1.69},
            "number_output_tokens": {"mean": 150.0},
            "num_completed_requests": 50,
        },
    }
    path = tmp_path / "s.json"
    path.write_text(json.dumps(nested))
    (found,) = read_tool(path).results
    assert found.numbers["mean_tpot_ms"] == pytest.approx(10.0) and found.completed == 50
