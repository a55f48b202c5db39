"""The one printer of tables: what stands in a cell stands in the text, and columns line up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specfleet.experiments.words.table import Column, table_text

WORD = st.text("abz019[]/:;\\+-%{}", min_size=1, max_size=30)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[Column], list[list[str]]]:
    """Columns of either side with rows of words."""
    width = draw(st.integers(1, 6))
    columns = [
        Column(draw(WORD), left=draw(st.booleans()), width=draw(st.integers(0, 12))) for _ in range(width)
    ]
    rows = draw(st.lists(st.lists(WORD, min_size=width, max_size=width), max_size=6))
    return columns, rows


@given(tables())
def test_every_cell_stands_in_its_line_as_it_was_given(
    table: tuple[list[Column], list[list[str]]],
) -> None:
    columns, rows = table
    lines = table_text(columns, rows).split("\n")
    assert [line.split() for line in lines] == [[column.heading for column in columns], *rows]


@given(tables(), st.integers(0, 4), st.integers(1, 4))
def test_columns_line_up_on_the_side_they_are_flush_with(
    table: tuple[list[Column], list[list[str]]], indent: int, gap: int
) -> None:
    columns, rows = table
    lines = table_text(columns, rows, indent=indent, gap=gap).split("\n")
    body = [[column.heading for column in columns], *rows]
    start = indent
    for at, column in enumerate(columns):
        width = max(column.width, *(len(row[at]) for row in body))
        for line, row in zip(lines, body, strict=True):
            cell = row[at].ljust(width) if column.left else row[at].rjust(width)
            assert line[start : start + width] == cell.rstrip() or line[start : start + width] == cell
        start += width + gap
    assert all(line == line.rstrip() for line in lines)


def test_numbers_take_the_form_of_their_column_and_none_is_blank() -> None:
    columns = (Column("name", left=True), Column("x", "{:,.1f}"), Column("n", "{:d}"))
    assert table_text(columns, [["a", 1234.56, 7], [], ["b", None, 12], ["c", "-"]]).split("\n") == [
        "name        x   n",
        "a     1,234.6   7",
        "",
        "b              12",
        "c           -",
    ]


def test_there_is_no_line_of_headings_without_headings() -> None:
    assert table_text((Column(left=True), Column()), [["a", 1], ["bc", 23]]) == "a    1\nbc  23"


def test_a_row_longer_than_the_columns_is_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        table_text(["a"], [["1", "2"]])
