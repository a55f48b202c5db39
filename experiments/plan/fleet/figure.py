"""The figure of a day: what comes, how many replicas are paid for, and how near the limits they run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specfleet.experiments.figures.data import Shown
from specfleet.experiments.figures.style import COLOURS, DASHES, GREY, caption, panels
from specfleet.experiments.plan.fleet.day import DayPlan

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def day_figure(day: DayPlan, told: Shown) -> Figure:
    """Draws requests/s, replicas and the worst ratio to a limit by the hour.

    Args:
        day: of a plan.
        told: what was planned, for the caption.
    """
    figure, axes = panels(3, 1, (8.6, 7.2))
    edges = list(range(len(day.rates) + 1))
    axes[0].stairs(day.rates, edges, color="black", linewidth=1.2)
    axes[0].set_ylabel("requests/s")
    shown = [fleet for fleet in day.fleets if fleet.replicas]
    for number, fleet in enumerate(shown):
        colour = GREY if not number else COLOURS[(number - 1) % len(COLOURS)]
        dashes = DASHES[number % len(DASHES)]
        axes[1].stairs(fleet.replicas, edges, color=colour, linestyle=dashes, linewidth=1.4, label=fleet.name)
        if fleet.by_hour:
            axes[2].stairs(fleet.by_hour, edges, color=colour, linestyle=dashes, linewidth=1.4)
    axes[1].set_ylabel("replicas paid for")
    axes[2].axhline(1.0, color="black", linewidth=1.0, linestyle=DASHES[2])
    axes[2].set_ylabel("of the limit that binds")
    axes[2].set_xlabel("hour of the day")
    for ax in axes:
        ax.set_ylim(0, None)
        ax.set_xlim(0, len(day.rates))
        ax.set_xticks(range(0, len(day.rates) + 1, 3))
    figure.legend(loc="outside right upper", handlelength=3.2)
    caption(
        figure,
        told,
        "a day: a fixed fleet against replicas that follow the load",
        "Means of hours; below 1 an hour meets the SLO. By the hour: by the largest rate of a replica.",
    )
    return figure
