"""InferenceX aggregates."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specfleet.experiments.schema.faults import InputFaults
from specfleet.experiments.tools.read import read_tool

POINT = {
    **{
        "hw": "h200",
        "tp": 8,
        "ep": 1,
        "dp_attention": "false",
        "conc": 16,
        "model": "m",
        "framework": "vllm",
    },
    **{"precision": "fp8", "spec_decoding": "none", "disagg": False, "isl": 1024, "osl": 1024},
    **{"tput_per_gpu": 200.0, "output_tput_per_gpu": 100.0, "mean_tpot": 0.018, "median_tpot": 0.0175},
    **{"median_intvty": 57.0, "mean_ttft": 0.2, "p99_ttft": 0.9, "median_itl": 0.017, "mean_e2el": 18.0},
}


def test_seconds_become_milliseconds_and_throughput_is_of_all_gpus(tmp_path: Path) -> None:
    path = tmp_path / "agg_bmk.json"
    path.write_text(json.dumps([POINT, POINT | {"conc": 64, "spec_decoding": "mtp", "ep": 8}]))
    reading = read_tool(path)
    first, second = reading.results
    assert reading.format == "inferencex" and (first.max_concurrency, second.max_concurrency) == (16, 64)
    assert first.numbers["median_tpot_ms"] == pytest.approx(17.5)
    assert first.numbers["output_throughput"] == pytest.approx(800.0)
    assert first.mean("input") == pytest.approx(921.6), "its client draws 0.8 to 1 of the nominal length"
    assert (first.drafts, second.drafts, second.served["ep"]) == (0, None, 8)


def test_an_impossible_figure_is_refused_under_its_own_name(tmp_path: Path) -> None:
    path = tmp_path / "agg.json"
    path.write_text(json.dumps(POINT | {"mean_tpot": -0.1}))
    with pytest.raises(InputFaults, match=r"agg.json:1: mean_tpot: is -100, which nothing measures"):
        read_tool(path)
