"""How wide a terminal is, and lines of prose broken between words to fit it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from textwrap import wrap

NARROWEST = 40
"""Characters; a narrower terminal is written for as if it had so many."""


_fitting = ContextVar("fitting", default=False)


@contextmanager
def fitting() -> Iterator[None]:
    """What is written inside fits the terminal: a command's output, not the texts of the Python interface."""
    token = _fitting.set(True)
    try:
        yield
    finally:
        _fitting.reset(token)


def terminal_columns() -> int | None:
    """Returns the characters that a line may have, inside `fitting`; None outside.

    COLUMNS where it is set, else the terminal's; without a terminal None, so that a file or a pipe gets lines
    as they are.
    """
    if not _fitting.get():
        return None
    given = os.environ.get("COLUMNS", "")
    if given.isdigit() and int(given):
        return max(int(given), NARROWEST)
    if not sys.stdout.isatty():
        return None
    return max(shutil.get_terminal_size().columns, NARROWEST)


def fitted(text: str, columns: int | None) -> str:
    """Returns text whose lines have at most so many characters, broken between words alone.

    A line goes on below with the indent it began with; a word that is wider stands by itself.
    """
    if columns is None:
        return text
    return "\n".join(part for line in text.split("\n") for part in _broken(line, columns))


def _broken(line: str, columns: int) -> list[str]:
    if len(line) <= columns:
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    return wrap(
        line.lstrip(),
        columns,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def say(text: str) -> None:
    """Prints results, fitted to the terminal."""
    print(fitted(text, terminal_columns()))
