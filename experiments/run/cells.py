"""Text in CSV cells: what a spreadsheet would take for a formula is marked as text."""

from __future__ import annotations

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
_MARK = "'"


def text_cell(text: str) -> str:
    """Returns text as a cell: behind an apostrophe where a spreadsheet would calculate it."""
    return _MARK + text if text.startswith(_FORMULA) else text


def cell_text(cell: str) -> str:
    """Returns the text that `text_cell` made a cell of."""
    return cell[1:] if cell.startswith(tuple(_MARK + first for first in _FORMULA)) else cell
