"""The rows of SGLang's batches that are columns, and whole batches for whoever looks at single rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from specfleet.sim.sequence import Batch, Head, Sequence
from specfleet.sim.sglang.aboard.berths import I64, Berths
from specfleet.sim.sglang.batch import DECODE, SglangBatch

BOOLS = npt.NDArray[np.bool_]


class BerthNotes(Protocol):
    """Whoever keeps more of a sequence than its token counts: an engine."""

    def enter(self, sequence: Sequence, berth: int) -> list[int]:
        """Returns the fields from `BASE` to `LATEST` of one that comes aboard."""
        ...

    def reload(self, sequence: Sequence, berth: int) -> list[int]:
        """As `enter`, of one that has come aboard before."""
        ...

    def refresh(self, sequence: Sequence, values: list[int]) -> None:
        """Writes them, as they are now, into the sequence."""
        ...

    def luck_after(self, rounds: I64, berths: I64) -> I64:
        """As `Batch.luck_after`, of those in some berths."""
        ...

    def skip_luck(self, berths: I64) -> None:
        """As `Batch.skip_luck`, of those in some berths."""
        ...

    def leaves(self, berth: int) -> None:
        """A berth is free from now on."""
        ...

    def clear(self) -> None:
        """Nobody is aboard any more."""
        ...


class BerthHead(Head):
    """Rows of a batch that are columns: all who run, in the order of the running list.

    Attributes:
        berths: of the rows.
        kind: of all of them.
        voids, stale: which have placeholders for drafts; which had ended when the batch began. None: no row.
        leaving: berths that are free once the batch is committed.
    """

    __slots__ = ("berths", "kind", "leaving", "stale", "voids")

    def __init__(
        self, members: list[Sequence], berths: I64, kind: str, drafts: I64, each: int | None = None
    ) -> None:
        super().__init__(members, drafts, drafts, False, each)
        self.berths = berths
        self.kind = kind
        self.voids: BOOLS | None = None
        self.stale: BOOLS | None = None
        self.leaving: list[int] = []

    def ends_early(self, berth: int) -> None:
        """Somebody has ended with the batch before: a row of his is in vain."""
        rows = self.berths == berth
        self.stale = rows if self.stale is None else self.stale | rows

    def list_rows(self, tail: SglangBatch) -> None:
        """Moves all rows behind those of the tail, where their sequences are looked at one by one."""
        drafts = self.drafts.tolist()
        tail.sequences += self.members
        tail.num_drafts += drafts
        tail.num_tokens += [1 + each for each in drafts]
        tail.kinds += [self.kind] * self.n
        tail.stays += [sequence.num_preemptions for sequence in self.members]
        tail.samples += [True] * self.n
        if self.voids is not None:
            tail.void |= {self.members[row].id for row in np.flatnonzero(self.voids).tolist()}
        planned = self.planned
        if tail.planned_drafts is not None and planned is not None:
            tail.planned_drafts += [planned] * self.n if isinstance(planned, int) else planned.tolist()
        if self.started:
            self.listed = self.new.tolist()
        self.members, self.leaving, self.n, self.num_drafts = [], [], 0, 0
        self.berths = self.drafts = self.ends = self.new = self.kept = self.berths[:0]
        self.voids = self.stale = self.counted = None
        if isinstance(planned, np.ndarray):
            self.planned = planned[:0]


class SglangColumnBatch(SglangBatch):
    """A batch of which rows are columns: `SglangBatch`, for whoever looks at single rows.

    Args:
        head: the rows that are columns; behind the others.
        tail: the others, and who came and went.
        columns: of those aboard. flying: tokens of their rows in flight, by berth.
        refresh: brings those aboard up to date.
        notes: their luck, if anybody keeps it.
    """

    __slots__ = ("_tail", "columns", "flying", "notes", "refresh")
    head: BerthHead

    def __init__(
        self,
        head: BerthHead,
        tail: SglangBatch,
        columns: Berths,
        flying: Callable[[], I64],
        refresh: Callable[[], None],
        notes: BerthNotes | None,
    ) -> None:
        self.head, self._tail = head, tail
        self.columns, self.flying, self.refresh, self.notes = columns, flying, refresh, notes
        self.new, self.resumed, self.preempted = tail.new, tail.resumed, tail.preempted
        self.aborted, self.cached, self.padded = tail.aborted, tail.cached, tail.padded
        self.retracted, self.displaced = tail.retracted, tail.displaced
        self.prompts, self.drafter_too_short = tail.prompts, False
        self.skips_drafts = head.kind != DECODE
        self.total_tokens = head.n + head.num_drafts + tail.total_tokens

    @property
    def tail(self) -> SglangBatch:
        """As `SglangBatch.tail`."""
        return self._tail

    @property
    def rows(self) -> int:
        """As `Batch.rows`."""
        return len(self._tail.sequences) + self.head.n

    def member(self, row: int) -> Sequence:
        """As `Batch.member`."""
        before = len(self._tail.sequences)
        return self._tail.sequences[row] if row < before else self.head.members[row - before]

    def _behind(self, of: Callable[[Batch], I64], head: I64) -> I64:
        """Returns what is asked of the rows that are no columns, and the values of the others behind them."""
        return np.concatenate((of(self._tail), head)) if self._tail.sequences else head

    def ids(self) -> I64:
        """As `Batch.ids`."""
        return self._behind(Batch.ids, self.head.ids)

    def drafts(self) -> I64:
        """As `Batch.drafts`."""
        head = self.head
        return self._behind(Batch.drafts, head.drafts if head.voids is None else head.drafts * ~head.voids)

    def voids(self) -> BOOLS:
        """As `Batch.voids`."""
        head = self.head
        own = np.zeros(head.n, dtype=np.bool_) if head.voids is None else head.voids
        return np.concatenate((self._tail.voids(), own)) if self._tail.sequences else own

    def written(self) -> I64:
        """As `Batch.written`."""
        return self._behind(Batch.written, self.head.written)

    def assumed(self) -> I64:
        """As `Batch.assumed`."""
        return self._behind(Batch.assumed, self.head.written + self.head.assumed)

    def will_sample(self) -> BOOLS:
        """As `Batch.will_sample`."""
        return np.concatenate((self._tail.will_sample(), np.ones(self.head.n, dtype=np.bool_)))

    def luck_after(self, rounds: I64) -> I64:
        """As `Batch.luck_after`."""
        head, before = self.head, len(self._tail.sequences)
        luck = np.zeros(head.n, dtype=np.int64)
        if self.notes is not None:
            luck = self.notes.luck_after(rounds[before:], head.berths)
        return np.concatenate((self._tail.luck_after(rounds[:before]), luck))

    def skip_luck(self, rows: I64) -> None:
        """As `Batch.skip_luck`; asked when the batch is committed."""
        before = len(self._tail.sequences)
        self._tail.skip_luck(rows[rows < before])
        stay = np.setdiff1d(rows[rows >= before] - before, self.head.left)
        if self.notes is not None:
            self.notes.skip_luck(self.head.berths[stay])

    def kv_tokens(self) -> int:
        """As `Batch.kv_tokens`."""
        head = self.head
        computed = self.columns.committed.take(head.berths) + self.flying().take(head.berths)
        return self._tail.kv_tokens() + int(np.add.reduce(computed))

    def heard(self, tail: list[int] | I64) -> I64:
        """As `ColumnBatch.heard`."""
        return np.concatenate((np.array(tail, dtype=np.int64), self.head.new)) if len(tail) else self.head.new

    def tokens(self, sampled: list[int]) -> list[int]:
        """As `Batch.tokens`."""
        return [*sampled, *self.head.listed]

    @property
    def sequences(self) -> list[Sequence]:  # type: ignore[override]
        """The sequences, as they stand now."""
        self.refresh()
        return self._tail.sequences + self.head.members

    @property
    def num_tokens(self) -> list[int]:  # type: ignore[override]
        """Tokens each computes."""
        return self._tail.num_tokens + [1 + drafts for drafts in self.head.drafts.tolist()]

    @property
    def num_drafts(self) -> list[int]:  # type: ignore[override]
        """Of which drafts."""
        return self._tail.num_drafts + self.head.drafts.tolist()  # type: ignore[no-any-return]

    @property
    def samples(self) -> list[bool]:  # type: ignore[override]
        """Whether each samples."""
        return self._tail.samples + [True] * self.head.n

    @property
    def kinds(self) -> list[str]:  # type: ignore[override]
        """Of the rows."""
        return self._tail.kinds + [self.head.kind] * self.head.n

    @property
    def stays(self) -> list[int]:  # type: ignore[override]
        """How often each had been thrown out; who is thrown out later is listed from then on."""
        return self._tail.stays + [sequence.num_preemptions for sequence in self.head.members]

    @property
    def void(self) -> set[int]:  # type: ignore[override]
        """Ids whose drafts are placeholders."""
        head = self.head
        if head.voids is None:
            return self._tail.void
        return self._tail.void | {head.members[row].id for row in np.flatnonzero(head.voids).tolist()}

    @property
    def planned_drafts(self) -> list[int] | None:  # type: ignore[override]
        """Drafts a policy wants proposed after the batch, a number a row; None is K."""
        planned, tail = self.head.planned, self._tail.planned_drafts
        if planned is None or tail is None:
            return None
        return tail + ([planned] * self.head.n if isinstance(planned, int) else planned.tolist())
