"""The `claim:` block: what an experiment is expected to show, so that a run says whether it did."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field

from specfleet.experiments.schema.blocks.base import Block

WITHIN = 0.15
"""How far a figure may lie from a measured number, a share of it, unless `within` says less."""

STILL = 0.05
"""How far from `not_reproduced` a figure may lie, a share of it, before the mark is out of date."""


class Expectation(Block):
    """One figure, or a ratio of two, and the range it must lie in: around a number that was measured
    (`measured`), between two that a source states (`between`), or on one side (`at_least`, `at_most`)."""

    figure: str
    """A column of summary.csv, such as output_throughput."""
    where: dict[str, object] = Field(default_factory=dict)
    """Axis -> value of the point it is taken from."""
    over: dict[str, object] | None = None
    """Axes that differ in the point it is divided by; the same figure unless `over_figure` is given."""
    over_figure: str | None = None
    """Another figure to divide by, of the point in `over` or of the same point."""
    measured: Annotated[float, Field(gt=0)] | None = None
    """The measured number, expected to `within`."""
    within: Annotated[float, Field(gt=0, le=WITHIN)] | None = None
    """Share of `measured` that the figure may be off; 0.15, and never more."""
    between: tuple[float, float] | None = None
    """Lowest and highest value, where a source or arithmetic gives a range."""
    at_least: float | None = None
    """Lowest value, where a direction is claimed and no number."""
    at_most: float | None = None
    """Highest value, where a direction is claimed and no number."""
    not_reproduced: float | None = None
    """What comes out instead, where it is known to lie outside; a run holds it against what it finds."""
    said: str = ""
    """What it means, for the reader."""

    @property
    def bounds(self) -> tuple[float, float]:
        """Lowest and highest value."""
        if self.measured is not None:
            off = self.measured * (WITHIN if self.within is None else self.within)
            return self.measured - off, self.measured + off
        if self.between is not None:
            return self.between
        return (
            -math.inf if self.at_least is None else self.at_least,
            math.inf if self.at_most is None else self.at_most,
        )

    def faults(self) -> list[str]:
        """Returns what of it does not go together, in words."""
        ways = [
            name
            for name, given in (
                ("measured", self.measured is not None),
                ("between", self.between is not None),
                ("at_least, at_most", self.at_least is not None or self.at_most is not None),
            )
            if given
        ]
        if not ways:
            return ["nothing is expected; add measured, between, at_least or at_most"]
        if len(ways) > 1:
            return [f"{' and '.join(ways)} say the range twice; keep one"]
        low, high = self.bounds
        found = ["the lowest value is above the highest; swap them"] if low > high else []
        if self.within is not None and self.measured is None:
            found.append("within is of a measured number; add measured, or leave it out")
        if self.not_reproduced is not None and low <= self.not_reproduced <= high:
            found.append(f"not_reproduced {self.not_reproduced:g} is what is expected; leave it out")
        return found


class Claim(Block):
    """A statement with its source, and the figures that show it."""

    statement: str
    """What is claimed, in a sentence."""
    source: str
    """Who says so."""
    expect: Annotated[tuple[Expectation, ...], Field(min_length=1)]
