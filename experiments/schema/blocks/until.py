"""The `run:` block: until when a run goes on where the file does not say how many requests it has."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from specfleet.experiments.schema.blocks.base import MOST, Block


def _share(value: object) -> object:
    """`2 %` is 0.02; what is no percentage passes as it is."""
    if not isinstance(value, str):
        return value
    number = value.strip().removesuffix("%")
    try:
        share = float(number) / 100.0
    except ValueError:
        share = -1.0
    if number == value.strip() or share < 0.0:
        raise PydanticCustomError("percentage", "must be a share such as 0.02, or 2 %")
    return share


Share: TypeAlias = Annotated[float, Field(ge=0.001, le=1), BeforeValidator(_share)]
"""A share, or a percentage as text."""


class HalfWidths(Block):
    """How well figures must be known: half-widths of their 95 % intervals, as a share of the figure."""

    mean: Share | None = 0.02
    """Of means; `2 %` and 0.02 are the same."""
    p50: Share | None = None
    """Of 50th percentiles."""
    p90: Share | None = None
    """Of 90th percentiles."""
    p95: Share | None = None
    """Of 95th percentiles."""
    p99: Share | None = 0.05
    """Of 99th percentiles."""


class Until(Block):
    """Until when a run goes on where `workload.num_prompts` is left out: until its answer is settled; and
    what is simulated besides."""

    precision: HalfWidths = HalfWidths()
    at_most: Annotated[int, Field(ge=1000, le=MOST)] = 50_000
    """Requests of the longest simulation; what is not settled then is said to be not settled."""
    bill: bool = False
    """Who pays for whom: each point again without the drafts of each traffic class, on the same requests and
    luck; P99 of every class with and without them."""
