"""Where a simulated speedup crosses 1: bisection over conditional acceptance on a fixed lattice.

All questions share one lattice, so what is simulated for one serves the others. A run at one acceptance
and the next differ in nothing but acceptance: same requests, same luck.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

QUESTIONS = {
    "throughput": ("output_throughput", 1),
    "mean TPOT": ("mean_tpot_ms", -1),
    "P99 TPOT": ("p99_tpot_ms", -1),
    "goodput": ("request_goodput", 1),
}
"""Question -> metric, +1 where more is better, -1 where less is."""

COARSE = 5
"""Intervals of [0, 1] looked at before bisecting: a crossing back and forth inside one is not seen."""

INDIFFERENT = 0.005
"""Speedups that stay this close to 1 from no draft accepted to all: something else sets the pace."""

AT, ALWAYS, NEVER, EQUAL, UNMET = "at", "always", "never", "indifferent", "unmet"
"""It pays from an acceptance on; even with no draft accepted; not even with all; it makes no difference;
no request meets the SLO, with or without drafts."""

Figures = Mapping[str, float | None]


def speedup(question: str, drafting: Figures, plain: Figures) -> float | None:
    """Returns the ratio of a run to the plain one, above 1 where better; None where either has no figure.

    Where the plain run has zero goodput the ratio is infinite, or 0 if drafting has none either.
    """
    metric, sign = QUESTIONS[question]
    mine, theirs = drafting.get(metric), plain.get(metric)
    if mine is None or theirs is None:
        return None
    if sign < 0:
        return theirs / mine if mine > 0.0 and theirs > 0.0 else None
    if theirs > 0.0:
        return mine / theirs
    return math.inf if mine > 0.0 else 0.0


@dataclass(frozen=True)
class Root:
    """One answer on one seed.

    Attributes:
        status: `AT`, `ALWAYS`, `NEVER`, `EQUAL` or `UNMET`.
        alpha: conditional acceptance from which it pays; None unless `AT`.
        crossings: how often the speedup passes 1 on the coarse lattice; above 1 the last one counts.
    """

    status: str
    alpha: float | None = None
    crossings: int = 0


class Curve:
    """Speedups of one load, K and seed over conditional acceptance, simulated where asked.

    Args:
        simulate: figures of a run at one conditional acceptance.
        plain: figures of the run without drafts.
        tolerance: width to which a crossing is bracketed.

    Attributes:
        points: lattice index -> figures, what was simulated.
    """

    def __init__(self, simulate: Callable[[float], Figures], plain: Figures, tolerance: float) -> None:
        self._simulate = simulate
        self._plain = plain
        self.cells = max(COARSE * math.ceil(round(1.0 / (COARSE * tolerance), 9)), COARSE)
        self.points: dict[int, Figures] = {}

    def alpha(self, index: float) -> float:
        """Returns the conditional acceptance of a lattice index."""
        return index / self.cells

    def speedup(self, question: str, index: int) -> float | None:
        """Returns the speedup at a lattice index, simulating it if it is new."""
        if index not in self.points:
            self.points[index] = self._simulate(self.alpha(index))
        return speedup(question, self.points[index], self._plain)

    def root(self, question: str) -> Root | None:
        """Returns the acceptance from which speculation pays; None where the question has no figure."""
        step = self.cells // COARSE
        ratios = []
        for index in range(0, self.cells + 1, step):
            ratio = self.speedup(question, index)
            if ratio is None:
                return None
            ratios.append(ratio)
        if max(ratios) == 0.0:
            return Root(UNMET)
        if all(abs(ratio - 1.0) < INDIFFERENT for ratio in ratios):
            return Root(EQUAL)
        pays = [ratio >= 1.0 for ratio in ratios]
        crossings = sum(a != b for a, b in itertools.pairwise(pays))
        if not pays[-1]:
            return Root(NEVER, crossings=crossings)
        if all(pays):
            return Root(ALWAYS)
        losing = len(pays) - 1 - pays[::-1].index(False)
        low, high = losing * step, (losing + 1) * step
        return Root(AT, self._crossing(question, low, high), crossings)

    def _crossing(self, question: str, low: int, high: int) -> float:
        """Narrows a bracket to one lattice cell and interpolates in it.

        Tries where a straight line crosses 1, and the middle after two tries that did not halve the bracket.
        """
        below, above = self._at(question, low), self._at(question, high)
        slow = 0
        while high - low > 1:
            width = high - low
            guess = low + int(_share(below, above) * width)
            middle = (low + high) // 2 if slow >= 2 else min(max(guess, low + 1), high - 1)
            ratio = self._at(question, middle)
            if ratio < 1.0:
                low, below = middle, ratio
            else:
                high, above = middle, ratio
            slow = slow + 1 if 2 * (high - low) > width and slow < 2 else 0
        return self.alpha(low + _share(below, above))

    def _at(self, question: str, index: int) -> float:
        ratio = self.speedup(question, index)
        return 0.0 if ratio is None else ratio


def _share(below: float, above: float) -> float:
    """Returns where between two speedups 1 lies, as a share of the way."""
    return 1.0 if math.isinf(above) else (1.0 - below) / (above - below)
