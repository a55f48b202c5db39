"""The figure of `specfleet trace`: rate over time, lengths, how uneven arrivals are; a law beside them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from specfleet.experiments.figures.style import COLOURS, GREY, styled
from specfleet.workloads.rates import RateArrivals
from specfleet.workloads.requests import FloatArray, IntArray
from specfleet.workloads.traces.imitation import Imitation
from specfleet.workloads.traces.report import Trace
from specfleet.workloads.traces.statistics import dispersion

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BARS = 120
"""Stretches of the recording whose rate is drawn, at most."""
RECORDED, LAW = COLOURS[0], COLOURS[1]
WINDOWS_S = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
"""Windows whose dispersion is drawn, seconds."""
ROUND_S = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 14_400.0, 86_400.0)


def draw_traffic(trace: Trace, path: Path, law: Imitation | None = None) -> None:
    """Writes the figure; the format follows the ending.

    Args:
        trace: what was recorded.
        path: of the figure.
        law: what imitates it, drawn beside it.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    at_s = trace.report.recorded_s if trace.report.timed else None
    at_s = None if at_s is None or not len(at_s) or at_s[-1] <= at_s[0] else at_s - at_s[0]
    drawn = None
    if law is not None and law.curve is not None and at_s is not None:
        drawn = RateArrivals(law.curve, law.burstiness, np.random.default_rng(0)).take(len(at_s))
    with styled():
        figure = Figure(figsize=(9, 6.2 if at_s is not None else 3.2), layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(
            f"{Path(trace.report.path).name}: {len(trace.requests):,} requests",
            x=0.01,
            ha="left",
            fontsize=10,
        )
        if at_s is None:
            prompt, output = figure.subplots(1, 2)
        else:
            axes = figure.subplot_mosaic([["rate", "rate", "uneven"], ["prompt", "output", "key"]])
            _rate(axes["rate"], at_s, drawn)
            _uneven(axes["uneven"], at_s, drawn)
            prompt, output = axes["prompt"], axes["output"]
            _key(axes["key"], law is not None)
        _lengths(prompt, trace.requests.prompt_tokens, law.prompt if law else (), "prompt")
        _lengths(output, trace.requests.output_tokens, law.output if law else (), "output")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)


def _rate(ax: Axes, at_s: FloatArray, drawn: FloatArray | None) -> None:
    """Requests/s in stretches of a round length."""
    span = float(at_s[-1])
    every = next((length for length in ROUND_S if span / length <= BARS), span / BARS)
    unit, name = (3600.0, "h") if span > 3 * 3600 else (60.0, "min") if span > 180 else (1.0, "s")
    for times, colour, width in ((at_s, RECORDED, 1.4), (drawn, LAW, 1.0)):
        if times is not None:
            count = max(int(span // every), 1)
            counts = np.bincount((times / every).astype(np.int64), minlength=count)[:count]
            ax.stairs(counts / every, every * np.arange(count + 1) / unit, color=colour, linewidth=width)
    ax.set_ylim(bottom=0)
    ax.set_xlabel(f"time ({name})")
    ax.set_title(f"requests/s, by {every:g} s")


def _uneven(ax: Axes, at_s: FloatArray, drawn: FloatArray | None) -> None:
    """Index of dispersion over the length of the window."""
    for times, colour in ((at_s, RECORDED), (drawn, LAW)):
        if times is None:
            continue
        found = [(w, d) for w in WINDOWS_S if (d := dispersion(times, w)) is not None and d > 0]
        ax.plot([w for w, _ in found], [d for _, d in found], color=colour, marker="o", markersize=3.5)
    ax.axhline(1.0, color=GREY, linewidth=0.8, linestyle=(0, (4, 3)))
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlabel("window (s)")
    ax.set_title("variance / mean of arrivals\n(dashed: Poisson)")


def _lengths(ax: Axes, tokens: IntArray, law: tuple[tuple[float, int], ...], name: str) -> None:
    """Share of the requests that are at most so long."""
    levels = np.linspace(0.0, 100.0, 401)
    ax.plot(np.maximum(np.percentile(tokens, levels), 1.0), levels, color=RECORDED)
    if law:
        ax.plot(
            [max(n, 1) for _, n in law], [p for p, _ in law], color=LAW, linewidth=1.0, linestyle=(0, (4, 2))
        )
    ax.set_xscale("log")
    ax.set_xlabel(f"{name} (tokens)")
    ax.set_title("% of requests at most so long")


def _key(ax: Axes, with_law: bool) -> None:
    """What the colours are."""
    ax.set_axis_off()
    for label, colour in (("recorded", RECORDED), ("law, drawn once", LAW))[: 1 + with_law]:
        ax.plot([], [], color=colour, label=label)
    ax.legend(loc="upper left")
