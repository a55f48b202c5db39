"""`specfleet theory`: what drafting can gain in closed form, before anything is simulated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from specfleet.experiments.theory.question import ALPHAS, DRAFTS, Theory
from specfleet.experiments.theory.tables import theory_text
from specfleet.experiments.words.width import say


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
