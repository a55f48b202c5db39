"""The `deployment:` block: how many replicas of what, and who gets a request."""

from __future__ import annotations

import math
from typing import Annotated, TypeAlias

from pydantic import Discriminator, Field, StringConstraints, Tag

from specfleet.experiments.schema.blocks.acceptance import Acceptance
from specfleet.experiments.schema.blocks.base import Block, Factor, Fraction
from specfleet.experiments.schema.blocks.own import RouterName

MOST_REPLICAS = 16_384
Replicas: TypeAlias = Annotated[int, Field(ge=1, le=MOST_REPLICAS)]
PoolName: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$")]


class Slow(Block):
    """Replicas that are slower than the others: their kernels take longer, their host does not."""

    factor: Factor
    """Their kernels take so many times as long; 1.5 is half as long again."""
    replicas: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] | None = None
    """Which, by number within the pool, from 0."""
    share: Fraction | None = None
    """Or which share of the pool: its last replicas, rounded up to a whole one."""

    def numbers(self, replicas: int) -> tuple[int, ...]:
        """The numbers of the stragglers among so many replicas."""
        if self.replicas is not None:
            return tuple(sorted(self.replicas))
        return tuple(range(replicas - math.ceil((self.share or 0.0) * replicas), replicas))


class ReplicaPool(Block):
    """Replicas of one kind. What it does not say is as at the top of the file."""

    replicas: Replicas = 1
    """Engines of this pool."""
    serve: dict[str, object] = Field(default_factory=dict)
    """Keys of `serve:`, each in place of the one at the top: gpu, tensor_parallel_size, engine,
    speculative_config (null: no drafter), draft_policy, ..."""
    acceptance: Acceptance | None = None
    """In place of the one at the top."""
    slow: tuple[Slow, ...] = ()
    """Stragglers."""


def _name_or_routing(value: object) -> str:
    """Which of its two forms a router has."""
    return "<mapping>" if isinstance(value, dict | Routing) else "<text>"


class Routing(Block):
    """How a request chooses its replica: the pools that it may go to, then a router among their replicas."""

    by_class: dict[str, PoolName] | None = None
    """Traffic class -> pool. Requests of other classes go to `otherwise`."""
    otherwise: PoolName | None = None
    """The pool of classes that `by_class` does not name."""
    then: RouterName = "round_robin"
    """Chooses among the replicas that a request may go to."""


Router: TypeAlias = Annotated[
    Annotated[RouterName, Tag("<text>")] | Annotated[Routing, Tag("<mapping>")],
    Discriminator(_name_or_routing),
]


class Deployment(Block):
    """How many engine replicas there are, of which kinds, and who gets a request."""

    replicas: Replicas = 1
    """Engines with the same `serve` settings."""
    router: Router = "round_robin"
    """How a request chooses its replica, by name, also of one of your own; or a mapping with rules between
    pools."""
    slow: tuple[Slow, ...] = ()
    """Stragglers among the replicas."""
    pools: Annotated[dict[PoolName, ReplicaPool], Field(min_length=1)] | None = None
    """Several kinds of replicas, by name, in place of `replicas`."""

    @property
    def routing(self) -> Routing:
        """The router as a mapping."""
        return self.router if isinstance(self.router, Routing) else Routing(then=self.router)
