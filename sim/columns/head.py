"""The rows of a step that are columns, and the whole step for those who want to see rows one by one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from specfleet.sim.columns.state import Notes
from specfleet.sim.sequence import Batch, Head, Sequence

I64 = npt.NDArray[np.int64]


class ColumnBatch(Batch):
    """A step whose first rows are columns: `Batch`, for whoever looks at single rows.

    Args:
        head: the first rows.
        tail: the others, and who came and went.
        refresh: brings those aboard up to date.
        notes: their luck, if anybody keeps it.
    """

    __slots__ = ("_tail", "notes", "refresh")
    head: Head

    def __init__(self, head: Head, tail: Batch, refresh: Callable[[], None], notes: Notes | None) -> None:
        self.head = head
        self._tail = tail
        self.refresh, self.notes = refresh, notes
        self.new, self.resumed, self.preempted = tail.new, tail.resumed, tail.preempted
        self.aborted, self.cached, self.padded = tail.aborted, tail.cached, tail.padded
        self.decided()

    def decided(self) -> None:
        """Takes over what has become known of the tail."""
        head, tail = self.head, self._tail
        self.prompts, self.skips_drafts = tail.prompts, tail.skips_drafts
        self.drafter_too_short = tail.drafter_too_short
        self.total_tokens = head.n + head.num_drafts + tail.total_tokens

    @property
    def tail(self) -> Batch:
        """As `Batch.tail`."""
        return self._tail

    @property
    def rows(self) -> int:
        """As `Batch.rows`."""
        return self.head.n + len(self.tail.sequences)

    def member(self, row: int) -> Sequence:
        """As `Batch.member`."""
        n = self.head.n
        return self.head.members[row] if row < n else self.tail.sequences[row - n]

    def _with_tail(self, head: I64, of: Callable[[Batch], I64]) -> I64:
        """Returns the values of those rows that are columns, and what is asked of the others behind them."""
        return np.concatenate((head, of(self._tail))) if self._tail.sequences else head

    def ids(self) -> I64:
        """As `Batch.ids`."""
        return self._with_tail(self.head.ids, Batch.ids)

    def drafts(self) -> I64:
        """As `Batch.drafts`."""
        head = self.head
        return self._with_tail(np.zeros_like(head.drafts) if head.void else head.drafts, Batch.drafts)

    def voids(self) -> npt.NDArray[np.bool_]:
        """As `Batch.voids`."""
        head = self.head
        placeholders = head.drafts > 0 if head.void else np.zeros(head.n, dtype=np.bool_)
        return np.concatenate((placeholders, self.tail.voids()))

    def written(self) -> I64:
        """As `Batch.written`."""
        return self._with_tail(self.head.written, Batch.written)

    def assumed(self) -> I64:
        """As `Batch.assumed`."""
        return self._with_tail(self.head.written + self.head.assumed, Batch.assumed)

    def will_sample(self) -> npt.NDArray[np.bool_]:
        """As `Batch.will_sample`."""
        return np.concatenate((np.ones(self.head.n, dtype=np.bool_), self.tail.will_sample()))

    def luck_after(self, rounds: I64) -> I64:
        """As `Batch.luck_after`."""
        n, notes, places = self.head.n, self.notes, self.head.places
        places = np.arange(n) if places is None else places
        luck = np.zeros(n, dtype=np.int64) if notes is None else notes.luck_after(rounds[:n], places)
        return np.concatenate((luck, self.tail.luck_after(rounds[n:])))

    def skip_luck(self, rows: I64) -> None:
        """As `Batch.skip_luck`; asked when the step is committed."""
        head = self.head
        self.tail.skip_luck(rows[rows >= head.n] - head.n)
        stay = np.setdiff1d(rows[rows < head.n], head.left)
        if self.notes is not None:
            self.notes.skip_luck(stay - np.searchsorted(head.left, stay))

    def heard(self, tail: list[int] | I64) -> I64:
        """As `Batch.heard`."""
        return np.concatenate((self.head.new, np.array(tail, dtype=np.int64)))

    def kv_tokens(self) -> int:
        """As `Batch.kv_tokens`."""
        head = self.head
        return int(np.add.reduce(head.ends)) - head.num_drafts - head.n + self.tail.kv_tokens()

    @property
    def sequences(self) -> list[Sequence]:  # type: ignore[override]
        """The sequences, as they stand now."""
        self.refresh()
        return self.head.members[: self.head.n] + self.tail.sequences

    @property
    def num_tokens(self) -> list[int]:  # type: ignore[override]
        """Tokens each computes."""
        return [1 + drafts for drafts in self.head.drafts.tolist()] + self.tail.num_tokens

    @property
    def num_drafts(self) -> list[int]:  # type: ignore[override]
        """Of which drafts."""
        return self.head.drafts.tolist() + self.tail.num_drafts  # type: ignore[no-any-return]

    @property
    def samples(self) -> list[bool]:  # type: ignore[override]
        """Whether each samples."""
        return [True] * self.head.n + self.tail.samples

    @property
    def void(self) -> set[int]:  # type: ignore[override]
        """Ids whose drafts are placeholders."""
        if not self.head.void:
            return self.tail.void
        rows = zip(self.head.members, self.head.drafts.tolist(), strict=False)
        return self.tail.void | {sequence.id for sequence, drafts in rows if drafts}

    @property
    def planned_drafts(self) -> list[int] | None:  # type: ignore[override]
        """Drafts a policy wants proposed after the step, a number a row; None is K for all."""
        planned, tail = self.head.planned, self.tail.planned_drafts
        if planned is None or tail is None:
            return None
        return [planned] * self.head.n + tail if isinstance(planned, int) else planned.tolist() + tail
