"""Vidur's traces, with times and without."""

from __future__ import annotations

from pathlib import Path

import pytest

from specfleet.workloads.traces.formats import detected, read_trace


@pytest.mark.parametrize(
    ("name", "rows", "prompt", "output", "span_s"),
    [
        ("splitwise_code", 8819, 18_059_974, 245_896, 3435.948056),
        ("splitwise_conv.head14000", 14_000, 16_787_423, 2_817_051, 2365.761801),
        ("arxiv_summarization_stats_llama2_tokenizer_filtered_v2.head3000", 3000, 7_660_993, 913_775, 0.0),
    ],
)
def test_the_real_files_match_their_oracle(
    shared: Path, name: str, rows: int, prompt: int, output: int, span_s: float
) -> None:
    requests, report = read_trace(shared / f"traces/vidur/{name}.csv")
    assert report.rows_read == report.rows_kept == rows and report.span_s == span_s
    assert (int(requests.prompt_tokens.sum()), int(requests.output_tokens.sum())) == (prompt, output)
    assert report.timed == (span_s > 0)


def test_lengths_alone_have_no_times_and_it_is_said(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("num_prefill_tokens,num_decode_tokens,pd_ratio\n3772,54,69.85\n")
    report = read_trace(path).report
    assert detected(path) == "vidur" and not report.timed
    assert "time      none recorded" in report.render()
    assert report.notices[0].startswith("no arrival times; all requests come at once")
