"""The cluster where prompts are computed on some replicas and decoded on others.

A request is two stays. The prefill replica computes its prompt and samples one token, which is thrown away,
and keeps its KV until that is taken. The decode replica gets the same request, waits for blocks and for the
KV, computes the last token of the prompt again, and answers. So do vLLM's proxies: they send the request with
`max_tokens` 1 to the one, and then as it was to the other (`examples/online_serving/disaggregated_serving`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specfleet.sim.clients import Answer
from specfleet.sim.cluster import Cluster, made_router
from specfleet.sim.disaggregation.config import AFTER, DECODE, PREFILL
from specfleet.sim.disaggregation.lanes import RemoteServer, RoleLanes
from specfleet.sim.disaggregation.servers import PromptPiece, RoleEngines, RoleServer
from specfleet.sim.disaggregation.transfers import Transfers
from specfleet.sim.replica import Replica
from specfleet.sim.router import Router
from specfleet.sim.rules import SchedulerRules
from specfleet.sim.scenario import Scenario
from specfleet.workloads.requests import RequestTable

Part = RoleEngines | RoleLanes
"""What the replicas of a pool run: engines that are stepped, or lanes of the calendar."""


def members_with(scenario: Scenario, role: str) -> list[int]:
    """Returns the replicas with a role, by number."""
    return sorted(member for pool in scenario.pools if pool.role == role for member in pool.members)


class HandingServers:
    """What the replicas of both roles run.

    Args:
        scenario: of the cluster.
        parts: the engines or lanes of each of its pools.

    Attributes:
        servers: of every replica, in order of their numbers.
        arrived_s: when each request has reached the cluster.
        replica_of: the replica that decodes each request; -1 of those that went nowhere.
        refusals: reasons for which requests were refused, with counts.
    """

    def __init__(self, scenario: Scenario, parts: Sequence[Part], requests: int) -> None:
        self.parts = parts
        self._decodes = [pool.role == DECODE for pool in scenario.pools]
        self._where: dict[int, tuple[int, int]] = {}
        for index, pool in enumerate(scenario.pools):
            self._where |= {member: (index, local) for local, member in enumerate(pool.members)}
        self.servers: list[RoleServer | RemoteServer] = [
            parts[index].servers[local] for _, (index, local) in sorted(self._where.items())
        ]
        self.arrived_s = np.full(requests, np.nan)
        self.replica_of = np.full(requests, -1)
        self.refusals: dict[str, int] = {}

    def accepts(self, row: int, now: float) -> bool:
        """Whether both roles can serve a request that arrives at `now`; notes why not."""
        self.arrived_s[row] = now
        reason = next((said for part in self.parts if (said := part.refusal(row)) is not None), None)
        if reason is not None:
            for part in self.parts:
                part.send_away(row)
            self.refusals[reason] = self.refusals.get(reason, 0) + 1
        return reason is None

    def assign(self, row: int, replica: int) -> None:
        """Notes which replica a request goes to."""
        index, local = self._where[replica]
        self.parts[index].assign(row, local)
        if self._decodes[index]:
            self.replica_of[row] = replica


class HandingCluster(Cluster):
    """Client, two routers, and the replicas of both roles on one clock.

    Args:
        scenario: whose pools have roles.
        table: the requests.
        seed: of random routing.
        servers: what the replicas run.

    Attributes:
        transfers: what becomes of KV.
    """

    def __init__(self, scenario: Scenario, table: RequestTable, seed: int, servers: HandingServers) -> None:
        super().__init__(scenario, table, seed, servers, made_router(scenario, table, seed))
        config = scenario.deployment.handover
        assert config is not None
        self._engines = servers.servers
        self._after, self._proxy_s = config.overlap == AFTER, config.proxy_s
        self._to, self._from = members_with(scenario, DECODE), members_with(scenario, PREFILL)
        self._decode_router: Router = made_router(scenario, table, seed, config.router)
        self._at_prefill: dict[int, int] = {}
        first = next(pool for pool in scenario.pools if pool.role == PREFILL)
        links = [0.0] * len(self.replicas)
        for pool in scenario.pools:
            for member in pool.members:
                links[member] = pool.bytes_per_s
        rules = SchedulerRules.of(first.engine)
        self.transfers = Transfers(config, rules, table.prompt_tokens, self.env, links, self._moved)
        for server in self._engines:
            server.told = self

    def pick(self, row: int) -> int:
        """As `Cluster.pick`, among those that compute prompts."""
        return self._from[self.router.pick(row, [self.views[replica] for replica in self._from])]

    def send(self, row: int, replica: int, now: float) -> None:
        """As `Cluster.send`, to a replica that computes prompts."""
        self._at_prefill[row] = replica
        self.transfers.begin(row, replica)
        self._submit(row, replica, now)
        if not self._after:
            self._hand(row, now)

    def _submit(self, row: int, replica: int, now: float) -> None:
        self.servers.assign(row, replica)
        self.views[replica].sent(self._tokens[row], now)
        self.replicas[replica].submit(row, now)

    def _hand(self, row: int, now: float) -> None:
        """A request goes to a replica that decodes."""
        self.clock.now = now
        views = [self.views[replica] for replica in self._to]
        self._where[row] = replica = self._to[self._decode_router.pick(row, views)]
        self.transfers.handed(row, now)
        self._submit(row, replica, now)

    def answered(self, answer: Answer) -> None:
        """A request has ended at a replica: its prompt is computed, or it is over."""
        row, now = answer.row, answer.finished_s
        if row not in self._at_prefill:
            super().answered(answer)
            return
        self.views[self._at_prefill[row]].ended(self._tokens[row], now)
        self.transfers.prefilled(row, now)
        if self._after:
            self.env.at(now + self._proxy_s, lambda then: self._hand(row, then))

    def made(self, piece: PromptPiece) -> None:
        """A step has begun that computes a piece of a prompt."""
        self.transfers.made(piece)

    def opened(self, row: int, now: float) -> None:
        """The decode replica of a request has blocks for its KV."""
        self.transfers.opened(row, self._where[row], now)

    def given_up(self, row: int) -> None:
        """The decode replica of a request has given its KV up."""
        self.transfers.columns["kv_given_up"][row] += 1

    def _moved(self, row: int, now: float) -> None:
        """The KV of a request is there: the one replica is free of it, the other may go on."""
        source, target = self._at_prefill.pop(row), self._where[row]
        computed = self._engines[source]
        assert isinstance(computed, RoleServer), "prompts are computed by stepping"
        computed.release(row)
        self._engines[target].arrived(row)
        for number in (source, target):
            replica = self.replicas[number]
            assert isinstance(replica, Replica)
            if self._engines[number].busy:
                replica.wake(now)
