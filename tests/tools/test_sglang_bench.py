"""SGLang's `bench_serving`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specfleet.experiments.tools.read import read_tool

LINE: dict[str, object] = {
    **{"tag": None, "backend": "sglang", "dataset_name": "random", "request_rate": float("inf")},
    **{"max_concurrency": 8, "sharegpt_output_len": None, "random_input_len": 1024, "duration": 30.0},
    **{"completed": 80, "total_input_tokens": 40000, "total_output_tokens": 20000, "request_throughput": 2.6},
    **{"total_output_tokens_retokenized": 19950, "output_throughput": 660.0, "mean_e2e_latency_ms": 2500.0},
    **{"mean_ttft_ms": 60.0, "median_ttft_ms": 55.0, "p99_ttft_ms": 110.0, "mean_tpot_ms": 9.0},
    **{
        "median_tpot_ms": 8.8,
        "p99_tpot_ms": 12.0,
        "mean_itl_ms": 9.1,
        "p99_itl_ms": 30.0,
        "concurrency": 7.4,
    },
    **{"accept_length": 2.8},
}


def test_a_line_a_run_with_acceptance_and_without_its_itl(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    arguments = {"speculative_algorithm": "EAGLE3", "speculative_num_draft_tokens": 4, "tp_size": 2}
    lines = [LINE, LINE | {"max_concurrency": None, "accept_length": None, "request_rate": 4.0}]
    lines.append(LINE | {"server_info": arguments})
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    reading = read_tool(path)
    assert reading.format == "sglang-bench" and len(reading.results) == 3
    first, second, third = reading.results
    assert (
        first.acceptance_length == pytest.approx(2.8) and first.drafts is None and first.request_rate == "inf"
    )
    assert first.numbers["mean_tpot_ms"] == 9.0 and not any("itl" in key for key in first.numbers)
    assert any("no step" in note for note in first.notes)
    assert (second.counted, second.drafts, second.request_rate, second.max_concurrency) == (
        False,
        None,
        "4.0",
        None,
    )
    assert third.drafts == 3 and third.served["tp"] == 2


def test_a_server_that_reports_one_token_a_round_counts_no_drafts(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps(LINE | {"accept_length": 1.0}))
    (found,) = read_tool(path).results
    assert found.acceptance_length is None and not found.counted
