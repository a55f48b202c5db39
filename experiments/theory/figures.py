"""The figure of `specfleet theory`: tokens, speedup and break-even over K."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from specfleet.experiments.figures.style import (
    COLOURS,
    DASHES,
    DOTS_PER_INCH,
    GREY,
    MARKERS,
    Look,
    panels,
    styled,
)
from specfleet.experiments.theory.question import Theory
from specfleet.sim.speculation.theory import expected_tokens, needed_conditional, needed_draft_rate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_theory(asked: Theory, path: Path) -> None:
    """Writes the figure; the format follows the file's ending."""
    with styled():
        path.parent.mkdir(parents=True, exist_ok=True)
        theory_figure(asked).savefig(path, dpi=DOTS_PER_INCH)


def theory_figure(asked: Theory) -> Figure:
    """Tokens a verification and speedup by K, a line an acceptance; and the acceptance that breaks even."""
    figure, (tokens, speed, need) = panels(1, 3, (11.0, 4.8))
    _lines(tokens, asked, expected_tokens)
    tokens.set_title("expected tokens per verification")
    tokens.set_ylabel("tokens (acceptance length)")
    tokens.set_ylim(0, None)
    _lines(speed, asked, asked.speedup)
    _rings(speed, asked)
    speed.axhline(1.0, color="black", linewidth=0.9)
    speed.set_title("speedup; rings at the best K")
    speed.set_ylabel("time per token, plain over drafting")
    speed.set_ylim(0, None)
    _needs(need, asked)
    handles, labels = tokens.get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside right center", handlelength=3.6)
    figure.suptitle("What drafting can gain, in closed form", x=0.01, ha="left", fontsize=11)
    notes = (
        f"A round of K drafts costs 1 + K c + o plain steps: c = {asked.cost_ratio:g} a draft pass, "
        f"o = {asked.overhead:g} for verification.\n"
        "Drafts are alike and independent; batch, prompts and queues are left out."
    )
    figure.supxlabel(notes, x=0.01, ha="left", fontsize=7.5, color=GREY)
    return figure


def _lines(ax: Axes, asked: Theory, value: Callable[[float, int], float]) -> None:
    """Draws a line an acceptance over K."""
    for place, alpha in enumerate(asked.alphas):
        values = [value(alpha, k) for k in asked.drafts]
        _look(place).plot(ax, asked.drafts, values, f"a = {alpha:g}", ax.transData, joined=True)
    _drafts_axis(ax, asked.drafts)


def _look(place: int) -> Look:
    return Look(COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)], DASHES[place % len(DASHES)])


def _rings(ax: Axes, asked: Theory) -> None:
    """Rings the best K of each acceptance, where it is among those drawn."""
    for place, alpha in enumerate(asked.alphas):
        best = asked.best(alpha)
        if best in asked.drafts:
            height = asked.speedup(alpha, best)
            ax.plot([best], [height], "o", markersize=11, markerfacecolor="none", color=_look(place).color)


def _needs(ax: Axes, asked: Theory) -> None:
    """The acceptance that breaks even, and that reaches the target, under each definition."""
    levels = [(1.0, "break-even")]
    if asked.target_speedup is not None and asked.target_speedup != 1.0:
        levels.append((asked.target_speedup, f"speedup {asked.target_speedup:g}"))
    for place, (speedup, name) in enumerate(levels):
        found = [(k, needed_conditional(asked.cost(k), k, speedup)) for k in asked.drafts]
        reached = [(k, alpha) for k, alpha in found if alpha is not None]
        if not reached:
            continue
        drafts, alphas = zip(*reached, strict=True)
        rates = [max(needed_draft_rate(asked.cost(k), k, speedup), 0.0) for k in drafts]
        colour = ("black", COLOURS[0])[place]
        both = (("conditional a", alphas, "o", DASHES[0]), ("accepted/drafted", rates, "s", DASHES[2]))
        for definition, values, marker, dashes in both:
            look = Look(colour, marker, dashes)
            look.plot(ax, drafts, values, f"{name}: {definition}", ax.transData, joined=True)
    ax.set_title("acceptance needed, by definition")
    ax.set_ylabel("acceptance")
    ax.set_ylim(0, 1)
    _drafts_axis(ax, asked.drafts)
    ax.legend(loc="upper left", bbox_to_anchor=(-0.02, -0.16), borderaxespad=0, handlelength=3.4)


def _drafts_axis(ax: Axes, drafts: Sequence[int]) -> None:
    every = -(-len(drafts) // 12)
    ax.set_xticks(list(drafts)[::every])
    ax.set_xlabel("K (drafted tokens per round)")
    ax.grid(True, axis="y")
