"""Who has ended, for those who wait for an end: by decode batch, or with the first token."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from specfleet.sim.calendar.sglang.asking import Asking
from specfleet.sim.sequence import NEVER


class EndedAt(NamedTuple):
    """A request that has ended.

    Attributes:
        place: of it.
        first: the iteration of its first token.
        first_rank, last_rank: of its first and last chunk within their batches, from 1 (0: not asked for).
    """

    place: int
    first: int
    first_rank: int
    last_rank: int


class SglangEnds:
    """The ends of one engine's requests, told when their outcome is known.

    Args:
        ranks: the places of chunks within their batches are asked for.

    Attributes:
        ended, turn_s: who has ended when the engine rests, and the time of the turn.
    """

    def __init__(self, ranks: bool) -> None:
        self.ranks = ranks
        self.ended: list[EndedAt] = []
        self.turn_s = 0.0
        self._due: list[int] = []
        self._at: dict[int, list[tuple[int, EndedAt]]] = {}
        self._decoding: list[int] = []
        self._at_once: list[tuple[int, EndedAt]] = []
        self._known: dict[int, int] = {}
        self._order = 0

    def expect_one(self, asking: Asking, iteration: int) -> None:
        """As `expect`."""
        ended = EndedAt(asking.place, asking.first, asking.first_rank, asking.rank)
        self.expect(ended, asking.since, asking.last, iteration)

    def expect(self, ended: EndedAt, since: int, last: int, iteration: int) -> None:
        """Notes a request that is prefilled in an iteration, and decodes from one decode batch to another, if
        at all. `ended`: what will be told of it, the rank of its last chunk as if that were its first."""
        if last < since:
            self._at_once.append((iteration, ended))
            return
        order = self._order
        self._order = order + 1
        if last not in self._at:
            self._at[last] = []
            heappush(self._due, last)
        self._at[last].append((order, ended))
        if self.ranks:
            self._decoding.append(order)

    def next_stop(self, lag: bool) -> int:
        """Returns the decode batch whose turn may tell of an end; `lag`: a batch later than its own."""
        if self._at_once:
            return 0
        return self._due[0] + 1 + lag if self._due else NEVER

    def publish(self, decode: int, iteration: int, turn_s: float) -> bool:
        """Makes outcomes known up to a decode batch and an iteration; True if somebody ended."""
        if not self._due and not self._at_once and not self.ended:
            return False
        self.settle(decode, iteration)
        if not self.ended:
            return False
        self.turn_s = turn_s
        return True

    def settle(self, decode: int, iteration: int) -> None:
        """Notes who has ended up to a decode batch and an iteration, before anybody is told."""
        while self._at_once and self._at_once[0][0] <= iteration:
            self.ended.append(self._at_once.pop(0)[1])
        while self._due and self._due[0] <= decode:
            self._end(self._at.pop(heappop(self._due)))

    def _end(self, together: list[tuple[int, EndedAt]]) -> None:
        """Ends who decodes for the last time in one batch, in its order."""
        for gone, (order, ended) in enumerate(together):
            rank = self._known.pop(ended.place, 0) if self._known else 0
            if self.ranks and not rank:
                index = bisect_left(self._decoding, order)
                del self._decoding[index]
                rank = index + gone + 1
            self.ended.append(EndedAt(ended.place, ended.first, ended.first_rank, rank))

    def postpone(self, decode: int, last: dict[int, int]) -> None:
        """Those who decode beyond a decode batch do so up to another one than was noted; by place."""
        later = [pair for due, together in self._at.items() if due > decode for pair in together]
        self._at = {due: together for due, together in self._at.items() if due <= decode}
        for order, ended in sorted(later):
            self._at.setdefault(last[ended.place], []).append((order, ended))
        self._due = sorted(self._at)

    def rearrange(self, decode: int, before: Sequence[Asking], after: Sequence[Asking]) -> None:
        """Those who stay on the running list stand in another order from a decode batch on.

        Args:
            decode: its number.
            before, after: who stays, in the order up to then, and from then on.
        """
        self._at.clear()
        self._due.clear()
        self._decoding.clear()
        at_once = {ended.place: iteration for iteration, ended in self._at_once}
        self._at_once.clear()
        for rank, asking in enumerate(before, 1):
            if asking.since <= asking.last < decode:  # its outcome is in flight, in the order up to then
                self.expect_one(asking, 0)
                if self.ranks:
                    self._known[asking.place] = rank
                    self._decoding.pop()
        for asking in after:
            if asking.last < asking.since:
                self.expect_one(asking, at_once[asking.place])
            elif asking.last >= decode:
                self.expect_one(asking, 0)
