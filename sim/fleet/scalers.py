"""The autoscalers of all pools, as cluster, router, gateway and failures see them: as one."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

from specfleet.sim.clients import Answer
from specfleet.sim.environment import Environment, Moment
from specfleet.sim.fleet.autoscaler import Autoscaler, Probe, Restored
from specfleet.sim.fleet.failures import Breakdowns
from specfleet.sim.fleet.gateway import Gateway
from specfleet.sim.fleet.groups import GroupRouter, Groups
from specfleet.sim.fleet.scaling import FIXED, ScalingLog
from specfleet.sim.fleet.views import View


class ScaledCluster(Protocol):
    """The cluster, as the autoscalers of its pools see it."""

    @property
    def env(self) -> Environment:
        """Its clock."""
        ...

    @property
    def views(self) -> Sequence[View]:
        """Of every replica."""
        ...

    @property
    def failures(self) -> Breakdowns | None:
        """Of its replicas."""
        ...


@dataclass(frozen=True)
class Surroundings:
    """What stands around the autoscalers.

    Attributes:
        groups: of the requests.
        router: is told which replicas are up.
        gateway: holds requests while there is no room for them; None where nothing does.
        probes: of every replica, None where its engine shows nothing of itself.
        restarted: is told of a replica that comes up, before that.
        seed: of when instances are taken.
    """

    groups: Groups
    router: GroupRouter
    gateway: Gateway | None
    probes: Sequence[Probe | None]
    restarted: Callable[[int], None]
    seed: int


class Scalers:
    """An autoscaler for each pool whose replicas come and go.

    A request counts with the pool that it is at; one that waits at the gateway with the first of those that
    it may go to. They end with the last request.

    Args:
        cluster: whose replicas they order.
        around: what stands around them.
    """

    def __init__(self, cluster: ScaledCluster, around: Surroundings) -> None:
        self._cluster, self._around = cluster, around
        groups = around.groups
        self._left = len(groups.table)
        self._arrived: dict[int, float] = {}
        self._at: dict[int, Autoscaler | None] = {}
        self._group_of = groups.of.tolist()
        self.of_pool = {
            index: self._autoscaler(index)
            for index, pool in enumerate(groups.scenario.pools)
            if pool.autoscale is not None
        }
        pool_of = groups.pool_of.tolist()
        self._of = [self.of_pool.get(pool) for pool in pool_of]
        self._first = [self.of_pool.get(pool_of[members[0]]) for members in groups.members]
        self._always = [number for number, scaler in enumerate(self._of) if scaler is None]
        self.changed(0.0)
        if cluster.failures is not None:
            cluster.failures.keeper = self
        cluster.env.process(self._decide())

    def _autoscaler(self, index: int) -> Autoscaler:
        groups, env = self._around.groups, self._cluster.env
        pool = groups.scenario.pools[index]
        assert pool.autoscale is not None
        probes = [probe for member in pool.members if (probe := self._around.probes[member]) is not None]
        more = (groups.table, self._cluster.views, probes, self, pool.spot, self._around.seed)
        return Autoscaler(env, pool.autoscale, pool.members, *more)

    def _decide(self) -> Generator[Moment, float, None]:
        """A simpy process: a decision of each every so often, until no request is left."""
        scalers = [scaler for scaler in self.of_pool.values() if scaler.config.on != FIXED]
        numbers = [1] * len(scalers)
        while scalers and self._left:
            dues = [n * scaler.config.every_s for n, scaler in zip(numbers, scalers, strict=True)]
            now = min(dues)
            yield self._cluster.env.until(now)
            starting = any(scaler.starting for scaler in self.of_pool.values())
            if not self._left or (self._cluster.env.still and not starting):
                return  # the engines say what is wrong then
            for place, due in enumerate(dues):
                if due == now:
                    numbers[place] += 1
                    scalers[place].decide(now)

    # what the cluster tells

    def arrived(self, row: int, now: float) -> None:
        """A request has reached the cluster, perhaps not for the first time."""
        self._arrived.setdefault(row, now)
        self._moves(row, self._first[self._group_of[row]], now)

    def sent(self, row: int, replica: int, now: float) -> None:
        """A request goes to a replica."""
        self._moves(row, self._of[replica], now)

    def taken_back(self, row: int, replica: int, now: float) -> None:
        """A request is at no replica any more, and has not ended; it was at this one, or came to it dead."""
        self._moves(row, None, now)
        self.freed(replica, now)

    def refused(self, row: int, now: float) -> None:
        """A request has ended before it reached a replica, or is not sent anew any more."""
        self._left -= 1
        self._moves(row, None, now)
        self._arrived.pop(row, None)

    def answered(self, answer: Answer, replica: int) -> None:
        """A request has ended at a replica."""
        self._left -= 1
        del self._at[answer.row]
        arrived_s, scaler = self._arrived.pop(answer.row), self._of[replica]
        if scaler is not None:
            scaler.answered(answer, arrived_s, replica)

    def given_up(self, row: int, now: float, again: bool) -> None:
        """A client has given a request up, which its replica may not have let go yet; `again`: it will come
        once more."""
        ended = row not in self._at  # too late for who waited
        self._left += int(again and ended) - int(not again)
        self._moves(row, None, now)
        self._arrived.pop(row, None)

    def freed(self, replica: int, now: float) -> None:
        """A replica has let such a request go."""
        scaler = self._of[replica]
        if scaler is not None:
            scaler.emptied(replica, now)

    def _moves(self, row: int, scaler: Autoscaler | None, now: float) -> None:
        before = self._at.get(row)
        self._at[row] = scaler
        if before is scaler:
            return
        if before is not None:
            before.left(now)
        if scaler is not None:
            scaler.begun(now)

    # what failures ask

    def is_there(self, replica: int) -> bool:
        """Whether a replica is up or drains."""
        scaler = self._of[replica]
        return scaler is None or scaler.is_there(replica)

    def serves(self, replica: int) -> bool:
        """Whether a replica gets requests."""
        scaler = self._of[replica]
        return scaler is None or scaler.serves(replica)

    def replaces(self, replica: int) -> bool:
        """Whether another one is ordered in place of a replica that is lost, and it is not repaired."""
        return self._of[replica] is not None

    def dead(self, replica: int, now: float, restored: Restored) -> None:
        """A replica is known to be lost."""
        scaler = self._of[replica]
        assert scaler is not None
        scaler.dead(replica, now, restored)

    # what the autoscalers tell

    def changed(self, now: float) -> None:
        """The router learns which replicas are up, and the gateway lets in whom it can."""
        up = [scaler.members[number] for scaler in self.of_pool.values() for number in scaler.up]
        self._around.router.only(tuple(sorted([*self._always, *up])))
        if self._around.gateway is not None:
            self._around.gateway.let_in(now)

    def restarted(self, replica: int) -> None:
        """A replica comes up; told before that."""
        self._around.restarted(replica)

    def gone(self, replica: int, now: float) -> None:
        """A replica is not there any more."""
        if self._cluster.failures is not None:
            self._cluster.failures.gone(replica, now)

    def noticed(self, replica: int, now: float) -> Restored:
        """Notice was given that a replica is taken."""
        assert self._cluster.failures is not None
        return self._cluster.failures.noticed(replica, now)

    def take(self, replica: int, now: float) -> None:
        """A replica's instance is taken."""
        assert self._cluster.failures is not None
        self._cluster.failures.take(replica, now)

    def held(self, scaler: Autoscaler) -> int:
        """How many requests wait at the gateway for the replicas of an autoscaler."""
        gateway = self._around.gateway
        if gateway is None:
            return 0
        return gateway.held_of({group for group, first in enumerate(self._first) if first is scaler})

    def over(self) -> bool:
        """Whether every request has ended."""
        return not self._left

    def logs(self) -> dict[int, ScalingLog]:
        """Returns what each did, by the index of its pool."""
        return {index: scaler.log() for index, scaler in self.of_pool.items()}
