"""Small disaggregated worlds: prefill and decode replicas whose steps have toy prices."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from sim_toys import ENGINE, ToyCost

from specfleet.sim.config import NO_CLIENT, ClientConfig, DeploymentConfig, EngineConfig, LoadConfig
from specfleet.sim.disaggregation.config import DECODE, PREFILL, HandoverConfig
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
