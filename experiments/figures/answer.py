"""The figure that answers the question: where verification erases the gain, and how P99 grows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from specfleet.experiments.figures.data import Line, Shown
from specfleet.experiments.figures.lines import draw_line, points_of
from specfleet.experiments.figures.style import (
    GREY,
    Horizontal,
    caption,
    look,
    set_vertical,
)
from specfleet.experiments.run.gains import MEAN_TPOT, P99_TPOT, THROUGHPUT
from specfleet.experiments.run.results import Row, number
from specfleet.experiments.words.names import label, noun
from specfleet.experiments.words.values import named
from specfleet.experiments.words.verdict import QUESTIONS, judged, reach

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P99 = "p99_tpot_ms"
_STRIP_INCHES = 0.2
"""Height of one line's verdict below a panel."""
_LOSES = "#E3E3E3"


def asked_first(shown: Shown) -> str | None:
    """Returns the ratio that says whether it pays: throughput where that is judged, else mean TPOT."""
    rows = [row for line in shown.lines if not line.baseline for row in line.rows]
    return next((key for key in (THROUGHPUT, MEAN_TPOT) if any(judged(row, key) for row in rows)), None)


def answer(shown: Shown) -> Figure | None:
    """Left the gain over the baseline, right P99 TPOT, over the load; below each, by line, where it pays.

    None where nothing is compared, or there is no load to draw it over.
    """
    gain, along = asked_first(shown), shown.along
    if gain is None or along is None or not shown.baseline or along in shown.baseline:
        return None
    if not Horizontal.of(along, shown).numeric:
        return None
    if not any(points_of(line, along, P99) for line in shown.lines):
        return None
    axis = Horizontal.of(along, shown)
    lines = [line for line in shown.lines if not line.baseline and points_of(line, along, gain)]
    figure, (left, right, *strips) = _frame(len(lines))
    base = ", ".join(named(key, value) for key, value in shown.baseline.items())
    _gain(left, shown, axis, gain, base)
    _p99(right, shown, axis)
    for ax, question in zip(strips, (gain, P99_TPOT), strict=True):
        _verdicts(ax, axis, lines, question)
    handles, labels = right.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", handlelength=3.6)
    bands = "Bands: 95 % intervals; of a P99 whose spread between requests is not known, all that it may be."
    below = (
        f"Below, by line: full where it pays against {base}; hatched from the last load at which it pays to "
        "the first at which it does not, and where it is not settled; grey where it does not."
    )
    caption(figure, shown, f"where the gain ends, and what P99 does, by {noun(along)}", bands, below)
    return figure


def _frame(lines: int) -> tuple[Figure, list[Axes]]:
    """Two panels, and a strip with a row a line below each."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    strip = _STRIP_INCHES * lines
    engine = ConstrainedLayoutEngine(wspace=0.05, h_pad=0.02, hspace=0.0)
    figure = Figure(figsize=(10.2, 4.6 + strip), layout=engine)
    axes = figure.subplots(2, 2, sharex="col", height_ratios=[3.1, strip])
    return figure, [ax for row in axes for ax in row]


def _gain(ax: Axes, shown: Shown, axis: Horizontal, key: str, base: str) -> None:
    """The ratio to the baseline over the load."""
    ax.set_title(f"Gain: {QUESTIONS[key]} over {base}; above 1 is better")
    ax.set_ylabel(f"ratio of {QUESTIONS[key]}")
    ax.axhline(1.0, color="black", linewidth=0.9)
    values: list[float] = []
    for line in shown.lines:
        rows = points_of(line, axis.key, key)
        if rows and not line.baseline:
            values += draw_line(ax, line, rows, axis, key, line.label)[0]
    ax.set_ylim(min(0.75, min(values) - 0.05), max(1.1, max(values) * 1.06))


def _p99(ax: Axes, shown: Shown, axis: Horizontal) -> None:
    """P99 TPOT over the load, with the SLO's limit where it has one."""
    ax.set_title("P99 TPOT")
    ax.set_ylabel(label(P99))
    values: list[float] = []
    tops: list[float] = []
    for line in shown.lines:
        rows = points_of(line, axis.key, P99)
        if rows:
            drawn = draw_line(ax, line, rows, axis, P99, line.label)
            values += drawn[0]
            tops += drawn[1]
    limit = shown.limits_ms.get("tpot")
    set_vertical(ax, values if limit is None else [*values, limit], tops)
    if limit is not None:
        ax.axhline(limit, color=GREY, linewidth=0.9)
        at = ("axes fraction", "data")
        ax.annotate(
            f"SLO\n{limit:g} ms", (1, limit), (4, 0), at, "offset points", va="center", fontsize=8, color=GREY
        )


def _verdicts(ax: Axes, axis: Horizontal, lines: Sequence[Line], question: str) -> None:
    """A row a line: where it pays, where it stops, where that is not settled, and where it does not pay."""
    axis.set_up(ax)
    ax.set_title(f"where it pays on {QUESTIONS[question]}", fontsize=8, color=GREY, pad=3)
    ax.grid(visible=False)
    ax.set_ylim(len(lines) - 0.4, -0.6)
    ax.set_yticks(range(len(lines)), [line.label or "it" for line in lines], fontsize=8)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    for row, line in enumerate(lines):
        colour = look(line).color
        for low, high, verdict in stretches(points_of(line, axis.key, question), axis.key, question):
            full, open_yet = verdict == "pays", verdict == "not settled"
            ax.plot([low, high], [row, row], color=_LOSES, linewidth=6.5, solid_capstyle="butt", zorder=2)
            if full:
                ax.plot([low, high], [row, row], color=colour, linewidth=6.5, solid_capstyle="butt", zorder=3)
            elif open_yet:
                ax.fill_between(
                    [low, high], row - 0.22, row + 0.22, facecolor="white", edgecolor=colour, hatch="//////",
                    linewidth=0, zorder=3,
                )  # fmt: skip


def stretches(rows: Sequence[Row], x: str, question: str) -> list[tuple[float, float, str]]:
    """Returns stretches of the load with the verdict that holds on them, from one tested load to the next.

    Between two loads with the same verdict it is that one; between two that differ it is not settled: the
    crossing lies somewhere in between.
    """
    if reach(rows, x, question) is None:
        return []
    tested = sorted((number(row, x), found) for row in rows if (found := judged(row, question)))
    if len(tested) == 1:
        return []
    joined: list[tuple[float, float, str]] = []
    for (low, first), (high, then) in itertools.pairwise(tested):
        verdict: str = first if first == then else "not settled"
        if joined and joined[-1][2] == verdict:
            joined[-1] = (joined[-1][0], high, verdict)
        else:
            joined.append((low, high, verdict))
    return joined
