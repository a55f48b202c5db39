"""Traces of splitwise-sim."""

from __future__ import annotations

from pathlib import Path

from specfleet.workloads.traces.formats import detected, read_trace


def test_seconds_and_sizes_are_read_by_name(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    head = "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\n"
    path.write_text(head + "0,2,0,1,1,4096,32\n1,2,0,3.25,1,2048,8\n")
    requests, report = read_trace(path)
    assert detected(path) == "splitwise"
    assert requests.arrival_s.tolist() == [0.0, 2.25] and requests.output_tokens.tolist() == [32, 8]
    assert "columns not used: request_id, request_type, application_id, batch_size" in report.notices


def test_the_real_file_matches_its_oracle(shared: Path) -> None:
    requests, report = read_trace(shared / "traces/splitwise-sim/test_trace.csv")
    assert report.rows_kept == 3 and report.span_s == 3.0
    assert (int(requests.prompt_tokens.sum()), int(requests.output_tokens.sum())) == (8192, 56)
