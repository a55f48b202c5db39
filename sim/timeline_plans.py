"""Policies that choose one K for the whole batch, as the fast path asks them."""

from __future__ import annotations

import numpy as np

from sim.sequence import NEVER, Batch
from sim.speculation.policies import BatchSizeSchedule, DisableAboveQueue, Static
from sim.speculation.policy import Policy
from sim.timeline_luck import I64


class Plans:
    """A policy as a table: drafts by batch size while fewer than `queue` wait, none from there on.

    Attributes:
        table, by_batch: the drafts, as a list and as an array.
    """

    def __init__(self, table: list[int], queue: int = NEVER) -> None:
        self.table = table
        self.by_batch: I64 = np.array(table, dtype=np.int64)
        self.queue = queue

    @classmethod
    def of(cls, policy: Policy, most_rows: int) -> Plans | None:
        """Returns the table of a policy; None if it looks at more than batch size and queue."""
        if isinstance(policy, DisableAboveQueue):
            drafts = policy.k if policy.queue > 0 else 0
            return cls([drafts] * (most_rows + 1), max(policy.queue, 1))
        if not isinstance(policy, Static | BatchSizeSchedule):
            return None
        batch, table = Batch(), []
        for _ in range(most_rows + 1):
            plan = policy.plan(batch, 0, 0.0)
            assert isinstance(plan, int)
            table.append(plan)
            batch.sequences.append(None)  # type: ignore[arg-type]
        return cls(table)

    def drafts(self, rows: int, waiting: int) -> int:
        """Returns the drafts to propose after a step of so many rows."""
        return self.table[rows] if waiting < self.queue else 0
