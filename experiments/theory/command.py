"""`specfleet theory`: what drafting can gain in closed form, before anything is simulated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from specfleet.experiments.schema.faults import COMMAND_LINE, Fault, InputFaults
from specfleet.experiments.theory.question import ALPHAS, DRAFTS, Theory
from specfleet.experiments.theory.tables import theory_text
from specfleet.experiments.words.width import say

OF_CLOSED_FORMS = ("--alpha", "--k", "--cost-ratio", "--overhead", "--target-speedup", "--figure")
"""Options that say what to ask of the closed forms."""


def theory_command(
    alphas: Sequence[float] = (),
    drafts: Sequence[int] = (),
    cost_ratio: float = 0.05,
    overhead: float = 0.0,
    target_speedup: float | None = None,
    figure: Path | None = None,
) -> int:
    """Prints the tables and, where asked, draws the figure; returns the exit code.

    Args:
        alphas, drafts: rows and columns of the tables; empty takes `ALPHAS` and `DRAFTS`.
        cost_ratio, overhead, target_speedup: see `Theory`.
        figure: PNG or SVG to write.

    Raises:
        InputFaults: for options out of range.
    """
    asked = Theory(
        tuple(sorted(set(alphas))) or ALPHAS,
        tuple(sorted(set(drafts))) or DRAFTS,
        cost_ratio,
        overhead,
        target_speedup,
    )
    say(theory_text(asked))
    if figure is not None:
        # Here, because figures bring the schema and the simulator with them, and the tables need neither.
        from specfleet.experiments.theory.figures import draw_theory

        draw_theory(asked, figure)
        print(f"\nfigure: {figure}")
    return 0


def exactness_command(others: Sequence[str] = ()) -> int:
    """Measures on tokens that speculation leaves the output as it is, and prints it.

    Args:
        others: options of the closed forms that were given too.

    Returns:
        0, or 1 if a right loop's output differs from the target's or a broken one's is not found to.

    Raises:
        InputFaults: naming the options that have no meaning here.
    """
    if others:
        said = "has no meaning with --exactness, which measures fixed small models; leave it out"
        raise InputFaults([Fault(COMMAND_LINE, 0, name, said) for name in others])
    from specfleet.experiments.theory.exactness import exactness_text, measure_exactness

    found = measure_exactness()
    say(exactness_text(found))
    return 0 if found.holds else 1
