"""What figures over time share: the files of a point's first seed, and tails by the time of sending."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from specfleet.experiments.figures.data import Shown
from specfleet.experiments.run.folder import folders_of
from specfleet.experiments.run.results import Row
from specfleet.experiments.words.values import named

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST = 4
"""Points that are drawn."""
STRETCHES = 60
"""Stretches of time in which arrivals are counted; portions of requests, of which percentiles are taken."""
LEAST = 20
"""Successive requests that a percentile is taken of, at least."""
F64 = npt.NDArray[np.float64]


def first_seed(shown: Shown, row: Row, *files: str) -> Path | None:
    """The folder of a point's first seed that has all these files, if there is one."""
    if shown.folder is None:
        return None
    for path in folders_of(shown.folder, str(row["point"])):
        if all((path / file).is_file() for file in files):
            return path
    return None


def point_label(shown: Shown, row: Row) -> str:
    """Names a point by its axes."""
    return ", ".join(named(axis, row[axis]) for axis in shown.axes) or shown.name


def draw_tail(ax: Axes, requests: dict[str, F64], colour: str) -> None:
    """Draws P99 TTFT of portions of successive requests, over the time at which they were sent."""
    sent_s = requests["sent_ms"] / 1e3
    ttft_s = (requests["first_chunk_ms"] - requests["sent_ms"]) / 1e3
    seen = np.flatnonzero(np.isfinite(ttft_s))
    seen = seen[np.argsort(sent_s[seen], kind="stable")]
    parts = np.array_split(seen, max(min(STRETCHES, len(seen) // LEAST), 1)) if len(seen) else []
    middle = [float(sent_s[part].mean()) for part in parts]
    high = [float(np.percentile(ttft_s[part], 99.0)) for part in parts]
    ax.plot(middle, high, color=colour, linewidth=1.4)


def over_s(requests: dict[str, F64]) -> F64:
    """Returns when each request was answered, given up by its client, or ended otherwise, seconds."""
    over = np.full(len(requests["sent_ms"]), np.nan)
    for name in ("last_chunk_ms", "gave_up_ms", "finished_ms", "arrived_ms", "sent_ms"):
        if name in requests:
            over = np.where(np.isfinite(over), over, requests[name])
    return over / 1e3


def columns_of(path: Path) -> dict[str, F64]:
    """Returns the columns of a CSV file of numbers; nan is an empty cell."""
    with path.open(encoding="utf-8") as file:
        names = file.readline().strip().split(",")
    table = np.genfromtxt(path, delimiter=",", skip_header=1, ndmin=2)
    return dict(zip(names, table.T, strict=True))
