"""Replicas that die, hang or are slow for a while; and what becomes of the requests inside."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from math import inf, log
from typing import Protocol

from specfleet.sim.environment import Environment
from specfleet.sim.fleet.failing import HANGS, SLOW, TAKEN, FailureConfig, FailuresConfig
from specfleet.sim.scenario import Outage
from specfleet.sim.speculation.luck import FAILURE, bits64, key

LOST_REASON = "lost with a replica that failed, and sent anew as often as retry.most allows"
LONGEST = 10.0
"""Waits of a retry at most, in those before the first (Envoy's `max_interval`)."""
DEAD, HUNG, SLOWED = "dead", "hung", "slowed"


class Failing(Protocol):
    """The cluster, as failures see it."""

    @property
    def env(self) -> Environment:
        """Its clock."""
        ...

    def lose(self, replica: int, now: float) -> list[int]:
        """A replica's engine is gone; returns the requests that were inside."""
        ...

    def hang(self, replica: int, now: float) -> None:
        """A replica takes no further turn."""
        ...

    def slow(self, replica: int, factor: float) -> None:
        """A replica's steps take so many times as long as their price."""
        ...

    def again(self, row: int, now: float) -> None:
        """Sends a request to a replica once more."""
        ...

    def give_up(self, row: int, now: float, reason: str) -> None:
        """A request ends with an error."""
        ...

    def closed(self, row: int) -> bool:
        """Whether the client of a request has given it up, which nobody else knows yet."""
        ...

    def over(self) -> bool:
        """Whether every request has ended."""
        ...

    def empty(self, replica: int) -> bool:
        """Whether nobody is at a replica."""
        ...


class Retrying(Protocol):
    """What becomes of requests that a replica lost: `FailuresConfig`, or `SpotConfig`."""

    @property
    def most(self) -> int:
        """How often a request is sent anew before it fails."""
        ...

    @property
    def backoff_s(self) -> float:
        """Before the first time."""
        ...


class Keeper(Protocol):
    """What orders replicas, and knows which are there (`sim.fleet.scalers`)."""

    def is_there(self, replica: int) -> bool:
        """Whether a replica is up or drains."""
        ...

    def serves(self, replica: int) -> bool:
        """Whether a replica gets requests."""
        ...

    def replaces(self, replica: int) -> bool:
        """Whether another one is ordered in place of a replica that is lost, and it is not repaired."""
        ...

    def dead(self, replica: int, now: float, restored: Callable[[float], None]) -> None:
        """A replica is known to be lost."""
        ...


@dataclass
class _Outage:
    """A failure under way, and who waits for what of it."""

    said: Outage
    left: set[int] = field(default_factory=set)
    replaced: bool = False

    def restored(self, now: float) -> None:
        """Another replica serves in its place, or is not needed any more."""
        self.said = replace(self.said, back_s=now)


class Breakdowns:
    """When replicas fail, and what is done about it.

    Args:
        config: which fail when.
        replicas: how many there are.
        seed: of the times of those that are not known beforehand.
        fleet: the cluster.
        spot: what becomes of requests of replicas that are on spot instances, by number.

    Attributes:
        state: of each replica that is not well: `DEAD`, `HUNG` or `SLOWED`.
        out: replicas that the router knows to be down.
        keeper: orders replicas; None where all are there.
    """

    def __init__(
        self,
        config: FailuresConfig,
        replicas: int,
        seed: int,
        fleet: Failing,
        spot: Mapping[int, Retrying] | None = None,
    ) -> None:
        self.config, self._fleet, self._env = config, fleet, fleet.env
        self.state: dict[int, str] = {}
        self.out: set[int] = set()
        self.keeper: Keeper | None = None
        self._spot = spot or {}
        self._sent: dict[int, int] = {}
        self._outages: list[_Outage] = []
        self._under: dict[int, _Outage] = {}
        self._taking: dict[int, _Outage] = {}
        self._lost_in: dict[int, list[_Outage]] = {}
        self._limbo: set[int] = set()
        for failure in sorted(config.at, key=lambda failure: (failure.at_s, failure.replica)):
            self._env.at(failure.at_s, partial(self._begin, failure))
        for replica in range(replicas):
            if config.chance(replica).mtbf_s is not None:
                self._next(drawn(config, replica, seed))

    def outages(self) -> tuple[Outage, ...]:
        """Returns the failures that happened, in order of time."""
        return tuple(outage.said for outage in self._outages)

    def up(self, members: Sequence[int]) -> Sequence[int]:
        """Returns those of some replicas that the router does not know to be down; all, if it knows that of
        each."""
        if not self.out:
            return members
        found = [member for member in members if member not in self.out]
        return found or members

    def takes(self, replica: int) -> bool:
        """Whether a replica takes a request: not if it is dead, or not there; one that hangs does."""
        if self.keeper is not None and not self.keeper.serves(replica):
            return False
        return self.state.get(replica) != DEAD

    def lost(self, row: int, replica: int, now: float) -> None:
        """A request has to be sent anew, or ends: a replica has lost it, or could not take it."""
        sent, rule = self._sent.get(row, 0), self._spot.get(replica, self.config)
        if self._fleet.closed(row):
            self._limbo.add(row)  # nobody waits: it is withdrawn in a moment
            return
        if sent >= rule.most:
            self._fleet.give_up(row, now, LOST_REASON)
            return
        self._sent[row] = sent + 1
        due = now + rule.backoff_s * min(2.0**sent, LONGEST)
        self._limbo.add(row)
        self._env.at(due, partial(self._again, row))

    def _again(self, row: int, now: float) -> None:
        """Sends a request once more, unless its client has given it up."""
        if row in self._limbo:
            self._limbo.discard(row)
            self._fleet.again(row, now)

    def withdraw(self, row: int) -> bool:
        """Lets a request go that waits to be sent once more; False if it is not here."""
        if row not in self._limbo:
            return False
        self._limbo.discard(row)
        return True

    def ended(self, row: int, now: float) -> None:
        """Learns that a request has ended."""
        for outage in self._lost_in.pop(row, ()):
            outage.left.discard(row)
            if not outage.left:
                outage.said = replace(outage.said, settled_s=now)

    def gone(self, replica: int, now: float) -> None:
        """Learns that a replica is not there any more: what ails it is over, and it was taken by now."""
        taken = self._taking.pop(replica, None)
        if taken is not None:
            taken.said = replace(taken.said, gone_s=now)
        outage, state = self._under.pop(replica, None), self.state.pop(replica, "")
        self.out.discard(replica)
        if outage is None:
            return
        if state == SLOWED:
            self._fleet.slow(replica, 1.0)
        elif state == HUNG:
            self._fleet.lose(replica, now)  # nobody is inside: another engine stands in its place
        if not outage.replaced:
            found_s, back_s = (min(time_s, now) for time_s in (outage.said.found_s, outage.said.back_s))
            outage.said = replace(outage.said, found_s=found_s, back_s=back_s)

    def noticed(self, replica: int, now: float) -> Callable[[float], None]:
        """Learns that a replica will be taken; returns what is to be told when it is replaced."""
        self._taking[replica] = outage = _Outage(Outage(replica, TAKEN, now, now, inf, (), now, now))
        self._outages.append(outage)
        return outage.restored

    def take(self, replica: int, now: float) -> None:
        """A replica's instance is taken, with all that is inside."""
        self._lose(self._taking[replica], now)

    def _next(self, times: Iterator[FailureConfig]) -> None:
        """Lets the next failure of a replica come, as long as there are requests."""
        failure = next(times)

        def due(now: float) -> None:
            stalled = self._env.still and self._fleet.empty(failure.replica)
            if not self._fleet.over() and not stalled:  # of a stall the engines say what is wrong
                self._begin(failure, now)
                self._next(times)

        self._env.later(failure.at_s, due)

    def _begin(self, failure: FailureConfig, now: float) -> None:
        """A replica fails, unless it has failed already, is not there, or nobody is left to notice."""
        replica, slow, keeper = failure.replica, failure.kind == SLOW, self.keeper
        if replica in self.state or self._fleet.over():
            return
        if keeper is not None and not keeper.is_there(replica):
            return
        found_s = inf if slow else now + self.config.detect_s
        for_s = inf if failure.for_s is None else failure.for_s
        if keeper is not None and keeper.replaces(replica) and not slow:
            for_s = inf
        back_s = (found_s if failure.kind == HANGS else now) + for_s
        outage = _Outage(Outage(replica, failure.kind, now, found_s, back_s, (), now, inf if slow else now))
        self._outages.append(outage)
        self._under[replica] = outage
        if slow:
            self.state[replica] = SLOWED
            self._fleet.slow(replica, failure.factor)
        elif failure.kind == HANGS:
            self.state[replica] = HUNG
            self._fleet.hang(replica, now)
        else:
            self.state[replica] = DEAD
            self._lose(outage, now)
        if not slow and (failure.kind == HANGS or found_s < back_s):
            self._env.at(found_s, partial(self._found, outage))
        if back_s < inf:
            self._env.at(back_s, partial(self._mend, outage))

    def _found(self, outage: _Outage, now: float) -> None:
        """Health checks find a failure: one that hung is killed, and the router knows."""
        replica = outage.said.replica
        if self._under.get(replica) is not outage:
            return
        if outage.said.kind == HANGS:
            self.state[replica] = DEAD
            self._lose(outage, now)
            if self._under.get(replica) is not outage:
                return  # it drained, and its last requests were lost
        if self.keeper is not None and self.keeper.replaces(replica):
            outage.replaced = True
            self.keeper.dead(replica, now, outage.restored)
        else:
            self.out.add(replica)

    def _lose(self, outage: _Outage, now: float) -> None:
        """Everything in a replica is lost."""
        replica = outage.said.replica
        lost = self._fleet.lose(replica, now)
        outage.said = replace(outage.said, lost=tuple(lost))
        outage.left.update(lost)
        for row in lost:
            self._lost_in.setdefault(row, []).append(outage)
        for row in lost:
            self.lost(row, replica, now)

    def _mend(self, outage: _Outage, now: float) -> None:
        """A replica is as before."""
        replica = outage.said.replica
        if self._under.get(replica) is not outage:
            return
        del self._under[replica]
        if self.state.pop(replica) == SLOWED:
            self._fleet.slow(replica, 1.0)
        self.out.discard(replica)


def drawn(config: FailuresConfig, replica: int, seed: int) -> Iterator[FailureConfig]:
    """Yields the failures of a replica that are not known beforehand, in order of time.

    The n-th is a hash of seed, replica and n, so that nothing else moves it: neither requests, nor other
    replicas, nor failures that are known beforehand. One of a replica that is down already does nothing.
    """
    chance = config.chance(replica)
    assert chance.mtbf_s is not None
    stream, now = key(seed, replica, FAILURE), 0.0
    down_s = chance.repair_s + (config.detect_s if chance.kind == HANGS else 0.0)
    for n in count():
        uniform = (int(bits64(stream, n, 1)[0]) + 1) / 2.0**64
        now += -chance.mtbf_s * log(uniform)
        yield FailureConfig(replica, now, chance.repair_s, chance.kind, chance.factor)
        now += down_s
