"""A user's own measured results over the curves of a run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specfleet.experiments.figures.data import Line, Shown
from specfleet.experiments.figures.lines import draw_line, points_of
from specfleet.experiments.figures.style import COLOURS, Horizontal, caption, look, panels, set_vertical
from specfleet.experiments.run.results import is_number, number
from specfleet.experiments.words.names import label, noun
from specfleet.experiments.words.values import K, same

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

METRICS = ("output_throughput", "mean_tpot_ms", "p99_tpot_ms", "mean_ttft_ms", "p99_ttft_ms", "p99_itl_ms")
"""Compared, as far as both sides have them."""
CONCURRENCY, RATE = "workload.max_concurrency", "workload.request_rate"


@dataclass(frozen=True)
class MeasuredResult:
    """What a benchmark of a real server printed.

    Attributes:
        name: of its file.
        figures: under the keys of `vllm bench serve --save-result`.
        max_concurrency, request_rate: the load; None where there is none.
        drafts: K; 0 is a server without speculation, None where it does not say.
        notes: what to know of how it was read.
    """

    name: str
    figures: Mapping[str, float]
    max_concurrency: float | None
    request_rate: float | None
    drafts: int | None
    notes: tuple[str, ...] = ()

    def load(self, along: str) -> float | None:
        """Returns where it lies on an axis of the load; None where it does not say."""
        return {CONCURRENCY: self.max_concurrency, RATE: self.request_rate}.get(along)


def line_of(shown: Shown, result: MeasuredResult) -> Line | None:
    """Returns the line that predicts a result: that of its K, or the only one."""
    key = next((axis for axis in shown.axes if axis.endswith(K)), None)
    if key is None:
        return shown.lines[0] if len(shown.lines) == 1 else None
    found = [line for line in shown.lines if any(same(row[key], result.drafts) for row in line.rows)]
    return found[0] if len(found) == 1 else None


def predicted(line: Line, along: str, load: float, key: str) -> tuple[float, bool] | None:
    """Returns what a line says at a load, and whether it was simulated there.

    Between two loads it is read off the straight line through both on logarithmic axes; beyond them, None.
    """
    rows = sorted(points_of(line, along, key), key=lambda row: number(row, along))
    for row in rows:
        if number(row, along) == load:
            return number(row, key), True
    for before, after in itertools.pairwise(rows):
        (x0, x1), (y0, y1) = [[number(row, name) for row in (before, after)] for name in (along, key)]
        if x0 < load < x1 and min(x0, y0, y1) > 0:
            share = math.log(load / x0) / math.log(x1 / x0)
            return math.exp(math.log(y0) + share * math.log(y1 / y0)), False
    return None


def measured(shown: Shown, results: Sequence[MeasuredResult]) -> Figure | None:
    """Predicted lines with their bands, and measured results as hollow marks of the line's colour; None where
    no metric is on both sides."""
    along = shown.along
    if along is None:
        return None
    ours = [key for key in METRICS if any(points_of(line, along, key) for line in shown.lines)]
    keys = [key for key in ours if any(key in one.figures for one in results)][:4]
    if not keys:
        return None
    columns = min(len(keys), 2)
    rows = -(-len(keys) // columns)
    figure, axes = panels(rows, columns, (2.2 + 4.2 * columns, 0.9 + 3.4 * rows))
    axis = Horizontal.of(along, shown)
    for ax, key in zip(axes, keys, strict=False):
        axis.set_up(ax)
        ax.set_ylabel(label(key))
        values = [value for line in shown.lines for value in _curve(line, axis, key, ax)]
        for one in results:
            load = one.load(along)
            if load is None or key not in one.figures:
                continue
            line = line_of(shown, one)
            style = look(line) if line else None
            ax.plot(
                [load], [one.figures[key]], linestyle="none", marker=style.marker if style else "o",
                markersize=9, markerfacecolor="none" if style and style.marker != "x" else None,
                markeredgewidth=1.8, color=style.color if style else COLOURS[7], zorder=5,
            )  # fmt: skip
            values.append(one.figures[key])
        set_vertical(ax, values, [])
        loads = [load for one in results if (load := one.load(along)) is not None and load > 0]
        low, high = axis.limits
        if loads:
            ax.set_xlim(min(low, 0.93 * min(loads)), max(high, 1.07 * max(loads)))
    for ax in axes[len(keys) :]:
        ax.set_visible(False)
    axes[0].plot([], [], "o", markersize=9, markerfacecolor="none", color="black", label="measured")
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside right center", handlelength=3.6)
    note = "Lines and small marks: predicted, with bands of 95 %. Large hollow marks: measured."
    caption(figure, shown, f"measured over predicted, by {noun(along)}", note)
    return figure


def _curve(line: Line, axis: Horizontal, key: str, ax: Axes) -> list[float]:
    rows = points_of(line, axis.key, key)
    name = line.label or "predicted"
    return draw_line(ax, line, rows, axis, key, name)[0] if rows else []


def has_load(shown: Shown) -> bool:
    """Whether a run's horizontal axis is a load that a benchmark states."""
    return shown.along in (CONCURRENCY, RATE) and all(is_number(row[shown.along]) for row in shown.rows)
