"""AIPerf and GenAI-Perf."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specfleet.experiments.schema.faults import InputFaults
from specfleet.experiments.tools.read import read_tool


def figure(avg: float, unit: str = "ms") -> dict[str, object]:
    return {"unit": unit, "avg": avg, "p50": 0.9 * avg, "p99": 1.5 * avg, "std": 1.0}


EXPORT = {
    "request_throughput": figure(3.2, "requests/sec"),
    "request_latency": figure(2000.0),
    "time_to_first_token": figure(150.0),
    "inter_token_latency": figure(18.5),
    "output_token_throughput": figure(320.0, "tokens/sec"),
    "output_sequence_length": figure(100.0, "tokens"),
    "input_sequence_length": figure(550.0, "tokens"),
    "request_count": {"unit": "requests", "avg": 60},
    "input_config": {"perf_analyzer": {"stimulus": {"concurrency": 8}}},
}


def test_an_export_is_read_by_its_units_and_inter_token_latency_is_tpot(tmp_path: Path) -> None:
    path = tmp_path / "profile_export_genai_perf.json"
    path.write_text(json.dumps(EXPORT))
    reading = read_tool(path)
    (found,) = reading.results
    assert reading.format == "aiperf" and (found.max_concurrency, found.completed) == (8, 60)
    assert found.numbers["mean_tpot_ms"] == 18.5 and "mean_itl_ms" not in found.numbers
    newer = EXPORT | {
        "time_to_first_token": figure(0.15, "s"),
        "inter_token_latency": figure(18.5e6, "ns"),
        "inter_chunk_latency": figure(40.0),
        "input_config": {
            "loadgen": {"request_rate": 5.0, "request_rate_mode": "poisson", "concurrency": None}
        },
    }
    path.write_text(json.dumps(newer))
    (found,) = read_tool(path).results
    assert found.numbers["mean_ttft_ms"] == pytest.approx(150) and found.numbers[
        "mean_tpot_ms"
    ] == pytest.approx(18.5)
    assert found.numbers["mean_itl_ms"] == 40.0, "the pause between chunks is vLLM's ITL"
    assert (found.request_rate, found.max_concurrency) == ("5.0", None)


def test_a_unit_that_is_not_known_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(json.dumps(EXPORT | {"time_to_first_token": figure(1.0, "fortnights")}))
    with pytest.raises(
        InputFaults, match=r"time_to_first_token.unit: unit 'fortnights' is not known; use ms"
    ):
        read_tool(path)


def test_records_of_requests_are_one_result_without_warm_ups_and_failures(tmp_path: Path) -> None:
    def record(ttft: float, phase: str = "profiling", error: object = None) -> str:
        metrics = {
            "time_to_first_token": {"value": ttft, "unit": "ms"},
            "inter_token_latency": {"value": 10.0, "unit": "ms"},
            "output_sequence_length": {"value": 50, "unit": "tokens"},
            "input_sequence_length": {"value": 500, "unit": "tokens"},
        }
        metadata = {"benchmark_phase": phase, "request_start_ns": 10**9, "request_end_ns": 3 * 10**9}
        return json.dumps({"metadata": metadata, "metrics": metrics, "error": error})

    path = tmp_path / "profile_export.jsonl"
    path.write_text(
        "\n".join([record(9e9, "warmup"), record(100.0), record(200.0), record(5.0, error={"code": 499})])
    )
    (found,) = read_tool(path).results
    assert (found.completed, found.numbers["failed"]) == (2, 1)
    assert found.numbers["mean_ttft_ms"] == 150.0 and found.numbers["output_throughput"] == pytest.approx(
        50.0
    )
