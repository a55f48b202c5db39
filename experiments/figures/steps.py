"""Where a step's time goes, and the two sides of speculation: tokens gained against time added."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from specfleet.experiments.figures.data import Line, Shown
from specfleet.experiments.figures.style import GREY, Horizontal, Look, caption, panels, set_vertical
from specfleet.experiments.run.gains import MEAN_TPOT, THROUGHPUT
from specfleet.experiments.run.results import Row, is_number, number
from specfleet.experiments.words.names import noun
from specfleet.experiments.words.verdict import QUESTIONS, judged

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PARTS = (
    ("weights", "reading weights", "#0072B2", ""),
    ("kv", "reading KV cache", "#9AD0F0", ""),
    ("compute", "compute", "#E69F00", ""),
    ("communication", "communication", "#E07B39", "xxxx"),
    ("launch", "kernel launches", "#BBBBBB", ""),
    ("host", "host", "#666666", ""),
    ("drafter", "drafter", "#FFFFFF", "//////"),
)
"""Term of a step's cost, its name, colour and hatch; neighbours differ in lightness."""

MOST_COLUMNS = 4
"""Panels side by side; more go into further rows."""

NUMBERS_APART = 0.1
"""Share of a panel's width that a number over it needs; closer ones are left out."""

GAIN = ("tokens_per_step", "verify_overhead", "draft_overhead", "gain")
_SAME_BATCH, _WHOLE = "step time, same batch", "time of a step, all told"
RATIOS = (THROUGHPUT, MEAN_TPOT)
"""What the run as a whole gains: throughput where that is judged, else mean TPOT."""
_BENEFIT, _COST = "#0072B2", "#D55E00"
SIDES = (
    (True, "speculation wins", "#CFE5F3", ""),
    (False, "speculation loses", "#F9D5BF", "////"),
)
"""Whether the tokens gained outweigh the time, its name, colour and hatch."""


def step_time(shown: Shown) -> Figure | None:
    """The mean decoding step by where its time goes: milliseconds above, shares below, a panel a line."""
    keys = [f"step_{term}_ms" for term, *_ in PARTS]
    lines = [line for line in shown.lines if line.having(*keys)]
    if not lines:
        return None
    if shown.along is None:
        return _single_step(shown, lines[0].having(*keys)[0])
    columns = min(len(lines), MOST_COLUMNS)
    blocks = -(-len(lines) // columns)
    size = (1.9 + max(3.4, 2.5 * columns), 0.8 + 4.6 * blocks)
    figure, axes = panels(2 * blocks, columns, size)
    axis = Horizontal.of(shown.along, shown)
    top = 1.05 * max(sum(number(row, key) for key in keys) for line in lines for row in line.having(*keys))
    for i, line in enumerate(lines):
        above = axes[2 * (i // columns) * columns + i % columns]
        below = axes[(2 * (i // columns) + 1) * columns + i % columns]
        above.set_title(line.label)
        for ax, share in ((above, False), (below, True)):
            _stack(ax, axis, line.having(*keys), share)
        above.set_ylim(0, top)
        below.set_ylim(0, 100)
        above.set_xlabel("")
        _outer_labels(above, below, i % columns == 0)
    for unused in axes[: 2 * blocks * columns]:
        unused.set_visible(bool(unused.patches))
    none = {name for term, name, *_ in PARTS if not any(number(r, f"step_{term}_ms") for r in shown.rows)}
    entries = [e for e in zip(*axes[0].get_legend_handles_labels(), strict=True) if e[1] not in none]
    handles, labels = zip(*reversed(entries), strict=True)
    figure.legend(handles, labels, loc="outside right center", handlelength=1.4, handleheight=1.2)
    note = "Mean over the steps in which somebody decodes; those that also read prompts are among them."
    caption(figure, shown, f"where a step's time goes, against {noun(shown.along)}", note)
    return figure


def _outer_labels(above: Axes, below: Axes, first: bool) -> None:
    above.set_ylabel("step time (ms)" if first else "")
    below.set_ylabel("share of the step (%)" if first else "")
    for ax in (above, below):
        ax.tick_params(axis="y", labelleft=first)


def _stack(ax: Axes, axis: Horizontal, rows: Sequence[Row], share: bool) -> None:
    """Stacked bars side by side, one a row; in per cent of the step where `share` is set."""
    places = [float(axis.values.index(row[axis.key])) for row in rows]
    totals = [sum(number(row, f"step_{term}_ms") for term, *_ in PARTS) for row in rows]
    bottoms = [0.0] * len(rows)
    for term, name, colour, hatch in PARTS:
        values = [number(row, f"step_{term}_ms") for row in rows]
        if share:
            values = [100 * value / total for value, total in zip(values, totals, strict=True)]
        ax.bar(
            places,
            values,
            width=0.78,
            bottom=bottoms,
            label=name,
            color=colour,
            hatch=hatch,
            edgecolor="#333333",
            linewidth=0.4,
        )
        bottoms = [bottom + value for bottom, value in zip(bottoms, values, strict=True)]
    axis.set_label(ax)
    axis.set_ticks(ax, range(len(axis.values)))
    ax.tick_params(axis="x", labelsize=8)
    ax.set_xlim(-0.6, len(axis.values) - 0.4)


def _single_step(shown: Shown, row: Row) -> Figure:
    """The terms of one point, a bar each."""
    figure, (ax,) = panels(1, 1, (7.0, 3.4))
    values = [number(row, f"step_{term}_ms") for term, *_ in PARTS]
    total = sum(values)
    names = [name for _, name, *_ in PARTS]
    bars = ax.barh(
        names, values, color=[colour for *_, colour, _ in PARTS], edgecolor="#333333", linewidth=0.5
    )
    for bar, (*_, hatch) in zip(bars, PARTS, strict=True):
        bar.set_hatch(hatch)
    ax.bar_label(bars, [f"{v:.2f} ms, {v / total:.0%}" for v in values], padding=4, fontsize=8)
    ax.invert_yaxis()
    ax.set_xlim(0, 1.25 * max(values))
    ax.grid(axis="x")
    ax.grid(visible=False, axis="y")
    ax.set_xlabel("time in the mean decoding step (ms)")
    caption(figure, shown, f"where a step's {total:.1f} ms go")
    return figure


def two_sides(shown: Shown) -> Figure | None:
    """Tokens a step yields against the time it takes, both relative to plain decoding, a panel a line."""
    lines = [line for line in shown.lines if line.having(*GAIN)]
    if shown.along is None or not lines:
        return None
    columns = min(len(lines), MOST_COLUMNS)
    rows = -(-len(lines) // columns)
    figure, axes = panels(rows, columns, (2.9 + max(3.7, 3.0 * columns), 1.3 + 3.2 * rows), share=True)
    axis = Horizontal.of(shown.along, shown)
    drawn = [
        value
        for i, line in enumerate(lines)
        for value in _sides(axes[i], shown, axis, line, first=i % columns == 0)
    ]
    set_vertical(axes[0], [*drawn, 1.0], [])
    for ax in axes[len(lines) :]:
        ax.set_visible(False)
    for ax in axes[::columns]:
        ax.set_ylabel("times plain decoding")
    handles = {name: h for ax in axes for h, name in zip(*ax.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles, loc="outside right center", handlelength=3)
    title = f"tokens a step yields against the time it takes, by {noun(shown.along)}"
    whole = _ratio(shown)
    if whole is None:
        above = "Above each panel: tokens over time, the gain of a step; speculation wins above 1."
        caption(figure, shown, title, above)
        return figure
    unit = (
        "the run's time by the steps of its sequences" if whole == THROUGHPUT else "between a request's steps"
    )
    caption(
        figure,
        shown,
        title,
        f"Above each panel: tokens over time all told, the ratio of {QUESTIONS[whole]} of the whole run.",
        f"Solid: time of a step all told ({unit}). Dashed: what drafting and verification add to "
        "a step of the same batch.",
        "Between the two: prompts take their time whatever is drafted, and fall into fewer steps.",
    )
    return figure


def _ratio(shown: Shown) -> str | None:
    """What the run gains as a whole; None where nothing is compared."""
    rows = [row for line in shown.lines if not line.baseline for row in line.rows]
    return next((key for key in RATIOS if any(judged(row, key) for row in rows)), None)


def _sides(ax: Axes, shown: Shown, axis: Horizontal, line: Line, first: bool) -> list[float]:
    """Draws one panel of `two_sides`, the `first` of its row with names; returns the values drawn."""
    whole = _ratio(shown)
    rows = line.having(*GAIN)
    places = [axis.place(row[axis.key]) for row in rows]
    tokens = [number(row, "tokens_per_step") for row in rows]
    batch = [1.0 + number(row, "verify_overhead") + number(row, "draft_overhead") for row in rows]
    told = whole is not None and all(is_number(row.get(whole)) for row in rows)
    gains = [number(row, whole if told and whole else "gain") for row in rows]
    all_told = [token / gain for token, gain in zip(tokens, gains, strict=True)] if told else []
    axis.set_up(ax)
    ax.tick_params(axis="x", labelsize=8)
    _fill(ax, places, tokens, all_told or batch, axis.numeric)
    Look(_BENEFIT, "o", "-").plot(ax, places, tokens, "tokens per step", ax.transData, axis.numeric)
    if told:
        Look(_COST, "s", "-").plot(ax, places, all_told, _WHOLE, ax.transData, axis.numeric)
    Look(_COST, "^", (0, (2, 1.5))).plot(ax, places, batch, _SAME_BATCH, ax.transData, axis.numeric)
    name = QUESTIONS[whole] if told and whole else "gain"
    _write_gains(ax, axis, places, {name: gains}, first)
    ax.set_title(line.label, pad=19)
    return [*tokens, *batch, *all_told]


def _fill(
    ax: Axes, places: Sequence[float], gained: Sequence[float], paid: Sequence[float], area: bool
) -> None:
    """Colours what lies between the two sides by who wins: the `area`, or a bar at every place."""
    wins = [g >= p for g, p in zip(gained, paid, strict=True)]
    for won, name, colour, hatch in SIDES:
        where = [win == won for win in wins]
        if not any(where):
            continue
        if area:
            drawn = ax.fill_between(places, gained, paid, where=where, interpolate=True, label=name)
            drawn.set(facecolor=colour, edgecolor=_COST, hatch=hatch, linewidth=0)
            continue
        bars = [(x, g, p) for x, g, p, here in zip(places, gained, paid, where, strict=True) if here]
        x, top, foot = zip(*bars, strict=True)
        heights = [g - p for g, p in zip(top, foot, strict=True)]
        ax.bar(x, heights, 0.35, foot, label=name, color=colour, edgecolor=_COST, hatch=hatch, linewidth=0)


def _write_gains(
    ax: Axes, axis: Horizontal, places: Sequence[float], gains: Mapping[str, Sequence[float]], named: bool
) -> None:
    """Writes rows of numbers over the panel, above their places; names the rows where `named`."""
    kept: list[int] = []
    for i, place in enumerate(places):
        if not kept or abs(axis.share(place) - axis.share(places[kept[-1]])) >= NUMBERS_APART:
            kept.append(i)
    for row, (name, values) in enumerate(reversed(list(gains.items()))):
        height = 5 + 11 * row
        if named:
            _write(ax, name, (0, 1), (-6, height), "axes fraction", "right", GREY)
        for i in kept:
            colour = _BENEFIT if values[i] >= 1 else _COST
            at, where = (places[i], 1.0), ("data", "axes fraction")
            _write(ax, f"{values[i]:.2f}", at, (0, height), where, "center", colour)


def _write(
    ax: Axes,
    what: str,
    at: tuple[float, float],
    aside_points: tuple[float, float],
    coordinates: str | tuple[str, str],
    align: Literal["left", "center", "right"],
    colour: str,
) -> None:
    """Writes small text beside a place."""
    ax.annotate(
        what, at, aside_points, coordinates, "offset points", fontsize=7, va="bottom", ha=align, color=colour
    )
