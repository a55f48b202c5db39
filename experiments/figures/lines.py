"""A line of a figure: its points, and how well each is known, as a band around it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specfleet.experiments.figures.data import Line
from specfleet.experiments.figures.style import Horizontal, look
from specfleet.experiments.run.band import LEAST, MOST
from specfleet.experiments.run.results import Row, is_number, number
from specfleet.experiments.words.verdict import interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BAND = 0.16
"""Opacity of a band: several may lie over each other."""


def points_of(line: Line, x: str, key: str) -> tuple[Row, ...]:
    """Returns the rows of a line with a value of `key` at a place on `x`."""
    return tuple(row for row in line.having(key) if x in row)


def bounds(row: Row, key: str) -> tuple[float, float] | None:
    """Returns from where to where a figure may lie; None where nothing says.

    That is its 95 % interval, of a ratio the one paired by request; and of a P99 whose spread between
    requests is not known, from the least to the most that it was at the ends of the range.
    """
    found = interval(row, key)
    value = number(row, key)
    if found is None and is_number(row.get(f"{key}_ci95")):
        half = number(row, f"{key}_ci95")
        found = value - half, value + half
    ends = [number(row, key + end) for end in (LEAST, MOST) if is_number(row.get(key + end))]
    if not ends:
        return None if found is None else (min(found[0], value), max(found[1], value))
    return min([*ends, value, *(found or ())]), max([*ends, value, *(found or ())])


def draw_line(
    ax: Axes, line: Line, rows: Sequence[Row], axis: Horizontal, key: str, said: str
) -> tuple[list[float], list[float]]:
    """Draws one line and the band around it; returns its values and the band's upper ends.

    A point without a neighbour, or on an axis without numbers, has a bar instead.

    Args:
        ax: the panel.
        line: the line, which has a look.
        rows: its points.
        axis: the horizontal axis.
        key: what is drawn.
        said: its name in the legend.
    """
    places = [axis.place(row[axis.key]) for row in rows]
    values = [number(row, key) for row in rows]
    style = look(line)
    known = [
        (place, value, *ends)
        for place, value, row in zip(places, values, rows, strict=True)
        if (ends := bounds(row, key)) is not None
    ]
    if known:
        x, y, low, high = map(list, zip(*known, strict=True))
        if len(known) > 1 and axis.numeric:
            ax.fill_between(x, low, high, color=style.color, alpha=_BAND, linewidth=0, zorder=1)
        else:
            below = [value - end for value, end in zip(y, low, strict=True)]
            above = [end - value for value, end in zip(y, high, strict=True)]
            ax.errorbar(x, y, (below, above), fmt="none", color=style.color, elinewidth=0.8, capsize=2)
    style.plot(ax, places, values, said, ax.transData, axis.numeric)
    return values, [high for *_, high in known]
