"""Columns as text are what Python writes of each number, and come back as they were."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from specfleet.experiments.run import columnfiles, numberfiles
from specfleet.experiments.run.columnfiles import (
    decimal_cells,
    lines,
    whole_cells,
    write_json,
    write_requests,
)
from specfleet.experiments.run.numberfiles import read_numbers

LARGEST = 2**63 - 1


@given(st.lists(st.integers(-LARGEST, LARGEST) | st.integers(-20, 20), min_size=1, max_size=30))
@example([0, -1, 10, -10, 99, 100, 2**32 - 1, 2**32, LARGEST, -LARGEST])
def test_whole_numbers_are_written_as_str_writes_them(values: list[int]) -> None:
    said = lines([whole_cells(np.array(values, dtype=np.int64))])
    assert said.decode().splitlines() == [str(value) for value in values]


@given(
    st.lists(
        st.floats(allow_subnormal=True)
        | st.floats(0, 1e7)
        | st.integers(0, 10**13).map(lambda n: (n + 0.5) / 1e6),
        min_size=1,
        max_size=30,
    )
)
@example([0.0, -0.0, 0.9999995, 0.9999994999, 9.9999995, 2.0**52, 5e-7, 1.5e-6, 1e300, -3.25, math.inf])
@example([123456789.0000005, 0.5000005, 0.1234565, 4503599627370495.5, math.nan])
def test_times_are_written_to_the_last_digit_as_python_writes_them(values: list[float]) -> None:
    said = lines([decimal_cells(np.array(values, dtype=np.float64))])
    assert said.decode().split("\n")[:-1] == ["" if v != v else f"{v:.6f}" for v in values]


def columns(rows: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    names = (
        "request_id",
        "class_id",
        "counted",
        "status",
        "replica",
        "prompt_tokens",
        "max_tokens",
        "chunks",
    )
    found: dict[str, np.ndarray] = {
        name: rng.integers(0, 2 if name in ("counted", "status") else 40_000, rows) for name in names
    }
    found |= {name: rng.exponential(1e3, rows) for name in ("sent_s", "first_chunk_s")}
    found["first_chunk_s"][found["status"] == 1] = np.nan
    found["replica"][found["status"] == 1] = -1
    return found


def test_the_file_is_the_one_that_csv_writes_whatever_the_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = columns(1_000)
    names = [*(n for n in found if not n.endswith("_s")), *(n for n in found if n.endswith("_s"))]
    with (tmp_path / "expected").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([n.removesuffix("_s") + "_ms" if n.endswith("_s") else n for n in names])
        for row in zip(*(found[name].tolist() for name in names), strict=True):
            writer.writerow(
                [
                    cell if isinstance(cell, int) else "" if math.isnan(cell) else f"{1e3 * cell:.6f}"
                    for cell in row
                ]
            )
    for block in (7, 1_000, 16_384):
        monkeypatch.setattr(columnfiles, "BLOCK", block)
        write_requests(tmp_path / "written", found)
        assert (tmp_path / "written").read_bytes() == (tmp_path / "expected").read_bytes()


@pytest.mark.parametrize("make", ["a run's", "quoted", "with CRLF", "without a last newline"])
def test_files_of_any_make_and_size_are_read_alike(
    make: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "requests.csv"
    found = columns(500)
    write_requests(path, found)
    text = path.read_text()
    made = {"quoted": text.replace("request_id", '"request_id"'), "with CRLF": text.replace("\n", "\r\n")}
    path.write_text(made.get(make, text[:-1] if make == "without a last newline" else text), newline="")
    asked = (path, ("request_id", "first_chunk_ms"), {"counted": 1, "status": 0})
    small = read_numbers(*asked)
    kept = (found["counted"] == 1) & (found["status"] == 0)
    assert 0 < kept.sum() < 500 and np.array_equal(small[:, 0], found["request_id"][kept])
    assert read_numbers(path, ("replica",), {"counted": 2}).shape == (0, 1)
    for name, size in (("LARGE_BYTES", 0), ("BLOCK", 10), ("BLOCK_BYTES", 300)):
        monkeypatch.setattr(numberfiles, name, size)
        assert np.array_equal(read_numbers(*asked), small)


@given(
    st.lists(st.floats(0, 1e8) | st.integers(0, 10**14).map(lambda n: n / 1e6), min_size=1, max_size=30),
    st.sampled_from(["", "nan", "-1.000000", "1e3", "12", "1.5", "123456789012.123456", "0.1234567"]),
)
def test_a_time_is_read_as_float_reads_it_however_it_is_written(values: list[float], odd: str) -> None:
    cells = [f"{value:.6f}" for value in values]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "requests.csv"
        for said in (cells, [*cells, odd]):
            path.write_text("kept,sent_ms\n" + "".join(f"1,{cell}\n" for cell in said))
            if "" in said:
                with pytest.raises(ValueError):
                    read_numbers(path, ("sent_ms",), {"kept": 1})
                continue
            read = read_numbers(path, ("sent_ms",), {"kept": 1})
            assert np.array_equal(read[:, 0], [float(cell) for cell in said], equal_nan=True)


@given(arrays(np.float64, st.integers(0, 40), elements=st.floats(allow_nan=False)))
def test_columns_in_json_are_the_lists_that_json_writes(
    tmp_path_factory: pytest.TempPathFactory, values: np.ndarray
) -> None:
    path = tmp_path_factory.mktemp("json") / "x"
    other = {"rate": math.inf, "nested": {"a": [1, {"b": "line\nbreak"}]}, "empty": [], "none": None}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(columnfiles, "BLOCK", 7)
        write_json(path, other | {"column": values, "last": 1})
    listed = [("inf" if v > 0 else "-inf") if math.isinf(v) else v for v in values.tolist()]
    whole = other | {"rate": "inf", "column": listed, "last": 1}
    assert path.read_text(encoding="utf-8") == json.dumps(whole, indent=1) + "\n"


def test_the_replica_of_a_request_that_ended_at_none_is_minus_one(tmp_path: Path) -> None:
    column = {
        name: np.zeros(6, dtype=np.int64) for name in ("class_id", "counted", "prompt_tokens", "max_tokens")
    }
    found = column | {"request_id": np.arange(6), "status": np.arange(6), "replica": np.full(6, 2)}
    write_requests(tmp_path / "alone.csv", found)
    write_requests(tmp_path / "pools.csv", found | {"pool": np.array([0, -1, 0, -1, 0, -1])})
    for name, expected in (("alone", [2, -1, 2, -1, 2, 2]), ("pools", [2, -1, 2, -1, 2, -1])):
        lines = (tmp_path / f"{name}.csv").read_text().splitlines()
        at = lines[0].split(",").index("replica")
        assert [int(line.split(",")[at]) for line in lines[1:]] == expected, "statuses 1 and 3 are refusals"
