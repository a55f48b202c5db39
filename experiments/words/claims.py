"""Whether a run shows what its `claim:` block says: reproduced, or not, with the figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specfleet.experiments.run.results import Row
from specfleet.experiments.schema.blocks.expect import STILL, Claim, Expectation


@dataclass(frozen=True)
class Verdict:
    """One expectation held against a run.

    Attributes:
        expectation: what was expected.
        value: what came out; None where a point or figure is missing.
    """

    expectation: Expectation
    value: float | None

    @property
    def holds(self) -> bool:
        """Whether the value lies in its range."""
        low, high = self.expectation.bounds
        return self.value is not None and low <= self.value <= high

    @property
    def as_marked(self) -> bool:
        """Whether the value lies outside, and where `not_reproduced` has it."""
        known = self.expectation.not_reproduced
        if known is None or self.value is None or self.holds:
            return False
        return abs(self.value - known) <= STILL * abs(known)

    @property
    def known(self) -> bool:
        """Whether what came out is what the file says: in its range, or outside as marked."""
        return self.as_marked if self.expectation.not_reproduced is not None else self.holds

    @property
    def found(self) -> str:
        """The value, or that there is none."""
        return "missing" if self.value is None else f"{self.value:.4g}"

    @property
    def expected(self) -> str:
        """What was measured, and the range."""
        asked = self.expectation
        low, high = asked.bounds
        if math.isinf(high):
            said = f"at least {low:g}"
        elif math.isinf(low):
            said = f"at most {high:g}"
        else:
            said = f"{low:.4g} to {high:.4g}"
        return f"measured {asked.measured:g}, expected {said}" if asked.measured else f"expected {said}"

    @property
    def what(self) -> str:
        """The figure in words."""
        return self.expectation.said or _name(self.expectation)

    @property
    def mark(self) -> str:
        """What is said of a figure that is marked as not reproduced; empty without a mark."""
        known = self.expectation.not_reproduced
        if known is None:
            return ""
        if self.as_marked:
            return "known not to be reproduced"
        why = "it is reproduced now" if self.holds else f"not_reproduced says {known:g}"
        return f"the mark is out of date: {why}"

    def sentence(self) -> str:
        """Says what was found and expected."""
        said = f"  {'ok ' if self.holds else 'NO '} {self.what}: {self.found} ({self.expected})"
        return f"{said}; {self.mark}" if self.mark else said


def _name(asked: Expectation) -> str:
    where = ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in asked.where.items())
    over = ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in (asked.over or {}).items())
    name = f"{asked.figure} at {where}" if where else asked.figure
    if asked.over_figure:
        name += f" / {asked.over_figure}"
    return f"{name} / at {over}" if over else name


def _row(rows: Sequence[Row], where: Mapping[str, object]) -> Row | None:
    return next((row for row in rows if all(row.get(key) == value for key, value in where.items())), None)


def _number(row: Row | None, figure: str) -> float | None:
    value = row.get(figure) if row else None
    return float(value) if isinstance(value, int | float) else None


def judge(claim: Claim, rows: Sequence[Row]) -> list[Verdict]:
    """Holds each expectation of a claim against the summary of a run."""
    found = []
    for asked in claim.expect:
        value = _number(_row(rows, asked.where), asked.figure)
        if asked.over is not None or asked.over_figure is not None:
            other = _row(rows, {**asked.where, **(asked.over or {})})
            base = _number(other, asked.over_figure or asked.figure)
            value = value / base if value is not None and base else None
        found.append(Verdict(asked, value))
    return found


def claim_text(claim: Claim, rows: Sequence[Row]) -> list[str]:
    """Returns the verdict and the figures, a line each."""
    verdicts = judge(claim, rows)
    right = sum(v.holds for v in verdicts)
    word = "reproduced" if right == len(verdicts) else f"NOT reproduced ({right} of {len(verdicts)} hold)"
    return [f"claim {word}: {claim.statement} [{claim.source}]", *(v.sentence() for v in verdicts)]
