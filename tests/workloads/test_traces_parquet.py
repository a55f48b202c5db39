"""Parquet files of requests, read through the extra; skipped where it is not installed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from specfleet.workloads.traces import parquet
from specfleet.workloads.traces.formats import detected, read_trace
from specfleet.workloads.traces.report import TraceError

WHY = "pyarrow is not installed: pip install 'specfleet[parquet]'"
pa: Any = pytest.importorskip("pyarrow", reason=WHY)
pq: Any = pytest.importorskip("pyarrow.parquet", reason=WHY)

MAP = {"arrival_s": "ts", "input_tokens": "n_in", "output_tokens": "n_out"}
ROWS = [(0.25 * i, 10 + i, 1 + i % 7, f"c{i % 4}", [i // 5]) for i in range(40)]


def written(folder: Path, ts: Any, name: str = "log.parquet", **more: Any) -> Path:
    columns = zip(*ROWS, strict=True)
    _, n_in, n_out, chat, blocks = map(list, columns)
    table = pa.table({"ts": ts, "n_in": n_in, "n_out": n_out, "chat": chat, "h": blocks})
    pq.write_table(table, folder / name, **more)
    return folder / name


def as_csv(folder: Path) -> Path:
    path = folder / "log.csv"
    path.write_text("ts,n_in,n_out,chat\n" + "".join(f"{t},{i},{o},{c}\n" for t, i, o, c, _ in ROWS))
    return path


@pytest.mark.parametrize("more", [{}, {"compression": "zstd"}, {"row_group_size": 7}])
def test_a_parquet_file_gives_the_requests_of_the_same_csv(tmp_path: Path, more: dict[str, Any]) -> None:
    columns = {**MAP, "session": "chat"}
    asked: dict[str, Any] = {"columns": columns, "time_unit": "s", "turns": "after_answer", "pause_s": 1.0}
    ours, theirs = (
        read_trace(written(tmp_path, [row[0] for row in ROWS], **more), **asked),
        read_trace(as_csv(tmp_path), **asked),
    )
    for name in ("arrival_s", "prompt_tokens", "output_tokens", "session_id", "turn"):
        assert getattr(ours.requests, name).tolist() == getattr(theirs.requests, name).tolist()
    assert ours.report.rows_read == ours.report.rows_kept == len(ROWS)
    assert ours.report.turns == theirs.report.turns


def test_batches_smaller_than_the_file_lose_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "ROWS_AT_ONCE", 3)
    trace = read_trace(written(tmp_path, [row[0] for row in ROWS]), columns=MAP, time_unit="s")
    assert trace.requests.prompt_tokens.tolist() == [row[1] for row in ROWS]


def test_times_may_be_dates_or_whole_numbers(tmp_path: Path) -> None:
    start = datetime(2025, 3, 1, 12, tzinfo=UTC)
    dates = pa.array([start + timedelta(seconds=row[0]) for row in ROWS], pa.timestamp("us", tz="UTC"))
    of_dates = read_trace(written(tmp_path, dates), columns=MAP, time_unit="iso").requests
    whole = [round(1e9 * row[0]) + 10**18 for row in ROWS]
    of_numbers = read_trace(written(tmp_path, whole, "ns.parquet"), columns=MAP, time_unit="ns").requests
    expected = [row[0] for row in ROWS]
    assert of_dates.arrival_s.tolist() == expected == of_numbers.arrival_s.tolist()


def test_lists_are_blocks_and_nulls_are_missing(tmp_path: Path) -> None:
    path = written(tmp_path, [None if i == 3 else row[0] for i, row in enumerate(ROWS)])
    trace = read_trace(path, columns={**MAP, "hash_ids": "h"}, time_unit="s", block_size=64)
    assert trace.report.rows_kept == len(ROWS) - 1 and trace.report.dropped[0].reason == "a time is missing"
    assert trace.requests.segment_stream is not None and trace.requests.segment_stream.min() == -8


def test_a_parquet_file_is_known_by_its_columns_and_a_broken_one_says_so(tmp_path: Path) -> None:
    table = pa.table(
        {"TIMESTAMP": ["2023-11-16 18:17:03.9799600"], "ContextTokens": [9], "GeneratedTokens": [3]}
    )
    pq.write_table(table, tmp_path / "azure.parquet")
    assert detected(tmp_path / "azure.parquet") == "azure"
    assert len(read_trace(tmp_path / "azure.parquet").requests) == 1
    whole = (tmp_path / "azure.parquet").read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(TraceError, match="a broken Parquet file"):
        read_trace(tmp_path / "cut.parquet")
