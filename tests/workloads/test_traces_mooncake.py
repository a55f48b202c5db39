"""Mooncake's traces: milliseconds, blocks of 512 tokens, the oracle of the real files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from specfleet.workloads.traces.formats import detected, read_trace


def written(folder: Path, *rows: tuple[int, int, list[int]]) -> Path:
    path = folder / "trace.jsonl"
    keys = ("timestamp", "input_length", "hash_ids")
    lines = [{**dict(zip(keys, row, strict=True)), "output_length": 5} for row in rows]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize(
    ("name", "rows", "prompt", "output", "span_s"),
    [
        ("conversation_trace.head1159", 1159, 16_149_193, 400_672, 393.0),
        ("synthetic_trace.head673", 673, 8_083_151, 131_746, 186.061),
    ],
)
def test_the_real_files_match_their_oracle(
    shared: Path, name: str, rows: int, prompt: int, output: int, span_s: float
) -> None:
    path = shared / f"traces/mooncake-fast25/{name}.jsonl"
    requests, report = read_trace(path)
    assert detected(path) == "mooncake" and report.rows_kept == report.rows_read == rows
    assert (int(requests.prompt_tokens.sum()), int(requests.output_tokens.sum())) == (prompt, output)
    assert report.span_s == span_s and not any("hash_ids" in said for said in report.notices)
    requests.validate()


def test_equal_ids_are_equal_tokens_and_the_last_block_is_what_is_left(tmp_path: Path) -> None:
    requests, report = read_trace(written(tmp_path, (0, 1000, [7, 8]), (1500, 600, [7, 9])))
    assert requests.arrival_s.tolist() == [0.0, 1.5]
    assert requests.segment_offset is not None and requests.segment_stream is not None
    assert requests.segment_tokens is not None
    assert requests.segment_offset.tolist() == [0, 2, 4]
    assert requests.segment_tokens.tolist() == [512, 488, 512, 88]
    first, second, third, fourth = requests.segment_stream.tolist()
    assert first == third < 0 and len({first, second, fourth}) == 3
    assert report.block_size == 512


def test_ids_that_do_not_fit_the_length_share_nothing_and_it_is_said(tmp_path: Path) -> None:
    requests, report = read_trace(written(tmp_path, (0, 1000, [7, 8]), (0, 5000, [7, 8])))
    assert requests.segment_stream is not None
    assert requests.segment_stream.tolist()[2:] == [1]
    assert any(said.startswith("1 rows whose hash_ids") for said in report.notices)


def test_ties_of_a_coarse_clock_are_said_and_spread_when_asked(tmp_path: Path) -> None:
    path = written(tmp_path, *((3000 * (i // 5), 100, [i]) for i in range(20)))
    kept, spread = read_trace(path), read_trace(path, ties="spread")
    assert "16 requests share the time stamp of another; stamps are 3 s apart (median); kept as they are" in (
        kept.report.notices
    )
    times = spread.requests.arrival_s
    assert len(set(times.tolist())) == 20 and (times[1:] >= times[:-1]).all() and times[-1] < 12.0
    assert spread.requests.arrival_s.tolist() == read_trace(path, ties="spread").requests.arrival_s.tolist()


def test_requests_taken_out_keep_what_they_share(tmp_path: Path) -> None:
    requests, _ = read_trace(written(tmp_path, (0, 10, [1]), (0, 600, [7, 8]), (0, 5000, [7]), (0, 512, [7])))
    taken = requests.taken(np.array([1, 2, 3]))
    taken.validate()
    assert taken.segment_stream is not None
    one, _, private, last = taken.segment_stream.tolist()
    assert one == last and private == 1
