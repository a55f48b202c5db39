"""What orders the replicas of a pool and lets them go, on the cluster's clock.

All replicas that may ever be there are idle servers from the start; the router is told which of them are up.
The autoscaler sees what has happened before a decision, and nothing else. Who is lost, with its process or
with its instance, counts out of the fleet and is replaced, as a ReplicaSet replaces a pod.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from math import nan
from typing import Protocol

import numpy as np

from specfleet.sim.clients import Answer
from specfleet.sim.environment import Environment
from specfleet.sim.fleet.scaling import (
    ATTAINMENT,
    CONCURRENCY,
    FIXED,
    LOG_COLUMNS,
    QUEUE,
    STAY_COLUMNS,
    SUMS,
    TTFT,
    AutoscaleConfig,
    Law,
    ScalingLog,
)
from specfleet.sim.fleet.spot import SpotConfig, TakenAt, kept_s
from specfleet.sim.fleet.views import View
from specfleet.workloads.requests import RequestTable

OFF, STARTING, UP, DRAINING = range(4)
PERCENTILE = 90.0
"""Of the TTFT that is looked at."""
Restored = Callable[[float], None]
"""Is told when the replacement of a replica that was lost serves, or is not needed any more."""


class Probe(Protocol):
    """What an engine reports of itself."""

    def kv_usage(self) -> float:
        """Share of its KV blocks in use."""
        ...

    def queue(self) -> int:
        """Requests that wait in it."""
        ...


class Staffed(Protocol):
    """The cluster, as the autoscaler of one of its pools sees it; replicas by number in the cluster."""

    def changed(self, now: float) -> None:
        """Other replicas are up."""
        ...

    def restarted(self, replica: int) -> None:
        """A replica comes up; told before that."""
        ...

    def gone(self, replica: int, now: float) -> None:
        """A replica is not there any more."""
        ...

    def noticed(self, replica: int, now: float) -> Restored:
        """Notice was given that a replica is taken."""
        ...

    def take(self, replica: int, now: float) -> None:
        """A replica's instance is taken; what is inside is lost."""
        ...

    def held(self, scaler: Autoscaler) -> int:
        """How many requests wait at the gateway for the replicas of an autoscaler."""
        ...

    def over(self) -> bool:
        """Whether every request has ended."""
        ...


class Autoscaler:
    """Orders the replicas of a pool and lets them go.

    Args:
        env: the cluster's clock.
        config: by what, and how quickly.
        members: numbers of the pool's replicas in the cluster.
        table: the requests.
        views: of every replica of the cluster.
        probes: of the pool's, where the metric is one that engines report.
        fleet: the cluster.
        spot: which replicas are on spot instances; None: none.
        seed: of when those are taken.
    """

    def __init__(
        self,
        env: Environment,
        config: AutoscaleConfig,
        members: Sequence[int],
        table: RequestTable,
        views: Sequence[View],
        probes: Sequence[Probe],
        fleet: Staffed,
        spot: SpotConfig | None = None,
        seed: int = 0,
    ) -> None:
        self.config, self.members, self.spot = config, members, spot
        self._env, self._probes, self._fleet, self._seed = env, probes, fleet, seed
        self._views = [views[member] for member in members]
        self._number = {member: number for number, member in enumerate(members)}
        self._law = Law(config)
        self._output, self._class = table.output_tokens, table.class_id
        self._state = [UP] * config.start + [OFF] * (config.slots - config.start)
        self._stay = [*range(config.start), *[-1] * (config.slots - config.start)]
        self._stays = [[number, 0.0, 0.0, nan, nan, 0] for number in range(config.start)]
        self._orders = [int(number < config.start) for number in range(config.slots)]
        self._noticed: set[int] = set()
        self._missing: deque[Restored] = deque()
        self._awaits: dict[int, Restored] = {}
        self._to_be_had_s = 0.0
        self._log: list[tuple[float, ...]] = []
        self._ended: deque[tuple[float, float]] = deque()
        self._inside = 0.0
        self._since_s = self._area = 0.0
        self._looks: deque[tuple[float, float]] = deque([(0.0, 0.0)] if config.on == CONCURRENCY else ())
        self._note(0.0, nan, nan)
        if spot is not None:
            for taken in spot.at:
                env.later(taken.at_s, partial(self._take_some, taken))
            for number in range(config.start):
                self._keep(number, 0.0)

    # what it sees

    def begun(self, now: float) -> None:
        """A request has come that waits for its replicas, or is at one."""
        self._count(1, now)

    def left(self, now: float) -> None:
        """It is no longer there: it has ended, went elsewhere, or was lost."""
        self._count(-1, now)

    def answered(self, answer: Answer, arrived_s: float, replica: int) -> None:
        """A request has ended at a replica, which may have been the last one there."""
        self.left(answer.finished_s)
        if not answer.failed and self.config.on in (TTFT, ATTAINMENT):
            self._ended.append((answer.finished_s, self._seen(answer, arrived_s)))
        self.emptied(replica, answer.finished_s)

    def emptied(self, replica: int, now: float) -> None:
        """A replica has a request less, which may have been the last one that it was to finish."""
        number = self._number[replica]
        if self._state[number] == DRAINING and not self._views[number].inside:
            self._gone(number, now)

    def _count(self, change: int, now: float) -> None:
        self._area += self._inside * (now - self._since_s)
        self._inside, self._since_s = self._inside + change, now

    def _seen(self, answer: Answer, arrived_s: float) -> float:
        """What is noted of an answer: its TTFT, or whether it met its limits."""
        ttft_s = answer.first_token_s - arrived_s
        if self.config.on == TTFT:
            return ttft_s
        limits = self.config.limits
        ttft, tpot, e2el = limits[int(self._class[answer.row]) if len(limits) > 1 else 0]
        gaps = max(int(self._output[answer.row]) - 1, 1)
        tpot_s = (answer.finished_s - answer.first_token_s) / gaps
        return float(ttft_s <= ttft and tpot_s <= tpot and answer.finished_s - arrived_s <= e2el)

    def _metric(self, now: float) -> float | None:
        """Returns what is looked at, over the window before `now`; None where nothing was to be seen."""
        on, looks, from_s = self.config.on, self._looks, now - self.config.window_s
        if on == CONCURRENCY:
            self._count(0, now)
            while len(looks) > 1 and looks[1][0] <= from_s:
                looks.popleft()
            then, area = looks[0]
            looks.append((now, self._area))
            return (self._area - area) / (now - then)
        if on in SUMS:
            there = [self._probes[number] for number in self.up]
            seen: float = sum(probe.kv_usage() for probe in there)
            if on == QUEUE:
                seen = sum(probe.queue() for probe in there) + self._fleet.held(self)
            looks.append((now, seen))
            while looks[0][0] <= from_s:
                looks.popleft()
            return sum(value for _, value in looks) / len(looks)
        ended = self._ended
        while ended and ended[0][0] < from_s:
            ended.popleft()
        if not ended:
            idle = 0.0 if on == TTFT else 1.0
            return None if self._inside else idle
        values = np.array([value for _, value in ended])
        return float(np.percentile(values, PERCENTILE) if on == TTFT else values.mean())

    # what it does

    def decide(self, now: float) -> None:
        """One decision."""
        if self.config.on == FIXED:
            return
        ordered, up = self._state.count(STARTING) + self._state.count(UP), self._state.count(UP)
        desired = ordered + len(self._missing)
        metric = self._metric(now)
        wish = self._law.wish(metric, desired, up)
        wanted = self._law.decide(now, wish, desired)
        while self._missing and ordered + len(self._missing) > wanted:
            self._missing.pop()(now)
        self._missing.extend([_nobody] * (wanted - ordered - len(self._missing)))
        self._replace(now)
        if now >= self._to_be_had_s:  # room alone is looked at again at the next decision
            self._missing = deque(one for one in self._missing if one is not _nobody)
        for number in self._newest()[: max(ordered - wanted, 0)]:
            self._let_go(number, now)
        self._note(now, nan if metric is None else metric, wish)

    def dead(self, replica: int, now: float, restored: Restored) -> None:
        """A replica is known to be lost: it is not there any more, and is replaced if it was to stay."""
        number = self._number[replica]
        stays = self._state[number] == UP
        if not stays:
            restored(now)
        else:
            self._missing.append(restored)
        self._gone(number, now)
        if stays:
            self._fleet.changed(now)

    def _newest(self) -> list[int]:
        """Replicas in the order in which they are let go: those that start, then those that are up, in both
        the youngest first, as a ReplicaSet ranks its pods."""
        there = [number for number, state in enumerate(self._state) if state in (STARTING, UP)]
        return sorted(there, key=lambda n: (self._state[n] == UP, -self._stays[self._stay[n]][1], -n))

    def _replace(self, now: float) -> None:
        """Orders who is missing, as far as there is room and instances are to be had."""
        while self._missing:
            paid = sum(state != OFF for state in self._state) - len(self._noticed)
            free = [number for number, state in enumerate(self._state) if state == OFF]
            if self.spot is not None and now < self._to_be_had_s:
                free = [number for number in free if number < self.spot.on_demand]
            if not free or paid >= self.config.most:
                return
            self._order(free[0], now, self._missing.popleft())

    def _order(self, number: int, now: float, restored: Restored) -> None:
        self._state[number] = STARTING
        self._stay[number] = stay = len(self._stays)
        self._stays.append([number, now, nan, nan, nan, int(restored is not _nobody)])
        self._awaits[number] = restored
        if self.spot is not None:
            self._keep(number, now + self.spot.provision_s)
        self._orders[number] += 1
        due = now + self.config.start_s
        self._env.at(due, partial(self._comes_up, number, stay))

    def _comes_up(self, number: int, stay: int, now: float) -> None:
        if self._stay[number] != stay or self._state[number] != STARTING or self._fleet.over():
            return
        self._fleet.restarted(self.members[number])
        self._state[number] = UP
        self._stays[stay][2] = now
        self._awaits.pop(number)(now)
        self._note(now, nan, nan)
        self._fleet.changed(now)

    def _let_go(self, number: int, now: float) -> None:
        """A replica that starts is given back; one that is up finishes what it has."""
        if self._state[number] == STARTING:
            self._awaits.pop(number)(now)
            self._gone(number, now)
            return
        self._drain(number, now)

    def _drain(self, number: int, now: float) -> None:
        """A replica gets no more requests, and goes when it has finished those that it has."""
        self._state[number] = DRAINING
        self._stays[self._stay[number]][3] = now
        self._fleet.changed(now)
        if not self._views[number].inside:
            self._gone(number, now)

    def _gone(self, number: int, now: float) -> None:
        was = self._state[number]
        self._state[number] = OFF
        self._noticed.discard(number)
        self._stays[self._stay[number]][4] = now
        self._fleet.gone(self.members[number], now)
        self._replace(now)
        if was != STARTING:
            self._note(now, nan, nan)

    # instances that are taken

    def _keep(self, number: int, there_s: float) -> None:
        """Draws when an instance that is there from a time on is taken."""
        spot, stay = self.spot, self._stay[number]
        assert spot is not None
        if number >= spot.on_demand and spot.mtti_s is not None:
            due = there_s + kept_s(spot, self._seed, self.members[number], self._orders[number])
            self._env.later(due, lambda now: self._notice(number, stay, now, spot.unavailable_s))

    def _take_some(self, taken: TakenAt, now: float) -> None:
        assert self.spot is not None
        there = (
            number for number in range(self.spot.on_demand, len(self._state)) if self._is_there(number, now)
        )
        for number in [*there][: taken.replicas]:
            self._notice(number, self._stay[number], now, taken.unavailable_s)

    def _is_there(self, number: int, now: float) -> bool:
        """Whether a replica has an instance of which no notice was given yet."""
        if self._state[number] == OFF or number in self._noticed:
            return False
        assert self.spot is not None
        ordered_s = self._stays[self._stay[number]][1]
        return not ordered_s or now >= ordered_s + self.spot.provision_s

    def _notice(self, number: int, stay: int, now: float, unavailable_s: float) -> None:
        """Notice is given of an instance: it gets no more requests, and another one is ordered."""
        if self._stay[number] != stay or not self._is_there(number, now) or self._fleet.over():
            return
        assert self.spot is not None
        if unavailable_s:
            self._to_be_had_s = max(self._to_be_had_s, now + unavailable_s)
            self._env.at(self._to_be_had_s, self._to_be_had)
        state, due = self._state[number], now + self.spot.notice_s
        restored = self._fleet.noticed(self.members[number], now)
        if state == UP:
            self._missing.append(restored)
        else:  # one that starts, or drains, is not missed by those who are served
            restored(now)
        if state == STARTING:
            self._missing.append(self._awaits.pop(number))
            self._gone(number, now)
        else:
            self._noticed.add(number)
            self._env.at(due, partial(self._taken, number, stay))
        if state == UP:
            self._drain(number, now)
        self._replace(now)
        self._note(now, nan, nan)

    def _to_be_had(self, now: float) -> None:
        """Instances can be had again."""
        if self._missing and not self._fleet.over():
            self._replace(now)
            self._note(now, nan, nan)

    def _taken(self, number: int, stay: int, now: float) -> None:
        if self._stay[number] != stay or self._state[number] != DRAINING:
            return
        self._fleet.take(self.members[number], now)
        if self._stay[number] == stay and self._state[number] == DRAINING:
            self._gone(number, now)

    # what it says

    def is_there(self, replica: int) -> bool:
        """Whether a replica is up or drains."""
        return self._state[self._number[replica]] in (UP, DRAINING)

    def serves(self, replica: int) -> bool:
        """Whether a replica gets requests."""
        return self._state[self._number[replica]] == UP

    @property
    def starting(self) -> bool:
        """Whether a replica starts."""
        return STARTING in self._state

    @property
    def up(self) -> tuple[int, ...]:
        """Numbers of replicas that are up, within the pool."""
        return tuple(number for number, state in enumerate(self._state) if state == UP)

    def _note(self, now: float, metric: float, wish: float) -> None:
        starting, up, draining = (self._state.count(state) for state in (STARTING, UP, DRAINING))
        noticed = len(self._noticed)
        counts = (starting, up, draining - noticed, noticed, len(self._missing))
        self._log.append((now, metric, wish, *counts))

    def log(self) -> ScalingLog:
        """Returns what it did."""
        changes = np.array(self._log, dtype=np.float64).T
        stays = np.array(self._stays, dtype=np.float64).T
        return ScalingLog(
            dict(zip(LOG_COLUMNS, changes, strict=True)), dict(zip(STAY_COLUMNS, stays, strict=True))
        )


def _nobody(now: float) -> None:
    """Whose replacement nobody waits for."""
