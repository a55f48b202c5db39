"""The figure of `specfleet explain`: a step as bars, with and without drafts, and the target's stairs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from specfleet.experiments.figures.steps import PARTS
from specfleet.experiments.figures.style import GREY, styled
from specfleet.experiments.run.explain import Explanation
from specfleet.experiments.run.stairs import Stairs, stairs

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_explanation(said: Explanation, path: Path) -> None:
    """Writes one bar a step, split by term, above the pass by rows; the format follows the ending."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    steps = [s for s in (said.plain, said.drafting) if s is not None]
    with styled():
        heights = (0.9 + 0.8 * len(steps), 3.2)
        figure = Figure(figsize=(9, 0.6 + sum(heights)), layout="constrained")
        FigureCanvasAgg(figure)
        ax, below = figure.subplots(2, height_ratios=heights)
        left = [0.0] * len(steps)
        rows = list(range(len(steps)))
        for term, name, colour, hatch in PARTS:
            widths = [step.terms_ms[term] for step in steps]
            if not any(widths):
                continue
            ax.barh(
                rows,
                widths,
                left=left,
                label=name,
                color=colour,
                hatch=hatch,
                edgecolor="black",
                linewidth=0.5,
            )
            left = [a + b for a, b in zip(left, widths, strict=True)]
        for row, total in zip(rows, left, strict=True):
            ax.text(total, row, f"  {total:.1f} ms", va="center")
        ax.set_yticks(rows, [f"K = {step.k}" for step in steps])
        ax.invert_yaxis()
        ax.set_xlim(0, 1.12 * max(left))
        ax.set_xlabel("time of one step (ms)")
        ax.set_title(
            f"One step of {said.batch} sequences with {said.context:,} tokens of context: "
            f"{said.place.model.name.rpartition('/')[2]}, {said.place.tensor_parallel_size} x "
            f"{said.place.accelerator.name}",
            loc="left",
            fontsize=10,
        )
        figure.legend(loc="outside lower center", ncols=4, labelcolor=GREY, frameon=False)
        _draw_stairs(below, said, stairs(said))
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)


def _draw_stairs(ax: Axes, said: Explanation, found: Stairs) -> None:
    """The target's pass by rows, with each K where its uniform batch stands."""
    ax.plot(found.rows, found.pass_ms, color=GREY, linewidth=1.2, drawstyle="steps-pre")
    for k, rows, milliseconds in found.drafts:
        chosen = k == said.place.num_speculative_tokens
        ax.plot(
            [rows],
            [milliseconds],
            marker="o",
            color="#D55E00" if chosen else "black",
            markersize=7 if chosen else 5,
        )
        ax.annotate(
            f"K = {k}",
            (rows, milliseconds),
            xytext=(0, 7),
            textcoords="offset points",
            ha="right",
            fontsize=8,
        )
    for edge in found.edges:
        ax.axvline(edge, color=GREY, linewidth=0.5, linestyle=":")
    last = said.place.capture_sizes[-1] if said.place.capture_sizes else 0
    title = "the target's pass without attention, by rows = sequences x (1 + K), padding included"
    if found.rows[0] < last < found.rows[-1]:
        ax.axvline(last, color=GREY, linewidth=1, linestyle="--")
        title += f"; beyond {last:,} no CUDA graph"
    ax.set_ylim(0, 1.15 * max(*found.pass_ms, *(ms for _, _, ms in found.drafts)))
    label = "rows of a step (dotted: the last before a stair)" if found.edges else "rows of a step"
    if found.own_graphs:
        label += f"; the line has the CUDA graphs of K = {said.place.num_speculative_tokens}, a point its own"
    ax.set_xlabel(label)
    ax.set_ylabel("ms")
    ax.set_title(title, loc="left", fontsize=9)
