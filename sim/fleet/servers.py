"""The servers of several pools as those of one cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from specfleet.sim.cluster import Servers
from specfleet.sim.fleet.beside import AbortableServers, FallibleServers
from specfleet.sim.fleet.groups import REFUSED, Groups
from specfleet.sim.replica import Server


class PoolServer(Servers, Protocol):
    """What the replicas of one pool run, of several that a request may go to."""

    def send_away(self, row: int) -> None:
        """Notes that a request which might have come has gone to another pool, or nowhere."""
        ...


class PoolServers:
    """What the replicas of all pools run; each pool's are engines or lanes.

    Args:
        groups: who may go where.
        parts: of `scenario.pools`, in that order.

    Attributes:
        servers: of every replica, in order of their numbers.
        arrived_s: when each request has reached the cluster.
        replica_of: where each request went; -1 of those that went nowhere.
    """

    def __init__(self, groups: Groups, parts: Sequence[PoolServer]) -> None:
        self._group_of = groups.of.tolist()
        self._pools = groups.pools
        self._parts = parts
        self._where = list(zip(groups.pool_of.tolist(), groups.local.tolist(), strict=True))
        self.servers: list[Server] = [parts[pool].servers[local] for pool, local in self._where]
        self.arrived_s = [float("nan")] * len(self._group_of)
        self.replica_of = [-1] * len(self._group_of)
        self._last_of: dict[int, int] = {}

    def accepts(self, row: int, now: float) -> bool:
        """Whether some pool serves a request that arrives at `now`."""
        self.arrived_s[row] = now
        return bool(self._group_of[row] != REFUSED)

    def assign(self, row: int, replica: int) -> None:
        """Notes which replica a request goes to."""
        pool, local = self._where[replica]
        part = self._parts[pool]
        accepted = part.accepts(row, self.arrived_s[row])
        assert accepted, "its group has pools that serve it alone"
        part.assign(row, local)
        for other in self._pools[self._group_of[row]]:
            if other != pool:
                self._parts[other].send_away(row)
        self.replica_of[row] = replica

    def refused(self, row: int, replica: int, now: float) -> None:
        """Notes that a request came to a replica that was dead."""
        pool, local = self._where[replica]
        self._fallible(pool).refused(row, local, now)
        self._last_of[row] = replica

    def taken_back(self, row: int) -> None:
        """Notes that a request is at no replica any more."""
        self._last_of[row], self.replica_of[row] = self.replica_of[row], -1

    def lost(self, row: int, now: float, reason: str) -> None:
        """A request that a replica lost ends; it counts among those of its last replica."""
        self.replica_of[row] = replica = self._last_of[row]
        self._fallible(self._where[replica][0]).lost(row, now, reason)

    def withdrawn(self, row: int, reason: str) -> None:
        """Notes that a request was given up which is at no replica; as `lost`."""
        self.replica_of[row] = replica = self._last_of[row]
        self._abortable(self._where[replica][0]).withdrawn(row, reason)

    def begins_anew(self, row: int) -> None:
        """Notes that a request that ended too late is sent once more."""
        if self.replica_of[row] >= 0:
            self._abortable(self._where[self.replica_of[row]][0]).begins_anew(row)

    def goes_again(self, row: int) -> None:
        """Notes that a request which is sent once more is nowhere until it comes."""
        self.replica_of[row] = -1

    def _abortable(self, pool: int) -> AbortableServers:
        part = self._parts[pool]
        assert isinstance(part, AbortableServers)
        return part

    def turned_away(self, row: int) -> None:
        """Notes that a request ends at the gateway, which a replica may have lost."""
        for pool in self._pools[self._group_of[row]]:
            part = self._parts[pool]
            if isinstance(part, FallibleServers) and part.turned_away(row):
                return

    def _fallible(self, pool: int) -> FallibleServers:
        part = self._parts[pool]
        assert isinstance(part, FallibleServers)
        return part

    def send_away(self, row: int, now: float) -> None:
        """Notes that a request goes nowhere, and when that was known."""
        self.arrived_s[row] = now
        for pool in self._pools[self._group_of[row]]:
            self._parts[pool].send_away(row)
