"""Acceptance of a row predicted from the other rows: what `--mode predicted` feeds the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from specfleet.experiments.validate.points import MeasuredPoint
from specfleet.sim.speculation.acceptance import AcceptanceSpec

_LEAST_RATIO = 0.05
"""Conditional acceptance beyond the deepest measured position is at least this, where none was seen."""


def predicted_acceptance(point: MeasuredPoint, points: Sequence[MeasuredPoint]) -> AcceptanceSpec | None:
    """Returns the acceptance by position that other rows of the drafter on the data set predict.

    The i-th draft of a chain does not depend on how many follow, so P(first i accepted) is the mean over
    the other K's that go as deep, weighted by their rounds: over those at the same concurrency (the same
    prompts) where there are any, else over all. Without another K, the same K at other concurrencies
    stands in. A position deeper than any goes on at the last conditional acceptance. The row itself is
    never used, nor, while there are other K's, any row of its K. None if nothing is left.
    """
    assert point.acceptance is not None
    same = [
        other
        for other in points
        if other is not point
        and other.acceptance is not None
        and other.acceptance.by_position is not None
        and (other.drafter, other.dataset) == (point.drafter, point.dataset)
        and other.placement.model.name == point.placement.model.name
    ]
    others = [other for other in same if other.k != point.k] or same
    if not others:
        return None
    here = [other for other in others if other.max_concurrency == point.max_concurrency]
    steps: list[float] = []
    for position in range(point.k):
        step = _mean_at(here, position)
        if step is None:
            step = _mean_at(others, position)
        if step is None:
            step = _extrapolated(steps)
        steps.append(min(step, steps[-1]) if steps else step)
    return replace(
        point.acceptance,
        by_position=tuple(steps),
        acceptance_length=None,
        draft_acceptance_rate=None,
        conditional_acceptance=None,
        measured_at_k=None,
    )


def _mean_at(points: Sequence[MeasuredPoint], position: int) -> float | None:
    """Returns P(first `position` + 1 drafts accepted) over the rows that draft so many, or None."""
    rates, weights = [], []
    for point in points:
        steps = point.acceptance.by_position if point.acceptance is not None else None
        if steps is not None and len(steps) > position:
            rates.append(steps[position])
            weights.append(point.rounds)
    return float(np.average(rates, weights=weights)) if rates else None


def _extrapolated(steps: Sequence[float]) -> float:
    """Returns the next position at the last conditional acceptance."""
    if not steps:
        return _LEAST_RATIO
    before = steps[-2] if len(steps) > 1 else 1.0
    return steps[-1] * (steps[-1] / before if before > 0.0 else _LEAST_RATIO)
