"""Tables as plain text: the one printer of every command."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.console import Console
from rich.table import Table

_AS_WIDE_AS_NEEDED = 10_000
"""A table never wraps: its text is the same in a terminal, in a file and in a test."""


@dataclass(frozen=True)
class Column:
    """A column.

    Args:
        heading: stands above it.
        form: what a number becomes, such as "{:,.1f}"; text stands as it is, None is left blank.
        left: flush left; otherwise right.
        width: characters that it has at least, so that tables under each other line up.
    """

    heading: str = ""
    form: str = "{}"
    left: bool = False
    width: int = 0

    def cell(self, value: object) -> str:
        """Returns a value as this column shows it."""
        if value is None:
            return ""
        return value if isinstance(value, str) else self.form.format(value)


def table_text(
    columns: Sequence[Column | str], rows: Sequence[Sequence[object]], *, indent: int = 0, gap: int = 2
) -> str:
    """Returns rows under headings as plain text, without a line of headings where all are empty.

    Args:
        columns: a text is the heading of a column flush right.
        rows: values, one a column; a row may end early, and an empty one is a blank line.
        indent: blanks before every line.
        gap: blanks between columns.
    """
    chosen = [Column(column) if isinstance(column, str) else column for column in columns]
    table = Table(
        box=None, pad_edge=False, padding=(0, gap, 0, 0), show_header=any(column.heading for column in chosen)
    )
    for column in chosen:
        justify: Literal["left", "right"] = "left" if column.left else "right"
        table.add_column(column.heading, justify=justify, no_wrap=True, min_width=column.width or None)
    for row in rows:
        table.add_row(*(c.cell(value) for c, value in zip(chosen[: len(row)], row, strict=True)))
    buffer = io.StringIO()
    console = Console(file=buffer, width=_AS_WIDE_AS_NEEDED, color_system=None, markup=False, emoji=False)
    console.print(table)
    lines = [(" " * indent + line).rstrip() for line in buffer.getvalue().splitlines()]
    return "\n".join(lines)
