"""Acceptance of a row predicted from the other rows: what `--mode predicted` feeds the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from specfleet.experiments.validate.points import MeasuredPoint
from specfleet.sim.speculation.acceptance import AcceptanceSpec
from specfleet.sim.speculation.depth import CountedAt, known
from specfleet.sim.speculation.families import FAMILIES


def predicted_acceptance(point: MeasuredPoint, points: Sequence[MeasuredPoint]) -> AcceptanceSpec | None:
    """Returns the acceptance by position that other rows of the drafter on the data set predict.

    What the other K's counted says what this one accepts, by the law of `sim.speculation.depth`: those at the
    same concurrency (the same prompts) where there are any, else all, each K pooled over its rows by rounds.
    Without another K, the same K at other concurrencies stands in. The row itself is never used, nor, while
    there are other K's, any row of its K. None if nothing is left.
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
    others = [other for other in same if other.k != point.k]
    if not same:
        return None
    here = [other for other in others if other.max_concurrency == point.max_concurrency]
    if others:
        family = FAMILIES[point.method]
        steps = known(family, _counts(here or others), point.k).by_position(point.k)
    else:
        [only] = _counts(same)
        assert only.by_position is not None
        steps = only.by_position
    return replace(
        point.acceptance,
        by_position=steps,
        acceptance_length=None,
        draft_acceptance_rate=None,
        conditional_acceptance=None,
        measured_at_k=None,
    )


def _counts(points: Sequence[MeasuredPoint]) -> list[CountedAt]:
    """Returns what was counted at each K, pooled over its rows by rounds."""
    found = []
    for k in sorted({point.k for point in points}):
        mine = [point for point in points if point.k == k]
        rates = [_positions(point) for point in mine]
        rounds = [point.rounds or 1.0 for point in mine]
        pooled = np.minimum.accumulate(np.average(rates, axis=0, weights=rounds))
        found.append(CountedAt(k, tuple(pooled.tolist()), rounds=sum(rounds)))
    return found


def _positions(point: MeasuredPoint) -> tuple[float, ...]:
    assert point.acceptance is not None and point.acceptance.by_position is not None
    return point.acceptance.by_position[: point.k]
