"""The figures of `specfleet plan`: cost of the candidates, K by load, Pareto, and room to the SLO."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from specfleet.experiments.figures.data import Shown
from specfleet.experiments.figures.style import (
    COLOURS,
    DASHES,
    GREY,
    MARKERS,
    caption,
    halo,
    panels,
    save,
    styled,
)
from specfleet.experiments.plan.candidates import Candidate
from specfleet.experiments.plan.capacity import mean
from specfleet.experiments.plan.fleet.figure import day_figure
from specfleet.experiments.plan.numbers import Place, front, places
from specfleet.experiments.plan.planned import Planned
from specfleet.experiments.plan.search import Entry
from specfleet.experiments.plan.seen import worst

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_BARS = 14
"""Candidates drawn, one K of each engine."""


def draw_plan(this: Planned, folder: Path, formats: Sequence[str] | None = None) -> list[Path]:
    """Draws the figures of a plan into `plots/`; returns the paths.

    Args:
        this: the plan.
        folder: that `plots/` is in.
        formats: of the files; None is those of its `report.formats`.
    """
    with styled():
        drawn = (
            ("cost", cost(this)),
            ("pareto", pareto(this)),
            ("best_k", best_k(this)),
            ("slo", room(this)),
            ("day", None if this.day is None else day_figure(this.day, _told(this))),
        )
        return [
            path
            for name, figure in drawn
            if figure is not None
            for path in save(figure, folder / "plots", name, formats or this.experiment.report.formats)
        ]


def _told(this: Planned) -> Shown:
    """What was planned, for the caption."""
    serve, workload = this.experiment.serve, this.experiment.workload
    model = serve.model if isinstance(serve.model, str) else str(serve.model.get("name", "inline"))
    asked = workload.preset or (Path(workload.trace_file).name if workload.trace_file else "given lengths")
    seeds = f"{len(this.seeds)} seed{'s' if len(this.seeds) > 1 else ''}"
    setting = f"{model}, {this.traffic.rate:g} requests/s of {asked}, {seeds}"
    return Shown(this.experiment.name, None, None, (), (), (), {}, len(this.seeds), "", setting, {})


def cost(this: Planned) -> Figure | None:
    """What each engine would cost: known, or at least, by GPU, TP and weights; the better K of each."""
    chosen = _engines(this)
    if not chosen:
        return None
    figure, (ax,) = panels(1, 1, (8.6, 1.6 + 0.3 * len(chosen)))
    spare = this.plan.spare_replicas
    for row, entry in enumerate(chosen):
        dollars = entry.candidate.replica_usd * (entry.shown + spare)
        known = entry.known
        mine = entry is this.winner
        colour = COLOURS[1] if mine else COLOURS[0]
        ax.barh(
            row,
            dollars,
            height=0.66,
            color=colour if known else "white",
            edgecolor=colour,
            hatch="" if known else "///",
        )
        count = entry.shown + spare
        ax.annotate(
            f"{'' if known else '>= '}${dollars:.2f} ({count} replica{'s' if count > 1 else ''})",
            (dollars, row),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    ax.set_yticks(range(len(chosen)), [_named(entry) for entry in chosen])
    ax.invert_yaxis()
    ax.grid(axis="x")
    ax.grid(visible=False, axis="y")
    ax.set_xlim(0, 1.22 * max(e.candidate.replica_usd * (e.shown + spare) for e in chosen))
    ax.set_xlabel("cost (US dollars an hour)")
    caption(
        figure,
        _told(this),
        "what meeting the SLO costs",
        "Filled: simulated to meet the SLO. Hatched: at least this much; with fewer replicas it fails.",
        f"Orange: the plan. {_dearer(this, len(chosen))}",
    )
    return figure


def _engines(this: Planned) -> list[Entry]:
    """The cheapest entry of each GPU, TP, weights and way to draft, cheapest first."""
    spare = this.plan.spare_replicas

    def dollars(entry: Entry) -> tuple[float, bool, float]:
        at = entry.candidate.replica_usd * (entry.shown + spare)
        return round(at, 2), entry is not this.winner, entry.ratio

    best: dict[tuple[object, ...], Entry] = {}
    for entry in sorted((e for e in this.entries if e.possible), key=dollars):
        best.setdefault(_kind(entry), entry)
    return list(best.values())[:MOST_BARS]


def _named(entry: Entry) -> str:
    """A candidate's name; without K where no K has been simulated to meet the SLO."""
    known = entry.known
    return entry.candidate.id if known else entry.candidate.id.partition(" K = ")[0]


def _dearer(this: Planned, drawn: int) -> str:
    engines = {_kind(entry) for entry in this.entries if entry.possible}
    refused = {_kind_of(candidate) for candidate in this.every if candidate.refusal}
    return f"{len(engines) - drawn} engines more are dearer, {len(refused)} cannot be had."


def _kind(entry: Entry) -> tuple[object, ...]:
    return _kind_of(entry.candidate)


def _kind_of(c: Candidate) -> tuple[object, ...]:
    """What tells engines apart, K aside."""
    return *c.kind, c.drafting


def pareto(this: Planned) -> Figure | None:
    """Tokens/s of a user against tokens/s of a GPU: the winner's engine by K over load, and all others."""
    found = places(this)
    if not found:
        return None
    figure, (ax,) = panels(1, 1, (8.0, 5.0))
    for meets, colour, name in ((False, "#C9C9C9", "others, SLO not met"), (True, GREY, "others, SLO met")):
        others = [place for place in found if not place.swept and place.meets_slo == meets]
        ax.plot(
            [place.per_user for place in others],
            [place.per_gpu for place in others],
            linestyle="none",
            marker=".",
            color=colour,
            label=name,
        )
    for number, k in enumerate(sorted({place.candidate.k for place in found if place.swept})):
        line = [place for place in found if place.swept and place.candidate.k == k]
        _swept(ax, line, k, number)
    edge = front(found)
    ax.step(
        [place.per_user for place in edge],
        [place.per_gpu for place in edge],
        where="pre",
        color=GREY,
        linewidth=0.9,
        label="front of all",
    )
    assert this.winner is not None
    runs = this.runs[this.winner.candidate.id]
    x = mean(runs, "output_throughput") / max(mean(runs, "in_flight"), 1.0)
    y = mean(runs, "output_throughput") / this.winner.candidate.gpus
    ax.plot(
        [x], [y], linestyle="none", marker="*", markersize=15, color=COLOURS[1], label="the plan", zorder=5
    )
    ax.set_xlabel("output throughput per request in flight (tokens/s/user)")
    ax.set_ylabel("output throughput per GPU (tokens/s/GPU)")
    ax.set_xlim(0, None)
    ax.set_ylim(0, None)
    ax.grid(axis="both")
    figure.legend(loc="outside right upper", handlelength=3.2)
    mine = this.winner.candidate
    engine = mine.engine
    caption(
        figure,
        _told(this),
        "speed for a user against output of a GPU",
        f"Lines: {engine} in closed loops, requests in flight at the marks of plain; the SLO is not applied.",
    )
    return figure


def _swept(ax: Axes, line: Sequence[Place], k: int, number: int) -> None:
    style = (
        COLOURS[(number - 1) % len(COLOURS)],
        MARKERS[(number - 1) % len(MARKERS)],
        DASHES[(number - 1) % 4],
    )
    colour, marker, dashes = style if k else ("black", "x", DASHES[2])
    ax.plot(
        [place.per_user for place in line],
        [place.per_gpu for place in line],
        color=colour,
        marker=marker,
        linestyle=dashes,
        label=f"K = {k}" if k else "plain",
    )
    if not k:
        for place in line:
            ax.annotate(
                f"{place.concurrency:.0f}",
                (place.per_user, place.per_gpu),
                xytext=(-4, -11),
                textcoords="offset points",
                fontsize=7,
                color=GREY,
                path_effects=halo(),
            )


def best_k(this: Planned) -> Figure | None:
    """Speedup of every K over plain by requests in flight, on throughput and on P99 TPOT."""
    if not this.loads:
        return None
    figure, axes = panels(1, 2, (9.0, 3.9))
    loads = [load.concurrency for load in this.loads]
    for ax, metric, sign, title in (
        (axes[0], "output_throughput", 1, "throughput"),
        (axes[1], "p99_tpot_ms", -1, "P99 TPOT"),
    ):
        ax.axhline(1.0, color="black", linewidth=1.0, linestyle=DASHES[2])
        for number, k in enumerate(sorted(k for k in this.loads[0].figures if k)):
            ratios = [(load.figures[k][metric] / load.figures[0][metric]) ** sign for load in this.loads]
            ax.plot(
                loads, ratios, color=COLOURS[number % len(COLOURS)], marker=MARKERS[number % len(MARKERS)],
                linestyle=DASHES[number % len(DASHES)], label=f"K = {k}",
            )  # fmt: skip
        ax.set_xscale("log", base=2)
        ax.set_xticks(loads, [str(load) for load in loads])
        ax.set_xticks([], minor=True)
        ax.set_title(title)
        ax.set_xlabel("requests in flight of a replica, log scale")
        _mark_plan(ax, this)
    axes[0].set_ylabel("speedup over plain")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", handlelength=3.2)
    caption(
        figure,
        _told(this),
        "what drafting gains, by load",
        "Above 1 is better. Closed loops, one seed, same requests and luck. Grey: the planned load.",
    )
    return figure


def _mark_plan(ax: Axes, this: Planned) -> None:
    """A grey band where the replicas of the plan are."""
    assert this.winner is not None
    flying = [run["in_flight"] for run in this.runs[this.winner.candidate.id]]
    low, high = min(flying), max(flying)
    ax.axvspan(low / 1.04, high * 1.04, color="#D9D9D9", zorder=0)


def room(this: Planned) -> Figure | None:
    """Each limit's measured value over it, by seed, for the plan, its engine without drafts, and changes."""
    assert this.winner is not None
    mine = this.winner.candidate
    rows: list[tuple[str, list[float]]] = [("the plan", _ratios(this, mine.id))]
    plain = this.plain
    if plain is not None and plain.id != mine.id:
        rows.append(("same replicas, plain", _ratios(this, plain.id)))
    rows += [(change.name, [change.ratio]) for change in this.changed]
    figure, (ax,) = panels(1, 1, (7.4, 1.7 + 0.36 * len(rows)))
    ax.axvline(1.0, color="black", linewidth=1.0, linestyle=DASHES[2])
    for row, (_, values) in enumerate(rows):
        colour = COLOURS[1] if row == 0 else COLOURS[0]
        centre = float(np.mean(values))
        if len(values) > 1:
            ax.plot([min(values), max(values)], [row, row], color=colour, linewidth=1.2)
            ax.plot(values, [row] * len(values), linestyle="none", marker="|", markersize=9, color=colour)
        ax.plot([centre], [row], linestyle="none", marker="o", color=colour)
        ax.annotate(
            f"{centre:.2f}",
            (1, row),
            xytext=(4, 0),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    ax.set_yticks(range(len(rows)), [name for name, _ in rows])
    ax.invert_yaxis()
    ax.set_xlim(0, max(1.15, 1.15 * max(max(values) for _, values in rows)))
    ax.grid(axis="x")
    ax.set_xlabel("measured over allowed, of the limit that binds")
    caption(
        figure,
        _told(this),
        "room to the SLO",
        f"Left of 1 the SLO is met.{' Ticks: seeds; the changes have one.' if len(this.seeds) > 1 else ''}",
    )
    return figure


def _ratios(this: Planned, candidate: str) -> list[float]:
    return [worst([run])[0] for run in this.runs[candidate]]
