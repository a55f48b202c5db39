"""Whether a run shows what its `claim:` block says: reproduced, or not, with the figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specfleet.experiments.run.results import Row
from specfleet.experiments.schema.blocks.expect import Claim, Expectation


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
        low, high = self.expectation.between
        return self.value is not None and low <= self.value <= high

    def sentence(self) -> str:
        """Says what was found and expected."""
        low, high = self.expectation.between
        asked = self.expectation
        what = asked.said or _name(asked)
        found = "missing" if self.value is None else f"{self.value:.4g}"
        return f"  {'ok ' if self.holds else 'NO '} {what}: {found} (expected {low:g} to {high:g})"


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
    word = "reproduced" if all(v.holds for v in verdicts) else "NOT reproduced"
    return [f"claim {word}: {claim.statement} [{claim.source}]", *(v.sentence() for v in verdicts)]
