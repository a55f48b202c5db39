"""Who has ended, for those who wait for an end: by decode batch, or with the first token."""

from __future__ import annotations

from bisect import bisect_left
from heapq import heappop, heappush

from specfleet.sim.calendar.watch import Ended
from specfleet.sim.sequence import NEVER


class SglangEnds:
    """The ends of one engine's requests, told when their outcome is known.

    Args:
        ranks: the places of chunks within their batches are asked for.

    Attributes:
        ended, turn_s: who has ended when the engine rests, and the time of the turn.
    """

    def __init__(self, ranks: bool) -> None:
        self.ranks = ranks
        self.ended: list[Ended] = []
        self.turn_s = 0.0
        self._due: list[int] = []
        self._at: dict[int, list[tuple[int, Ended]]] = {}
        self._decoding: list[int] = []
        self._at_once: list[tuple[int, Ended]] = []
        self._order = 0

    def expect(self, last: int, place: int, rank: int) -> None:
        """Notes a request that decodes up to batch number `last`; `rank` is that of its first chunk."""
        order = self._order
        self._order = order + 1
        if last not in self._at:
            self._at[last] = []
            heappush(self._due, last)
        self._at[last].append((order, Ended(place, rank, 0)))
        if self.ranks:
            self._decoding.append(order)

    def at_once(self, iteration: int, place: int, rank: int) -> None:
        """Notes a request that ends with its first token, in a prefill batch."""
        self._at_once.append((iteration, Ended(place, rank, rank)))

    def next_stop(self, lag: bool) -> int:
        """Returns the decode batch whose turn may tell of an end; `lag`: a batch later than its own."""
        if self._at_once:
            return 0
        return self._due[0] + 1 + lag if self._due else NEVER

    def publish(self, decode: int, iteration: int, turn_s: float) -> bool:
        """Makes outcomes known up to a decode batch and an iteration; True if somebody ended."""
        if not self._due and not self._at_once:
            return False
        ended = self.ended
        count = len(ended)
        while self._at_once and self._at_once[0][0] <= iteration:
            ended.append(self._at_once.pop(0)[1])
        while self._due and self._due[0] <= decode:
            self._end(self._at.pop(heappop(self._due)))
        if len(ended) == count:
            return False
        self.turn_s = turn_s
        return True

    def _end(self, together: list[tuple[int, Ended]]) -> None:
        """Ends who decodes for the last time in one batch, in its order."""
        for gone, (order, one) in enumerate(together):
            rank = 0
            if self.ranks:
                index = bisect_left(self._decoding, order)
                del self._decoding[index]
                rank = index + gone + 1
            self.ended.append(one._replace(last_rank=rank))
