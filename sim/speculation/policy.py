"""What a policy is: asked for drafts when a step is scheduled, told what came of them.

It sees counts, queue lengths, measured acceptance, the drafter's own confidence and the requests'
temperature; never what will be accepted and never how long an output will be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from specfleet.sim.rules import I64
from specfleet.sim.sequence import Batch, Sequence

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
        """Sums a batch up; rows whose drafts were placeholders do not count."""
        return cls.of_rows(batch, np.asarray(sampled, dtype=np.int64), seconds)

    @classmethod
    def of_rows(cls, batch: Batch, sampled: I64, seconds: float) -> Seen:
        """As `of`."""
        counts = sampled > 0
        counts &= ~batch.voids()
        new, drafts = sampled[counts], batch.drafts()[counts]
        width = int(new.max(initial=0)) + 1
        found = np.bincount(drafts * width + new)
        which = np.flatnonzero(found)
        rounds = zip((which // width).tolist(), (which % width).tolist(), found[which].tolist(), strict=True)
        return cls(tuple(rounds), batch.rows, batch.prompts, seconds)


class Columnwise:
    """A policy that looks at single requests, at all of them at once.

    `plan` and `observe` do the same with lists.

    Attributes:
        moves_luck: it changes what requests will accept.
    """

    moves_luck: ClassVar[bool] = False

    def plan_rows(self, batch: Batch, waiting: int, now: float) -> I64:
        """As `Policy.plan`, a number a row."""
        raise NotImplementedError

    def observe_rows(self, batch: Batch, sampled: I64, seconds: float) -> None:
        """As `Policy.observe`."""

    def plan(self, batch: Batch, waiting: int, now: float) -> Plan:
        """As `Policy.plan`."""
        return self.plan_rows(batch, waiting, now).tolist()  # type: ignore[no-any-return]

    def observe(self, batch: Batch, sampled: Rows[int], seconds: float) -> None:
        """As `Policy.observe`."""
        self.observe_rows(batch, np.asarray(sampled, dtype=np.int64), seconds)


def minds_order(policy: Policy | None) -> bool:
    """Whether a policy may mind where rows stand that are in vain, or changes requests: columns move both."""
    if policy is None or isinstance(policy, OneForAll):
        return False
    return not isinstance(policy, Columnwise) or policy.moves_luck or type(policy).plan is not Columnwise.plan


def plan_of(policy: Policy, batch: Batch, waiting: int, now: float) -> Plan | I64:
    """Asks a policy for its plan, all rows at once where it can and nobody has overridden `plan`."""
    if isinstance(policy, Columnwise) and type(policy).plan is Columnwise.plan:
        return policy.plan_rows(batch, waiting, now)
    return policy.plan(batch, waiting, now)


def observes(policy: Policy) -> bool:
    """Whether a policy learns anything from what a step brought."""
    observe: object = type(policy).observe
    if isinstance(policy, Columnwise) and observe is Columnwise.observe:
        learns: object = type(policy).observe_rows
        return learns is not Columnwise.observe_rows
    if isinstance(policy, OneForAll) and observe is OneForAll.observe:
        return policy.learns
    return observe is not Silent.observe


def tell(policy: Policy, batch: Batch, heard: list[int] | I64, seconds: float) -> None:
    """Lets a policy learn what a step brought; `heard`: tokens of the rows that are no columns."""
    if not observes(policy):
        return
    observe: object = type(policy).observe
    if isinstance(policy, Columnwise) and observe is Columnwise.observe:
        policy.observe_rows(batch, batch.heard(heard), seconds)
    elif batch.head is None and isinstance(heard, list):
        policy.observe(batch, heard, seconds)
    else:
        policy.observe(batch, batch.heard(heard).tolist(), seconds)


class ById:
    """A number, or a row of numbers, for each request that was seen.

    Args:
        start: before anything is known of a request.
        shape: of what is kept of one.

    Attributes:
        of: the numbers by request id.
    """

    def __init__(self, start: float, dtype: type = np.int64, shape: tuple[int, ...] = ()) -> None:
        self.start = start
        self.of: npt.NDArray[Any] = np.full((0, *shape), start, dtype=dtype)

    def at(self, ids: I64) -> npt.NDArray[Any]:
        """Returns the numbers of requests, with room for them from then on."""
        try:
            found: npt.NDArray[Any] = self.of[ids]
        except IndexError:
            self.cover(ids)
            found = self.of[ids]
        return found

    def cover(self, ids: I64) -> None:
        """Makes room for requests."""
        most = int(ids.max(initial=-1)) + 1
        if most > len(self.of):
            more = max(most, 2 * len(self.of)) - len(self.of)
            added = np.full((more, *self.of.shape[1:]), self.start, dtype=self.of.dtype)
            self.of = np.concatenate((self.of, added))


class FromRequest:
    """Numbers that follow from a request as it was sent; asked for once.

    Args:
        ask: returns them. shape: of them. dtype: theirs.
    """

    def __init__(
        self, ask: Callable[[Sequence], object], dtype: type = np.int64, shape: tuple[int, ...] = ()
    ) -> None:
        self.ask = ask
        self._asked = ById(0, np.bool_)
        self._said = ById(0, dtype, shape)

    def of(self, batch: Batch, ids: I64 | None = None) -> npt.NDArray[Any]:
        """Returns them for the rows of a batch, whose requests are `ids` if somebody has asked already."""
        ids = batch.ids() if ids is None else ids
        asked = self._asked.at(ids)
        if not np.logical_and.reduce(asked):
            self._said.cover(ids)
            new = np.flatnonzero(~asked)
            for row in new.tolist():
                self._said.of[ids[row]] = self.ask(batch.member(row))
            self._asked.of[ids[new]] = True
        said: npt.NDArray[Any] = self._said.of[ids]
        return said


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
        return self.choose(batch.rows, batch.kv_tokens() if self.reads_kv else 0, waiting)

    def observe(self, batch: Batch, sampled: Rows[int], seconds: float) -> None:
        """As `Policy.observe`."""
        if self.learns:
            self.learn(Seen.of(batch, sampled, seconds))


class Silent:
    """A policy that learns nothing."""

    def observe(self, batch: Batch, sampled: Rows[int], seconds: float) -> None:
        """Nothing to learn."""
