"""Replicas that follow the load, over time: arrivals, replicas, and the tail of the TTFT."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from specfleet.experiments.figures.data import Shown
from specfleet.experiments.figures.style import COLOURS, GREY, caption, panels
from specfleet.experiments.run.results import Row
from specfleet.experiments.words.values import named

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 4
"""Points that are drawn."""
STRETCHES = 60
"""Stretches of time in which arrivals are counted; portions of requests, of which percentiles are taken."""
LEAST = 20
"""Successive requests that a percentile is taken of, at least."""
F64 = npt.NDArray[np.float64]


def scaling(shown: Shown) -> Figure | None:
    """Arrivals, replicas that are up and paid for, and P99 TTFT by the time of sending; of each point the
    first seed. None where replicas do not follow the load."""
    rows = [(row, path) for row in shown.rows if (path := _folder(shown, row)) is not None][:MOST]
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


def _folder(shown: Shown, row: Row) -> Path | None:
    """The folder of a point's first seed, if its replicas follow the load and its requests are kept."""
    if shown.folder is None:
        return None
    for path in sorted((shown.folder / "points").glob(f"{row['point']},seed=*")):
        if (path / "fleet.csv").is_file() and (path / "requests.csv").is_file():
            return path
    return None


def _draw(number: int, row: Row, path: Path, shown: Shown, axes: tuple[Axes, Axes, Axes]) -> float:
    """Draws a point; returns when its last request was sent or replica changed, s."""
    arrivals, replicas, tail = axes
    fleet, requests = _columns(path / "fleet.csv"), _columns(path / "requests.csv")
    sent_s = requests["sent_ms"] / 1e3
    ttft_s = (requests["first_chunk_ms"] - requests["sent_ms"]) / 1e3
    end_s = max(float(np.nanmax(requests["last_chunk_ms"])) / 1e3, float(fleet["time_s"][-1]))
    edges = np.linspace(0.0, end_s, STRETCHES + 1)
    colour = COLOURS[number % len(COLOURS)]
    label = ", ".join(named(axis, row[axis]) for axis in shown.axes) or shown.name
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
    seen = np.flatnonzero(np.isfinite(ttft_s))
    seen = seen[np.argsort(sent_s[seen], kind="stable")]
    parts = np.array_split(seen, max(min(STRETCHES, len(seen) // LEAST), 1)) if len(seen) else []
    middle = [float(sent_s[part].mean()) for part in parts]
    high = [float(np.percentile(ttft_s[part], 99.0)) for part in parts]
    tail.plot(middle, high, color=colour, linewidth=1.4)
    return end_s


def _columns(path: Path) -> dict[str, F64]:
    """Returns the columns of a CSV file of numbers; nan is an empty cell."""
    with path.open(encoding="utf-8") as file:
        names = file.readline().strip().split(",")
    table = np.genfromtxt(path, delimiter=",", skip_header=1, ndmin=2)
    return dict(zip(names, table.T, strict=True))
