"""Per-request lists of vLLM's and SGLang's serving benchmarks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specfleet.workloads.traces.formats import detected, read_trace
from specfleet.workloads.traces.report import TraceError


def written(folder: Path, *runs: dict[str, object], indent: int | None = None) -> Path:
    path = folder / "result.json"
    path.write_text("\n".join(json.dumps(run, indent=indent) for run in runs) + "\n")
    return path


VLLM: dict[str, object] = {
    "date": "20260101",
    "input_lens": [10, 20, 30, 40],
    "output_lens": [1, 2, 0, 4],
    "start_times": [812.5, 811.25, 813.0, 815.000000001],
    "errors": ["", "", "timed out", ""],
}


@pytest.mark.parametrize("indent", [None, 2])
def test_requests_are_sorted_by_start_and_failures_dropped(tmp_path: Path, indent: int | None) -> None:
    path = written(tmp_path, VLLM, indent=indent)
    requests, report = read_trace(path)
    assert detected(path) == "vllm-bench"
    assert requests.prompt_tokens.tolist() == [20, 10, 40]
    assert requests.arrival_s.tolist() == [0.0, 1.25, 3.750000001]
    assert [(drop.reason, drop.rows, drop.first_line) for drop in report.dropped] == [("failed", 1, 3)]
    assert "(first at request 3)" in report.render()


def test_without_start_times_there_are_lengths_alone(tmp_path: Path) -> None:
    path = written(
        tmp_path, {"backend": "sglang", "input_lens": [10, 20], "output_lens": [1, 2], "errors": ["", ""]}
    )
    requests, report = read_trace(path)
    assert detected(path) == "sglang-bench" and not report.timed
    assert requests.prompt_tokens.tolist() == [10, 20]


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        (
            [{"total_input_tokens": 9, "total_output_tokens": 3}],
            "line 1: a benchmark's totals.*--save-detailed",
        ),
        ([VLLM, VLLM], "line 2: a second run"),
        ([{**VLLM, "output_lens": [1]}], "output_lens has 1 entries, input_lens has 4"),
        ([{**VLLM, "input_lens": 5}], "input_lens is no list of requests; run"),
        ([{"custom_id": "a", "body": {}}], "requests of a batch"),
    ],
)
def test_what_holds_no_requests_is_refused(
    tmp_path: Path, runs: list[dict[str, object]], message: str
) -> None:
    with pytest.raises(TraceError, match=message):
        read_trace(written(tmp_path, *runs))
