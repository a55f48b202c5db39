"""Replicas that come and go, over time: arrivals, the replicas of each pool, who was lost, and the tail."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from specfleet.experiments.figures.data import Shown
from specfleet.experiments.figures.overtime import (
    F64,
    MOST,
    STRETCHES,
    columns_of,
    draw_tail,
    first_seed,
    over_s,
    point_label,
)
from specfleet.experiments.figures.style import COLOURS, GREY, caption, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POOLS = 4
"""Pools that are drawn, each in a panel."""
MARKS = {"taken": ("v", "spot instance taken"), "dies": ("x", "died"), "hangs": ("x", "hung")}
"""Kind of a loss -> its mark, and what it says."""
NOTE = "Paid for: from the order until the replica has drained or is lost."


def scaling(shown: Shown) -> Figure | None:
    """Arrivals, replicas of each pool that are up and paid for, and P99 TTFT by the time of sending; of each
    point the first seed. None where replicas do not come and go."""
    stories = [
        ComingAndGoing.of(path, point_label(shown, row))
        for row in shown.rows
        if (path := first_seed(shown, row, "requests.csv")) is not None and fleets_of(path)
    ][:MOST]
    if not stories:
        return None
    pools = list(dict.fromkeys(name for story in stories for name in story.fleets))[:POOLS]
    figure, axes = panels(2 + len(pools), 1, (8.0, 4.4 + 2.2 * len(pools)))
    arrivals, tail, of_pool = axes[0], axes[-1], dict(zip(pools, axes[1:-1], strict=True))
    end_s = max(story.end_s for story in stories)
    stories[0].draw_arrivals(arrivals, end_s)
    for story, colour in zip(stories, COLOURS, strict=False):
        for name, ax in of_pool.items():
            story.draw_pool(ax, name, colour)
        draw_tail(tail, story.requests, colour)
    titles = [f"replicas{' of ' + name if name else ''}: up (line), paid for (dashed)" for name in pools]
    for ax, title in zip(
        axes, ("requests sent/s", *titles, "P99 TTFT (s), by the time of sending"), strict=True
    ):
        ax.set_title(title, loc="left", fontsize=9)
        ax.set_xlim(0.0, end_s)
        ax.set_ylim(bottom=0.0)
    tail.set_xlabel("time (s)")
    for ax in of_pool.values():
        ax.yaxis.get_major_locator().set_params(integer=True)  # type: ignore[call-arg]
        ax.margins(y=0.15)
    axes[1].legend(fontsize=8, loc="upper left", frameon=False, ncols=2)
    marked = dict.fromkeys(said for story in stories for said in story.said)
    note = " ".join([NOTE, *(f"{sign}: {said}." for sign, said in marked)])
    caption(figure, shown, "replicas over time", note)
    return figure


def fleets_of(path: Path) -> dict[str, Path]:
    """Returns the files of pools whose replicas come and go, by name; "" where all replicas are alike."""
    found = {file.stem.removeprefix("fleet").removeprefix("-"): file for file in path.glob("fleet*.csv")}
    return dict(sorted(found.items()))


@dataclass(frozen=True)
class ComingAndGoing:
    """What happened at a point, in its first seed.

    Attributes:
        label: of the point.
        fleets: pool -> columns of its fleet.csv.
        lost: replicas that were lost, as engine.json has them.
        requests: the columns of requests.csv.
    """

    label: str
    fleets: dict[str, dict[str, F64]]
    lost: Sequence[Mapping[str, Any]]
    requests: dict[str, F64]

    @classmethod
    def of(cls, path: Path, label: str) -> ComingAndGoing:
        """Reads the folder of a simulation."""
        engine = json.loads((path / "engine.json").read_text(encoding="utf-8"))
        lost = [one for one in engine.get("outages", ()) if one["kind"] in MARKS]
        fleets = {name: columns_of(file) for name, file in fleets_of(path).items()}
        return cls(label, fleets, lost, columns_of(path / "requests.csv"))

    @property
    def end_s(self) -> float:
        """When the last request ended or replica changed."""
        last_s = [float(fleet["time_s"][-1]) for fleet in self.fleets.values()]
        return max(float(over_s(self.requests).max()), *last_s)

    @property
    def said(self) -> list[tuple[str, str]]:
        """The marks that are drawn, and what each says."""
        return [("▼" if one["kind"] == "taken" else "×", MARKS[one["kind"]][1]) for one in self.lost]

    def draw_arrivals(self, ax: Axes, end_s: float) -> None:
        """Draws how many requests are sent."""
        edges = np.linspace(0.0, end_s, STRETCHES + 1)
        sent_s = self.requests["sent_ms"] / 1e3
        ax.stairs(np.histogram(sent_s, edges)[0] / (edges[1] - edges[0]), edges, color=GREY)

    def draw_pool(self, ax: Axes, name: str, colour: str) -> None:
        """Draws the replicas of a pool, and marks those that were lost where they were."""
        fleet = self.fleets.get(name)
        if fleet is None:
            return
        times = np.append(fleet["time_s"], self.end_s)
        for key, dashes in (("up", "-"), ("paid", "--")):
            ax.step(
                times,
                np.append(fleet[key], fleet[key][-1]),
                where="post",
                color=colour,
                linestyle=dashes,
                linewidth=1.4 if key == "up" else 1.0,
                label=self.label if key == "up" else None,
            )
        for mark in ("v", "x"):
            at_s = [one["at_s"] for one in self.lost if self._marks(one, name, mark)]
            before = np.maximum(np.searchsorted(fleet["time_s"], at_s, side="left") - 1, 0)
            if at_s:
                ax.plot(at_s, fleet["up"][before], mark, color=colour, markersize=6, clip_on=False)

    def _marks(self, one: Mapping[str, Any], name: str, mark: str) -> bool:
        return one.get("pool", "") == name and MARKS[one["kind"]][0] == mark
