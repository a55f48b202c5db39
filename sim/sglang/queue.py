"""In which order SGLang tries those who wait."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from specfleet.sim.config import SglangConfig
from specfleet.sim.sglang.pool import Match, Text, tokens_of
from specfleet.sim.sglang.radix import Key, common

LPM_FALLBACK = 128
"""With more requests than this waiting, `lpm` takes them as they came."""
IN_BATCH_CHECK = IN_BATCH_DEPRIORITIZE = 32
"""A request with no more cached tokens than the first is compared with those before it in the queue; one that
shares so many tokens with one of them as the second waits for it to be computed."""
REFRESH_PASSES = 32
"""Passes from one look at all prefixes to the next, where the order does not need them."""


class Waits(Text, Protocol):
    """One who waits: `Sequence`, or the same of a life drawn ahead.

    Attributes:
        priority: as asked for. arrival: its entry into the queue.
    """

    priority: int
    arrival: int

    @property
    def id(self) -> int:
        """Names it."""
        ...


Waiting = TypeVar("Waiting", bound=Waits)
Looker = TypeVar("Looker", bound=Waits, contravariant=True)


class PrefixFinder(Protocol[Looker]):
    """Where prefixes are looked up."""

    @property
    def tree(self) -> object | None:
        """The radix tree, or None."""
        ...

    def match(self, sequence: Looker, short_by: int = 1, /) -> Match:
        """As `TokenPool.match`."""
        ...


class SglangQueue(Generic[Waiting]):
    """Those who wait.

    Args:
        config: the policy.
        pool: where prefixes are looked up.

    Attributes:
        queue: in the order in which they are tried.
    """

    def __init__(self, config: SglangConfig, pool: PrefixFinder[Waiting]) -> None:
        self.queue: list[Waiting] = []
        self._config = config
        self._pool = pool
        self._by_prefix = config.schedule_policy == "lpm" and pool.tree is not None
        self._passes = 0
        self._entries = 0

    def __len__(self) -> int:
        return len(self.queue)

    def add(self, sequence: Waiting) -> None:
        """Appends one, new or thrown out."""
        sequence.arrival = self._entries
        self._entries += 1
        self.queue.append(sequence)

    def take(self, gone: set[int]) -> None:
        """Removes requests by id."""
        if all(sequence.id in gone for sequence in self.queue[: len(gone)]):
            del self.queue[: len(gone)]
        else:
            self.queue = [sequence for sequence in self.queue if sequence.id not in gone]

    def sort(self) -> None:
        """Brings the queue into order, before a prefill batch is put together."""
        if self._by_prefix and len(self.queue) <= LPM_FALLBACK:
            self._sort_by_prefix()
            return
        if self._passes % REFRESH_PASSES == 0:
            for sequence in self.queue:
                self._pool.match(sequence, 0)
        self._passes += 1
        if self._config.enable_priority_scheduling and not self._by_prefix:
            self.queue.sort(key=self.rank)

    def rank(self, sequence: Waiting) -> tuple[int, int]:
        """Returns what priority scheduling sorts by: priority, then time of entry."""
        low_first = self._config.schedule_low_priority_values_first
        return (sequence.priority if low_first else -sequence.priority, sequence.arrival)

    def _sort_by_prefix(self) -> None:
        """The longest cached prefix first; who shares an uncached one with somebody before him last."""
        seen: list[Key] = []
        order: dict[int, float] = {}
        for sequence in self.queue:
            found = self._pool.match(sequence, 0).tokens
            order[sequence.id] = -min(found, sequence.num_tokens - 1)
            if found > IN_BATCH_CHECK:
                continue
            key = tokens_of(sequence, sequence.num_tokens)
            if max((common(key, other) for other in seen), default=0) >= IN_BATCH_DEPRIORITIZE:
                order[sequence.id] = float("inf")
            else:
                seen.append(key)
        self.queue.sort(key=lambda sequence: order[sequence.id])
