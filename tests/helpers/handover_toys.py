"""Small disaggregated worlds: prefill and decode replicas whose steps have toy prices."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from hypothesis import strategies as st
from sim_toys import ENGINE, SplitCost, ToyCost, World, worlds

from specfleet.sim.config import NO_CLIENT, ClientConfig, DeploymentConfig, EngineConfig, LoadConfig
from specfleet.sim.disaggregation.config import AFTER, CHUNKS, DECODE, LAYERS, PREFILL, HandoverConfig
from specfleet.sim.scenario import ReplicaPool, RunResult, Scenario
from specfleet.sim.simulation import simulate
from specfleet.sim.speculation.acceptance import AcceptanceSpec
from specfleet.sim.speculation.policy import PolicySpec
from specfleet.workloads.requests import RequestTable


@dataclass(frozen=True)
class Split:
    """Requests in front of `prefills` and `decodes` toy replicas; their links move `bytes_per_s`."""

    prompt: list[int]
    output: list[int]
    arrival_s: list[float] | None = None
    prefills: int = 1
    decodes: int = 1
    handover: HandoverConfig = field(default_factory=HandoverConfig)
    bytes_per_s: float = inf
    engine: EngineConfig = ENGINE
    prefill_engine: EngineConfig | None = None
    cost: Any = field(default_factory=ToyCost)
    acceptance: AcceptanceSpec | None = None
    client: ClientConfig = NO_CLIENT
    load: LoadConfig = field(default_factory=LoadConfig)
    router: str = "round_robin"
    policy: PolicySpec | None = None

    @property
    def table(self) -> RequestTable:
        """The requests; all at time 0 if nothing else is said."""
        arrival_s = self.arrival_s or [0.0] * len(self.prompt)
        return RequestTable.of(self.prompt, self.output, arrival_s=arrival_s)

    @property
    def scenario(self) -> Scenario:
        """The configuration."""
        split, total = self.prefills, self.prefills + self.decodes
        luck = {"": self.acceptance} if self.acceptance else {}
        one = ReplicaPool(
            "prefill", self.prefill_engine or self.engine, self.cost, tuple(range(split)), luck, role=PREFILL
        )
        members = tuple(range(split, total))
        other = ReplicaPool("decode", self.engine, self.cost, members, luck, self.policy, role=DECODE)
        pools = [replace(pool, bytes_per_s=self.bytes_per_s) for pool in (one, other)]
        deployment = DeploymentConfig(total, self.router, handover=self.handover)
        return Scenario.of_pools(pools, deployment, self.client, self.load)

    def run(self, seed: int = 0) -> RunResult:
        """Simulates it, its laws checked after every turn."""
        return simulate(self.scenario, self.table, seed, every_turn=True)


HANDOVERS = st.builds(
    HandoverConfig,
    overlap=st.sampled_from([AFTER, CHUNKS, LAYERS]),
    router=st.sampled_from(["round_robin", "least_outstanding", "power_of_two", "least_tokens"]),
    proxy_s=st.sampled_from([0.0, 0.01]),
    setup_s=st.sampled_from([0.0, 0.003]),
    block_bytes=st.integers(1, 100),
    token_bytes=st.sampled_from([0, 3]),
    layers=st.sampled_from([1, 4]),
)
QUEUE = PolicySpec("disable_above_queue", {"queue": 1})
POLICIES = st.sampled_from(
    [
        None,
        None,
        PolicySpec("batch_size", {"schedule": [(1, 2, 1), (3, 64, 0)]}),
        QUEUE,
        PolicySpec("goodput", {}),
    ]
)


@st.composite
def splits(draw: st.DrawFn) -> Split:
    """A world before replicas with roles: links slow or endless, pools of KV short or ample, any price."""
    world: World = draw(worlds())
    wide = draw(st.booleans())
    engine = replace(
        world.engine,
        policy="fcfs",
        rebuilds_drafter_kv=bool(world.engine.num_speculative_tokens) and draw(st.booleans()),
        watermark=draw(st.sampled_from([0.0, 0.2])),
        max_num_batched_tokens=4096 if wide else world.engine.max_num_batched_tokens,
        enable_prefix_caching=draw(st.booleans()),
    )
    handover = draw(HANDOVERS)
    return Split(
        [*world.prompt],
        [*world.output],
        [*(world.arrival_s or ())],
        draw(st.integers(1, 3)),
        draw(st.integers(1, 3)),
        handover,
        draw(st.sampled_from([300.0, 3e4, inf])),
        engine,
        replace(engine, rebuilds_drafter_kv=False),
        cost=SplitCost() if engine.rebuilds_drafter_kv else world.cost,
        acceptance=world.acceptance,
        client=world.client,
        load=world.load,
        router=draw(st.sampled_from(["round_robin", "least_outstanding", "least_kv"])),
        policy=draw(POLICIES) if world.engine.num_speculative_tokens else None,
    )
