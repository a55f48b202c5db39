"""How many replicas there are where that follows the load: of a deployment, and of a plan's day."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, StringConstraints

from specfleet.experiments.schema.blocks.base import Block

MOST_REPLICAS = 16_384
Replicas: TypeAlias = Annotated[int, Field(ge=1, le=MOST_REPLICAS)]
PoolName: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$")]
Seconds: TypeAlias = Annotated[float, Field(ge=0, le=86_400.0)]
Period: TypeAlias = Annotated[float, Field(ge=0.001, le=86_400.0)]
Instant: TypeAlias = Annotated[float, Field(ge=0, le=1e9)]
Target: TypeAlias = Annotated[float, Field(gt=0, le=3_600_000)]


class Scaling(Block):
    """Replicas that follow the load of a plan's day, as `deployment.autoscale`; what is left out the plan
    finds."""

    metric: Literal["concurrency", "queue", "kv_usage", "ttft", "slo_attainment"]
    """What is looked at. A replica's: requests that have not ended; requests that wait; share of KV blocks in
    use. Of requests that ended in the window: P90 of TTFT; share that met `slo`."""
    target: Target | None = None
    """Of it; of concurrency, if left out, 0.7 of the requests in flight at which a replica meets the SLO."""
    min: Replicas = 1
    """Replicas at least."""
    max: Replicas | None = None
    """Replicas at most; half as many again as the peak needs if left out."""
    start: Replicas | None = None
    """Replicas that are up at midnight; what the first hour needs if left out."""
    every_s: Period = 15.0
    """Between two decisions."""
    window_s: Period = 60.0
    """Over which is averaged what is looked at."""
    tolerance: Annotated[float, Field(ge=0, le=10)] = 0.1
    """Nothing is done while metric / target is so near to 1."""
    provision_s: Seconds
    """From an order until its GPUs are there; 0 where they stand idle."""
    load_s: Seconds | None = None
    """From there until the engine serves; left out, its weights at 1.1 GB/s a GPU, 4.3 at most, and 58 s."""
    up_most: Annotated[int, Field(ge=1, le=MOST_REPLICAS)] | None = None
    """Replicas added in a decision at most; null: as many as there are, and 4 at least."""
    down_after_s: Seconds = 300.0
    """A smaller number is taken once it has been wished for so long: the largest wish of that time."""


class Autoscale(Scaling):
    """How many replicas there are: as Kubernetes' HorizontalPodAutoscaler decides it. A replica that is let
    go finishes what it has; it is paid for from its order until then."""

    target: Target
    """Of it: requests, share, or milliseconds."""
    max: Replicas
    """Replicas at most, those that drain included: the GPUs that there are."""
    start: Replicas | None = None
    """Replicas that are up when the run begins; `min` if left out."""
