"""Which replicas a request may go to, before the router chooses among them.

What decides is known of a request before it is run: its class, and whether an engine would refuse it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from specfleet.sim.calendar.plan import CalendarRun
from specfleet.sim.engine import Engine
from specfleet.sim.recorder import Recorder
from specfleet.sim.router import ROUTERS, Blind, Counting, Looking, Replicas, Router, Told
from specfleet.sim.scenario import Scenario
from specfleet.sim.sequence import Sequence as Tokens
from specfleet.workloads.requests import RequestTable

I64 = npt.NDArray[np.int64]
REFUSED = -1
"""The group of a request that no pool it may go to can serve."""


class Groups:
    """Requests that may go to the same replicas.

    Args:
        scenario: of several pools.
        table: the requests.

    Attributes:
        of: group of each request, or `REFUSED`.
        members: numbers of the replicas of each group, rising.
        pools: which of `scenario.pools` those are in, and those that they spill to.
        spills: of each group, from how many outstanding a replica on requests go to which others; or None.
        pool_of: which of `scenario.pools` each replica is in.
        local: number of each replica within its pool.
        fallible: pools whose requests may be begun more than once: those that may fail, and those that share
            requests with them.
    """

    def __init__(self, scenario: Scenario, table: RequestTable) -> None:
        self.scenario, self.table = scenario, table
        replicas = scenario.deployment.replicas
        self.pool_of, self.local = np.zeros(replicas, dtype=np.int64), np.zeros(replicas, dtype=np.int64)
        for index, pool in enumerate(scenario.pools):
            self.pool_of[list(pool.members)] = index
            self.local[list(pool.members)] = np.arange(len(pool.members))
        names = np.array([pool.name for pool in scenario.pools])
        allowed = self._allowed(names)
        served = np.zeros((len(names), len(table)), dtype=bool)
        for index, pool in enumerate(scenario.pools):
            served[index, CalendarRun(scenario.part(pool), table, 0, None).served] = True
        self._allowed_pools = allowed
        self.of = np.full(len(table), REFUSED, dtype=np.int64)
        self.members: list[tuple[int, ...]] = []
        self.pools: list[tuple[int, ...]] = []
        self.spills: list[tuple[float, tuple[int, ...]] | None] = []
        first, second = allowed & served, self._elsewhere(allowed, names) & served
        patterns, which = np.unique(np.concatenate([first, second]).T, axis=0, return_inverse=True)
        for number, pattern in enumerate(patterns):
            here, there = pattern[: len(names)], pattern[len(names) :]
            if not pattern.any():
                continue
            self.of[which.reshape(-1) == number] = len(self.members)
            both = bool(here.any()) and bool(there.any())
            self.members.append(self._members(here if here.any() else there))
            self.pools.append(tuple(np.flatnonzero(here | there).tolist()))
            limit = scenario.deployment.routing.spill.get(str(names[here.argmax()]), (0.0, ""))[0]
            self.spills.append((limit, self._members(there)) if both else None)
        self.fallible = self._fallible()

    def part(self, index: int) -> Scenario:
        """Returns a pool as a cluster of its own; without failures where they touch none of its requests."""
        part = self.scenario.part(self.scenario.pools[index])
        if index in self.fallible:
            return part
        return replace(part, deployment=replace(part.deployment, failures=None))

    def _fallible(self) -> frozenset[int]:
        failures = self.scenario.deployment.failures
        if failures is None:
            return frozenset()
        pools = list(enumerate(self.scenario.pools))
        found = {i for i, pool in pools if pool.spot is not None or any(map(failures.fails, pool.members))}
        found = found or {index for index, _ in pools}  # nothing fails, in engines that could
        while True:
            more = found.union(*(pools for pools in self.pools if found.intersection(pools)))
            if more == found:
                return frozenset(found)
            found = more

    def _members(self, pools: npt.NDArray[np.bool_]) -> tuple[int, ...]:
        return tuple(np.flatnonzero(pools[self.pool_of]).tolist())

    def _allowed(self, names: npt.NDArray[np.str_]) -> npt.NDArray[np.bool_]:
        """Returns what the routing says, shape `(pools, requests)`."""
        by_class = self.scenario.deployment.routing.by_class
        if not by_class:
            return np.ones((len(names), len(self.table)), dtype=bool)
        chosen = [by_class.get(name, by_class.get("", "")) for name in self.table.class_names]
        return np.asarray(names[:, None] == np.array(chosen)[self.table.class_id][None, :])

    def _elsewhere(
        self, allowed: npt.NDArray[np.bool_], names: npt.NDArray[np.str_]
    ) -> npt.NDArray[np.bool_]:
        """Returns where requests go when their pool is loaded, shape as `allowed`."""
        found = np.zeros_like(allowed)
        for name, (_, other) in self.scenario.deployment.routing.spill.items():
            here = allowed[names == name].all(axis=0) & ~allowed[names != name].any(axis=0)
            found |= (names == other)[:, None] & here[None, :]
        return found

    def rows_of(self, pool: int) -> I64:
        """Returns the requests that may go to a pool, rising."""
        within = np.array([pool in pools for pools in self.pools] + [False])
        return np.flatnonzero(within[self.of])

    def refusals(self) -> dict[str, int]:
        """Returns the reasons for which no pool serves a request, with counts; those of its first pool."""
        counts: dict[str, int] = {}
        for row in np.flatnonzero(self.of == REFUSED).tolist():
            pool = self.scenario.pools[int(self._allowed_pools[:, row].argmax())]
            engine = Engine(pool.engine, pool.cost, Recorder(0, 1))
            tokens = Tokens(row, int(self.table.prompt_tokens[row]), int(self.table.max_tokens[row]))
            reason = engine.refusal(tokens)
            assert reason is not None
            counts[reason] = counts.get(reason, 0) + 1
        return counts

    @property
    def blind(self) -> bool:
        """Whether nothing is asked of the replicas."""
        return issubclass(self._router, Blind) and not self._looks

    @property
    def counts(self) -> bool:
        """Whether replicas are asked for the number of requests outstanding now, and nothing else."""
        fresh = self.scenario.deployment.refresh_s == 0.0
        return issubclass(self._router, Counting) and fresh and not self._looks

    @property
    def looks(self) -> bool:
        """Whether the router looks into engines."""
        return issubclass(self._router, Looking)

    @property
    def _router(self) -> type:
        """The class of the router."""
        found: type = ROUTERS[self.scenario.deployment.router]
        return found

    @property
    def _looks(self) -> bool:
        """Whether a gateway, an autoscaler, or a pool that spills, counts requests."""
        deployment = self.scenario.deployment
        scaled = any(pool.autoscale is not None for pool in self.scenario.pools)
        return deployment.gateway is not None or scaled or any(self.spills)


class GroupRouter:
    """A router for each group: it chooses among the replicas of the request's group.

    Args:
        groups: of the requests.
        seed: of random routing.
    """

    def __init__(self, groups: Groups, seed: int) -> None:
        self._groups = groups
        self.routers = [self._made(seed) for _ in groups.members]
        self._others = [None if spill is None else self._made(seed) for spill in groups.spills]
        self._of = groups.of.tolist()
        self._replicas: dict[tuple[int, ...], Replicas] = {}
        self._counts = [itemgetter(*members) for members in groups.members]
        self._up = [*groups.members]
        self._beyond = [() if spill is None else spill[1] for spill in groups.spills]
        self.up: Callable[[Sequence[int]], Sequence[int]] | None = None
        """Returns those of some replicas that are not known to be down."""

    def only(self, up: tuple[int, ...]) -> None:
        """From now on, only these replicas get requests."""
        there, spills = set(up), self._groups.spills
        self._up = [tuple(n for n in members if n in there) for members in self._groups.members]
        self._beyond = [() if s is None else tuple(n for n in s[1] if n in there) for s in spills]

    def somebody(self, group: int) -> bool:
        """Returns whether a replica that requests of a group may go to is up."""
        return bool(self._up[group] or self._beyond[group])

    def _made(self, seed: int) -> Router:
        made: Router = ROUTERS[self._groups.scenario.deployment.router](seed)
        if isinstance(made, Told):
            made.told(self._groups.table)
        return made

    def pick(self, request_id: int, replicas: Replicas) -> int:
        """Returns the replica that gets a request; `replicas` are always the same ones."""
        group = self._of[request_id]
        router, beyond = self.routers[group], self._others[group]
        if beyond is not None and self._spills(group, replicas):
            router = beyond
        members = self.members_of(group, replicas)
        return members[router.pick(request_id, self._among(members, replicas))]

    def members_of(self, group: int, replicas: Replicas) -> tuple[int, ...]:
        """Returns the replicas that requests of a group may go to now: others, where its own are loaded; its
        own, where none is up."""
        members = self._beyond[group] if self._spills(group, replicas) else self._up[group]
        members = members or self._groups.members[group]
        return members if self.up is None else tuple(self.up(members))

    def _spills(self, group: int, replicas: Replicas) -> bool:
        """Whether the replicas of a group are so loaded that its requests go past them."""
        spill, members = self._groups.spills[group], self._up[group]
        if spill is None or not self._beyond[group]:
            return False
        there = sum(replica.outstanding for replica in self._among(members, replicas))
        return bool(there >= spill[0] * len(members))

    def group_of(self, request_id: int) -> int:
        """Returns the group of a request."""
        return self._of[request_id]

    def _among(self, members: tuple[int, ...], replicas: Replicas) -> Replicas:
        if members not in self._replicas:
            self._replicas[members] = [replicas[member] for member in members]
        return self._replicas[members]

    def choose(self, request_id: int, outstanding: list[int]) -> int:
        """Returns the replica that gets a request, by the number outstanding at each of the cluster."""
        group = self._of[request_id]
        members, router = self._groups.members[group], self.routers[group]
        if len(members) == 1:
            return members[0]
        assert isinstance(router, Counting)
        return members[router.choose(request_id, self._counts[group](outstanding))]

    def picks(self) -> I64:
        """Returns the replica of every request, of a router that asks nobody; 0 of those refused."""
        of, chosen = self._groups.of, np.zeros(len(self._of), dtype=np.int64)
        for group, (members, router) in enumerate(zip(self._groups.members, self.routers, strict=True)):
            rows = np.flatnonzero(of == group)
            assert isinstance(router, Blind)
            chosen[rows] = np.array(members)[router.picks(rows, len(members))]
        return chosen


def members_of(replicas: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Returns the numbers of the replicas of pools with so many each, one pool after the other."""
    ends = np.cumsum([0, *replicas]).tolist()
    return tuple(tuple(range(low, high)) for low, high in pairwise(ends))
