"""The `claim:` block: what an experiment is expected to show, so that a run says whether it did."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from specfleet.experiments.schema.blocks.base import Block


class Expectation(Block):
    """One figure, or a ratio of two, and the range it must lie in."""

    figure: str
    """A column of summary.csv, such as output_throughput."""
    where: dict[str, object] = Field(default_factory=dict)
    """Axis -> value of the point it is taken from."""
    over: dict[str, object] | None = None
    """Axes that differ in the point it is divided by; the same figure unless `over_figure` is given."""
    over_figure: str | None = None
    """Another figure to divide by, of the point in `over` or of the same point."""
    between: Annotated[tuple[float, float], Field()]
    """Lowest and highest value."""
    said: str = ""
    """What it means, for the reader."""


class Claim(Block):
    """A statement with its source, and the figures that show it."""

    statement: str
    """What is claimed, in a sentence."""
    source: str
    """Who says so."""
    expect: Annotated[tuple[Expectation, ...], Field(min_length=1)]
