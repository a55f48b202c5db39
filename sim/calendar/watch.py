"""Who ends when, for those who have to know while a lane is running: routers and closed loops."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from heapq import heappop, heappush
from typing import NamedTuple

from specfleet.sim.sequence import NEVER


class Ended(NamedTuple):
    """A request that has ended.

    Attributes:
        place: in the trajectories.
        first_rank, last_rank: of its first and last chunk within their steps, from 1 (0: not asked for).
    """

    place: int
    first_rank: int
    last_rank: int


class Watch:
    """The ends of one lane's requests by iteration, as they stand; a preemption moves one.

    Args:
        ranks: the places of chunks within their steps are asked for.
    """

    def __init__(self, ranks: bool) -> None:
        self.ranks = ranks
        self._due: list[int] = []
        self._ends_due: list[int] = []
        self._ends: dict[int, list[tuple[int, int]]] = {}
        self._far: dict[int, int] = {}
        self._begins: dict[int, list[tuple[int, int]]] = {}
        self._leaves: dict[int, list[int]] = {}
        self._talking: list[int] = []
        self._order_of: dict[int, int] = {}
        self._first_rank: dict[int, int] = {}
        self._reported: list[Ended] = []
        self._admissions = 0

    def expect(self, it: int, place: int, rounds: int) -> None:
        """Notes a prefill that ends in `it`, and an end `rounds` iterations later (`NEVER`: not known)."""
        order = self._admissions
        self._admissions = order + 1
        end = it + rounds
        there = self._ends.get(end)
        if rounds == NEVER:
            self._far[place] = order
        elif there is None:
            self._ends[end] = [(order, place)]
            heappush(self._ends_due, end)
            if self.ranks:
                heappush(self._due, end)
        else:
            there.append((order, place))
        if self.ranks:
            self._begins.setdefault(it, []).append((order, place))
            self._order_of[place] = order
            heappush(self._due, it)

    def unexpect(self, place: int, end: int, last: int) -> None:
        """Takes an end back: the request was thrown out after its chunk of iteration `last`."""
        if self._far.pop(place, None) is None:
            self._ends[end] = [entry for entry in self._ends[end] if entry[1] != place]
        if self.ranks:
            self._leaves.setdefault(last, []).append(self._order_of[place])
            heappush(self._due, last)

    def catch_up(self, upto: int) -> None:
        """Learns that outcomes are known up to an iteration; who has ended is told at the next `commit`."""
        self._reported = self.commit(upto)

    def stay_on(self, place: int, last: int) -> None:
        """Takes it back that a request stopped talking after its chunk of iteration `last`: it has none."""
        if self.ranks and place in self._order_of and last in self._leaves:
            order = self._order_of[place]
            self._leaves[last] = [other for other in self._leaves[last] if other != order]

    def let_go(self, place: int, begun: int, end: int | None, last: int) -> None:
        """Forgets a request that is given up.

        Args:
            place: of the request.
            begun: iteration in which the prefill of its stay ended; -1 if it does not decode.
            end: in which it would have ended; None if that was taken back before.
            last: last iteration whose outcome is known.
        """
        if end is not None and self._far.pop(place, None) is None:
            self._ends[end] = [entry for entry in self._ends[end] if entry[1] != place]
        order = self._order_of.pop(place, None)
        self._first_rank.pop(place, None)
        if order is None or begun < 0:
            return
        if begun > last:
            self._begins[begun].remove((order, place))
            return
        self._leaves.setdefault(last, []).append(order)
        heappush(self._due, last)

    def move(self, ends: Mapping[int, int], it: int) -> None:
        """Moves the ends of all who run in iteration `it`: K has changed.

        Args:
            ends: by place, as far as they are known. it: ends before it stay.
        """
        far, moved = self._far, {end: there for end, there in self._ends.items() if end < it}
        for end, there in self._ends.items():
            if end >= it:
                for order, place in there:
                    far[place] = order
        for place, end in ends.items():
            moved.setdefault(end, []).append((far.pop(place), place))
        for end, there in moved.items():
            if end >= it:
                there.sort()
        self._ends, self._ends_due = moved, sorted(moved)
        if self.ranks:
            self._due = sorted({*self._begins, *self._leaves, *moved})

    def forget(self, last: int) -> None:
        """Takes back all ends after iteration `last`: somebody else runs their requests from there on."""
        for end in [end for end in self._ends if end > last]:
            for _, place in list(self._ends[end]):
                self.unexpect(place, end, last)
        for place in list(self._far):
            self.unexpect(place, NEVER, last)

    def report(self, ended: Ended) -> None:
        """Notes an end that somebody else has seen, to be told at the next call."""
        self._first_rank.pop(ended.place, None)
        self._reported.append(ended)

    def first_rank(self, place: int) -> int:
        """Returns the place of a request's first chunk within its step, 0 if there was none yet."""
        return self._first_rank.get(place, 0)

    def begun(self, place: int, rank: int) -> None:
        """Notes the place of a first chunk that somebody else has seen."""
        if self.ranks:
            self._first_rank[place] = rank

    def next_end(self) -> int:
        """Returns the iteration in which the next one ends."""
        due, ends = self._ends_due, self._ends
        while due and not ends.get(due[0]):
            ends.pop(heappop(due), None)
        return due[0] if due else NEVER

    def count(self, upto: int) -> int:
        """Returns how many have ended in iterations up to `upto` since the last call (without ranks)."""
        due, ended = self._ends_due, len(self._reported)
        self._reported.clear()
        while due and due[0] <= upto:
            ended += len(self._ends.pop(heappop(due)))
        return ended

    def commit(self, upto: int) -> list[Ended]:
        """Returns who has ended in iterations up to `upto` since the last call, in row order."""
        due = self._due if self.ranks else self._ends_due
        ended, self._reported = self._reported, []
        while due and due[0] <= upto:
            it = heappop(due)
            if not self.ranks:
                ended += [Ended(place, 0, 0) for _, place in self._ends.pop(it)]
                continue
            self._begin(it)
            ended += self._end(it)
            for order in self._leaves.pop(it, ()):
                del self._talking[bisect_left(self._talking, order)]
        return ended

    def _begin(self, it: int) -> None:
        talking = self._talking
        for order, place in self._begins.pop(it, ()):
            talking.append(order)
            self._first_rank.setdefault(place, len(talking))

    def _end(self, it: int) -> list[Ended]:
        talking, ended = self._talking, []
        for gone, (order, place) in enumerate(self._ends.pop(it, ())):
            index = bisect_left(talking, order)
            del talking[index]
            del self._order_of[place]
            ended.append(Ended(place, self._first_rank.pop(place), index + gone + 1))
        return ended
