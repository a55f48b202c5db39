"""The figures of a finished run: throughput, speedup, tails, and one for each further metric asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from specfleet.experiments.figures.answer import answer
from specfleet.experiments.figures.apart import apart
from specfleet.experiments.figures.data import Shown, read
from specfleet.experiments.figures.failures import failures
from specfleet.experiments.figures.lines import draw_line, points_of
from specfleet.experiments.figures.scaling import scaling
from specfleet.experiments.figures.steps import step_time, two_sides
from specfleet.experiments.figures.style import (
    GREY,
    Horizontal,
    caption,
    halo,
    interval_note,
    panels,
    save,
    set_vertical,
    styled,
)
from specfleet.experiments.run.folder import located
from specfleet.experiments.run.processes import Workers
from specfleet.experiments.run.results import number
from specfleet.experiments.words.names import label, noun
from specfleet.experiments.words.values import named, text
from specfleet.experiments.words.verdict import QUESTIONS, reach

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SPEEDUPS = ("speedup_output_throughput", "speedup_p99_tpot")
TAILS = ("p99_tpot_ms", "p99_itl_ms")
TASKS = ("mean_task_s", "mean_task_model_s", "usd_per_task")
COVERED = ("output_throughput", *TAILS, *TASKS)
"""Metrics with a figure of their own name or kind."""


def draw_run(
    folder: Path, workers: Workers | None = None, formats: Sequence[str] | None = None
) -> list[Path]:
    """Draws a finished run's figures into `plots/`, and returns the paths.

    Figures without a point to show are left out.

    Args:
        folder: of the run.
        workers: draw side by side where some are at work already; starting them would take longer.
        formats: of the files; None is those of the run's `report.formats`.

    Raises:
        FileNotFoundError: if `folder` is not the folder of a finished run.
    """
    shown = read(folder)
    names, formats = list(_makers(shown)), shown.formats if formats is None else formats
    if workers is None or not workers.started:
        return draw_some((folder, names, formats))
    drawn = workers.in_order(draw_some, [(folder, [name], formats) for name in names])
    return [path for paths in drawn for path in paths]


def ready_to_draw() -> None:
    """Imports what figures need, so that a process that has nothing else to do draws sooner later on."""
    import matplotlib.backends.backend_agg
    import matplotlib.figure
    import matplotlib.font_manager
    import pandas  # noqa: F401

    matplotlib.font_manager.findfont("DejaVu Sans")


def draw_some(asked: tuple[Path, Sequence[str], Sequence[str]]) -> list[Path]:
    """Draws the figures of a finished run that are named, in these formats; returns the paths."""
    folder, names, formats = asked
    makers = _makers(read(folder))
    with styled():
        return [
            path
            for name in names
            if (figure := makers[name]()) is not None
            for path in save(figure, located(folder) / "plots", name, formats)
        ]


def figures(shown: Shown) -> Iterator[tuple[str, Figure | None]]:
    """Yields the name of every figure and the figure; None where the run has nothing for it."""
    yield from ((name, make()) for name, make in _makers(shown).items())


def _makers(shown: Shown) -> dict[str, Callable[[], Figure | None]]:
    """Returns what makes each figure, by its name; None is made where the run has nothing for it."""
    fixed: dict[str, Callable[[], Figure | None]] = {
        "answer": partial(answer, shown),
        "throughput": partial(metric, shown, "output_throughput"),
        "speedup": partial(speedup, shown),
        "tails": partial(tails, shown),
        "tasks": partial(tasks, shown),
        "step_time": partial(step_time, shown),
        "two_sides": partial(two_sides, shown),
        "scaling": partial(scaling, shown),
        "apart": partial(apart, shown),
        "failures": partial(failures, shown),
    }
    return fixed | {key: partial(metric, shown, key) for key in shown.y if key not in COVERED}


def metric(shown: Shown, key: str) -> Figure | None:
    """One metric against `report.x`, a line a value of `report.lines`."""
    if shown.x is None or key == shown.x or not any(points_of(line, shown.x, key) for line in shown.lines):
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
    chunk = "ITL is the time from one streamed chunk to the next; a chunk holds all tokens of one step."
    return _side_by_side(shown, TAILS, "tail latency", chunk)


def tasks(shown: Shown) -> Figure | None:
    """What a session takes from its first turn to its last answer, of which answers, and what it costs."""
    said = "A task is a session: its answers, and between them what its user thinks and its tools take."
    return _side_by_side(shown, TASKS, "what a task takes and costs", said)


def _side_by_side(shown: Shown, keys: Sequence[str], title: str, said: str) -> Figure | None:
    """Metrics over the load, a panel each; None where there is nothing of any."""
    along = shown.along
    drawn = [key for key in keys if along and any(points_of(line, along, key) for line in shown.lines)]
    if along is None or not drawn:
        return None
    axis = Horizontal.of(along, shown)
    figure, axes = panels(1, len(drawn), (1.6 + 4.2 * len(drawn), 4.2))
    for ax, key in zip(axes, drawn, strict=True):
        _draw_lines(ax, shown, axis, key)
        ax.set_title(noun(key))
    _legend(figure, axes[0])
    caption(figure, shown, f"{title} against {noun(along)}", said, *interval_note(shown))
    return figure


def speedup(shown: Shown) -> Figure | None:
    """Throughput and P99 TPOT relative to the baseline over the load, and where they stop paying."""
    along = shown.along
    lines = [line for line in shown.lines if not line.baseline]
    drawn = [key for key in SPEEDUPS if along and any(points_of(line, along, key) for line in lines)]
    if along is None or not shown.baseline or not drawn:
        return None
    axis = Horizontal.of(along, shown)
    figure, axes = panels(1, len(drawn), (0.6 + 4.6 * len(drawn), 4.3 + 0.2 * len(lines)), share=True)
    ratios = [
        value for ax, key in zip(axes, drawn, strict=True) for value in _speedup_panel(ax, shown, axis, key)
    ]
    axes[0].set_ylim(min(0.75, min(ratios) - 0.03), max(1.1, max(ratios) * 1.06))
    base = ", ".join(named(key, value) for key, value in shown.baseline.items())
    axes[0].set_ylabel(f"ratio to {base}; above 1 is better")
    bands = "Bands: 95 % intervals of the ratio, paired by request and by seed."
    caption(figure, shown, f"speedup over {base} against {noun(along)}", bands)
    return figure


def _speedup_panel(ax: Axes, shown: Shown, axis: Horizontal, key: str) -> list[float]:
    """Draws one ratio with the verdict on each line; returns the values."""
    lines = [line for line in shown.lines if not line.baseline]
    axis.set_up(ax)
    ax.set_title(QUESTIONS[key])
    ax.axhline(1.0, color="black", linewidth=0.9)
    drawn: list[float] = []
    for line in lines:
        rows = points_of(line, axis.key, key)
        if not rows:
            continue
        said = [line.label] if line.label else []
        found = reach(rows, axis.key, key) if axis.numeric and axis.key not in shown.baseline else None
        if found is not None:
            said.append(found.sentence())
        drawn += draw_line(ax, line, rows, axis, key, fill(": ".join(said), 62))[0]
    if any(ax.get_legend_handles_labels()[1]):
        ax.legend(loc="upper left", bbox_to_anchor=(-0.02, -0.16), borderaxespad=0, handlelength=3.4)
    return drawn


def _draw_lines(ax: Axes, shown: Shown, axis: Horizontal, key: str) -> None:
    """Draws `key` over `axis`, with its intervals, a limit where the SLO has one, and both axes set up."""
    axis.set_up(ax)
    ax.set_ylabel(label(key))
    values: list[float] = []
    tops: list[float] = []
    for line in shown.lines:
        rows = points_of(line, axis.key, key)
        if not rows:
            continue
        drawn = draw_line(ax, line, rows, axis, key, line.label)
        values += drawn[0]
        tops += drawn[1]
    limit = _limit_ms(shown, key)
    set_vertical(ax, values if limit is None else [*values, limit], tops)
    if limit is not None:
        ax.axhline(limit, color=GREY, linewidth=0.9)
        ax.annotate(
            f"SLO\n{limit:g} ms",
            xy=(1, limit),
            xycoords=("axes fraction", "data"),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            color=GREY,
            fontsize=8,
        )


def _name_points(ax: Axes, shown: Shown, axis: Horizontal, key: str) -> None:
    """Writes the load beside the points of the last line, where the horizontal axis is a metric."""
    assert shown.along is not None
    for row in points_of(shown.lines[-1], axis.key, key):
        ax.annotate(
            text(row[shown.along]),
            xy=(axis.place(row[axis.key]), number(row, key)),
            xytext=(5, 4),
            textcoords="offset points",
            fontsize=8,
            color=GREY,
            path_effects=halo(),
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
