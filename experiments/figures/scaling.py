"""Replicas that follow the load, over time: arrivals, replicas, and the tail of the TTFT."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from specfleet.experiments.figures.data import Shown
from specfleet.experiments.figures.overtime import (
    MOST,
    STRETCHES,
    columns_of,
    draw_tail,
    first_seed,
    point_label,
)
from specfleet.experiments.figures.style import COLOURS, GREY, caption, panels
from specfleet.experiments.run.results import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def scaling(shown: Shown) -> Figure | None:
    """Arrivals, replicas that are up and paid for, and P99 TTFT by the time of sending; of each point the
    first seed. None where replicas do not follow the load."""
    found = ((row, first_seed(shown, row, "fleet.csv", "requests.csv")) for row in shown.rows)
    rows = [(row, path) for row, path in found if path is not None][:MOST]
    if not rows:
        return None
    figure, (arrivals, replicas, tail) = panels(3, 1, (8.0, 7.6))
    end_s = max(
        _draw(number, row, path, shown, (arrivals, replicas, tail)) for number, (row, path) in enumerate(rows)
    )
    for ax, title in (
        (arrivals, "requests sent/s"),
        (replicas, "replicas: up (line), paid for (dashed)"),
        (tail, "P99 TTFT (s), by the time of sending"),
    ):
        ax.set_title(title, loc="left", fontsize=9)
        ax.set_xlim(0.0, end_s)
        ax.set_ylim(bottom=0.0)
    tail.set_xlabel("time (s)")
    replicas.yaxis.get_major_locator().set_params(integer=True)  # type: ignore[call-arg]
    replicas.legend(fontsize=8, loc="upper left", frameon=False)
    caption(figure, shown, "replicas over time", "Paid for: from the order until the replica has drained.")
    return figure


def _draw(number: int, row: Row, path: Path, shown: Shown, axes: tuple[Axes, Axes, Axes]) -> float:
    """Draws a point; returns when its last request was sent or replica changed, s."""
    arrivals, replicas, tail = axes
    fleet, requests = columns_of(path / "fleet.csv"), columns_of(path / "requests.csv")
    sent_s = requests["sent_ms"] / 1e3
    end_s = max(float(np.nanmax(requests["last_chunk_ms"])) / 1e3, float(fleet["time_s"][-1]))
    edges = np.linspace(0.0, end_s, STRETCHES + 1)
    colour = COLOURS[number % len(COLOURS)]
    label = point_label(shown, row)
    if not number:
        arrivals.stairs(np.histogram(sent_s, edges)[0] / (edges[1] - edges[0]), edges, color=GREY)
    times = np.append(fleet["time_s"], end_s)
    for name, dashes in (("up", "-"), ("paid", "--")):
        replicas.step(
            times,
            np.append(fleet[name], fleet[name][-1]),
            where="post",
            color=colour,
            linestyle=dashes,
            linewidth=1.4 if name == "up" else 1.0,
            label=label if name == "up" else None,
        )
    draw_tail(tail, requests, colour)
    return end_s
