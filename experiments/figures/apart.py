"""Where prefill and decode apart serve more than replicas that do both, on a map of two axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf, log2
from typing import TYPE_CHECKING

import numpy as np

from specfleet.experiments.figures.data import Shown
from specfleet.experiments.figures.style import caption, panels
from specfleet.experiments.run.apart import GOODPUT, NOISE, Apart, compared_apart
from specfleet.experiments.run.costs.energy import COST
from specfleet.experiments.run.results import is_number, read_results
from specfleet.experiments.words.names import noun
from specfleet.experiments.words.values import K, named, text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_TIMES = 4.0
"""Ratio at which colours end."""
CELL = (1.25, 0.85)
"""Inches of a cell."""


def apart(shown: Shown) -> Figure | None:
    """A cell a setting of two axes of numbers, a panel for each setting of the others: requests within the
    limits (or output tokens) a second of the best split over those of replicas that do both, on as many GPUs.

    None where the two are not compared, or over anything but two axes of numbers.
    """
    if shown.folder is None:
        return None
    results = read_results(shown.folder)
    found = compared_apart(results.rows, results.axes)
    axes = list(found[0].setting) if found else []
    numbers = [
        axis
        for axis in axes
        if axis.rpartition(".")[2] != K and all(is_number(one.setting[axis]) for one in found)
    ]
    across = [axis for axis in numbers if len({one.setting[axis] for one in found}) > 1]
    if len(across) != 2:
        return None
    x, y = across
    others = [axis for axis in axes if axis not in across]
    groups: dict[str, list[Apart]] = {}
    for one in found:
        groups.setdefault(", ".join(named(axis, one.setting[axis]) for axis in others), []).append(one)
    wide, high = (len({one.setting[axis] for one in found}) for axis in (x, y))
    size = (max(CELL[0] * wide * len(groups) + 1.6, 6.4), CELL[1] * high + 2.0)
    figure, drawn = panels(1, len(groups), size, share=True)
    for ax, (title, mine) in zip(drawn, groups.items(), strict=True):
        _draw(ax, mine, x, y)
        ax.set_title(title, loc="left", fontsize=9)
        ax.set_xlabel(noun(x))
    drawn[0].set_ylabel(noun(y))
    what = "requests within the limits a second" if found[0].measure == GOODPUT else "output tokens a second"
    caption(
        figure,
        replace(shown, fixed=""),
        f"prefill and decode apart, against replicas that do both on the same {found[0].gpus} GPUs",
        f"Large: {what}, times as many; blue is more, red fewer. Below: GPUs that compute prompts + that "
        "decode, the best of those tried; mean TTFT, P99 TPOT and cost of an output token, times as much. "
        "±: 95 % over replications; on a cliff: 10 to 90 % of requests keep the limits.",
    )
    return figure


def _draw(ax: Axes, mine: Sequence[Apart], x: str, y: str) -> None:
    """Draws one map; values stand in their order, evenly."""
    columns, rows = (sorted({float(str(one.setting[axis])) for one in mine}) for axis in (x, y))
    table = np.full((len(rows), len(columns)), np.nan)
    for one in mine:
        at = rows.index(float(str(one.setting[y]))), columns.index(float(str(one.setting[x])))
        ratio = min(max(one.ratio, 1.0 / MOST_TIMES), MOST_TIMES)
        table[at] = log2(ratio)
        dark = abs(table[at]) > 0.6 * log2(MOST_TIMES)
        large = (
            "new" if one.ratio == inf else f"{one.ratio:.2f}x" if one.ratio < 10.0 else f"{one.ratio:.0f}x"
        )
        if one.half_width is not None:
            large += f" ±{one.half_width:.2f}"
        doubt = [one.verdict if one.verdict == NOISE else "", "on a cliff" if one.on_a_cliff else ""]
        said = [one.split, *(_times(one, key, name) for key, name in SMALL)]
        said.append(", ".join(filter(None, doubt)))
        colour = "white" if dark else "black"
        ax.text(at[1], at[0] - 0.22, large, ha="center", va="center", fontsize=10, color=colour)
        ax.text(
            at[1],
            at[0] + 0.18,
            "\n".join(filter(None, said)),
            ha="center",
            va="center",
            fontsize=6,
            color=colour,
        )
    limit = log2(MOST_TIMES)
    ax.imshow(table, cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto")
    ax.set_xticks(range(len(columns)), [text(value) for value in columns])
    ax.set_yticks(range(len(rows)), [text(value) for value in rows])
    ax.grid(visible=False)


SMALL = (("mean_ttft_ms", "TTFT"), ("p99_tpot_ms", "P99 TPOT"), (COST, "cost"))


def _times(one: Apart, key: str, name: str) -> str:
    ratio = one.times(key)
    return "" if ratio is None else f"{name} {ratio:.2f}x"
