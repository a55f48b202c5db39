"""The `deployment:` block: how many replicas of what, and who gets a request."""

from __future__ import annotations

import math
from typing import Annotated, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag

from specfleet.experiments.schema.blocks.acceptance import Acceptance
from specfleet.experiments.schema.blocks.base import Block, CountOrNone, Factor, Fraction, Milliseconds
from specfleet.experiments.schema.blocks.failing import Failures
from specfleet.experiments.schema.blocks.own import RouterName
from specfleet.experiments.schema.blocks.scaling import MOST_REPLICAS, Autoscale, PoolName, Replicas, Spot


class Slow(Block):
    """Replicas that are slower than the others: their kernels take longer, their host does not."""

    factor: Factor
    """Their kernels take so many times as long; 1.5 is half as long again."""
    replicas: (
        Annotated[tuple[Annotated[int, Field(ge=0, lt=MOST_REPLICAS)], ...], Field(min_length=1)] | None
    ) = None
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
    autoscale: Autoscale | None = None
    """How many of them there are as the load changes, in place of `replicas`."""
    spot: Spot | None = None
    """Those that are on spot instances."""
    role: Literal["prefill", "decode"] | None = None
    """What it does of every request: `prefill` computes the prompt, `decode` the answer from its KV
    (`kv_transfer`). Left out: all of it."""


def _name_or_routing(value: object) -> str:
    """Which of its two forms a router has."""
    return "<mapping>" if isinstance(value, dict | Routing) else "<text>"


class ByAcceptance(Block):
    """Which traffic classes go to the pool that drafts: by the mean that `acceptance` states, not by luck."""

    to: PoolName
    """The pool that drafts."""
    at_least: Annotated[float, Field(ge=1.0, le=1000.0)]
    """Acceptance length, tokens a round at the pool's own K, from which on a class goes there; others go to
    `otherwise`."""


class Spill(Block):
    """When requests go past their pool."""

    above: Annotated[float, Field(ge=0.0, le=1e6)]
    """From so many requests outstanding a replica of the pool on, as the router sees them."""
    to: PoolName
    """The pool that they go to."""


class Routing(Block):
    """How a request chooses its replica: the pools that it may go to, then a router among their replicas."""

    by_class: dict[str, PoolName] | None = None
    """Traffic class -> pool. Requests of other classes go to `otherwise`."""
    otherwise: PoolName | None = None
    """The pool of classes that `by_class` does not name."""
    by_acceptance: ByAcceptance | None = None
    """In place of `by_class`: classes of which a drafter is expected to have enough accepted go to it."""
    spill: dict[PoolName, Spill] | None = None
    """Pool -> when its requests go past it to another: drafting switched by load."""
    then: RouterName = "round_robin"
    """Chooses among the replicas that a request may go to."""
    refresh_ms: Milliseconds = 0.0
    """How old what it sees of replicas may be: counts are those of the last multiple of this; 0 is now."""


Router: TypeAlias = Annotated[
    Annotated[RouterName, Tag("<text>")] | Annotated[Routing, Tag("<mapping>")],
    Discriminator(_name_or_routing),
]


class Gateway(Block):
    """What stands before the router: it holds requests, turns them away, and lets clients send again."""

    max_outstanding: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Requests outstanding at a replica at most; the others are held, by priority and then in turn."""
    queue: CountOrNone | None = None
    """Requests held at most; who comes then is turned away. Null: any number."""
    timeout_ms: Annotated[float, Field(gt=0, le=3_600_000)] | None = None
    """Who is held so long is given up; null: never."""
    admit_ttft_ms: Annotated[float, Field(gt=0, le=3_600_000)] | None = None
    """Who is predicted to wait longer for its first token is turned away; null: nobody."""
    retries: Annotated[int, Field(ge=0, le=100)] = 0
    """How often a client sends again what was turned away or given up."""
    backoff_ms: Milliseconds = 1000.0
    """Before the first time; twice as long before each further one."""


class KvTransfer(Block):
    """How the KV of a prompt goes from the pool with `role: prefill` to the one with `role: decode`."""

    overlap: Literal["after", "chunks", "layers"] = "after"
    """When it is sent: `after` the prompt is computed (vLLM's NixlConnector: the decode side pulls); in
    `chunks`, each when its step has ended (SGLang, Mooncake); in `layers`, while later ones are computed
    (vLLM's P2pNcclConnector)."""
    gb_per_s: Annotated[float, Field(gt=0, le=1e5)] = 45.0
    """Of a GPU's link, either way, 1e9 bytes/s: 45 is what DeepEP measured of a 400 Gb/s network card; over
    NVLink it measured 150 on an H800."""
    setup_ms: Milliseconds = 1.0
    """From when the decode replica has room until the first byte moves (assumed)."""
    proxy_ms: Milliseconds | None = None
    """With `overlap: after`, from the end of a prompt until the decode replica has the request: an HTTP
    answer and a request (assumed: 5)."""
    router: RouterName = "least_outstanding"
    """Chooses the decode replica; `deployment.router` chooses that of the prompt."""
    drafter_kv: Literal["moved", "rebuilt", "skipped"] = "moved"
    """What becomes of the drafter's KV of a prompt: computed beside it and `moved`; `rebuilt` by a pass of
    the drafter over the prompt on the decode side, from hidden states that are sent along where it reads
    them; or `skipped`: no drafts in the first rounds."""
    first_rounds: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """With `drafter_kv: skipped`, rounds without drafts. What drafts are worth after them without the
    prompt's KV is not known: `acceptance` says it."""


class Deployment(Block):
    """How many engine replicas there are, of which kinds, and who gets a request."""

    replicas: Replicas = 1
    """Engines with the same `serve` settings."""
    router: Router = "round_robin"
    """How a request chooses its replica, by name, also of one of your own; or a mapping with rules between
    pools."""
    slow: tuple[Slow, ...] = ()
    """Stragglers among the replicas."""
    gateway: Gateway | None = None
    """Before the router; left out, every request goes to a replica when it comes."""
    failures: Failures | None = None
    """Replicas that die, hang or are slow for a while; left out, none does."""
    pools: Annotated[dict[PoolName, ReplicaPool], Field(min_length=1)] | None = None
    """Several kinds of replicas, by name, in place of `replicas`."""
    kv_transfer: KvTransfer | None = None
    """Between pools with roles; left out, what it says if nothing else is said."""
    autoscale: Autoscale | None = None
    """How many replicas there are as the load changes, in place of `replicas`."""
    spot: Spot | None = None
    """Replicas on spot instances."""

    @property
    def most_replicas(self) -> int:
        """Replicas that there are, or that there may be at most; one on spot may drain beside another that
        serves in its place."""
        most = self.replicas if self.autoscale is None else self.autoscale.max
        if self.spot is None or not self.spot.notice_s:
            return most
        return most + max(most - self.spot.on_demand, 0)

    def pool_with(self, role: str) -> str | None:
        """The first pool with a role, by name."""
        return next((name for name, pool in (self.pools or {}).items() if pool.role == role), None)

    @property
    def routing(self) -> Routing:
        """The router as a mapping."""
        return self.router if isinstance(self.router, Routing) else Routing(then=self.router)
