"""What is asked of the closed forms: acceptances, draft lengths and what a round costs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from specfleet.experiments.schema.faults import COMMAND_LINE, Fault, InputFaults
from specfleet.sim.speculation.theory import best_k, round_cost, wall_time_speedup

ALPHAS = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
DRAFTS = (1, 2, 3, 4, 5, 6, 7, 8)
MOST_DRAFTS = 64
"""Largest K considered for the best one."""


@dataclass(frozen=True)
class Theory:
    """What is asked of the closed forms.

    Args:
        alphas: conditional acceptances.
        drafts: values of K.
        cost_ratio: c, one draft pass over one plain step.
        overhead: o, what verification adds to a plain step, as a share of it.
        target_speedup: S for which acceptance is solved, or None.

    Raises:
        InputFaults: naming each option that is out of range.
    """

    alphas: tuple[float, ...] = ALPHAS
    drafts: tuple[int, ...] = DRAFTS
    cost_ratio: float = 0.05
    overhead: float = 0.0
    target_speedup: float | None = None

    def __post_init__(self) -> None:
        if faults := list(self._faults()):
            raise InputFaults(faults)

    def _faults(self) -> Iterator[Fault]:
        target = self.target_speedup
        checks = (
            ("--alpha", all(0.0 <= a <= 1.0 for a in self.alphas), "must lie in [0, 1]"),
            ("--k", all(1 <= k <= MOST_DRAFTS for k in self.drafts), f"must lie in 1 to {MOST_DRAFTS}"),
            ("--cost-ratio", _at_least(self.cost_ratio, 0.0), "must be a number from 0"),
            ("--overhead", _at_least(self.overhead, 0.0), "must be a number from 0"),
            ("--target-speedup", target is None or _at_least(target, 1e-9), "must be positive"),
        )
        for option, fine, message in checks:
            if not fine:
                yield Fault(COMMAND_LINE, 0, option, message)

    def cost(self, k: int) -> float:
        """Returns plain steps that a round of `k` drafts takes."""
        return round_cost(k, self.cost_ratio, self.overhead)

    def speedup(self, alpha: float, k: int) -> float:
        """Returns how much faster tokens come than without drafting."""
        return wall_time_speedup(alpha, k, self.cost_ratio, self.overhead)

    def best(self, alpha: float) -> int:
        """Returns the K that is fastest; 0 where not drafting is."""
        return best_k(alpha, self.cost_ratio, self.overhead, MOST_DRAFTS)


def _at_least(value: float, least: float) -> bool:
    return math.isfinite(value) and value >= least
