"""What happens around replicas that fail, over time: who serves, who waits, what is written, and the tail."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from specfleet.experiments.figures.data import Shown
from specfleet.experiments.figures.overtime import (
    F64,
    MOST,
    columns_of,
    draw_tail,
    first_seed,
    over_s,
    point_label,
)
from specfleet.experiments.figures.scaling import fleets_of
from specfleet.experiments.figures.style import COLOURS, GREY, caption, panels
from specfleet.experiments.run.results import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STEPS = 200
"""Moments at which requests and tokens are counted."""
BAND = "#D9D9D9"
NOTE = (
    "Grey: a replica is dead, hangs, is slow, or was taken and is not replaced, in the first point drawn; "
    "dotted: health checks find it, or notice is given. "
    "An answer's tokens are spread evenly from its first chunk to its last."
)


def failures(shown: Shown) -> Figure | None:
    """Replicas that are well, requests in flight, output, P99 TTFT over time, of each point the first seed;
    None where no replica fails."""
    found = (AroundFailures.of(shown, row) for row in shown.rows)
    stories = [story for story in found if story is not None][:MOST]
    if not stories:
        return None
    figure, axes = panels(4, 1, (8.0, 9.2))
    end_s = max(story.draw(axes, colour) for story, colour in zip(stories, COLOURS, strict=False))
    for ax, title in zip(
        axes,
        (
            "replicas that are well",
            "requests in flight",
            "output tokens/s",
            "P99 TTFT (s), by the time of sending",
        ),
        strict=True,
    ):
        ax.set_title(title, loc="left", fontsize=9)
        ax.set_xlim(0.0, end_s)
        ax.set_ylim(bottom=0.0)
        stories[0].mark(ax, end_s)
    axes[-1].set_xlabel("time (s)")
    axes[0].yaxis.get_major_locator().set_params(integer=True)  # type: ignore[call-arg]
    axes[0].legend(fontsize=8, loc="lower right", frameon=False)
    caption(figure, shown, "around failures of replicas", NOTE)
    return figure


@dataclass(frozen=True)
class AroundFailures:
    """What happened at a point, in its first seed.

    Attributes:
        label: of the point.
        replicas: how many there are of a fixed number.
        outages: failures of replicas, as engine.json has them.
        requests: the columns of requests.csv.
        fleets: pool -> columns of its fleet.csv, of those whose replicas come and go.
    """

    label: str
    replicas: int
    outages: Sequence[Mapping[str, Any]]
    requests: dict[str, F64]
    fleets: dict[str, dict[str, F64]] = field(default_factory=dict)

    @classmethod
    def of(cls, shown: Shown, row: Row) -> AroundFailures | None:
        """Returns what happened at a point, if a replica failed there and its requests are kept."""
        path = first_seed(shown, row, "engine.json", "requests.csv")
        if path is None:
            return None
        engine = json.loads((path / "engine.json").read_text(encoding="utf-8"))
        if not engine.get("outages"):
            return None
        fleets = {name: columns_of(file) for name, file in fleets_of(path).items()}
        fixed = sum(each.get("pool", "") not in fleets for each in engine["replicas"])
        requests = columns_of(path / "requests.csv")
        return cls(point_label(shown, row), fixed, engine["outages"], requests, fleets)

    def draw(self, axes: Sequence[Axes], colour: str) -> float:
        """Draws it in four panels; returns when the last request ended, s."""
        well, inside, output, tail = axes
        sent, ended = np.sort(self.requests["sent_ms"] / 1e3), np.sort(over_s(self.requests))
        end_s = float(ended[-1])
        edges = np.linspace(0.0, end_s, STEPS + 1)
        well.step(*self.well(end_s), where="post", color=colour, linewidth=1.4, label=self.label)
        there = np.searchsorted(sent, edges, "right") - np.searchsorted(ended, edges, "right")
        inside.plot(edges, there, color=colour, linewidth=1.4)
        output.stairs(self.written(edges), edges, color=colour, linewidth=1.2)
        draw_tail(tail, self.requests, colour)
        return end_s

    def mark(self, ax: Axes, end_s: float) -> None:
        """Shades when a replica is not well, and dots when that is found."""
        for outage in self.outages:
            back_s = end_s if outage["back_s"] is None else outage["back_s"]
            ax.axvspan(outage["at_s"], min(back_s, end_s), color=BAND, alpha=0.5, linewidth=0, zorder=0)
            if outage["found_s"] is not None:
                ax.axvline(outage["found_s"], color=GREY, linewidth=0.9, linestyle=":")

    def well(self, end_s: float) -> tuple[F64, F64]:
        """Returns times, and how many replicas are well from each on; those that drain are."""
        changes = [(0.0, 0.0)]
        for outage in self.outages:
            until_s = outage["back_s"]
            if outage.get("pool", "") in self.fleets:
                if outage["kind"] == "taken":
                    continue  # it drains, and then is not there
                if outage["found_s"] is not None:  # from then on it is not there
                    until_s = outage["found_s"]
            changes.append((outage["at_s"], -1.0))
            if until_s is not None:
                changes.append((until_s, 1.0))
        for fleet in self.fleets.values():
            there = sum(fleet[name] for name in ("up", "draining", "noticed") if name in fleet)
            changes += zip(fleet["time_s"].tolist(), np.diff(there, prepend=0.0).tolist(), strict=True)
        changes.sort(key=lambda change: change[0])
        times, steps = np.array([*changes, (end_s, 0.0)], dtype=np.float64).T
        counts = self.replicas + np.cumsum(steps)
        kept = np.append(times[1:] > times[:-1], True) & (times <= end_s)  # the last of several at once
        return times[kept], counts[kept]

    def written(self, edges: F64) -> F64:
        """Returns the output tokens a second between edges: each answer's are spread evenly over its time."""
        first_s, last_s = self.requests["first_chunk_ms"] / 1e3, self.requests["last_chunk_ms"] / 1e3
        done = np.isfinite(first_s) & np.isfinite(last_s)
        first_s, last_s, tokens = first_s[done], last_s[done], self.requests["output_tokens"][done]
        seconds = np.maximum(last_s - first_s, 1e-9)
        by_then = np.clip((edges[:, None] - first_s) / seconds, 0.0, 1.0) @ tokens
        return np.asarray(np.diff(by_then) / np.diff(edges))
