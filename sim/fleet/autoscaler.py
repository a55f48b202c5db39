"""The process that orders replicas and lets them go, on the cluster's clock.

All replicas that may ever be there are idle servers from the start; the router is told which of them are up.
The autoscaler sees what has happened before a decision, and nothing else. It ends with the last request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Sequence
from math import inf, nan
from typing import Protocol

import numpy as np

from specfleet.sim.clients import Answer
from specfleet.sim.environment import Environment, Moment
from specfleet.sim.fleet.scaling import (
    CONCURRENCY,
    LOG_COLUMNS,
    QUEUE,
    STAY_COLUMNS,
    SUMS,
    TTFT,
    AutoscaleConfig,
    Law,
    ScalingLog,
)
from specfleet.sim.fleet.views import View
from specfleet.workloads.requests import RequestTable

OFF, STARTING, UP, DRAINING = range(4)
PERCENTILE = 90.0
"""Of the TTFT that is looked at."""


class Probe(Protocol):
    """What an engine reports of itself."""

    def kv_usage(self) -> float:
        """Share of its KV blocks in use."""
        ...

    def queue(self) -> int:
        """Requests that wait in it."""
        ...


class Autoscaler:
    """Orders replicas and lets them go.

    Args:
        env: the cluster's clock.
        config: by what, and how quickly.
        table: the requests.
        views: of every replica.
        probes: of every replica, where the metric is one that engines report.
        held: how many requests wait at the gateway.
        changed: is told which replicas are up, in order of their numbers, and since when.
        restarted: is told of a replica that comes up, before that.
    """

    def __init__(
        self,
        env: Environment,
        config: AutoscaleConfig,
        table: RequestTable,
        views: Sequence[View],
        probes: Sequence[Probe],
        held: Callable[[], int],
        changed: Callable[[tuple[int, ...], float], None],
        restarted: Callable[[int], None],
    ) -> None:
        self.config, self._env, self._views, self._probes = config, env, views, probes
        self._held, self._changed, self._restarted = held, changed, restarted
        self._law = Law(config)
        self._output, self._class = table.output_tokens, table.class_id
        self._state = [UP] * config.start + [OFF] * (config.most - config.start)
        self._stay = [*range(config.start), *[-1] * (config.most - config.start)]
        self._stays = [[number, 0.0, 0.0, nan, nan] for number in range(config.start)]
        self._log: list[tuple[float, ...]] = []
        self._left = len(table)
        self._arrived: dict[int, float] = {}
        self._ended: deque[tuple[float, float]] = deque()
        self._inside = 0.0
        self._since_s = self._area = 0.0
        self._looks: deque[tuple[float, float]] = deque([(0.0, 0.0)] if config.on == CONCURRENCY else ())
        self._note(0.0, nan, nan)
        changed(self._up, 0.0)
        env.process(self._decide())

    # what it sees

    def arrived(self, row: int, now: float) -> None:
        """A request has reached the cluster."""
        self._arrived[row] = now
        self._count(1, now)

    def refused(self, row: int, now: float) -> None:
        """A request has ended before it reached a replica."""
        self._left -= 1
        if self._arrived.pop(row, None) is not None:
            self._count(-1, now)

    def answered(self, answer: Answer, replica: int) -> None:
        """A request has ended at a replica, which may have been the last one there."""
        self._left -= 1
        now, arrived_s = answer.finished_s, self._arrived.pop(answer.row)
        self._count(-1, now)
        if not answer.failed and self.config.on not in SUMS:
            self._ended.append((now, self._seen(answer, arrived_s)))
        self.freed(replica, now)

    def given_up(self, row: int, now: float, again: bool) -> None:
        """A client has given a request up, which its replica may not have let go yet."""
        self._left -= not again
        if self._arrived.pop(row, None) is not None:
            self._count(-1, now)

    def freed(self, replica: int, now: float) -> None:
        """A request has left a replica, which may have been the last one there."""
        if self._state[replica] == DRAINING and not self._views[replica].inside:
            self._gone(replica, now)

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
            there = [self._probes[number] for number in self._up]
            seen: float = sum(probe.kv_usage() for probe in there)
            if on == QUEUE:
                seen = sum(probe.queue() for probe in there) + self._held()
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

    def _decide(self) -> Generator[Moment, float, None]:
        """A simpy process: a decision every so often, until no request is left."""
        number = 0
        while self._left:
            number += 1
            yield self._env.until(number * self.config.every_s)
            stands_still = self._env.peek() == inf and STARTING not in self._state
            if not self._left or stands_still:  # the engines say what is wrong then
                return
            self._step(number * self.config.every_s)

    def _step(self, now: float) -> None:
        """One decision."""
        ordered, up = self._state.count(STARTING) + self._state.count(UP), self._state.count(UP)
        metric = self._metric(now)
        wish = self._law.wish(metric, ordered, up)
        wanted = self._law.decide(now, wish, ordered)
        free = [number for number, state in enumerate(self._state) if state == OFF]
        for number in free[: max(wanted - ordered, 0)]:
            self._order(number, now)
        for number in self._newest()[: max(ordered - wanted, 0)]:
            self._let_go(number, now)
        self._note(now, nan if metric is None else metric, wish)

    def _newest(self) -> list[int]:
        """Replicas in the order in which they are let go: those that start, then those that are up, in both
        the youngest first, as a ReplicaSet ranks its pods."""
        there = [number for number, state in enumerate(self._state) if state in (STARTING, UP)]
        return sorted(there, key=lambda n: (self._state[n] == UP, -self._stays[self._stay[n]][1], -n))

    def _order(self, number: int, now: float) -> None:
        self._state[number] = STARTING
        self._stay[number] = stay = len(self._stays)
        self._stays.append([number, now, nan, nan, nan])
        due = now + self.config.start_s
        self._env.until(due).callbacks.append(lambda event: self._comes_up(number, stay, due))

    def _comes_up(self, number: int, stay: int, now: float) -> None:
        if self._stay[number] != stay or self._state[number] != STARTING or not self._left:
            return
        self._restarted(number)
        self._state[number] = UP
        self._stays[stay][2] = now
        self._note(now, nan, nan)
        self._changed(self._up, now)

    def _let_go(self, number: int, now: float) -> None:
        """A replica that starts is given back; one that is up finishes what it has."""
        if self._state[number] == STARTING:
            self._gone(number, now)
            return
        self._state[number] = DRAINING
        self._stays[self._stay[number]][3] = now
        self._changed(self._up, now)
        if not self._views[number].inside:
            self._gone(number, now)

    def _gone(self, number: int, now: float) -> None:
        drained = self._state[number] == DRAINING
        self._state[number] = OFF
        self._stays[self._stay[number]][4] = now
        if drained:
            self._note(now, nan, nan)

    @property
    def _up(self) -> tuple[int, ...]:
        return tuple(number for number, state in enumerate(self._state) if state == UP)

    def _note(self, now: float, metric: float, wish: float) -> None:
        counts = (self._state.count(state) for state in (STARTING, UP, DRAINING))
        self._log.append((now, metric, wish, *counts))

    def log(self) -> ScalingLog:
        """Returns what it did."""
        changes = np.array(self._log, dtype=np.float64).T
        stays = np.array(self._stays, dtype=np.float64).T
        return ScalingLog(
            dict(zip(LOG_COLUMNS, changes, strict=True)), dict(zip(STAY_COLUMNS, stays, strict=True))
        )
