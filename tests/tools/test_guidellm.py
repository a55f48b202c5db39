"""guidellm's benchmarks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specfleet.experiments.schema.faults import InputFaults
from specfleet.experiments.tools.read import read_tool


def figure(mean: float) -> dict[str, object]:
    return {
        "successful": {
            "mean": mean,
            "median": 0.9 * mean,
            "percentiles": {"p95": 1.4 * mean, "p99": 1.5 * mean},
        }
    }


def bench(strategy: dict[str, object], completed: int = 50) -> dict[str, object]:
    return {
        "args": {"strategy": strategy},
        "request_totals": {"successful": completed, "errored": 1, "incomplete": 8, "total": completed + 9},
        **{"start_time": 100.0, "end_time": 160.0},
        "metrics": {
            "requests_per_second": figure(0.8),
            "request_latency": figure(2.5),
            "prompt_token_count": figure(512.0),
            "output_token_count": figure(128.0),
            "time_to_first_token_ms": figure(70.0),
            "time_per_output_token_ms": figure(19.5),
            "inter_token_latency_ms": figure(19.0),
            "output_tokens_per_second": figure(106.0),
        },
    }


def test_each_rate_is_a_result_and_its_inter_token_latency_is_tpot(tmp_path: Path) -> None:
    path = tmp_path / "benchmarks.json"
    strategies: list[dict[str, object]] = [
        {"type_": "synchronous"},
        {"type_": "concurrent", "streams": 8},
        {"type_": "throughput", "max_concurrency": None},
        {"type_": "constant", "rate": 2.5},
        {"type_": "poisson", "rate": 3.0},
    ]
    path.write_text(json.dumps({"benchmarks": [bench(one) for one in strategies]}))
    reading = read_tool(path)
    assert reading.format == "guidellm"
    loads = [(one.max_concurrency, one.request_rate) for one in reading.results]
    assert loads == [(1, "inf"), (8, "inf"), (None, "inf"), (None, "2.5"), (None, "3.0")]
    assert [one.numbers.get("burstiness") for one in reading.results] == [None, None, None, 1e6, 1.0]
    first = reading.results[0].numbers
    assert first["mean_tpot_ms"] == 19.0 and "mean_itl_ms" not in first, (
        "its time per output token holds TTFT"
    )
    assert first["mean_e2el_ms"] == pytest.approx(2500.0) and first["p99_ttft_ms"] == pytest.approx(105.0)
    assert (first["completed"], first["failed"], first["mean_output_tokens"]) == (50, 1, 128)


def test_newer_files_state_the_strategy_under_config_and_totals_under_metrics(tmp_path: Path) -> None:
    path = tmp_path / "benchmarks.json"
    one = bench({})
    one["config"] = {"strategy": {"type_": "concurrent", "streams": 4}}
    metrics, totals = one["metrics"], one.pop("request_totals")
    assert isinstance(metrics, dict)
    metrics["request_totals"] = totals
    path.write_text(json.dumps({"metadata": {}, "benchmarks": [one]}))
    (found,) = read_tool(path).results
    assert (found.max_concurrency, found.completed) == (4, 50)


def test_a_rate_at_which_nothing_ended_is_left_out_and_no_rate_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "benchmarks.json"
    path.write_text(json.dumps({"benchmarks": [bench({}, 0), bench({"type_": "synchronous"})]}))
    assert len(read_tool(path).results) == 1
    path.write_text(json.dumps({"benchmarks": []}))
    with pytest.raises(InputFaults, match="holds no benchmark"):
        read_tool(path)
    path.write_text(json.dumps({"benchmarks": [{"mode": "asynchronous", "results": []}]}))
    with pytest.raises(InputFaults, match=r"benchmarks\[0\]: has no metrics"):
        read_tool(path)
