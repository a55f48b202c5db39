"""Who waits in front of an engine on the calendar."""

from __future__ import annotations

from array import array
from math import inf

from specfleet.sim.calendar.stay import Stay


class WaitingLine:
    """The queue: newcomers in order of arrival, and in front of them those who were thrown out.

    Args:
        inbox: places of the requests in order of arrival; may grow while the engine rests.
        arrived_s: when each of them arrives.

    Attributes:
        head: the first of `inbox` that is not admitted. visible: the first that has not arrived.
        preempted: who was thrown out; the last is the next.
        lacks: free blocks without which the next one waits; 0 if that is not known.
        ending: thrown out in this step with their last tokens in flight: they end in the queue.
    """

    def __init__(self, inbox: array[int] | range, arrived_s: array[float]) -> None:
        self.inbox = inbox
        self.arrived_s = arrived_s
        self.head = self.visible = self.ending = self.lacks = 0
        self.preempted: list[Stay] = []

    @property
    def stop_s(self) -> float:
        """The time from which no turn is taken before somebody else has been told of one."""
        return inf

    def put_back(self, stay: Stay) -> None:
        """Puts somebody who was thrown out in front of everybody else."""
        self.preempted.append(stay)
        self.lacks = 0

    def submit(self, place: int, now: float) -> None:
        """Puts a request into the inbox at `now`."""
        assert not isinstance(self.inbox, range)
        self.inbox.append(place)
        self.arrived_s.append(now)

    def forget_times(self) -> None:
        """Everybody has come and gone: when they came is not asked any more."""
        del self.arrived_s[:]

    def see(self, now: float) -> None:
        """Lets those in who have arrived by `now`."""
        arrived_s, visible = self.arrived_s, self.visible
        while visible < len(arrived_s) and arrived_s[visible] <= now:
            visible += 1
        self.visible = visible

    def next_arrival(self, until: float) -> float:
        """Returns when the next one arrives whose time is known, at most `until`."""
        if self.visible < len(self.arrived_s):
            return min(until, self.arrived_s[self.visible])
        return until
