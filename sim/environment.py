"""simpy with absolute times.

`timeout(t - now)` lands an ulp beside `t` and can swap an arrival and a wake-up. Events here are
placed at the very float they were asked for, and at equal times arrivals come before wake-ups, so
that an iteration starting at `t` sees everything that arrived at `t`.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappush
from typing import Any

import simpy

ARRIVAL, WAKE = 1, 2
"""Priorities at equal times: requests and users first, engines after them."""


class Environment(simpy.Environment):
    """A simpy environment whose events are placed at absolute times, seconds."""

    def at(self, time_s: float, priority: int, callback: Callable[[simpy.Event], None]) -> None:
        """Calls `callback` at `time_s`, which must not lie before the event now running."""
        event = self.until(time_s, priority)
        assert event.callbacks is not None
        event.callbacks.append(callback)

    def until(self, time_s: float, priority: int = ARRIVAL) -> simpy.Event:
        """Returns an event that happens at `time_s`, for a process to wait on."""
        event = simpy.Event(self)
        event._ok = True
        event._value = None
        entry: tuple[Any, Any, int, simpy.Event] = (time_s, priority, next(self._eid), event)
        heappush(self._queue, entry)
        return event
