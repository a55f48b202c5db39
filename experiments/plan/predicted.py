"""A plan whose acceptance is predicted: with what chance drafting pays, and which count would tell most."""

from __future__ import annotations

from collections.abc import Iterator

from specfleet.experiments.load.rules.acceptance import predicted
from specfleet.experiments.plan.candidates import Candidate
from specfleet.experiments.plan.seen import TrialFigures
from specfleet.experiments.plan.speculation import BreakEven
from specfleet.experiments.point.beyond import Beyond
from specfleet.experiments.schema.blocks.acceptance import processes
from specfleet.experiments.words.chance import chance_said, next_count


def predicted_acceptance_of(candidate: Candidate) -> Beyond | None:
    """Returns the prediction of a candidate whose K its acceptance was not measured at; of one class."""
    given = list(processes(candidate.config.acceptance).values())
    return predicted(given[0], candidate.config) if len(given) == 1 else None


def chance_to_pay(drafting: Candidate, found: BreakEven, run: TrialFigures) -> float | None:
    """Returns the chance that a K pays at the planned load.

    None where its acceptance was measured, or where it does not pay as predicted.

    Args:
        drafting: the candidate.
        found: its break-even.
        run: its figures.
    """
    law = predicted_acceptance_of(drafting)
    if law is None or found.factor is None:
        return None
    drawn = run["spec_decode_acceptance_length"] or 1.0
    if not found.factor or drawn <= 1.0:
        return 1.0
    return law.reaches(1.0 + (found.acceptance_length - 1.0) * (law.length.value - 1.0) / (drawn - 1.0))


def chance_lines(drafting: Candidate, found: BreakEven, run: TrialFigures) -> Iterator[str]:
    """Yields with what chance drafting pays where its acceptance is predicted, and what to count next."""
    law = predicted_acceptance_of(drafting)
    if law is None:
        return
    length, chance = law.length, chance_to_pay(drafting, found, run)
    pays = "" if chance is None else f"; on mean and P99 TPOT it pays with {chance_said(chance)}"
    yield (
        f"acceptance at K = {law.k} is predicted from K = {law.measured_at_k}: {length.value:.2f} tokens a "
        f"round, 90 % interval {length.low:.2f} to {length.high:.2f}{pays}"
    )
    line = next_count(law.depth, [law.k])
    yield line[0].lower() + line[1:-1]
