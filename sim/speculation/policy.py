"""What a policy is: asked for drafts when a step is scheduled, told what came of them.

It sees counts, queue lengths, measured acceptance, the drafter's own confidence and the requests'
temperature; never what will be accepted and never how long an output will be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple, Protocol

from specfleet.sim.sequence import Batch

Plan = int | list[int]
"""Drafts to propose after a step: one number for all rows, or one a row."""


class Policy(Protocol):
    """Chooses drafts. One object serves one engine and keeps its own state."""

    def plan(self, batch: Batch, waiting: int, now: float) -> Plan:
        """Returns the drafts to propose after `batch`, scheduled at `now` while `waiting` requests queue."""
        ...

    def observe(self, batch: Batch, sampled: Rows[int], seconds: float) -> None:
        """Learns the tokens each row of a committed batch sampled, and how long the step took.

        Rows whose output nobody waits for sampled 0: pieces of prompts, and requests that have ended.
        """
        ...


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """A policy by name with its parameters, as an experiment states it.

    Args:
        name: a key of `POLICIES`.
        parameters: keyword arguments of that class.
    """

    name: str
    parameters: Mapping[str, object] = field(default_factory=dict)


class Seen(NamedTuple):
    """What a committed step showed, summed over its rows.

    Attributes:
        rounds: (drafts verified, tokens sampled, rows) of the decoding rows.
        rows: of the step, of every kind.
        prompts: whether one of them computed a piece of a prompt.
        seconds: that the step took.
    """

    rounds: tuple[tuple[int, int, int], ...]
    rows: int
    prompts: bool
    seconds: float

    @classmethod
    def of(cls, batch: Batch, sampled: Rows[int], seconds: float) -> Seen:
        """Sums a batch up; drafts that were placeholders do not count."""
        rows = zip(batch.sequences, batch.num_drafts, sampled, strict=True)
        counts = Counter((drafts, new) for row, drafts, new in rows if new and row.id not in batch.void)
        rounds = tuple((drafts, new, count) for (drafts, new), count in counts.items())
        return cls(rounds, len(batch.sequences), batch.prompts, seconds)


class OneForAll:
    """A policy that chooses one number of drafts for all rows, from totals of the batch alone.

    Attributes:
        learns: it wants to see what came of every step.
        reads_kv: it looks at the KV tokens of the batch.
    """

    learns: ClassVar[bool] = False
    reads_kv: ClassVar[bool] = False

    def choose(self, rows: int, kv_tokens: int, waiting: int) -> int:
        """Returns the drafts to propose after a step.

        Args:
            rows: of the step.
            kv_tokens: computed before it, of all rows together (0 unless `reads_kv`).
            waiting: requests in the queue.
        """
        raise NotImplementedError

    def learn(self, seen: Seen) -> None:
        """Learns from a committed step."""

    def plan(self, batch: Batch, waiting: int, now: float) -> Plan:
        """As `Policy.plan`."""
        kv = sum([row.num_computed_tokens for row in batch.sequences]) if self.reads_kv else 0
        return self.choose(len(batch.sequences), kv, waiting)

    def observe(self, batch: Batch, sampled: Rows[int], seconds: float) -> None:
        """As `Policy.observe`."""
        if self.learns:
            self.learn(Seen.of(batch, sampled, seconds))


class Silent:
    """A policy that learns nothing."""

    def observe(self, batch: Batch, sampled: Rows[int], seconds: float) -> None:
        """Nothing to learn."""
