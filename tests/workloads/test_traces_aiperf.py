"""AIPerf's export: nanoseconds, and only what was profiled and finished."""

from __future__ import annotations

import json
from pathlib import Path

from specfleet.workloads.traces.formats import detected, read_trace


def line(start_ns: object, prompt: object, **about: object) -> str:
    metrics = {
        "input_sequence_length": {"value": prompt, "unit": "tokens"},
        "output_sequence_length": {"value": 9, "unit": "tokens"},
    }
    error = about.pop("error", None)
    return (
        json.dumps({"metadata": {"request_start_ns": start_ns, **about}, "metrics": metrics, "error": error})
        + "\n"
    )


def test_warm_up_cancelled_and_failed_requests_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "profile_export.jsonl"
    path.write_text(
        line(1_760_000_000_000_000_000, 5, benchmark_phase="warmup")
        + line(1_760_000_009_000_000_001, 7, benchmark_phase="profiling", conversation_id="c")
        + line(1_760_000_008_000_000_000, 6, benchmark_phase="profiling", conversation_id="c")
        + line(1_760_000_008_000_000_000, 6, was_cancelled=True)
        + line(1_760_000_008_000_000_000, 6, error={"code": 500})
        + '{"metadata": 1, "metrics": 2}\n'
    )
    requests, report = read_trace(path)
    assert detected(path) == "aiperf" and report.sessions == 1
    assert requests.prompt_tokens.tolist() == [6, 7] and requests.arrival_s.tolist() == [0.0, 1.000000001]
    assert [drop.reason for drop in report.dropped] == [
        "of the warm-up",
        "cancelled",
        "failed",
        "no metadata or no metrics",
    ]
