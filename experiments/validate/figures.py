"""Predicted against measured, a panel a metric."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from specfleet.experiments.figures.style import COLOURS, DOTS_PER_INCH, MARKERS, PNG, SVG, save, styled
from specfleet.experiments.validate.runs import Scored

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = (
    ("tpot_mean_ms", "mean TPOT (ms)"),
    ("tpot_p99_ms", "P99 TPOT (ms)"),
    ("ttft_mean_ms", "mean TTFT (ms)"),
    ("output_throughput", "output throughput (tokens/s)"),
)
BAND = 0.1
"""Shaded: within 10 % of the measurement."""


def draw_validation(scored: Sequence[Scored], path: Path) -> list[Path]:
    """Writes the figure; a path without a known ending gets PNG and SVG.

    Returns:
        The files written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with styled():
        figure = validation_figure(scored)
        FigureCanvasAgg(figure)
        if path.suffix.lower() not in (".png", ".svg", ".pdf"):
            return save(figure, path.parent, path.name, (PNG, SVG))
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=DOTS_PER_INCH)
    return [path]


def validation_figure(scored: Sequence[Scored]) -> Figure:
    """Returns a panel a metric, on equal logarithmic scales with equality and `BAND` marked."""
    from matplotlib.figure import Figure

    shown = [(m, t) for m, t in PANELS if any(m in one.predicted for one in scored)] or [PANELS[0]]
    labels = sorted({_label(one) for one in scored})
    columns = min(2, len(shown))
    rows = -(-len(shown) // columns)
    names = -(-len(labels) // 2)
    figure = Figure(figsize=(5.2 * columns, 4.4 * rows + 0.5 + 0.2 * names), layout="constrained")
    flat = list(figure.subplots(rows, columns, squeeze=False).flat)
    for ax, (metric, title) in zip(flat, shown, strict=False):
        _panel(ax, scored, labels, metric, title)
    for ax in flat[len(shown) :]:
        ax.set_visible(False)
    handles, said = flat[0].get_legend_handles_labels()
    figure.legend(handles, said, loc="outside lower center", ncols=2, fontsize=7.5)
    told = f"Line: as measured. Grey: within {BAND:.0%} of it. Both axes are logarithmic."
    figure.suptitle(
        f"Predicted against measured, {len(scored)} points. {told}", x=0.01, ha="left", fontsize=9
    )
    return figure


def _panel(ax: Axes, scored: Sequence[Scored], labels: Sequence[str], metric: str, title: str) -> None:
    for place, label in enumerate(labels):
        pairs = [_pair(one, metric) for one in scored if _label(one) == label and metric in one.predicted]
        if pairs:
            x, y = zip(*pairs, strict=True)
            colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
            ax.scatter(x, y, s=16, alpha=0.75, color=colour, marker=marker, label=label, zorder=3)
    values = [value for one in scored if metric in one.predicted for value in _pair(one, metric)]
    _diagonal(ax, min(values), max(values))
    ax.set_title(title)
    ax.set_xlabel("measured")
    ax.set_ylabel("predicted")


def _label(one: Scored) -> str:
    point = one.point
    return f"{point.placement.model.name}, {point.placement.accelerator.name}, {point.method}"


def _pair(one: Scored, metric: str) -> tuple[float, float]:
    return one.point.measured[metric], one.predicted[metric]


def _diagonal(ax: Axes, low: float, high: float) -> None:
    """Draws equality and the band around it on logarithmic axes, with a few plain numbers on both."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    ends = (low / 1.2, high * 1.2)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.plot(ends, ends, color="black", linewidth=0.8)
    upper, lower = [(1 + BAND) * e for e in ends], [(1 - BAND) * e for e in ends]
    ax.fill_between(ends, lower, upper, color="black", alpha=0.08, linewidth=0)
    ax.set_xlim(*ends)
    ax.set_ylim(*ends)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(FixedLocator(ticks(*ends)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.4g}"))
    ax.grid(visible=True, axis="both")


def ticks(low: float, high: float, most: int = 7) -> list[float]:
    """Returns round numbers on a logarithmic axis: 1, 2, 5 of each decade, fewer over many, more over few."""
    fine = tuple(1 + 0.1 * i for i in range(90))
    steps: tuple[tuple[float, ...], ...] = ((1,), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 7), fine)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = [[s * 10.0**d for d in decades for s in step if low <= s * 10.0**d <= high] for step in steps]
    chosen = next((found for found in every if len(found) >= 3), every[-1])
    return chosen[:: max(-(-len(chosen) // most), 1)]
