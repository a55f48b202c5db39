"""Policies that choose one K for the whole batch, as the fast path asks them."""

from __future__ import annotations

from collections import deque

import numpy as np

from specfleet.sim.calendar.luck import I64
from specfleet.sim.sequence import NEVER
from specfleet.sim.speculation.policies import BatchSizeSchedule, DisableAboveQueue, Static
from specfleet.sim.speculation.policy import OneForAll, Policy, Seen


def seen(k: int, by_tokens: list[int], rows: int, prompts: bool, seconds: float) -> Seen:
    """Returns what a step shows: `by_tokens` counts its decoding rows by the tokens they sample."""
    rounds = tuple((k, tokens, count) for tokens, count in enumerate(by_tokens) if count)
    return Seen(rounds, rows, prompts, seconds)


class Plans:
    """What an engine on the fast path asks for K.

    Where the drafter has fewer positions than the model, the number of a K says whether its drafts are void:
    k stands for k void drafts, and `void_below` + k for k drafts (`WithinReach`).

    Attributes:
        table, by_batch: K by batch size while nobody waits, as a list and as an array; empty if it changes.
        learns: it is told what every step showed (`note`, `hear`).
        reads_kv: it looks at the KV tokens of the batch.
        void_below: drafts are void at numbers below; 0: void ones are never made.
    """

    table: list[int]
    by_batch: I64
    learns = False
    reads_kv = False
    void_below = 0

    def drafts(self, rows: int, waiting: int, kv_tokens: int) -> int:
        """Returns the drafts to propose after a step of so many rows."""
        raise NotImplementedError

    def note(self, it: int, seen: Seen) -> None:
        """Notes what iteration `it` will have shown."""

    def hear(self, upto: int) -> None:
        """Lets the policy learn what the iterations up to `upto` showed."""


class ByBatchSize(Plans):
    """Drafts by batch size while fewer than `queue` wait, none from there on."""

    def __init__(self, table: list[int], queue: int = NEVER) -> None:
        self.table = table
        self.by_batch = np.array(table, dtype=np.int64)
        self.queue = queue

    def drafts(self, rows: int, waiting: int, kv_tokens: int) -> int:
        """As `Plans.drafts`."""
        return self.table[rows] if waiting < self.queue else 0


class WithinReach(Plans):
    """Drafts as long as the drafter has positions for the longest sequence, void ones otherwise.

    Args:
        chosen: how many.
        k: most of them.
    """

    def __init__(self, chosen: Plans, k: int) -> None:
        self.chosen, self.void_below = chosen, 1 + k
        self.table, self.by_batch = chosen.table, chosen.by_batch
        self.learns, self.reads_kv = chosen.learns, chosen.reads_kv

    def drafts(self, rows: int, waiting: int, kv_tokens: int) -> int:
        """As `Plans.drafts`, whatever the drafter's positions."""
        return self.chosen.drafts(rows, waiting, kv_tokens)

    def note(self, it: int, seen: Seen) -> None:
        """As `Plans.note`."""
        self.chosen.note(it, seen)

    def hear(self, upto: int) -> None:
        """As `Plans.hear`."""
        self.chosen.hear(upto)


class Learner(Plans):
    """A policy that has to be asked every time.

    Args:
        policy: an object of its own for each engine.
    """

    def __init__(self, policy: OneForAll) -> None:
        self.table, self.by_batch = [], np.zeros(0, dtype=np.int64)
        self.policy = policy
        self.learns, self.reads_kv = policy.learns, policy.reads_kv
        self._unheard: deque[tuple[int, Seen]] = deque()

    def drafts(self, rows: int, waiting: int, kv_tokens: int) -> int:
        """As `Plans.drafts`."""
        return self.policy.choose(rows, kv_tokens, waiting)

    def note(self, it: int, seen: Seen) -> None:
        """As `Plans.note`."""
        self._unheard.append((it, seen))

    def hear(self, upto: int) -> None:
        """As `Plans.hear`."""
        while self._unheard and self._unheard[0][0] <= upto:
            self.policy.learn(self._unheard.popleft()[1])


def plans_of(policy: Policy | None, most_rows: int) -> Plans | None:
    """Returns the plans of one engine; None for a policy that looks at single requests.

    Args:
        policy: of this engine alone.
        most_rows: of a step.
    """
    if isinstance(policy, DisableAboveQueue):
        drafts = policy.k if policy.queue > 0 else 0
        return ByBatchSize([drafts] * (most_rows + 1), max(policy.queue, 1))
    if isinstance(policy, Static | BatchSizeSchedule):
        return ByBatchSize([policy.choose(rows, 0, 0) for rows in range(most_rows + 1)])
    return Learner(policy) if isinstance(policy, OneForAll) else None
