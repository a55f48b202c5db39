"""Distributions of lengths in tokens, as `workload.input` and its like say them."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from specfleet.experiments.schema.blocks.base import Block, Tokens, fixed_number


class Uniform(Block):
    """Lengths spread evenly."""

    low: Tokens
    """Tokens, the least."""
    high: Tokens
    """Tokens, the most, itself included."""


class LogNormal(Block):
    """Lengths whose logarithm is normal, cut at both ends."""

    mu: Annotated[float, Field(ge=-50, le=50)]
    """Mean of the natural logarithm of the tokens."""
    sigma: Annotated[float, Field(gt=0, le=50)]
    """Standard deviation of the same."""
    min: Tokens = 1
    """Tokens, the least."""
    max: Tokens
    """Tokens, the most."""


class Lengths(Block):
    """A distribution of lengths in tokens: exactly one of the four; a number alone is `fixed`."""

    fixed: Tokens | None = None
    """All alike."""
    uniform: Uniform | None = None
    lognormal: LogNormal | None = None
    quantiles: Annotated[tuple[tuple[float, Tokens], ...], Field(min_length=2)] | None = None
    """[percentile, tokens] pairs from percentile 0 to 100, linear in between."""

    _number = model_validator(mode="before")(fixed_number)

    @property
    def maximum(self) -> int | None:
        """The longest length that can come up, tokens; None while no distribution is given."""
        if self.fixed is not None:
            return self.fixed
        if self.uniform is not None:
            return self.uniform.high
        if self.lognormal is not None:
            return self.lognormal.max
        return self.quantiles[-1][1] if self.quantiles else None
