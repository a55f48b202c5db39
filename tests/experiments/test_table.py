"""The one printer of tables: what stands in a cell stands in the text, and columns line up."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specfleet.experiments.run.results import Row
from specfleet.experiments.words import table
from specfleet.experiments.words.run import shortened
from specfleet.experiments.words.summary import summary_table
from specfleet.experiments.words.table import Column, table_text
from specfleet.experiments.words.values import rounded
from specfleet.experiments.words.width import fitted, fitting, terminal_columns

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


@settings(deadline=None)
@given(tables())
def test_every_cell_stands_in_its_line_as_it_was_given(
    table: tuple[list[Column], list[list[str]]],
) -> None:
    columns, rows = table
    lines = table_text(columns, rows).split("\n")
    assert [line.split() for line in lines] == [[column.heading for column in columns], *rows]


SPACED = st.text("ab 1.%", max_size=9)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(SPACED, min_size=1, max_size=3), st.booleans(), st.sampled_from([0, 12])),
        min_size=1,
        max_size=4,
    ),
    st.lists(st.one_of(st.lists(SPACED, max_size=4), st.just("K = 3")), max_size=4),
    st.integers(0, 3),
)
def test_where_nothing_is_wrapped_a_table_is_the_one_that_rich_would_print(
    said: list[tuple[list[str], bool, int]], rows: list[list[str] | str], gap: int
) -> None:
    columns = [Column("\n".join(lines), left=left, width=width) for lines, left, width in said]
    fitting_rows = [row if isinstance(row, str) else row[: len(columns)] for row in rows]
    ours = table_text(columns, fitting_rows, gap=gap)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(table, "_plain", lambda filled: False)
        assert table_text(columns, fitting_rows, gap=gap) == ours


@settings(deadline=None)
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
    with pytest.raises(ValueError, match="longer"):
        table_text(["a"], [["1", "2"]])


@settings(deadline=None)
@given(tables(), st.integers(40, 90), st.integers(0, 4))
def test_a_table_fits_its_room_and_no_word_is_broken(
    table: tuple[list[Column], list[list[str]]], room: int, indent: int
) -> None:
    columns, rows = table
    text = table_text(columns, rows, indent=indent, room=room)
    words = [word for row in [[column.heading for column in columns], *rows] for word in row]
    widths = [max(c.width, len(c.heading), *(len(row[i]) for row in rows), 0) for i, c in enumerate(columns)]
    least = indent + widths[0] + max([2 + width for width in widths[1:]], default=0)
    assert all(len(line) <= max(room, least) for line in text.split("\n"))
    assert set(text.split()) == set(words)


def test_what_does_not_fit_gives_way_by_its_rank_and_is_named() -> None:
    columns = [
        Column("concurrency"),
        Column("output tok/s"),
        Column("P99", rank=2, name="P99 of the time to the first token"),
        Column("batch", rank=1),
    ]
    rows = [["1", "12345678", "12345678", "12345678"]]
    assert "Left out" not in table_text(columns, rows, room=60)
    assert table_text(columns, rows, room=40).split("\n") == [
        "               output",
        "concurrency     tok/s     batch",
        "          1  12345678  12345678",
        "Left out here: P99 of the time to the",
        "first token.",
    ]


def test_a_wide_table_goes_on_below_with_the_columns_that_name_its_rows() -> None:
    columns = ["K", "load", *(f"column{i}" for i in range(6))]
    rows = [[str(k), "16", *(f"{10 * k + i}" for i in range(6))] for k in (1, 2)]
    first, second = table_text(columns, rows, room=40, keys=2).split("\n\n")
    assert [line.split() for line in first.split("\n")][1] == ["1", "16", "10", "11", "12"]
    assert [line.split() for line in second.split("\n")][2] == ["2", "16", "23", "24", "25"]


def test_long_texts_go_on_below_and_a_text_among_the_rows_stands_by_itself() -> None:
    columns = [Column("what", left=True), Column("ms")]
    rows = ["K = 3", ["prompts of other requests in its steps, and so on", "1.0"], [], ["b", "2.0"]]
    lines = table_text(columns, rows, room=40).split("\n")
    assert lines[0].split() == ["what", "ms"] and lines[1] == "K = 3"
    assert all(len(line) <= 40 for line in lines) and len(lines) == 6 and lines[4] == ""


@settings(deadline=None)
@given(
    st.lists(
        st.lists(
            st.sampled_from(["a", "the target's", "NOT the target's", "probabilistic"]),
            min_size=3,
            max_size=3,
        ),
        min_size=1,
        max_size=3,
    ),
    st.integers(24, 60),
)
def test_no_letter_is_lost_where_several_texts_go_on_below(rows: list[list[str]], room: int) -> None:
    text = table_text([Column("x", left=True) for _ in range(3)], rows, room=room)
    words = [word for row in rows for cell in row for word in cell.split()]
    assert set(text.split()) == {"x", *words}


@settings(deadline=None)
@given(st.text(st.characters(codec="ascii", exclude_categories=["C"]), max_size=300), st.integers(40, 120))
def test_prose_is_broken_between_words_only(text: str, columns: int) -> None:
    broken = fitted(text, columns)
    assert broken.split() == text.split()
    longest = max(map(len, text.split()), default=0)
    indent = len(text) - len(text.lstrip())
    assert all(len(line) <= max(columns, longest + indent) for line in broken.split("\n"))
    assert fitted(text, None) == text


def test_the_environment_says_how_wide_a_terminal_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert terminal_columns() is None
    with fitting():
        assert terminal_columns() == 80
        monkeypatch.setenv("COLUMNS", "7")
        assert terminal_columns() == 40
        monkeypatch.delenv("COLUMNS")
        assert terminal_columns() is None


def test_the_share_of_rounds_that_propose_is_shown_where_a_drafter_was_often_silent() -> None:
    def heading(*shares: float) -> str:
        rows: list[Row] = [{"output_throughput": 100.0, "proposed_share": share} for share in shares]
        return summary_table(rows, [], None)

    assert "propose" not in heading(0.991, 0.986), "the last token of an answer has no drafts; that is all"
    assert "propose" in heading(0.991, 0.61)
    assert "61%" in heading(0.991, 0.61)


@pytest.mark.parametrize(
    ("number", "digits", "said"),
    [
        (100.0, 2, "100"),
        (99.6, 2, "100"),
        (1234.0, 3, "1,230"),
        (1.234e6, 3, "1,230,000"),
        (12.345, 3, "12.3"),
        (0.01234, 2, "0.012"),
        (0.0, 3, "0"),
    ],
)
def test_a_rounded_number_of_a_thousand_or_more_has_no_exponent(
    number: float, digits: int, said: str
) -> None:
    assert rounded(number, digits) == said


def test_a_long_table_ends_and_says_where_the_rest_is() -> None:
    whole = "\n".join(map(str, range(400)))
    assert shortened(whole) == whole
    cut = shortened(whole + "\n400\n401").split("\n")
    assert cut[:-1] == whole.split("\n") and cut[-1].startswith("(and 2 more lines: summary.csv")
