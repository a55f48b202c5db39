"""The figures of `specfleet breakeven`: speedup over acceptance and load, and break-even over load."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from specfleet.experiments.breakeven.answers import F64, Threshold, answers, closed_form, own_alpha, speedups
from specfleet.experiments.breakeven.question import DRAFTS, Breakeven
from specfleet.experiments.breakeven.search import ALWAYS, NEVER, QUESTIONS
from specfleet.experiments.figures.data import Shown, shown
from specfleet.experiments.figures.style import (
    COLOURS,
    DASHES,
    GREY,
    MARKERS,
    Horizontal,
    Look,
    caption,
    panels,
    save,
    styled,
)
from specfleet.experiments.run.folder import located

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure
    from matplotlib.transforms import Transform

HEAT_QUESTIONS, SERVED_ALIKE = ("throughput", "P99 TPOT"), ("mean TPOT", "P99 TPOT")
"""Questions of the map; and where requests come at a rate that is served, drafting or not."""
ALPHAS = np.linspace(0.0, 1.0, 201)
FINE = 161
"""Places along the load between which colours run."""

LEVELS = (0.5, 0.67, 0.8, 1.25, 1.5, 2.0, 3.0)
_SMALLEST_RANGE, _LARGEST_RANGE = 1.25, 3.0
"""Of the colours: from 1/m to m."""

_DODGE_POINTS = 3.0
"""Between the bars of two questions, sideways."""


def draw_breakeven(this: Breakeven, formats: Sequence[str] | None = None) -> list[Path]:
    """Draws both figures into `plots/` of the search's folder; returns the paths.

    Args:
        this: the search.
        formats: of the files; None is those of its `report.formats`.
    """
    asked = formats or this.loaded.experiment.report.formats
    drawn = (("speedup_map", heat_map(this)), ("break_even", break_even(this)))
    with styled():
        return [
            path
            for name, figure in drawn
            if figure is not None
            for path in save(figure, this.folder / "plots", name, asked)
        ]


def drawn_again(folder: Path, formats: Sequence[str] | None = None) -> list[Path]:
    """Draws the figures of a search that has ended, from what its folder holds; returns the paths.

    Raises:
        FolderFault: it is not whole, or was made of other files or with another release.
    """
    return draw_breakeven(Breakeven.read(located(folder)), formats)


def _setting(this: Breakeven) -> tuple[Shown, Horizontal]:
    """What was run, in words, and the horizontal axis."""
    experiment = this.loaded.experiment
    axes = (this.axis, DRAFTS)
    told = shown([], axes, {"x": this.axis, "lines": DRAFTS}, experiment.model_dump(), experiment.name)
    finite = all(np.isfinite(this.loads))
    values = tuple(this.loads) if finite else tuple(f"{load:g}" for load in this.loads)
    return told, Horizontal(this.axis, values)


def heat_map(this: Breakeven) -> Figure | None:
    """Speedup over load and acceptance, a row a K, with the contour at 1; None where nothing was found."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm

    asked = {answer.question for answer in answers(this)}
    questions = HEAT_QUESTIONS if "throughput" in asked else SERVED_ALIKE
    grids = {
        (k, question): grid
        for k in this.drafts
        for question in questions
        if (grid := _grid(this, k, question)) is not None
    }
    if not grids:
        return None
    with styled():
        told, axis = _setting(this)
        drafts = [k for k in this.drafts if any(k == key[0] for key in grids)]
        figure, axes = panels(len(drafts), len(questions), (9.0, 1.5 + 3.0 * len(drafts)))
        most = float(max(np.exp(np.abs(np.log(np.clip(grid, 1e-3, 1e3))).max()) for grid in grids.values()))
        most = min(max(most, _SMALLEST_RANGE), _LARGEST_RANGE)
        norm = LogNorm(1.0 / most, most)
        keys = [(k, question) for k in drafts for question in questions]
        for ax, key in zip(axes, keys, strict=True):
            _heat_panel(ax, this, axis, key, grids.get(key), norm)
        bar = figure.colorbar(ScalarMappable(norm, "RdBu"), ax=axes, extend="both", aspect=35, pad=0.02)
        ticks = [level for level in (*LEVELS, 1.0) if 1.0 / most <= level <= most]
        bar.set_ticks(sorted(ticks), labels=[f"{level:g}" for level in sorted(ticks)])
        bar.minorticks_off()
        bar.set_label("speedup over K = 0; above 1 is better")
        seeds = f"mean of {len(this.seeds)} seeds" if len(this.seeds) > 1 else "one seed"
        unknown = any(answer.end_status for answer in answers(this))
        spread = (
            " P99 is for the spread between requests that is taken where none is given." if unknown else ""
        )
        caption(
            figure,
            told,
            "speedup of drafting over acceptance and load",
            "Thick: break-even. Dashed green: the file's own acceptance. Simulated at the ticks, on the same "
            f"requests and luck; {seeds}, linear in between.{spread}",
        )
    return figure


def _grid(this: Breakeven, k: int, question: str) -> F64 | None:
    """Speedups, shape (acceptances, loads); None where some load has none."""
    columns = [speedups(this, load, k, question, ALPHAS) for load in this.loads]
    found = [column for column in columns if column is not None]
    return np.column_stack(found) if len(found) == len(columns) else None


def _heat_panel(
    ax: Axes, this: Breakeven, axis: Horizontal, key: tuple[int, str], grid: F64 | None, norm: Normalize
) -> None:
    """Colours one panel; a lone load is a band of its own."""
    k, question = key
    axis.set_up(ax)
    ax.grid(False)
    ax.set_title(f"K = {k}: {question}")
    ax.set_ylim(0, 1)
    ax.set_ylabel("conditional acceptance")
    if grid is None:
        ax.text(0.5, 0.5, "not at all loads", transform=ax.transAxes, ha="center", color=GREY)
        return
    own = [own_alpha(this, load, k) for load in this.loads]
    places, shares = _fine(this, axis)
    order = np.argsort(shares)
    x = places if len(shares) > 1 else np.linspace(*axis.limits, FINE)
    wide = np.linspace(shares[order[0]], shares[order[-1]], len(x))
    z = np.array([np.interp(wide, shares[order], row[order]) for row in grid])
    ax.set_xlim(x[0], x[-1])
    ax.pcolormesh(x, ALPHAS, z, norm=norm, cmap="RdBu", shading="gouraud", rasterized=True)
    thin = ax.contour(x, ALPHAS, z, levels=LEVELS, colors=GREY, linewidths=0.6)
    ax.clabel(thin, fontsize=7, fmt="%g", manual=_label_places(x, z))
    if z.min() < 1.0 < z.max():
        ax.contour(x, ALPHAS, z, levels=[1.0], colors="black", linewidths=2.0)
    else:
        said = "pays even at 0" if z.min() >= 1.0 else "never pays"
        ax.text(0.5, 0.5, said, transform=ax.transAxes, ha="center", fontsize=11)
    known = np.array([alpha for alpha in own if alpha is not None])
    if len(known) == len(own):
        level = np.interp(wide, shares[order], known[order])
        ax.plot(x, level, color="#00573F", linewidth=1.4, linestyle=DASHES[1])


def _label_places(x: F64, z: F64) -> list[tuple[float, float]]:
    """Where contours get their labels: a third of the way along the loads, or two thirds, or near the end."""
    found = []
    for level in LEVELS:
        for place in (len(x) // 3, 2 * len(x) // 3, 9 * len(x) // 10):
            above = z[:, place] >= level
            passes = np.flatnonzero(above[:-1] != above[1:])
            if len(passes):
                found.append((float(x[place]), float(ALPHAS[passes[0]])))
                break
    return found


def _fine(this: Breakeven, axis: Horizontal) -> tuple[F64, F64]:
    """Places close together from the lowest load to the highest, and the share of the axis of each load."""
    places = np.array([axis.place(_named(axis, load)) for load in this.loads])
    low, high = float(places.min()), float(places.max())
    space = np.geomspace if axis.logarithmic else np.linspace
    return space(low, high, FINE), np.array([axis.share(float(place)) for place in places])


def break_even(this: Breakeven) -> Figure | None:
    """Break-even acceptance over load, a panel a K, a line a question, beside the closed form."""
    found = answers(this)
    if not found:
        return None
    with styled():
        told, axis = _setting(this)
        rows = -(-len(this.drafts) // 3)
        columns = -(-len(this.drafts) // rows)
        figure, axes = panels(rows, columns, (2.4 + 3.6 * columns, 1.2 + 3.2 * rows), share=True)
        for ax in axes[len(this.drafts) :]:
            ax.remove()
        for ax, k in zip(axes, this.drafts, strict=False):
            _break_even_panel(ax, this, axis, k, [answer for answer in found if answer.k == k])
        axes[0].set_ylabel("conditional acceptance at break-even")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside right center", handlelength=3.6)
        seeds = len(this.seeds)
        bars = f"Bars: lowest and highest of {seeds} seeds. " if seeds > 1 else ""
        if any(answer.end_status for answer in found):
            bars += "Pale bars: over the range of spreads between requests, which is not given. "
        caption(
            figure,
            told,
            "acceptance from which drafting pays",
            f"{bars}Hollow at 0: pays even when no draft is accepted; hollow at 1: not even when all are.",
        )
    return figure


def _break_even_panel(
    ax: Axes, this: Breakeven, axis: Horizontal, k: int, found: Sequence[Threshold]
) -> None:
    axis.set_up(ax)
    ax.set_title(f"K = {k}")
    ax.set_ylim(-0.03, 1.03)
    for position, question in enumerate(QUESTIONS):
        mine = [answer for answer in found if answer.question == question]
        if mine:
            _draw_question(ax, axis, position, question, mine)
    forms = [(load, closed_form(this, load, k)) for load in this.loads]
    closed = [(load, f.conditional) for load, f in forms if f is not None and f.conditional is not None]
    own = [(load, a) for load in this.loads if (a := own_alpha(this, load, k)) is not None]
    for values, name, look in (
        (closed, "closed form", Look("black", "", ":")),
        (own, "the file's own", Look(GREY, "", DASHES[1])),
    ):
        x = [axis.place(_named(axis, load)) for load, _ in values]
        y = [alpha for _, alpha in values]
        if len(this.loads) == 1:
            x, y = list(axis.limits), y * 2
        look.plot(ax, x[: len(y)], y, name, ax.transData, joined=True)


def _named(axis: Horizontal, load: float) -> object:
    return load if axis.numeric else f"{load:g}"


def _draw_question(
    ax: Axes, axis: Horizontal, position: int, question: str, found: Sequence[Threshold]
) -> None:
    """Draws the roots of one question, joined; loads that always or never pay are hollow at the edge."""
    aside = _aside(ax, position)
    look = Look(COLOURS[position], MARKERS[position], DASHES[position])
    edge = {ALWAYS: 0.0, NEVER: 1.0}
    shown_at: list[tuple[float, float]] = []
    for answer in found:
        place = axis.place(_named(axis, answer.load))
        if answer.alphas:
            low, high = min(answer.alphas), max(answer.alphas)
            if high > low:
                ax.plot([place] * 2, [low, high], color=look.color, linewidth=0.9, transform=aside)
            if (end := answer.end if answer.end is not None else edge.get(answer.end_status)) is not None:
                reach = [min(low, end), max(high, end)]
                ax.plot([place] * 2, reach, color=look.color, linewidth=4.0, alpha=0.3, transform=aside)
            shown_at.append((place, sum(answer.alphas) / len(answer.alphas)))
        elif answer.status in edge:
            shown_at.append((place, edge[answer.status]))
    if shown_at:
        places, values = zip(*shown_at, strict=True)
        look.plot(ax, places, values, question, aside, joined=axis.numeric)
        hollow = [(x, y) for x, y in shown_at if y in edge.values()]
        for x, y in hollow:
            ax.plot(
                [x], [y], look.marker, color=look.color, markerfacecolor="white", transform=aside, zorder=5
            )


def _aside(ax: Axes, position: int) -> Transform:
    """Moves a question sideways, so that bars at one load can be told apart."""
    from matplotlib.transforms import ScaledTranslation

    root = ax.get_figure(root=True)
    assert root is not None
    inches = _DODGE_POINTS / 72 * (position - 1.5)
    return ax.transData + ScaledTranslation(inches, 0, root.dpi_scale_trans)
