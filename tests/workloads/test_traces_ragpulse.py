"""RAGPulse: times as texts, sessions, and a clock that is reset between two weeks."""

from __future__ import annotations

from pathlib import Path

import pytest

from specfleet.workloads.traces.formats import detected, read_trace
from specfleet.workloads.traces.report import TraceError


@pytest.mark.parametrize(
    ("name", "rows", "prompt", "output"),
    [("head400", 400, 1_198_153, 97_367), ("tail101", 100, 255_896, 25_515)],
)
def test_the_real_files_match_their_oracle(
    shared: Path, name: str, rows: int, prompt: int, output: int
) -> None:
    path = shared / f"traces/ragpulse/0_trace.{name}.jsonl"
    requests, report = read_trace(path)
    assert detected(path) == "ragpulse" and report.rows_kept == report.rows_read == rows
    assert (int(requests.prompt_tokens.sum()), int(requests.output_tokens.sum())) == (prompt, output)
    assert report.sessions and requests.segment_offset is None


def test_the_reset_between_the_weeks_is_refused_named_and_can_be_chosen(shared: Path) -> None:
    path = shared / "traces/ragpulse/0_trace.lines3701-3900.jsonl"
    with pytest.raises(TraceError, match=r"from 604453 \(line 100\) to 0 \(line 101\)"):
        read_trace(path)
    appended, mixed = read_trace(path, on_reset="append"), read_trace(path, on_reset="sort")
    assert appended.report.span_s == 604_453 - 594_936 + 9373 and mixed.report.span_s == 604_453
    assert int(appended.requests.prompt_tokens.sum()) == int(mixed.requests.prompt_tokens.sum()) == 539_394
    assert "1 reset clocks; each part appended to the one before" in appended.report.notices
