"""Replicas that come and go: with the load, of a deployment or a plan's day, and on spot instances."""

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


class Retry(Block):
    """What becomes of requests whose replica failed."""

    most: Annotated[int, Field(ge=0, le=100)] = 1
    """How often a request is sent anew before it fails (Envoy's `num_retries`: 1)."""
    backoff_s: Instant = 0.025
    """Before the first time; twice as long before each further one, up to ten times (Envoy's base interval:
    25 ms)."""
    keep_partial: bool = False
    """Tokens that were written are kept, and computed again as part of the prompt; else it begins anew."""


class SpotLoss(Block):
    """Spot instances that are taken at a time that is known."""

    at_s: Instant
    """When the notice comes, seconds from the start of the run."""
    replicas: Replicas = 1
    """How many: of those on spot that are there, the first by number."""
    unavailable_s: Instant | None = None
    """In place of the `unavailable_s` of all."""


class Spot(Block):
    """Replicas on spot instances: cheaper, and taken away after a notice. One that is taken gets no more
    requests from the notice on, and is replaced; what it has not finished when it is taken is sent anew."""

    price_factor: Annotated[float, Field(gt=0, le=1)] | None = None
    """Price of a GPU's hour, of what it costs on demand; or `usd_per_gpu_hour`."""
    usd_per_gpu_hour: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Price of a GPU's hour, dollars."""
    on_demand: Annotated[int, Field(ge=0, le=MOST_REPLICAS)] = 0
    """The first so many replicas are not on spot, and are never taken."""
    mtti_s: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """Mean time from when an instance is there to its notice, exponential, by a hash of seed and replica."""
    at: tuple[SpotLoss, ...] = ()
    """Instances that are taken at known times."""
    notice_s: Seconds
    """From the notice until the instance is taken: 120 on AWS, 30 on Google Cloud, at least 30 on Azure."""
    unavailable_s: Instant = 0.0
    """So long after a notice by chance no other instance is to be had."""
    provision_s: Seconds | None = None
    """From an order until another instance is there; with `autoscale` that says it."""
    load_s: Seconds | None = None
    """From there until the engine serves, as in `autoscale`."""
    retry: Retry | None = None
    """What becomes of requests that were not done; left out, as of `failures`."""
