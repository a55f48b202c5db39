"""Replicas that die, hang or are slow for a while; and what becomes of the requests inside."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from math import inf, log
from typing import Protocol

from specfleet.sim.environment import Environment
from specfleet.sim.fleet.failing import DIES, HANGS, SLOW, FailureConfig, FailuresConfig
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


@dataclass
class _Outage:
    """A failure under way, and who waits for what of it."""

    said: Outage
    left: set[int] = field(default_factory=set)


class Breakdowns:
    """When replicas fail, and what is done about it.

    Args:
        config: which fail when.
        replicas: how many there are.
        seed: of the times of those that are not known beforehand.
        fleet: the cluster.

    Attributes:
        state: of each replica that is not well: `DEAD`, `HUNG` or `SLOWED`.
        out: replicas that the router knows to be down.
    """

    def __init__(self, config: FailuresConfig, replicas: int, seed: int, fleet: Failing) -> None:
        self.config, self._fleet, self._env = config, fleet, fleet.env
        self.state: dict[int, str] = {}
        self.out: set[int] = set()
        self._sent: dict[int, int] = {}
        self._outages: list[_Outage] = []
        self._lost_in: dict[int, list[_Outage]] = {}
        self._limbo: set[int] = set()
        for failure in sorted(config.at, key=lambda failure: (failure.at_s, failure.replica)):
            self._at(failure.at_s, partial(self._begin, failure))
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
        """Whether a replica takes a request: not if it is dead; one that hangs does."""
        return self.state.get(replica) != DEAD

    def lost(self, row: int, now: float) -> None:
        """A request has to be sent anew, or ends."""
        sent = self._sent.get(row, 0)
        if self._fleet.closed(row):
            self._limbo.add(row)  # nobody waits: it is withdrawn in a moment
            return
        if sent >= self.config.most:
            self._fleet.give_up(row, now, LOST_REASON)
            return
        self._sent[row] = sent + 1
        due = now + self.config.backoff_s * min(2.0**sent, LONGEST)
        self._limbo.add(row)
        self._at(due, lambda then: self._again(row, then))

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

    def _at(self, time_s: float, then: Callable[[float], None]) -> None:
        callbacks = self._env.until(time_s).callbacks
        assert callbacks is not None
        callbacks.append(lambda event: then(time_s))

    def _next(self, times: Iterator[FailureConfig]) -> None:
        """Lets the next failure of a replica come, as long as there are requests."""
        failure = next(times)

        def due(now: float) -> None:
            if not self._fleet.over():
                self._begin(failure, now)
                self._next(times)

        self._at(failure.at_s, due)

    def _begin(self, failure: FailureConfig, now: float) -> None:
        """A replica fails, unless it has failed already, or nobody is left to notice."""
        replica = failure.replica
        if replica in self.state or self._fleet.over():
            return
        found_s = inf if failure.kind == SLOW else now + self.config.detect_s
        gone_s = found_s if failure.kind == HANGS else now
        back_s = inf if failure.for_s is None else gone_s + failure.for_s
        outage = _Outage(Outage(replica, failure.kind, now, found_s, back_s, (), now))
        self._outages.append(outage)
        if failure.kind == SLOW:
            self.state[replica] = SLOWED
            self._fleet.slow(replica, failure.factor)
        elif failure.kind == HANGS:
            self.state[replica] = HUNG
            self._fleet.hang(replica, now)
            self._at(found_s, lambda then: self._die(outage, then))
        else:
            self._die(outage, now)
        if failure.kind == DIES and found_s < back_s:
            self._at(found_s, lambda then: self.out.add(replica))
        if back_s < inf:
            self._at(back_s, lambda then: self._mend(replica))

    def _die(self, outage: _Outage, now: float) -> None:
        """Everything in a replica is lost; of one that hung, the router knows."""
        replica = outage.said.replica
        self.state[replica] = DEAD
        if outage.said.kind == HANGS:
            self.out.add(replica)
        lost = self._fleet.lose(replica, now)
        outage.said = replace(outage.said, lost=tuple(lost))
        outage.left.update(lost)
        for row in lost:
            self._lost_in.setdefault(row, []).append(outage)
        for row in lost:
            self.lost(row, now)

    def _mend(self, replica: int) -> None:
        """A replica is as before."""
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
