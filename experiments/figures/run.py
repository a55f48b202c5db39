"""The figures of a finished run: throughput, speedup, tails, and one for each further metric asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from specfleet.experiments.figures.data import Line, Shown, read
from specfleet.experiments.figures.steps import step_time, two_sides
from specfleet.experiments.figures.style import (
    GREY,
    Horizontal,
    caption,
    interval_note,
    label,
    look,
    noun,
    panels,
    save,
    set_vertical,
    styled,
)
from specfleet.experiments.run.folder import located
from specfleet.experiments.run.results import Row, number
from specfleet.experiments.words.values import named, text
from specfleet.experiments.words.verdict import QUESTIONS, Crossing, crossing, crossing_sentence

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Transform

SPEEDUPS = ("speedup_output_throughput", "speedup_p99_tpot")
TAILS = ("p99_tpot_ms", "p99_itl_ms")
COVERED = ("output_throughput", *TAILS)
"""Metrics with a figure of their own name or kind."""

_DODGE_POINTS = 2.2
"""Between two lines with error bars, sideways, so that bars at the same x can be told apart."""


def draw_run(folder: Path) -> list[Path]:
    """Draws a finished run's figures into `plots/`, each as PNG and SVG, and returns the paths.

    Figures without a point to show are left out.

    Raises:
        FileNotFoundError: if `folder` is not the folder of a finished run.
    """
    shown = read(folder)
    with styled():
        return [
            path
            for name, figure in figures(shown)
            if figure is not None
            for path in save(figure, located(folder) / "plots", name)
        ]


def figures(shown: Shown) -> Iterator[tuple[str, Figure | None]]:
    """Yields the name of every figure and the figure; None where the run has nothing for it."""
    yield "throughput", metric(shown, "output_throughput")
    yield "speedup", speedup(shown)
    yield "tails", tails(shown)
    yield "step_time", step_time(shown)
    yield "two_sides", two_sides(shown)
    for key in dict.fromkeys(shown.y):
        if key not in COVERED:
            yield key, metric(shown, key)


def metric(shown: Shown, key: str) -> Figure | None:
    """One metric against `report.x`, a line a value of `report.lines`."""
    if shown.x is None or key == shown.x or not any(_points(line, shown.x, key) for line in shown.lines):
        return None
    axis = Horizontal.of(shown.x, shown)
    figure, (ax,) = panels(1, 1, (7.0, 4.2))
    _draw_lines(ax, shown, axis, key)
    notes = list(interval_note(shown))
    if shown.x != shown.along and shown.along:
        _name_points(ax, shown, axis, key)
        notes.append(f"Numbers at the points of the last line: {label(shown.along)}.")
    _legend(figure, ax)
    caption(figure, shown, f"{noun(key)} against {noun(shown.x)}", *notes)
    return figure


def tails(shown: Shown) -> Figure | None:
    """P99 of TPOT and of ITL over the load, side by side."""
    along = shown.along
    drawn = [key for key in TAILS if along and any(_points(line, along, key) for line in shown.lines)]
    if along is None or not drawn:
        return None
    axis = Horizontal.of(along, shown)
    figure, axes = panels(1, len(drawn), (1.6 + 4.2 * len(drawn), 4.2))
    for ax, key in zip(axes, drawn, strict=True):
        _draw_lines(ax, shown, axis, key)
        ax.set_title(noun(key))
    _legend(figure, axes[0])
    chunk = "ITL is the time from one streamed chunk to the next; a chunk holds all tokens of one step."
    caption(figure, shown, f"tail latency against {noun(along)}", chunk, *interval_note(shown))
    return figure


def speedup(shown: Shown) -> Figure | None:
    """Throughput and P99 TPOT relative to the baseline over the load, and where they cross 1."""
    along = shown.along
    lines = [line for line in shown.lines if not line.baseline]
    drawn = [key for key in SPEEDUPS if along and any(_points(line, along, key) for line in lines)]
    if along is None or not shown.baseline or not drawn:
        return None
    axis = Horizontal.of(along, shown)
    figure, axes = panels(1, len(drawn), (0.6 + 4.6 * len(drawn), 4.3 + 0.2 * len(lines)), share=True)
    marked = max(_speedup_panel(ax, shown, axis, key) for ax, key in zip(axes, drawn, strict=True))
    ratios = [number(row, key) for key in drawn for line in lines for row in _points(line, along, key)]
    high = max(1.1, max(ratios) * 1.06)
    axes[0].set_ylim(min(0.7, min(ratios) - 0.05, 1 - 0.09 * marked * (high - 1)), high)
    base = ", ".join(named(key, value) for key, value in shown.baseline.items())
    axes[0].set_ylabel(f"ratio to {base}; above 1 is better")
    caption(figure, shown, f"speedup over {base} against {noun(along)}", *interval_note(shown))
    return figure


def _speedup_panel(ax: Axes, shown: Shown, axis: Horizontal, key: str) -> int:
    """Draws one ratio with the verdict on each line; returns how many crossings of 1 are marked."""
    lines = [line for line in shown.lines if not line.baseline]
    axis.set_up(ax)
    ax.set_title(QUESTIONS[key])
    ax.axhline(1.0, color="black", linewidth=0.9)
    crossings: list[tuple[float, Line]] = []
    for i, line in enumerate(lines):
        rows = _points(line, axis.key, key)
        if not rows:
            continue
        said = [line.label] if line.label else []
        if axis.numeric and axis.key not in shown.baseline:
            found, last = _crossing(rows, axis, key)
            said.append(crossing_sentence(found, last))
            crossings += [(found.crosses_at, line)] if found.crosses_at is not None else []
        _draw_line(ax, line, rows, axis, key, fill(": ".join(said), 62), _aside(ax, shown, i, len(lines)))
    _mark_crossings(ax, sorted(crossings, key=lambda pair: pair[0]), axis)
    if any(ax.get_legend_handles_labels()[1]):
        ax.legend(loc="upper left", bbox_to_anchor=(-0.02, -0.16), borderaxespad=0, handlelength=3.4)
    return len(crossings)


def _crossing(rows: Sequence[Row], axis: Horizontal, key: str) -> tuple[Crossing, float]:
    """Where a line crosses 1, and the last x tested."""
    ordered = sorted(rows, key=lambda row: axis.place(row[axis.key]))
    places = [axis.place(row[axis.key]) for row in ordered]
    widths = [number(row, f"{key}_ci95") if f"{key}_ci95" in row else math.nan for row in ordered]
    return crossing(places, [number(row, key) for row in ordered], widths), places[-1]


def _mark_crossings(ax: Axes, found: Sequence[tuple[float, Line]], axis: Horizontal) -> None:
    """Rings where lines cross 1; below each, staggered, which line it is and at which x."""
    lefts = sum(axis.share(place) <= 0.5 for place, _ in found)
    for i, (place, line) in enumerate(found):
        colour, right = look(line).color, i >= lefts
        level = len(found) - 1 - i if right else i
        at = f"{place:.2g}" if place < 10 else f"{place:.0f}"
        ax.plot([place], [1.0], "o", markersize=10, markerfacecolor="none", markeredgecolor=colour, zorder=5)
        ax.annotate(
            f" {line.label} crosses at {at} ",
            xy=(place, 1.0),
            xytext=(place, 0.02 + 0.06 * (level % 5)),
            textcoords=("data", "axes fraction"),
            ha="right" if right else "left",
            va="bottom",
            fontsize=8,
            color=colour,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.85, "pad": 0.5},
            arrowprops={
                "arrowstyle": "-",
                "color": colour,
                "linewidth": 0.8,
                "shrinkA": 0,
                "shrinkB": 5,
                "relpos": (1.0 if right else 0.0, 0.0),
            },
        )


def _draw_lines(ax: Axes, shown: Shown, axis: Horizontal, key: str) -> None:
    """Draws `key` over `axis`, with error bars, a limit where the SLO has one, and both axes set up."""
    axis.set_up(ax)
    ax.set_ylabel(label(key))
    values: list[float] = []
    tops: list[float] = []
    for i, line in enumerate(shown.lines):
        rows = _points(line, axis.key, key)
        if not rows:
            continue
        drawn = _draw_line(ax, line, rows, axis, key, line.label, _aside(ax, shown, i, len(shown.lines)))
        values += drawn[0]
        tops += drawn[1]
    limit = _limit_ms(shown, key)
    set_vertical(ax, values if limit is None else [*values, limit], tops)
    if limit is not None:
        ax.axhline(limit, color=GREY, linewidth=0.9)
        ax.annotate(
            f"SLO {limit:g} ms",
            xy=(0, limit),
            xycoords=("axes fraction", "data"),
            xytext=(3, 2),
            textcoords="offset points",
            color=GREY,
            fontsize=8,
        )


def _aside(ax: Axes, shown: Shown, place: int, lines: int) -> Transform:
    """Moves a line with error bars sideways by its place among the lines, so that bars do not coincide."""
    from matplotlib.transforms import ScaledTranslation

    if shown.replications < 2:
        return ax.transData
    inches = _DODGE_POINTS / 72 * (place - (lines - 1) / 2)
    root = ax.get_figure(root=True)
    assert root is not None
    return ax.transData + ScaledTranslation(inches, 0, root.dpi_scale_trans)


def _points(line: Line, x: str, key: str) -> tuple[Row, ...]:
    """The rows of a line with a value of `key` at a place on `x`."""
    return tuple(row for row in line.having(key) if x in row)


def _draw_line(
    ax: Axes, line: Line, rows: Sequence[Row], axis: Horizontal, key: str, said: str, transform: Transform
) -> tuple[list[float], list[float]]:
    """Draws one line and the 95 % intervals there are; returns its values and the bars' upper ends."""
    places = [axis.place(row[axis.key]) for row in rows]
    values = [number(row, key) for row in rows]
    style = look(line)
    style.plot(ax, places, values, said, transform, axis.numeric)
    bars = [
        (place, value, number(row, f"{key}_ci95"))
        for place, value, row in zip(places, values, rows, strict=True)
        if f"{key}_ci95" in row
    ]
    if not bars:
        return values, []
    x, y, half = zip(*bars, strict=True)
    ax.errorbar(
        x,
        y,
        yerr=half,
        fmt="none",
        color=style.color,
        elinewidth=0.8,
        capsize=2,
        capthick=0.8,
        alpha=0.55,
        transform=transform,
    )
    return values, [value + width for _, value, width in bars]


def _name_points(ax: Axes, shown: Shown, axis: Horizontal, key: str) -> None:
    """Writes the load beside the points of the last line, where the horizontal axis is a metric."""
    assert shown.along is not None
    for row in _points(shown.lines[-1], axis.key, key):
        ax.annotate(
            text(row[shown.along]),
            xy=(axis.place(row[axis.key]), number(row, key)),
            xytext=(5, 4),
            textcoords="offset points",
            fontsize=8,
            color=GREY,
        )


def _limit_ms(shown: Shown, key: str) -> float | None:
    """The SLO's limit on a percentile; a mean has none."""
    statistic, _, latency = key.removesuffix("_ms").partition("_")
    return shown.limits_ms.get(latency) if statistic.startswith("p") else None


def _legend(figure: Figure, ax: Axes) -> None:
    """One legend right of the panels, unless there is one line without a name."""
    handles, labels = ax.get_legend_handles_labels()
    if any(labels):
        figure.legend(handles, labels, loc="outside right center", handlelength=3.6)
