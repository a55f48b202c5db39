"""Cells of a summary's rows are read as numbers, or refused; never through text."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specfleet.experiments.run.results import Row, is_number, number, write_summary

NUMBERS = st.one_of(st.floats(allow_nan=False), st.integers(-(2**53), 2**53))


@given(NUMBERS)
def test_a_number_is_read_as_it_stands(value: float) -> None:
    assert number({"x": value}, "x") == value
    assert is_number(value) == math.isfinite(value)


@pytest.mark.parametrize("value", [None, "4", "inf", True, [1.0], {"name": "h100"}])
def test_what_is_no_number_is_refused(value: object) -> None:
    assert not is_number(value)
    with pytest.raises(TypeError, match="is not a number"):
        number({"x": value}, "x")


def test_a_summary_read_back_by_pandas_holds_numbers(tmp_path: Path) -> None:
    import pandas as pd

    rows: list[Row] = [{"point": "a", "k": 0, "figure": 1 / 3}, {"point": "b", "k": 3, "figure": 7.0}]
    write_summary(tmp_path / "summary.csv", rows)
    for row, read in zip(rows, pd.read_csv(tmp_path / "summary.csv").to_dict("records"), strict=True):
        cells = {str(key): value for key, value in read.items()}
        assert number(cells, "k") == number(row, "k")
        assert number(cells, "figure") == pytest.approx(number(row, "figure"), rel=1e-8)
