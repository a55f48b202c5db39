"""Acceptance at every K, predicted from what an engine counted at one: `calibrate --acceptance --method`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from specfleet.experiments.schema.faults import COMMAND_LINE, Fault, InputFaults
from specfleet.experiments.tools.counts import Measured
from specfleet.experiments.words.chance import next_count
from specfleet.experiments.words.table import Column, table_text
from specfleet.sim.speculation.depth import CountedAt, Depth, at_k, known
from specfleet.sim.speculation.families import (
    CONCENTRATION_BETWEEN_DATA_SETS,
    CONCENTRATION_BETWEEN_KS,
    FAMILIES,
)

MOST = 8
"""K up to which the shared curves were measured."""

_NORMAL_90 = 1.645

COLUMNS = (
    Column("K"),
    Column("tokens a round"),
    Column("90 % interval", left=True),
    Column("by_position, with half its 90 % interval", left=True),
)


@dataclass(frozen=True)
class EveryK:
    """What was counted at one K says of the others.

    Args:
        counted: it.
        depth: by the law of the drafter's family.
        elsewhere: it is asked of another data set.
        concentration: spread between requests at the counted K; None where it was not seen.
    """

    counted: CountedAt
    depth: Depth
    elsewhere: bool
    concentration: float | None

    @property
    def concentration_range(self) -> tuple[float, float] | None:
        """The 90 % interval of the concentration at every K; None where no number was seen."""
        if self.concentration is None or math.isinf(self.concentration):
            return None
        apart = CONCENTRATION_BETWEEN_DATA_SETS if self.elsewhere else 0.0
        factor = math.exp(_NORMAL_90 * math.hypot(CONCENTRATION_BETWEEN_KS, apart))
        return round(self.concentration / factor, 1), round(self.concentration * factor, 1)


def every_k(measured: Measured, method: str, elsewhere: bool) -> EveryK:
    """Returns the prediction for a report.

    Args:
        measured: what it counts.
        method: of drafting, as in `speculative_config`.
        elsewhere: for another data set than the report's.

    Raises:
        InputFaults: for a method that is none, or a length without its K.
    """
    if method not in FAMILIES:
        message = f"{method!r} is no method of drafting; use one of {', '.join(sorted(FAMILIES))}"
        raise InputFaults([Fault(COMMAND_LINE, 0, "--method", message)])
    k = len(measured.by_position) or measured.measured_at_k
    if k is None:
        message = "the report does not say K, from which others would be predicted; give one with positions"
        raise InputFaults([Fault(COMMAND_LINE, 0, "--acceptance", message)])
    rounds = measured.rounds or 10_000.0
    counted = CountedAt(k, measured.by_position or None, measured.acceptance_length, rounds)
    depth = known(FAMILIES[method], [counted], MOST)
    return EveryK(counted, depth.elsewhere() if elsewhere else depth, elsewhere, measured.concentration)


def prediction_text(found: EveryK) -> str:
    """Returns the table of K = 1 .. 8, the spread, and what to measure next."""
    depth, seen = found.depth, found.counted.k
    where = " on another data set" if found.elsewhere else ""
    ks = range(1, max(MOST, seen) + 1)
    asked = [k for k in ks if found.elsewhere or k != seen]
    return "\n".join(
        [
            f"Predicted{where} from K = {seen}, by the law of {depth.family.name} "
            f"(curves of {depth.family.drafters}); {_in_a_file(found)}:",
            table_text(COLUMNS, [_row(found, k) for k in ks]),
            *_spread(found),
            next_count(depth, asked),
        ]
    )


def _in_a_file(found: EveryK) -> str:
    """Where a run says the same."""
    if found.elsewhere:
        return "so does a file whose measured_on.dataset is not that of its workload.preset"
    return "a file with this block predicts the same"


def _row(found: EveryK, k: int) -> list[str]:
    depth, seen = found.depth, found.counted
    steps = at_k(depth, seen.by_position, k) if seen.by_position else depth.by_position(k)
    if k == seen.k and not found.elsewhere:
        counted = 1.0 + sum(steps) if seen.by_position else seen.acceptance_length or 1.0
        said = " ".join(f"{step:.2f}" for step in steps) if seen.by_position else ""
        return [f"{k}", f"{counted:.2f}", "counted", said]
    length = depth.length(k)
    scale = sum(steps) / (length.value - 1.0)
    low, high = (1.0 + scale * (end - 1.0) for end in (length.low, length.high))
    each = [
        f"{step:.2f}+-{(at.high - at.low) / 2:.2f}"
        for step, at in zip(steps, depth.positions(k), strict=True)
    ]
    return [f"{k}", f"{1.0 + sum(steps):.2f}", f"{low:.2f} to {min(high, k + 1.0):.2f}", " ".join(each)]


def _spread(found: EveryK) -> Iterator[str]:
    """How much requests differ at every K."""
    ends = found.concentration_range
    if ends is not None:
        low, high = ends
        yield f"Requests: concentration {found.concentration:.1f}, 90 % {low:g} to {high:g} at every K."
    elif found.concentration is None:
        yield (
            "Requests: how much they differ is not in this report; per-request metrics at any K say it for "
            "all, and P99 is a band until then."
        )
    else:
        yield "Requests: all alike at the counted K; taken to be so at every K."
