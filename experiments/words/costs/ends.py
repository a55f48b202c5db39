"""A sentence a point; of many points, of those at the ends of a figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specfleet.experiments.run.results import Row, number
from specfleet.experiments.words.names import noun
from specfleet.experiments.words.values import counted

MANY = 24
"""Points of which each has its sentence."""


def ends_said(rows: Sequence[Row], figure: str, said: Callable[[Row], str]) -> list[str]:
    """Returns a sentence for each of some points; of more than `MANY` of those with the least and the most of
    a figure, and that it is so.

    Args:
        rows: points that have the figure.
        figure: its key.
        said: the sentence of a point.
    """
    if len(rows) <= MANY:
        return [said(row) for row in rows]
    what = f"{noun(figure)} ({figure} in summary.csv)"
    order = sorted(rows, key=lambda row: number(row, figure))
    return [
        f"Of {counted(len(rows), 'point')} those with the least and the most of {what}:",
        said(order[0]),
        said(order[-1]),
    ]
