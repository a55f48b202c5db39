"""The waiting queue under the two scheduling policies."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specfleet.sim.sequence import Sequence


class FcfsQueue:
    """First come, first served; whoever is put back goes to the front."""

    def __init__(self) -> None:
        self._queue: deque[Sequence] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._queue)

    def add(self, sequence: Sequence) -> None:
        """Appends a newcomer."""
        self._queue.append(sequence)

    def head(self) -> Sequence:
        """Returns the next sequence without taking it."""
        return self._queue[0]

    def pop(self) -> Sequence:
        """Takes the next sequence."""
        return self._queue.popleft()

    def put_back(self, sequence: Sequence) -> None:
        """Returns a preempted sequence to the front."""
        self._queue.appendleft(sequence)

    def put_back_all(self, sequences: list[Sequence]) -> None:
        """Returns passed-over sequences to the front, in their old order."""
        self._queue.extendleft(reversed(sequences))

    def discard(self, sequences: Iterable[Sequence]) -> None:
        """Removes finished sequences."""
        gone = {id(sequence) for sequence in sequences}
        self._queue = deque(s for s in self._queue if id(s) not in gone)


class PriorityQueue:
    """Lower priority number first, then earlier arrival; there is no front to be put back to."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Sequence]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Sequence]:
        return (entry[2] for entry in sorted(self._heap, key=lambda entry: entry[:2]))

    def add(self, sequence: Sequence) -> None:
        """Inserts a sequence at its rank."""
        heapq.heappush(self._heap, (sequence.priority, sequence.arrival, sequence))

    def head(self) -> Sequence:
        """Returns the most important sequence without taking it."""
        return self._heap[0][2]

    def pop(self) -> Sequence:
        """Takes the most important sequence."""
        return heapq.heappop(self._heap)[2]

    def put_back(self, sequence: Sequence) -> None:
        """Returns a preempted sequence."""
        self.add(sequence)

    def put_back_all(self, sequences: list[Sequence]) -> None:
        """Returns passed-over sequences."""
        for sequence in sequences:
            self.add(sequence)

    def discard(self, sequences: Iterable[Sequence]) -> None:
        """Removes finished sequences."""
        gone = {id(sequence) for sequence in sequences}
        self._heap = [entry for entry in self._heap if id(entry[2]) not in gone]
        heapq.heapify(self._heap)
