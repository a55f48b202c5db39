"""Who waits in front of an engine on the calendar."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from math import inf

from specfleet.sim.calendar.luck import I64
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
    def first(self) -> int:
        """The place of the first newcomer who waits; -1 if none does."""
        return self.inbox[self.head] if self.head < self.visible else -1

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


class PriorityLine(WaitingLine):
    """Lower priority number first, and of equal ones whoever has arrived first. Nobody is thrown out.

    Whoever has arrived stands in `inbox` in that order: it is the order of admission, as the books want it.

    Args:
        inbox, arrived_s: as in `WaitingLine`.
        priority: by place.
    """

    def __init__(self, inbox: array[int] | range, arrived_s: array[float], priority: I64) -> None:
        super().__init__(array("q", inbox), arrived_s)
        self._priority = priority
        self._ranks: list[int] = []

    def see(self, now: float) -> None:
        """As `WaitingLine.see`."""
        first = self.visible
        super().see(now)
        for index in range(first, self.visible):
            self._rank(index)

    def _rank(self, index: int) -> None:
        """Moves who has arrived, and stands at an index of `inbox`, to where it waits."""
        inbox, ranks = self.inbox, self._ranks
        assert not isinstance(inbox, range)
        place = inbox[index]
        rank = self._priority.item(place)
        goal = bisect_right(ranks, rank, self.head)
        ranks.insert(goal, rank)
        if goal < index:
            del inbox[index]
            inbox.insert(goal, place)
        if goal == self.head:
            self.lacks = 0
