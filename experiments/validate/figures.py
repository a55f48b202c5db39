"""Predicted against measured, a panel a metric."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from specfleet.experiments.figures.style import COLOURS, MARKERS, save, styled
from specfleet.experiments.validate.runs import Scored

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
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = [(m, t) for m, t in PANELS if any(m in one.predicted for one in scored)] or [PANELS[0]]
    labels = sorted({_label(one) for one in scored})
    columns = min(2, len(panels))
    lines = -(-len(panels) // columns)
    with styled():
        figure, axes = pyplot.subplots(
            lines, columns, figsize=(5.2 * columns, 4.6 * lines), squeeze=False, layout="constrained"
        )
        flat = list(axes.flat)
        for ax, (metric, title) in zip(flat, panels, strict=False):
            for place, label in enumerate(labels):
                pairs = [
                    (one.point.measured[metric], one.predicted[metric])
                    for one in scored
                    if _label(one) == label and metric in one.predicted
                ]
                if pairs:
                    x, y = zip(*pairs, strict=True)
                    colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
                    ax.scatter(x, y, s=16, alpha=0.75, color=colour, marker=marker, label=label)
            values = [v for one in scored if metric in one.predicted for v in _pair(one, metric)]
            _diagonal(ax, min(values), max(values))
            ax.set_title(f"{title}: predicted against measured")
            ax.set_xlabel("measured")
            ax.set_ylabel("predicted")
        for ax in flat[len(panels) :]:
            ax.set_visible(False)
        handles, names = flat[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=2, fontsize=7.5)
        if path.suffix.lower() in (".png", ".svg", ".pdf"):
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path)
            written = [path]
        else:
            written = save(figure, path.parent, path.name)
        pyplot.close(figure)
    return written


def _label(one: Scored) -> str:
    point = one.point
    return f"{point.placement.model.name}, {point.placement.accelerator.name}, {point.method}"


def _pair(one: Scored, metric: str) -> tuple[float, float]:
    return one.point.measured[metric], one.predicted[metric]


def _diagonal(ax: object, low: float, high: float) -> None:
    """Draws equality and the band around it on logarithmic axes."""
    from matplotlib.axes import Axes

    assert isinstance(ax, Axes)
    ends = [low / 1.2, high * 1.2]
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.plot(ends, ends, color="black", linewidth=0.8)
    upper, lower = [(1 + BAND) * e for e in ends], [(1 - BAND) * e for e in ends]
    ax.fill_between(ends, lower, upper, color="black", alpha=0.08, linewidth=0)
    ax.set_xlim(*ends)
    ax.set_ylim(*ends)
