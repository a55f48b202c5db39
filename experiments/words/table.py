"""Tables as plain text: the one printer of every command.

As wide as needed in a file or a pipe, the same text everywhere. Where the lines have so many characters and
no more (a terminal), what does not fit gives way in this order: headings are broken between words, columns
that matter least are left out and named, long texts go on below, and in the end the columns stand in several
tables under each other.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import Literal, TypeAlias

from specfleet.experiments.words.width import terminal_columns

_AS_WIDE_AS_NEEDED = 10_000

Cells: TypeAlias = "Sequence[object] | str"
"""A row: values, none for a blank line; or a text, which is a line of its own above the rows it names."""


@dataclass(frozen=True)
class Column:
    """A column.

    Args:
        heading: stands above it.
        form: what a number becomes, such as "{:,.1f}"; text stands as it is, None is left blank.
        left: flush left; otherwise right.
        width: characters that it has at least, so that tables under each other line up.
        rank: how early it gives way where there is no room, the highest first; 0 never does.
        name: what it is called where it is left out, if the heading alone does not say it.
    """

    heading: str = ""
    form: str = "{}"
    left: bool = False
    width: int = 0
    rank: int = 0
    name: str = ""

    def cell(self, value: object) -> str:
        """Returns a value as this column shows it."""
        if value is None:
            return ""
        return value if isinstance(value, str) else self.form.format(value)


@dataclass(frozen=True)
class _Filled:
    """A column with its cells."""

    column: Column
    cells: tuple[str, ...]

    @property
    def lines(self) -> list[str]:
        """The lines of its heading."""
        return self.column.heading.split("\n")

    @property
    def natural(self) -> int:
        """Characters that it wants."""
        return max(self.column.width, *map(len, self.lines), *(map(len, self.cells)), 0)

    @property
    def least(self) -> int:
        """Characters that it needs: texts can go on below, numbers cannot."""
        if not self.column.left:
            return self.natural
        words = [word for text in (*self.lines, *self.cells) for word in text.split()]
        return max(map(len, words), default=0)

    def with_broken_heading(self) -> _Filled:
        """Returns it with a heading, its name if that fits, no wider than its cells as far as words allow."""
        heading, name = self.column.heading, self.column.name
        longest = max(map(len, heading.split()), default=1)
        width = max(*map(len, self.cells), longest, self.column.width, 1)
        if name and max(map(len, name.split())) <= width:
            heading = name
        lines = wrap(heading, width, break_long_words=False, break_on_hyphens=False)
        return replace(self, column=replace(self.column, heading="\n".join(lines)))


def table_text(
    columns: Sequence[Column | str],
    rows: Sequence[Cells],
    *,
    indent: int = 0,
    gap: int = 2,
    room: int | None = None,
    keys: int = 1,
) -> str:
    """Returns rows under headings as plain text, without a line of headings where all are empty.

    Args:
        columns: a text is the heading of a column flush right.
        rows: values, one a column; a row may end early, an empty one is a blank line, and a text a line
            of its own. ValueError if one is longer than the columns.
        indent: blanks before every line.
        gap: blanks between columns.
        room: characters of a line; None is the terminal's, if there is one.
        keys: so many columns name the rows; they come first, and again in every part of a table in parts.
    """
    chosen = [Column(column) if isinstance(column, str) else column for column in columns]
    if any(not isinstance(row, str) and len(row) > len(chosen) for row in rows):
        raise ValueError(f"a row is longer than the {len(chosen)} columns")
    filled = [
        _Filled(column, tuple("" if isinstance(row, str) else _cell(column, row, at) for row in rows))
        for at, column in enumerate(chosen)
    ]
    room = terminal_columns() if room is None else room
    if room is None:
        return _text(filled, rows, indent, gap, _AS_WIDE_AS_NEEDED)
    room -= indent
    if _width(filled, gap) > room:
        filled = [each.with_broken_heading() for each in filled]
    filled, left_out = _without_least(filled, gap, room)
    tables = [_text(block, rows, indent, gap, room) for block in _blocks(filled, gap, room, keys)]
    if left_out:
        names = ", ".join(each.name or each.heading for each in left_out)
        said = wrap(f"Left out here: {names}.", room, break_long_words=False, break_on_hyphens=False)
        tables[-1] += "".join(f"\n{' ' * indent}{line}" for line in said)
    return "\n\n".join(tables)


def table_fits(columns: Sequence[Column | str], rows: Sequence[Cells], gap: int = 2) -> bool:
    """Whether the terminal has room for a table as it is."""
    room = terminal_columns()
    chosen = [Column(column) if isinstance(column, str) else column for column in columns]
    whole = [row for row in rows if not isinstance(row, str)]
    filled = [_Filled(c, tuple(_cell(c, row, at) for row in whole)) for at, c in enumerate(chosen)]
    return room is None or _width(filled, gap) <= room


def _cell(column: Column, row: Sequence[object], at: int) -> str:
    return column.cell(row[at]) if at < len(row) else ""


def _width(filled: Sequence[_Filled], gap: int, least: bool = False) -> int:
    widths = [each.least if least else each.natural for each in filled]
    return sum(widths) + gap * (len(widths) - 1)


def _widths(filled: Sequence[_Filled], gap: int, room: int) -> list[int]:
    """Characters that each column gets: where not all fit, the widest that can give way do so first."""
    widths = [each.natural for each in filled]
    for _ in range(_width(filled, gap) - room):
        able = [place for place, each in enumerate(filled) if widths[place] > each.least]
        if not able:
            break
        widths[max(able, key=lambda place: widths[place])] -= 1
    return widths


def _without_least(filled: list[_Filled], gap: int, room: int) -> tuple[list[_Filled], list[Column]]:
    """Leaves out columns until the others fit; returns both, in their order."""
    kept = list(filled)
    while _width(kept, gap, least=True) > room and any(each.column.rank for each in kept):
        kept.remove(max(reversed(kept), key=lambda each: each.column.rank))
    return kept, [each.column for each in filled if each not in kept]


def _blocks(filled: list[_Filled], gap: int, room: int, keys: int) -> Iterator[list[_Filled]]:
    """Parts columns into tables that fit, each with those that name the rows."""
    block = filled[:keys]
    for each in filled[keys:]:
        if len(block) > keys and _width([*block, each], gap, least=True) > room:
            yield block
            block = filled[:keys]
        block.append(each)
    yield block


def _text(filled: Sequence[_Filled], rows: Sequence[Cells], indent: int, gap: int, room: int) -> str:
    shown = any(each.column.heading for each in filled)
    widths = _widths(filled, gap, room)
    if filled and all(
        width >= each.natural and _plain(each) for width, each in zip(widths, filled, strict=True)
    ):
        lines = _aligned(filled, widths, gap, shown)
    else:
        lines = _wrapped(filled, widths, gap, room, shown)
    lines = [(" " * indent + line).rstrip() for line in lines]
    blank = iter([_above(row) for place, row in enumerate(rows) if _is_blank(filled, place)])
    heads = max(len(each.lines) for each in filled) if shown else 0
    return "\n".join([*lines[:heads], *(line or next(blank, "") for line in lines[heads:])])


def _is_blank(filled: Sequence[_Filled], place: int) -> bool:
    return not any(each.cells[place].strip() for each in filled)


def _above(row: Cells) -> str:
    return row if isinstance(row, str) else ""


def _plain(filled: _Filled) -> bool:
    """Whether a column's texts are as wide as they have characters."""
    texts = (*filled.lines, *filled.cells)
    return filled.natural > 0 and all(text.isascii() and text.isprintable() for text in texts)


def _aligned(filled: Sequence[_Filled], widths: Sequence[int], gap: int, shown: bool) -> Sequence[str]:
    """Returns the lines of a table in which nothing is wrapped: as `_wrapped` does, without rich's import."""
    heads = max(len(each.lines) for each in filled) if shown else 0
    columns = []
    for each, width in zip(filled, widths, strict=True):
        above = [*[""] * (heads - len(each.lines)), *each.lines] if shown else []
        texts = (*above, *each.cells)
        left = each.column.left
        columns.append([text.ljust(width) if left else text.rstrip().rjust(width) for text in texts])
    return [(" " * gap).join(texts) for texts in zip(*columns, strict=True)]


def _wrapped(
    filled: Sequence[_Filled], widths: Sequence[int], gap: int, room: int, shown: bool
) -> Sequence[str]:
    """Returns the lines of a table whose texts may go on below."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), show_header=shown)
    for each, width in zip(filled, widths, strict=True):
        column = each.column
        justify: Literal["left", "right"] = "left" if column.left else "right"
        table.add_column(
            column.heading,
            justify=justify,
            no_wrap=width >= each.natural or not column.left,
            width=width,
            vertical="bottom" if shown else "top",
        )
    for cells in zip(*(each.cells for each in filled), strict=True):
        table.add_row(*cells)
    buffer = io.StringIO()
    wide_enough = max(room, _width(filled, gap, least=True))
    console = Console(file=buffer, width=wide_enough, color_system=None, markup=False, emoji=False)
    console.print(table)
    return buffer.getvalue().splitlines()
