"""simpy with absolute times.

`timeout(t - now)` lands an ulp beside `t` and can swap an arrival and a wake-up. Events here are
placed at the very float they were asked for, and at equal times arrivals come before wake-ups, so
that an iteration starting at `t` sees everything that arrived at `t`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import simpy
from simpy.events import EventPriority

ARRIVAL, WAKE = EventPriority(1), EventPriority(2)
"""Priorities at equal times: requests and users first, engines after them."""


class At(float):
    """A delay that ends at this time exactly: simpy adds it to the clock, and the sum is the time."""

    __slots__ = ()

    def __radd__(self, now: float) -> float:
        """Returns the time, whatever the clock says."""
        return float(self)


class Moment(simpy.Event):
    """An event that happens at a time of its own, seconds, once that is known; its value is the time."""

    def happen(self, time_s: float, priority: EventPriority = ARRIVAL) -> None:
        """Sets the time, which must not lie before the event now running."""
        self._ok = True
        self._value = time_s
        self.env.schedule(self, priority, At(time_s))


class Environment(simpy.Environment):
    """A simpy environment whose events are placed at absolute times, seconds."""

    @property
    def still(self) -> bool:
        """Whether nothing is due any more but what comes whatever happens."""
        return self.peek() == inf

    def later(self, time_s: float, then: Callable[[float], None]) -> None:
        """As `at`, of what comes whatever happens and nobody waits for."""
        self.at(time_s, then)

    def moment(self) -> Moment:
        """Returns an event whose time is not known yet, for a process to wait on."""
        return Moment(self)

    def until(self, time_s: float) -> Moment:
        """Returns an event that happens at `time_s`, for a process to wait on."""
        event = Moment(self)
        event.happen(time_s)
        return event

    def at(self, time_s: float, then: Callable[[float], None]) -> None:
        """Calls `then` with the time at `time_s`, with everything that arrives then."""
        event = Moment(self)
        event.callbacks.append(lambda happened: then(time_s))
        event.happen(time_s)

    def wake(self, time_s: float, callback: Callable[[simpy.Event], None]) -> None:
        """Calls `callback` at `time_s`, after everything that arrives then."""
        event = Moment(self)
        event.callbacks.append(callback)
        event.happen(time_s, WAKE)


class WatchedEnvironment(Environment):
    """An environment that counts what is due, to tell what comes whatever happens from the rest."""

    def __init__(self) -> None:
        super().__init__()
        self._due = self._later = 0

    @property
    def still(self) -> bool:
        """As `Environment.still`."""
        return self._due == self._later

    def later(self, time_s: float, then: Callable[[float], None]) -> None:
        """As `Environment.later`."""
        self._later += 1

        def come(now: float) -> None:
            self._later -= 1
            then(now)

        self.at(time_s, come)

    def schedule(self, event: simpy.Event, priority: EventPriority = ARRIVAL, delay: Any = 0) -> None:
        """Counts an event."""
        self._due += 1
        super().schedule(event, priority, delay)

    def step(self) -> None:
        """Counts an event less."""
        self._due -= 1
        super().step()
