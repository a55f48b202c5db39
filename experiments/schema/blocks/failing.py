"""The `failures:` block of a deployment: which replicas fail when, and what is done about it."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from specfleet.experiments.schema.blocks.base import Block
from specfleet.experiments.schema.blocks.scaling import MOST_REPLICAS, Instant, PoolName, Retry

FailureKind: TypeAlias = Literal["dies", "hangs", "slow"]


class Failure(Block):
    """A replica that fails at a time that is known."""

    replica: Annotated[int, Field(ge=0, lt=MOST_REPLICAS)]
    """Which, by number from 0; with pools, within its own."""
    pool: PoolName | None = None
    """Of which pool, where there are several."""
    at_s: Instant
    """When, seconds from the start of the run."""
    for_s: Instant | None = None
    """Until it is back: from its death, from when it was found to hang, or how long it is slow. Left out: as
    long as `repair_s`, and without that for good."""
    kind: FailureKind | None = None
    """In place of the `kind` of all."""
    factor: Annotated[float, Field(gt=1, le=1e3)] | None = None
    """In place of the `factor` of all."""


class PoolFailures(Block):
    """How the replicas of one pool fail; what it does not say is as for all."""

    mtbf_s: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """In place of the `mtbf_s` of all; null: none of them fails but at known times."""
    repair_s: Instant | None = None
    """In place of the `repair_s` of all."""
    kind: FailureKind | None = None
    """In place of the `kind` of all."""
    factor: Annotated[float, Field(gt=1, le=1e3)] | None = None
    """In place of the `factor` of all."""


class Failures(Block):
    """Replicas that fail, and what is done about it."""

    at: tuple[Failure, ...] = ()
    """Failures at known times. One of a replica that is down, or slow, already does nothing."""
    mtbf_s: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """Mean time of each replica from its repair to its next failure, exponential, by a hash of seed and
    replica."""
    repair_s: Instant | None = None
    """What a repair takes; of one that is slow, how long."""
    kind: FailureKind = "dies"
    """`dies`: all inside is lost at once; `hangs`: it makes no progress until it is found and restarted;
    `slow`: its steps take longer."""
    factor: Annotated[float, Field(gt=1, le=1e3)] | None = None
    """How many times as long the steps of one that is slow take."""
    detect_s: Instant | None = None
    """Until health checks find a failure: requests go to a dead replica so long, and are refused there."""
    retry: Retry = Field(default_factory=Retry)
    """Requests that were lost, or refused by a dead replica."""
    pools: dict[PoolName, PoolFailures] | None = None
    """Pool -> how its replicas fail that is not as for all."""

    def of_pool(self, name: str) -> PoolFailures:
        """How the replicas of a pool fail, with what holds for all where it says nothing."""
        own = (self.pools or {}).get(name, PoolFailures())
        said = own.model_fields_set
        return PoolFailures(
            mtbf_s=own.mtbf_s if "mtbf_s" in said else self.mtbf_s,
            repair_s=self.repair_s if own.repair_s is None else own.repair_s,
            kind=own.kind or self.kind,
            factor=own.factor or self.factor,
        )
