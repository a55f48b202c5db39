"""BurstGPT: both layouts by name, failures, classes and sessions."""

from __future__ import annotations

from pathlib import Path

import pytest

from specfleet.workloads.traces.formats import detected, read_trace


@pytest.mark.parametrize(
    ("name", "dropped", "prompt", "output", "sessions"),
    [("BurstGPT_1", 17, 208_189, 110_612, 0), ("BurstGPT_3", 1, 246_941, 68_350, 134)],
)
def test_the_real_files_match_their_oracle(
    shared: Path, name: str, dropped: int, prompt: int, output: int, sessions: int
) -> None:
    requests, report = read_trace(shared / f"traces/burstgpt/{name}.head400.csv")
    assert (report.rows_read, report.rows_kept) == (400, 400 - dropped)
    assert [(drop.reason, drop.rows) for drop in report.dropped] == [
        ("zero prompt or output tokens", dropped)
    ]
    assert (int(requests.prompt_tokens.sum()), int(requests.output_tokens.sum())) == (prompt, output)
    assert report.sessions == sessions and "Conversation log" in report.classes


def test_the_third_layout_is_read_by_name(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    head = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    path.write_text(
        head + "19440110.0,a-b,43,GPT-4,906,446,1352,Conversation log\n19440111.5,,2,GPT-4,5,6,11,API log\n"
    )
    requests, report = read_trace(path, where={"Model": "GPT-4"})
    assert detected(path) == "burstgpt"
    assert requests.prompt_tokens.tolist() == [906, 5] and requests.arrival_s.tolist() == [0.0, 1.5]
    assert report.classes == {"Conversation log": 1, "API log": 1} and report.sessions == 1
    only = read_trace(path, where={"Log Type": "API log"}).report
    assert [drop.reason for drop in only.dropped] == ["Log Type is not API log"]
