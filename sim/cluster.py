"""Client, router and replicas: who is sent when, and which replica gets it.

There is one driver, `Cluster`, over two kinds of replicas (`stepped.Engines`, `calendar.lanes.Lanes`). Where
requests come whatever happens, client and router need no clock: `OpenArrivals` says the same for many of them
at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from specfleet.sim.clients import Answer, Client, Sends
from specfleet.sim.environment import Environment
from specfleet.sim.fleet.views import DeskClock, View
from specfleet.sim.lockstep import Rank, ranks_of
from specfleet.sim.replica import Replica, Server
from specfleet.sim.router import ROUTERS, Blind, Router, Told
from specfleet.sim.scenario import Scenario
from specfleet.sim.stepped import EngineServer
from specfleet.workloads.requests import RequestTable

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


class Servers(Protocol):
    """What all replicas run: one kind of server, and what they share."""

    @property
    def servers(self) -> Sequence[Server]:
        """A server a replica."""
        ...

    def accepts(self, row: int, now: float) -> bool:
        """Whether a request that arrives at `now` can be served; notes why not."""
        ...

    def assign(self, row: int, replica: int) -> None:
        """Notes which replica a request goes to."""
        ...


class Cluster:
    """Client, router and replicas on one clock.

    Args:
        scenario: the configuration.
        table: the requests.
        seed: of random routing.
        servers: what the replicas run.
        router: chooses among them; None is made as the deployment says.

    Attributes:
        views: of every replica, as the router sees it.
        gateway: holds requests before the router; None where nothing does.
        scaler: decides which replicas are up; None where all are.
    """

    def __init__(
        self,
        scenario: Scenario,
        table: RequestTable,
        seed: int,
        servers: Servers,
        router: Router | None = None,
    ) -> None:
        self.env = Environment()
        self.servers = servers
        self.router: Router = router or made_router(scenario, table, seed)
        self.client = Client(self.env, table, scenario.client, scenario.load, self._arrive)
        self.replicas = self._replicas(scenario)
        self.clock = DeskClock()
        refresh_s = scenario.deployment.refresh_s
        self.views = [View(self.clock, refresh_s, _kv_usage(server)) for server in servers.servers]
        self._tokens = table.prompt_tokens.tolist()
        self._where: dict[int, int] = {}
        self.gateway: Gatekeeper | None = None
        self.scaler: Scaler | None = None

    def _replicas(self, scenario: Scenario) -> Sequence[Replica | Rank]:
        """A replica a server, or the ranks of groups that step together; in order of their numbers."""
        servers, every = self.servers.servers, range(scenario.deployment.replicas)
        kinds = [(pool.members, pool.cost, pool.lockstep) for pool in scenario.pools]
        kinds = kinds or [(tuple(every), scenario.cost, scenario.deployment.lockstep)]
        replicas: dict[int, Replica | Rank] = {}
        for members, cost, lockstep in kinds:
            mine = [servers[member] for member in members]
            found: Sequence[Replica | Rank]
            if lockstep == 1:
                found = [Replica(self.env, server, self._answered) for server in mine]
            else:
                engines = [server for server in mine if isinstance(server, EngineServer)]
                found = ranks_of(self.env, engines, cost, lockstep, self._answered)
            replicas |= zip(members, found, strict=True)
        return [replicas[number] for number in every]

    def _arrive(self, row: int, now: float) -> None:
        """A request has reached the cluster: it is refused, goes to a replica, or to the gateway."""
        if not self.servers.accepts(row, now):
            self.refused(row, now)
            return
        self.clock.now = now
        if self.scaler is not None:
            self.scaler.arrived(row, now)
        if self.gateway is not None:
            self.gateway.arrive(row, now)
        else:
            self.send(row, self.router.pick(row, self.views), now)

    def send(self, row: int, replica: int, now: float) -> None:
        """Hands a request to a replica at `now`."""
        if self.gateway is not None:
            self.servers.accepts(row, now)  # it arrives there when it is let in
        self.servers.assign(row, replica)
        self._where[row] = replica
        self.views[replica].sent(self._tokens[row], now)
        self.replicas[replica].submit(row, now)

    def refused(self, row: int, now: float) -> None:
        """A request has ended before it reached a replica: client and autoscaler learn of it."""
        self.client.refused(row, now)
        if self.scaler is not None:
            self.scaler.refused(row, now)

    def _answered(self, answer: Answer) -> None:
        """A request has ended: client, router, gateway and autoscaler learn of it."""
        row = answer.row
        replica = self._where.pop(row)
        self.views[replica].ended(self._tokens[row], answer.finished_s)
        self.client.answered(answer)
        if self.gateway is not None:
            self.gateway.answered(answer)
        if self.scaler is not None:
            self.scaler.answered(answer, replica)

    def run(self) -> None:
        """Runs until nothing is due any more."""
        self.env.run()


class Gatekeeper(Protocol):
    """What may stand before the router (`sim.fleet.gateway`)."""

    def arrive(self, row: int, now: float) -> None:
        """Takes a request that may be served: sends it on, holds it, or turns it away."""
        ...

    def answered(self, answer: Answer) -> None:
        """Learns of an end."""
        ...


class Scaler(Protocol):
    """What may decide which replicas are up (`sim.fleet.autoscaler`)."""

    def arrived(self, row: int, now: float) -> None:
        """Learns of a request that has reached the cluster."""
        ...

    def refused(self, row: int, now: float) -> None:
        """Learns of one that has ended before it reached a replica."""
        ...

    def answered(self, answer: Answer, replica: int) -> None:
        """Learns of an end at a replica."""
        ...


def made_router(scenario: Scenario, table: RequestTable, seed: int) -> Router:
    """Returns the router that a deployment names, told what it wants to know of requests."""
    made: Router = ROUTERS[scenario.deployment.router](seed)
    if isinstance(made, Told):
        made.told(table)
    return made


def _kv_usage(server: Server) -> Callable[[], float] | None:
    """Returns what asks an engine for its share of KV blocks in use; None of one that does not show it."""
    return server.kv_usage if isinstance(server, EngineServer) else None


class OpenArrivals:
    """Client and router of requests that come whatever happens, asked for successive requests.

    Args:
        scenario: the configuration.
        seed: of random routing.
    """

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.router: Router = ROUTERS[scenario.deployment.router](seed)
        self._replicas = scenario.deployment.replicas
        self._sends = Sends(scenario.client.send_serial_s)
        self._send_s = scenario.client.send_s

    def times(self, arrival_s: F64) -> tuple[F64, F64]:
        """Returns when the client sends each request, and when it reaches the cluster."""
        sent_s = self._sends.all(arrival_s)
        return sent_s, sent_s + self._send_s if self._send_s else sent_s

    def replicas(self, rows: I64) -> I64:
        """Returns the replica of each request that is served: the router asks nobody."""
        if self._replicas == 1:
            return np.zeros(len(rows), dtype=np.int64)
        assert isinstance(self.router, Blind)
        return self.router.picks(rows, self._replicas)
