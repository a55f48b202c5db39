"""`vllm bench serve` of all versions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specfleet.experiments.schema.faults import InputFaults
from specfleet.experiments.tools.read import read_tool

OLD = {
    **{"date": "20240601-101010", "backend": "vllm", "model_id": "m", "tokenizer_id": "m", "best_of": 1},
    **{"num_prompts": 100, "request_rate": "inf", "duration": 20.0, "completed": 100},
    **{"total_input_tokens": 21000, "total_output_tokens": 20000, "request_throughput": 5.0},
    **{"output_throughput": 1000.0, "mean_ttft_ms": 80.0, "median_ttft_ms": 70.0, "p99_ttft_ms": 200.0},
    **{
        "mean_tpot_ms": 11.0,
        "median_tpot_ms": 10.5,
        "p99_tpot_ms": 15.0,
        "itls": [[0.01, 0.02]],
        "errors": [""],
    },
}
NEW = OLD | {
    **{"endpoint_type": "openai", "label": None, "max_concurrency": 16, "burstiness": 1.0, "failed": 0},
    **{"request_goodput:": None, "max_output_tokens_per_s": 1200.0, "max_concurrent_requests": 18},
    **{"input_lens": [200, 220], "output_lens": [190, 210], "ttfts": [0.1, 0.2]},
    **{
        "spec_decode_num_drafts": 8000,
        "spec_decode_draft_tokens": 24000,
        "spec_decode_accepted_tokens": 12000,
    },
    **{"spec_decode_acceptance_length": 2.5, "spec_decode_per_position_acceptance_rates": [0.7, 0.5, 0.3]},
}


def read(tmp_path: Path, text: str) -> list[tuple[int | None, int | None]]:
    path = tmp_path / "r.json"
    path.write_text(text)
    reading = read_tool(path)
    assert reading.format == "vllm-bench"
    return [(one.max_concurrency, one.drafts) for one in reading.results]


def test_old_and_new_results_are_read_and_only_counters_say_k(tmp_path: Path) -> None:
    assert read(tmp_path, json.dumps(OLD)) == [(None, None)]
    assert read(tmp_path, json.dumps(NEW)) == [(16, 3)]
    without_positions = {k: v for k, v in NEW.items() if "per_position" not in k}
    assert read(tmp_path, json.dumps(without_positions)) == [(16, 3)]


def test_results_appended_to_a_file_are_each_read(tmp_path: Path) -> None:
    assert read(tmp_path, json.dumps(OLD) + "\n" + json.dumps(NEW, indent=2)) == [(None, None), (16, 3)]
    assert read(tmp_path, json.dumps([OLD, NEW])) == [(None, None), (16, 3)]


def test_a_result_without_tpot_is_one(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(json.dumps({k: v for k, v in NEW.items() if "tpot" not in k}))
    (found,) = read_tool(path).results
    assert "mean_tpot_ms" not in found.numbers and found.numbers["mean_ttft_ms"] == 80.0
    assert found.input_lens == (200.0, 220.0) and found.mean("output") == 200.0


def test_an_offline_benchmark_and_a_cut_file_are_refused_with_what_to_give(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(json.dumps({"avg_latency": 1.0, "latencies": [1.0], "duration": 1.0, "num_prompts": 2}))
    with pytest.raises(
        InputFaults, match="is a result of `vllm bench latency`, without a server; give one of"
    ):
        read_tool(path)
    path.write_text(json.dumps(NEW, indent=2)[:-40])
    with pytest.raises(InputFaults, match=r"r.json:\d+: is no JSON: .*cut short"):
        read_tool(path)
