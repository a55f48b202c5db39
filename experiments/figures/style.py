"""How the figures look: names with units, colours, markers and dashes, axes, and saving."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, TypeAlias

from specfleet.experiments.figures.data import Line, Shown
from specfleet.experiments.run.files import write_whole
from specfleet.experiments.run.results import as_number, is_number
from specfleet.experiments.words.names import label
from specfleet.experiments.words.values import text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patheffects import AbstractPathEffect
    from matplotlib.transforms import Transform

DOTS_PER_INCH = 150
PNG, SVG = "png", "svg"
MOST_TICKS = 12
"""Tested values named on an axis; of more, every second or third."""

LOG_X_FROM, LOG_Y_FROM = 8.0, 20.0
"""Largest over smallest value from which an axis is logarithmic."""

LOG_SCALE = ", log scale"
"""Behind the name of a logarithmic axis."""

_TITLE_INCHES = 0.094
"""Width of a letter of a title, generously."""

_NOTE_INCHES = 0.058
"""Width of a letter of what stands below a figure, at 7.5 points."""

GREY = "#555555"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A5195", "#8C6D31")
"""Okabe and Ito's colours, which the colour-blind tell apart, without the yellow; two more for 7 and 8."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
Dashes: TypeAlias = "str | tuple[float, Sequence[float]]"
DASHES: tuple[Dashes, ...] = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (6, 2, 1.5, 2)))


@contextmanager
def styled() -> Iterator[None]:
    """Draws and saves in this look; matplotlib's settings are as before afterwards."""
    import matplotlib

    settings = matplotlib.rc_context(
        {
            "font.family": "DejaVu Sans",
            "font.size": 9,
            "axes.titlesize": 9,
            "axes.titlelocation": "left",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.edgecolor": GREY,
            "axes.axisbelow": True,
            "axes.grid": True,
            "axes.grid.axis": "y",
            "grid.color": "#E3E3E3",
            "grid.linewidth": 0.7,
            "lines.linewidth": 1.6,
            "lines.markersize": 5,
            "legend.frameon": False,
            "legend.fontsize": 8.5,
            "hatch.linewidth": 0.6,
            "svg.fonttype": "none",
            "svg.hashsalt": "specfleet",
        }
    )
    with settings:
        yield


@dataclass(frozen=True)
class Look:
    """Colour, marker and dashes of a line; lines differ in black and white too."""

    color: str
    marker: str
    dashes: Dashes

    def plot(
        self, ax: Axes, x: Sequence[float], y: Sequence[float], name: str, transform: Transform, joined: bool
    ) -> None:
        """Draws a mark at every point, and a line through them where they are `joined`."""
        ax.plot(
            x,
            y,
            label=name,
            transform=transform,
            color=self.color,
            marker=self.marker,
            linestyle=self.dashes if joined else "none",
            markersize=5 if joined else 7,
            markeredgewidth=1.4 if self.marker == "x" else 0.6,
        )


def look(line: Line) -> Look:
    """Returns the look of a line: black crosses for the baseline, else by its place among the lines."""
    if line.baseline:
        return Look("black", "x", (0, (1, 1.2)))
    place = line.position
    return Look(COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)], DASHES[place % len(DASHES)])


@dataclass(frozen=True)
class Horizontal:
    """The horizontal axis of a figure: where its values lie, and what is written under them.

    Attributes:
        key: axis or metric.
        values: those tested, in the experiment's order.
        tested: ticks at exactly these values; else matplotlib's own.
    """

    key: str
    values: tuple[object, ...]
    tested: bool = True

    @classmethod
    def of(cls, key: str, shown: Shown) -> Horizontal:
        """Returns the axis for `key` of a run."""
        rows = shown.rows
        return cls(key, tuple(dict.fromkeys(row.get(key) for row in rows)), key == shown.along)

    @property
    def numeric(self) -> bool:
        """Whether values have places of their own; if not they are categories, side by side."""
        return all(is_number(value) for value in self.values)

    @property
    def logarithmic(self) -> bool:
        """Whether doublings are equally far apart."""
        numbers = [as_number(value) for value in self.values] if self.numeric else []
        return bool(numbers) and min(numbers) > 0 and max(numbers) / min(numbers) >= LOG_X_FROM

    def place(self, value: object) -> float:
        """Returns where a value lies."""
        return as_number(value) if self.numeric else float(self.values.index(value))

    def set_up(self, ax: Axes) -> None:
        """Gives `ax` this scale, ticks at the tested values and a label."""
        if self.logarithmic:
            ax.set_xscale("log", base=2)
        self.set_label(ax)
        if self.tested:
            self.set_ticks(ax, [self.place(value) for value in self.values])
            ax.set_xlim(*self.limits)

    @property
    def limits(self) -> tuple[float, float]:
        """The ends of the axis, a little beyond the outermost values."""
        places = [self.place(value) for value in self.values]
        low, high = min(places), max(places)
        if not self.numeric or low == high:
            return low - 0.5, high + 0.5
        if self.logarithmic:
            beyond = (high / low) ** 0.04
            return low / beyond, high * beyond
        return low - 0.04 * (high - low), high + 0.04 * (high - low)

    def share(self, place: float) -> float:
        """Returns how far along the axis a place lies, from 0 at its left end to 1."""
        low, high = self.limits
        if self.logarithmic:
            low, high, place = math.log(low), math.log(high), math.log(place)
        return (place - low) / (high - low)

    def set_label(self, ax: Axes) -> None:
        """Names the axis, with its unit, and says where it is logarithmic."""
        ax.set_xlabel(label(self.key) + (LOG_SCALE if self.logarithmic and ax.get_xscale() == "log" else ""))

    def set_ticks(self, ax: Axes, places: Sequence[float]) -> None:
        """Puts the values' names at `places`: all, or evenly chosen ones where they would not fit."""
        every = -(-len(self.values) // MOST_TICKS)
        names = [text(value) for value in self.values][::every]
        crowded = len(names) * max(map(len, names), default=0) > 60
        ax.set_xticks(list(places)[::every], names)
        ax.set_xticks([], minor=True)
        if crowded:
            ax.tick_params(axis="x", labelrotation=30)
            for tick in ax.get_xticklabels():
                tick.set_horizontalalignment("right")


def set_vertical(ax: Axes, values: Sequence[float], tops: Sequence[float]) -> None:
    """Scales the vertical axis: logarithmic, and named so, where `values` span much, else from zero.

    Args:
        ax: to be scaled.
        values: drawn.
        tops: upper ends of the intervals; the view follows them only to 1.4 times the largest value.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if not values:
        return
    low, high = min(values), max(values)
    top = min(max([high, *tops]), 1.4 * high) if high > 0 else 1.0
    if low > 0 and high / low >= LOG_Y_FROM:
        ax.set_yscale("log")
        ax.set_ylabel(ax.get_ylabel() + LOG_SCALE if ax.get_ylabel() else "")
        ax.set_ylim(low / 1.25, top * 1.25)
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.9g}"))
        ax.yaxis.set_minor_formatter(NullFormatter())
        ax.tick_params(axis="y", which="minor", length=0)
    elif low >= 0:
        ax.set_ylim(0, top * 1.05)
        ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.9g}"))


def panels(
    rows: int, columns: int, size: tuple[float, float], share: bool = False
) -> tuple[Figure, list[Axes]]:
    """Returns a figure and its panels, row by row.

    Args:
        rows, columns: of panels.
        size: of the whole figure, inches.
        share: one vertical scale for all.
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(wspace=0.05))
    axes = figure.subplots(rows, columns, squeeze=False, sharey=share)
    return figure, [ax for row in axes for ax in row]


def caption(figure: Figure, shown: Shown, title: str, *notes: str) -> None:
    """Writes the title above, and below it in small what was run and what the marks mean."""
    where = f" ({shown.fixed})" if shown.fixed else ""
    whole = fill(f"{title[0].upper()}{title[1:]}{where}", int(figure.get_figwidth() / _TITLE_INCHES))
    figure.suptitle(whole, x=0.01, ha="left", fontsize=11)
    run = f"{shown.name}: {shown.setting}" if shown.setting else shown.name
    width = int(figure.get_figwidth() / _NOTE_INCHES)
    figure.supxlabel(
        "\n".join(fill(note, width) for note in (*notes, run)), x=0.01, ha="left", fontsize=7.5, color=GREY
    )


def interval_note(shown: Shown) -> tuple[str, ...]:
    """Returns what the bands and bars are; nothing where there are none."""
    if shown.replications < 2:
        return ()
    return (f"Bands: 95 % intervals of the mean of {shown.replications} seeds.",)


def halo() -> list[AbstractPathEffect]:
    """Returns a white edge for text, so that it can be read over a line."""
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=2.2, foreground="white")]


def save(figure: Figure, folder: Path, name: str, formats: Sequence[str]) -> list[Path]:
    """Writes NAME.png, NAME.svg or both, each whole or not at all; the same figure gives the same bytes.

    The SVG holds text as text and no date. The figure is laid out once, and drawn once a file:
    `savefig` would draw it twice for each.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    folder.mkdir(parents=True, exist_ok=True)
    figure.set_dpi(DOTS_PER_INCH)
    pixels = FigureCanvasAgg(figure)
    paths = []
    if PNG in formats:
        paths.append(folder / f"{name}.png")
        write_whole(paths[-1], lambda path: pixels.print_png(path))  # type: ignore[no-untyped-call]
    if SVG in formats:
        if PNG not in formats:
            figure.draw_without_rendering()
        figure.set_layout_engine("none")
        undated, svg = {"Date": None}, FigureCanvasSVG(figure)
        paths.append(folder / f"{name}.svg")
        write_whole(paths[-1], lambda path: svg.print_svg(path, metadata=undated))  # type: ignore[no-untyped-call]
    return paths
