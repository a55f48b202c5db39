"""The figures of a finished run: throughput, speedup, tails, and one for each further metric asked for."""

from __future__ import annotations

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
    look,
    panels,
    save,
    set_vertical,
    styled,
)
from specfleet.experiments.run.folder import located
from specfleet.experiments.run.results import Row, is_number, number
from specfleet.experiments.words.names import label, noun
from specfleet.experiments.words.values import named, text
from specfleet.experiments.words.verdict import QUESTIONS, interval, reach

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
    """Throughput and P99 TPOT relative to the baseline over the load, and where they stop paying."""
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
    low, kept = min(0.75, min(ratios) - 0.03), 0.04 + 0.06 * marked  # for the marks, below all lines
    axes[0].set_ylim(low - kept / (1 - kept) * (high - low) if marked else low, high)
    base = ", ".join(named(key, value) for key, value in shown.baseline.items())
    axes[0].set_ylabel(f"ratio to {base}; above 1 is better")
    bars = "Error bars: 95 % intervals of the ratio, paired by request and by seed."
    caption(figure, shown, f"speedup over {base} against {noun(along)}", bars)
    return figure


def _speedup_panel(ax: Axes, shown: Shown, axis: Horizontal, key: str) -> int:
    """Draws one ratio with the verdict on each line; returns how many lines are marked where they stop."""
    lines = [line for line in shown.lines if not line.baseline]
    axis.set_up(ax)
    ax.set_title(QUESTIONS[key])
    ax.axhline(1.0, color="black", linewidth=0.9)
    stops: list[tuple[tuple[float, float], Line]] = []
    for i, line in enumerate(lines):
        rows = _points(line, axis.key, key)
        if not rows:
            continue
        said = [line.label] if line.label else []
        found = reach(rows, axis.key, key) if axis.numeric and axis.key not in shown.baseline else None
        if found is not None:
            said.append(found.sentence())
            stops += [(found.stops_between, line)] if found.stops_between else []
        _draw_line(ax, line, rows, axis, key, fill(": ".join(said), 62), _aside(ax, shown, i, len(lines)))
    _mark_stops(ax, stops, axis)
    if any(ax.get_legend_handles_labels()[1]):
        ax.legend(loc="upper left", bbox_to_anchor=(-0.02, -0.16), borderaxespad=0, handlelength=3.4)
    return len(stops)


def _mark_stops(ax: Axes, found: Sequence[tuple[tuple[float, float], Line]], axis: Horizontal) -> None:
    """Below the lines, one above the other: from the last load at which a line pays to the first at which
    it does not."""
    for level, ((low, high), line) in enumerate(found):
        colour, height = look(line).color, 0.04 + 0.06 * level
        place = ax.get_xaxis_transform()
        ax.plot([low, high], [height, height], "|-", color=colour, linewidth=1.6, transform=place, zorder=5)
        right = axis.share(low) > 0.3
        ax.annotate(
            f"{line.label} stops paying",
            xy=(low if right else high, height),
            xycoords=("data", "axes fraction"),
            xytext=(-5 if right else 5, 0),
            textcoords="offset points",
            ha="right" if right else "left",
            va="center",
            fontsize=8,
            color=colour,
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
        (place, value, *sides)
        for place, value, row in zip(places, values, rows, strict=True)
        if (sides := _sides(row, key)) is not None
    ]
    if not bars:
        return values, []
    x, y, below, above = zip(*bars, strict=True)
    ax.errorbar(
        x,
        y,
        yerr=(below, above),
        fmt="none",
        color=style.color,
        elinewidth=0.8,
        capsize=2,
        capthick=0.8,
        alpha=0.55,
        transform=transform,
    )
    return values, [value + up for _, value, _, up in bars]


def _sides(row: Row, key: str) -> tuple[float, float] | None:
    """How far the 95 % interval reaches below and above a figure; a ratio's is paired by request."""
    found = interval(row, key)
    if found is not None:
        return max(number(row, key) - found[0], 0.0), max(found[1] - number(row, key), 0.0)
    half = row.get(f"{key}_ci95")
    return (number(row, f"{key}_ci95"),) * 2 if is_number(half) else None


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
