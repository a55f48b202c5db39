"""Client, router and replicas: who is sent when, and which replica gets it.

There is one driver, `Cluster`, over two kinds of replicas (`stepped.Engines`, `calendar.lanes.Lanes`). Where
requests come whatever happens, client and router need no clock: `OpenArrivals` says the same for many of them
at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import inf
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from specfleet.sim.clients import Answer, Client, Sends
from specfleet.sim.environment import Environment, WatchedEnvironment
from specfleet.sim.fleet.beside import Abortable, AbortableServers, FallibleServers, Gatekeeper, Scaler
from specfleet.sim.fleet.failures import Breakdowns
from specfleet.sim.fleet.patience import Limits
from specfleet.sim.fleet.views import DeskClock, View
from specfleet.sim.lockstep import Rank, ranks_of
from specfleet.sim.replica import Replica, Server
from specfleet.sim.router import ROUTERS, Blind, Router, Told
from specfleet.sim.scenario import Outage, Scenario
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
        router: chooses among them, and knows itself who is down; None is made as the deployment says.

    Attributes:
        closed: connections by request that the client has closed, which nobody else knows yet.
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
        failures, replicas = scenario.deployment.failures, scenario.deployment.replicas
        self.env = Environment() if failures is None else WatchedEnvironment()
        self.servers = servers
        self.router: Router = router or made_router(scenario, table, seed)
        self._filters = router is None
        limits = Limits(scenario.load.patience, table, seed) if scenario.load.patience else None
        behind = None if limits is None else (self, limits)
        self.client = Client(self.env, table, scenario.client, scenario.load, self._arrive, behind)
        self.replicas = self._replicas(scenario)
        self.clock = DeskClock()
        refresh_s = scenario.deployment.refresh_s
        self.views = [View(self.clock, refresh_s, _kv_usage(server)) for server in servers.servers]
        self._tokens = table.prompt_tokens.tolist()
        self._where: dict[int, int] = {}
        self.closed: Counter[int] = Counter()
        self.gateway: Gatekeeper | None = None
        self.scaler: Scaler | None = None
        self._abortable: dict[int, Abortable] = {}
        for number, server in enumerate(servers.servers):
            if isinstance(server, Abortable):  # asked once: it takes a tenth of a millisecond
                server.number = number
                self._abortable[number] = server
        self.failures: Breakdowns | None = None
        if failures is not None:
            spot = {n: pool.spot for pool in scenario.pools if pool.spot is not None for n in pool.members}
            self.failures = Breakdowns(failures, replicas, seed, FailingCluster(self), spot)

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
                found = [Replica(self.env, server, self.answered) for server in mine]
            else:
                engines = [server for server in mine if isinstance(server, EngineServer)]
                found = ranks_of(self.env, engines, cost, lockstep, self.answered)
            replicas |= zip(members, found, strict=True)
        return [replicas[number] for number in every]

    def _arrive(self, row: int, now: float) -> None:
        """A request has reached the cluster: it is refused, goes to a replica, or to the gateway."""
        if not self.servers.accepts(row, now):
            self.refused(row, now)
            return
        self.enter(row, now)

    def enter(self, row: int, now: float) -> None:
        """Lets a request go to a replica, or to the gateway."""
        self.clock.now = now
        if self.scaler is not None:
            self.scaler.arrived(row, now)
        if self.gateway is not None:
            self.gateway.arrive(row, now)
        else:
            self.send(row, self.pick(row), now)

    def pick(self, row: int) -> int:
        """Returns the replica that the router chooses, of those that it does not know to be down."""
        if self.failures is None or not self.failures.out or not self._filters:
            return self.router.pick(row, self.views)
        up = self.failures.up(range(len(self.views)))
        return up[self.router.pick(row, [self.views[replica] for replica in up])]

    def send(self, row: int, replica: int, now: float) -> None:
        """Hands a request to a replica at `now`."""
        if self.failures is not None and not self.failures.takes(replica):
            assert isinstance(self.servers, FallibleServers)
            self.servers.refused(row, replica, now)
            if self.scaler is not None:
                self.scaler.taken_back(row, replica, now)
            self.failures.lost(row, replica, now)
            return
        if self.gateway is not None:
            self.servers.accepts(row, now)  # it arrives there when it is let in
        self.servers.assign(row, replica)
        self._where[row] = replica
        self.views[replica].sent(self._tokens[row], now)
        if self.scaler is not None:
            self.scaler.sent(row, replica, now)
        self.replicas[replica].submit(row, now)

    def refused(self, row: int, now: float) -> None:
        """A request has ended before it reached a replica: client and autoscaler learn of it."""
        self.client.refused(row, now)
        if self.scaler is not None:
            self.scaler.refused(row, now)

    def answered(self, answer: Answer) -> None:
        """A request has ended: client, router, gateway and autoscaler learn of it."""
        row = answer.row
        if answer.left is not None:
            self._left(row, answer.left, answer.finished_s)
            return
        replica = self._where.pop(row)
        self.views[replica].ended(self._tokens[row], answer.finished_s)
        if not self.closed[row]:
            self.client.answered(answer)
        if self.failures is not None:
            self.failures.ended(row, answer.finished_s)
        if self.gateway is not None:
            self.gateway.answered(answer)
        if self.scaler is not None:
            self.scaler.answered(answer, replica)

    def first_chunk_s(self, row: int) -> float:
        """As `Givable`."""
        replica = self._where.get(row)
        if replica is None:
            return inf
        found = self._abortable[replica].first_token(row)
        return inf if found is None else self.client.chunk_s(*found)

    def close(self, row: int) -> None:
        """As `Givable`."""
        self.closed[row] += 1

    def abort(self, row: int, now: float, again: bool) -> None:
        """As `Givable`: a request leaves wherever it stands, an engine at its next turn."""
        self.closed[row] -= 1
        servers, replica = self.servers, self._where.pop(row, None)
        assert isinstance(servers, AbortableServers)
        if replica is not None:
            self._abortable[replica].abort(row, again)
            if self.gateway is not None:
                self.gateway.given_up(row)
        elif self.gateway is not None and self.gateway.withdraw(row, now, None if again else self._why(row)):
            if not again:
                return  # it has ended there
        elif self.failures is not None and self.failures.withdraw(row):
            servers.withdrawn(row, self._why(row))
        elif again:
            servers.begins_anew(row)
        else:
            return
        if again:
            servers.goes_again(row)
        if self.failures is not None:
            self.failures.ended(row, now)
        if self.scaler is not None:
            self.scaler.given_up(row, now, again)

    def _why(self, row: int) -> str:
        assert self.client.patience is not None
        return self.client.patience.why[row]

    def _left(self, row: int, replica: int, now: float) -> None:
        """A replica has let a request go that was given up."""
        self.views[replica].ended(self._tokens[row], now)
        if self.gateway is not None:
            self.gateway.freed(now)
        if self.scaler is not None:
            self.scaler.freed(replica, now)

    def taken_back(self, row: int, now: float) -> None:
        """A replica has lost a request: view, gateway and autoscaler learn of it."""
        assert isinstance(self.servers, FallibleServers)
        self.servers.taken_back(row)
        replica = self._where.pop(row)
        self.views[replica].ended(self._tokens[row], now)
        if self.gateway is not None:
            self.gateway.taken_back(row, now)
        if self.scaler is not None:
            self.scaler.taken_back(row, replica, now)

    def outages(self) -> tuple[Outage, ...]:
        """Returns the failures of replicas that happened."""
        return () if self.failures is None else self.failures.outages()

    def run(self) -> None:
        """Runs until nothing is due any more."""
        self.env.run()


class FailingCluster:
    """A cluster, as failures of its replicas see it.

    Args:
        cluster: whose replicas fail; its engines are stepped.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.env = cluster.env

    def _engine(self, replica: int) -> EngineServer:
        server = self._cluster.servers.servers[replica]
        assert isinstance(server, EngineServer)
        return server

    def _replica(self, replica: int) -> Replica:
        found = self._cluster.replicas[replica]
        assert isinstance(found, Replica)
        return found

    def lose(self, replica: int, now: float) -> list[int]:
        """As `failures.Failing`."""
        self._replica(replica).stop()
        server = self._engine(replica)
        lost = server.lose(now)
        for row in lost:
            self._cluster.taken_back(row, now)
        for answer in server.answers():
            self._cluster.answered(answer)
        return lost

    def hang(self, replica: int, now: float) -> None:
        """As `failures.Failing`."""
        self._engine(replica).hang(now)
        self._replica(replica).stop(hung=True)

    def slow(self, replica: int, factor: float) -> None:
        """As `failures.Failing`."""
        self._engine(replica).engine.slowdown = factor

    def again(self, row: int, now: float) -> None:
        """As `failures.Failing`."""
        self._cluster.enter(row, now)

    def give_up(self, row: int, now: float, reason: str) -> None:
        """As `failures.Failing`."""
        servers = self._cluster.servers
        assert isinstance(servers, FallibleServers)
        servers.lost(row, now, reason)
        self._cluster.refused(row, now)
        if self._cluster.failures is not None:
            self._cluster.failures.ended(row, now)

    def closed(self, row: int) -> bool:
        """As `failures.Failing`."""
        return self._cluster.closed[row] > 0

    def over(self) -> bool:
        """As `failures.Failing`."""
        return self._cluster.client.all_ended

    def empty(self, replica: int) -> bool:
        """As `failures.Failing`."""
        return not self._cluster.views[replica].inside


def made_router(scenario: Scenario, table: RequestTable, seed: int, name: str | None = None) -> Router:
    """Returns the router that a deployment names, or one of another name, told what it wants to know of
    requests."""
    made: Router = ROUTERS[name or scenario.deployment.router](seed)
    if isinstance(made, Told):
        made.told(table)
    return made


def _kv_usage(server: Server) -> Callable[[], float] | None:
    """Returns what asks an engine for its share of KV blocks in use; None of one that does not show it."""
    return server.kv_usage if isinstance(server, Showing) else None


@runtime_checkable
class Showing(Protocol):
    """What shows how much of its KV is in use."""

    def kv_usage(self) -> float:
        """Returns the share of the engine's KV blocks in use."""
        ...


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
