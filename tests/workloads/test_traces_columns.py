"""Any table or JSONL by a map of its columns; no unit is ever guessed."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pytest

from specfleet.workloads.traces.formats import read_trace
from specfleet.workloads.traces.report import TraceError

MAP = {"arrival_s": "ts", "input_tokens": "n_in", "output_tokens": "n_out"}


def written(folder: Path, text: str, name: str = "log.csv") -> Path:
    path = folder / name
    path.write_bytes(text.encode())
    return path


@pytest.mark.parametrize(
    ("unit", "times"),
    [
        ("s", ("1700159586.000000001", "1700159587.5")),
        ("ms", ("1700159586000.000001", "1700159587500")),
        ("us", ("1700159586000000.001", "1.7001595875e15")),
        ("ns", ("1700159586000000001", "1700159587500000000")),
        ("iso", ("2023-11-16T18:33:06.000000001Z", "2023-11-16 20:33:07.5+02:00")),
    ],
)
def test_times_are_exact_in_every_unit(tmp_path: Path, unit: str, times: tuple[str, str]) -> None:
    path = written(tmp_path, f"ts,n_in,n_out\n{times[0]},10,2\n{times[1]},11,3\n")
    trace = read_trace(path, columns=MAP, time_unit=unit)
    assert trace.requests.arrival_s.tolist() == [0.0, 1.499999999]
    assert not trace.report.dropped


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_other_marks_between_cells_quotes_and_gzip_are_read(tmp_path: Path, mark: str) -> None:
    rows = [["ts", "n_in", "note", "n_out"], ["1", "10.0", f'"a{mark}b"', "2"], ["2", "11", '"', "3"]]
    text = "\r\n".join(mark.join(row) for row in rows)
    plain = read_trace(written(tmp_path, text), columns=MAP, time_unit="s")
    assert plain.requests.prompt_tokens.tolist() == [10, 11]
    packed = tmp_path / "log.csv.gz"
    packed.write_bytes(gzip.compress(text.encode("utf-8-sig")))
    assert read_trace(packed, columns=MAP, time_unit="s").requests.arrival_s.tolist() == [0.0, 1.0]


def test_keys_inside_objects_sessions_classes_and_blocks_are_mapped(tmp_path: Path) -> None:
    rows = [
        {"ts": 10, "usage": {"in": 20, "out": 2}, "user": "a", "kind": "chat", "blocks": [1, 2]},
        {"ts": 20, "usage": {"in": 20, "out": 2}, "user": "a", "kind": "code", "blocks": [1, 3]},
        [],
    ]
    path = written(tmp_path, "".join(json.dumps(row) + "\n" for row in rows), "log.jsonl")
    columns = {
        **{"arrival_s": "ts", "input_tokens": "usage.in", "output_tokens": "usage.out"},
        **{"session": "user", "traffic_class": "kind", "hash_ids": "blocks"},
    }
    requests, report = read_trace(path, columns=columns, time_unit="ms", block_size=16)
    assert requests.arrival_s.tolist() == [0.0, 0.01]
    assert report.classes == {"chat": 1, "code": 1} and report.sessions == 1
    assert requests.segment_tokens is not None and requests.segment_tokens.tolist() == [16, 4, 16, 4]
    assert report.rows_read == 3


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"columns": MAP}, "time_unit is missing: it is not guessed; give the unit of ts"),
        ({"columns": {**MAP, "hash_ids": "n_in"}, "time_unit": "s"}, "block_size is missing"),
        ({"columns": {"input_tokens": "n_in"}}, "output_tokens is missing; map it"),
        ({"columns": {**MAP, "tokens": "n_in"}, "time_unit": "s"}, "'tokens' is no field; use arrival_s"),
        ({"columns": MAP, "time_unit": "hours"}, "time_unit must be one of s, ms, us, ns, iso"),
        (
            {"columns": {**MAP, "session": "who"}, "time_unit": "s"},
            "must name the columns ts, n_in, n_out, who",
        ),
        ({}, "of no format that is known by its keys; found ts, n_in, n_out; name its columns"),
        ({"form": "azure", "columns": MAP}, "Azure LLM inference trace has columns of its own"),
        ({"form": "azure", "time_unit": "s"}, "has its times in iso, not s"),
    ],
)
def test_nothing_is_guessed(tmp_path: Path, asked: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_trace(written(tmp_path, "ts,n_in,n_out\n1,10,2\n"), **asked)  # type: ignore[arg-type]


def test_zeros_are_dropped_clipped_or_refused_as_asked(tmp_path: Path) -> None:
    path = written(tmp_path, "ts,n_in,n_out\n1,10,2\n2,10,0\n")
    assert read_trace(path, columns=MAP, time_unit="s").report.rows_kept == 1
    clipped = read_trace(path, columns=MAP, time_unit="s", on_zero="clip1")
    assert clipped.requests.output_tokens.tolist() == [2, 1]
    assert "1 zero token counts taken as 1" in clipped.report.notices
    with pytest.raises(TraceError, match="line 3: zero prompt or output tokens; set on_zero"):
        read_trace(path, columns=MAP, time_unit="s", on_zero="error")


def test_rates_are_thinned_or_superposed_and_it_is_said(tmp_path: Path) -> None:
    path = written(tmp_path, "ts,n_in,n_out\n" + "".join(f"{i},10,2\n" for i in range(1000)))
    few = read_trace(path, columns=MAP, time_unit="s", rate_scale=0.3)
    many = read_trace(path, columns=MAP, time_unit="s", rate_scale=2.5)
    assert 230 < len(few.requests) < 370 and 2430 < len(many.requests) < 2570
    assert any("thinned" in said for said in few.report.notices)
    assert any("superposed" in said for said in many.report.notices)
    assert few.report.rows_kept == many.report.rows_kept == 1000
    assert float(many.requests.arrival_s[-1]) <= 999.0


def test_a_parquet_file_without_its_extra_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    path = tmp_path / "log.parquet"
    path.write_bytes(b"PAR1" + bytes(20))
    with pytest.raises(
        TraceError, match=r"a Parquet file, which pyarrow reads; pip install 'specfleet\[parquet\]'"
    ):
        read_trace(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK\x03\x04zip", "packed as zip; unpack it"),
        (b"\xff\xfet\x00s\x00", "not a UTF-8 text file"),
        (b"{\n", "line 2: neither JSON nor JSONL"),
        (b"[" * 100_000, "neither JSON nor JSONL"),
        (b"{}\n{}\n", "of no format that is known by its keys; found none"),
    ],
)
def test_odd_bytes_end_in_a_sentence(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "odd"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=message):
        read_trace(path)
