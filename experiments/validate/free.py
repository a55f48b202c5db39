"""What the scores owe to matching: lengths and luck drawn freely, and requests that differ as others do.

A row's own acceptance and mean lengths are given, and by default the drawn sample is made to agree with them
(`sample`), and how much requests differ is fitted to runs of its campaign. Here the same drafting rows are
predicted without the one, without the other, and without both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from specfleet.experiments.run.processes import Workers
from specfleet.experiments.run.progress import Reporter
from specfleet.experiments.schema.blocks.acceptance import SEEN_CONCENTRATIONS
from specfleet.experiments.validate.points import MeasuredPoint
from specfleet.experiments.validate.runs import Scored, predict_all
from specfleet.experiments.validate.score import Block, block

DEFAULT = SEEN_CONCENTRATIONS[0]
"""Concentration that is taken where none is stated."""

FITTED = "as the row has it"
"""Of the shipped campaigns it was fitted to runs of the same campaign."""


@dataclass(frozen=True)
class Variant:
    """Drafting rows predicted in one way.

    Args:
        sample: "matched", or "free".
        spread: what concentration was taken, in words.
        errors: by metric; a row counts once for each concentration that it was given.
    """

    sample: str
    spread: str
    errors: Block


def variants(
    points: Sequence[MeasuredPoint],
    predictions: Sequence[Scored],
    *,
    seeds: int,
    method: str | None,
    jobs: int | Workers,
    quiet: bool,
) -> list[Variant]:
    """Returns the errors of the drafting rows, matched and free, by what spread they are given.

    Args:
        points: rows as measured, each with its own concentration.
        predictions: theirs, matched, one a point.
        seeds, method, jobs: as for `predict_all`.
        quiet: show no progress.
    """
    spreads = {at: spread for at, point in enumerate(points) if (spread := _spread(point)) is not None}
    others = {at: sorted(set(spreads.values()) - {own}) for at, own in spreads.items()}
    wanted = {
        FITTED: list(spreads.items()),
        f"the default, {DEFAULT:g}": [(at, DEFAULT) for at in spreads],
        "that of other rows": [(at, spread) for at, found in others.items() for spread in found],
    }
    variants_found: list[Variant] = []
    known = {(at, spread): predictions[at] for at, spread in spreads.items()}
    for sample in ("matched", "free"):
        every = dict.fromkeys(pair for pairs in wanted.values() for pair in pairs)
        todo = [pair for pair in every if pair not in known]
        given = [_with_spread(points[at], spread) for at, spread in todo]
        with Reporter(len(todo), quiet) as reporter:
            made = predict_all(given, seeds, method, jobs, reporter.finished, sample == "free")
        known |= dict(zip(todo, made, strict=True))
        for words, pairs in wanted.items():
            if errors := block(one for pair in pairs if not (one := known[pair]).failure):
                variants_found.append(Variant(sample, words, errors))
        known = {}
    return variants_found


def _spread(point: MeasuredPoint) -> float | None:
    """The concentration of a row that drafts and is simulated."""
    return point.acceptance.concentration if point.acceptance is not None and not point.closed_form else None


def _with_spread(point: MeasuredPoint, concentration: float) -> MeasuredPoint:
    assert point.acceptance is not None
    return replace(point, acceptance=replace(point.acceptance, concentration=concentration))
