"""The figure of `specfleet explain`: one step's time as bars, with and without drafts."""

from __future__ import annotations

from pathlib import Path

from specfleet.experiments.figures.steps import PARTS
from specfleet.experiments.figures.style import GREY, styled
from specfleet.experiments.run.explain import Explanation


def draw_explanation(said: Explanation, path: Path) -> None:
    """Writes one bar a step, split by term; the format follows the file's ending."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    steps = [s for s in (said.plain, said.drafting) if s is not None]
    with styled():
        figure = Figure(figsize=(9, 1.3 + 0.8 * len(steps)), layout="constrained")
        FigureCanvasAgg(figure)
        ax = figure.add_subplot()
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
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
