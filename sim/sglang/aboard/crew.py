"""Those who run under SGLang's rules, as columns: coming aboard, leaving, and writing back."""

from __future__ import annotations

import numpy as np

from specfleet.sim.config import EngineConfig
from specfleet.sim.sequence import FINISHED, Sequence
from specfleet.sim.sglang.aboard.berths import BASE, I64, NUM_FIELDS, Berths
from specfleet.sim.sglang.aboard.head import BerthHead, BerthNotes
from specfleet.sim.sglang.batch import DECODE, MIXED, SglangBatch
from specfleet.sim.sglang.scheduler import SglangScheduler
from specfleet.sim.speculation.policy import OneForAll, Policy

NO_LUCK = [0] * (NUM_FIELDS - BASE)


class Crew(SglangScheduler):
    """Who runs, as columns: who comes aboard and leaves, and what is written back.

    Attributes:
        columns: their counts.
        aboard: those who run are columns.
        some_certain: the output length of one of them may be known.
        notes: keeps the rest of them.
    """

    def __init__(self, config: EngineConfig, policy: Policy | None = None) -> None:
        super().__init__(config, policy)
        self.columns = Berths()
        self.aboard = False
        self.notes: BerthNotes | None = None
        self._order: I64 = np.zeros(0, dtype=np.int64)
        self._wanted: tuple[I64, I64, I64] | None = None
        self.some_certain = False
        self._pending: dict[Sequence, int] = {}
        self._landed: list[tuple[Sequence, int]] = []
        self._riders: list[Sequence] | None = None
        self._somebody_ended = False
        self._picks = policy is not None and not isinstance(policy, OneForAll)

    def present(self) -> list[Sequence]:
        """As `SglangScheduler.present`, up to date."""
        self.refresh()
        riders = [one for one in self._riders or () if one.state != FINISHED]
        return [*dict.fromkeys([*super().present(), *riders])]

    def catch_up(self) -> None:
        """Takes over what those aboard have had of rows that were listed."""
        for sequence, berth in self._landed:
            own = NO_LUCK if self.notes is None else self.notes.reload(sequence, berth)
            self.columns.load(sequence, self.pool.held[sequence.id], berth, own)
        self._landed.clear()

    def _board(self, sequence: Sequence) -> int:
        """Takes one aboard; returns its berth."""
        berth = self.columns.take()
        own = NO_LUCK if self.notes is None else self.notes.enter(sequence, berth)
        self.columns.load(sequence, self.pool.held[sequence.id], berth, own)
        self.some_certain |= sequence.ignore_eos
        if sequence.num_output_placeholders:
            self._pending[sequence] = berth
        return berth

    def _free(self, berths: list[int]) -> None:
        self.columns.free += berths
        if self.notes is not None:
            for berth in berths:
                self.notes.leaves(berth)

    def _flying(self) -> tuple[I64, I64]:
        """Returns the tokens and the rows of batches in flight that are not in `committed`, by berth."""
        tokens, rows = np.zeros((2, self.columns.table.shape[1]), dtype=np.int64)
        for batch in self._in_flight:
            head = batch.head
            if isinstance(head, BerthHead):
                rows[head.berths] += 1
                if self.rules.reserve:
                    tokens[head.berths] += 1 + head.drafts
            for sequence, kind, n in zip(*self._listed(batch.tail), strict=True):
                if sequence in self._pending:
                    rows[self._pending[sequence]] += 1
                    tokens[self._pending[sequence]] += self._assumed_tokens(kind, n)
        return tokens, rows

    def _listed(self, tail: SglangBatch) -> tuple[list[Sequence], list[str], list[int]]:
        """Returns the rows of a batch that may be of somebody who came aboard with them in flight."""
        return (tail.sequences, tail.kinds, tail.num_tokens) if self._pending else ([], [], [])

    def _assumed_tokens(self, kind: str, tokens: int) -> int:
        """Returns the tokens of a row in flight that are not in `committed`."""
        return tokens if kind in (DECODE, MIXED) and self.rules.reserve else 0

    def refresh(self) -> None:
        """Writes back what those aboard have."""
        if not self.aboard:
            return
        landed = {sequence for sequence, _ in self._landed}  # they are up to date, their berths are not
        tokens, rows = (found.tolist() for found in self._flying())
        there = self.running if self._riders is None else self._riders
        seen = dict(zip(there, self._order.tolist(), strict=True))
        for batch in self._in_flight:
            head = batch.head
            if isinstance(head, BerthHead):
                seen.update(zip(head.members, head.berths.tolist(), strict=True))
        for sequence, berth in seen.items():
            if sequence in landed:
                continue
            if sequence.state != FINISHED:
                self._refresh(sequence, berth, tokens[berth], rows[berth])
            else:  # with a row in vain
                sequence.num_computed_tokens = self.columns.committed.item(berth) + tokens[berth]

    def _refresh(self, sequence: Sequence, berth: int, in_flight: int, assumed: int) -> None:
        """Writes back what one has; `in_flight`: tokens, `assumed`: rows."""
        values, holding = self.columns.table[:, berth].tolist(), self.pool.held[sequence.id]
        holding.committed, holding.allocated, written = values[:3]
        sequence.num_tokens = sequence.prompt_tokens + written
        sequence.num_drafts, void = values[5:7]
        sequence.drafts_are_void = bool(void)
        sequence.num_computed_tokens = values[0] + in_flight
        sequence.num_output_placeholders = assumed
        if self.notes is not None:
            self.notes.refresh(sequence, values[BASE:])

    def dissolve(self) -> None:
        """Lists everybody one by one from now on, rows in flight included."""
        if not self.aboard:
            return
        self.refresh()
        for batch in self._in_flight:
            if isinstance(batch.head, BerthHead):
                batch.head.list_rows(batch.tail)
        if self._riders is not None and self._joining is not None:
            joining, cut = self._joining
            self._joining = joining + self._riders, cut
        self.columns.clear()
        if self.notes is not None:
            self.notes.clear()
        self._pending.clear()
        self._landed.clear()
        self._order = self._order[:0]
        self._riders = None
        self.aboard = self._somebody_ended = False

    def _refresh_written(self) -> None:
        """Brings the output tokens up to date of those who run."""
        if self.aboard:
            written = self.columns.written.take(self._order).tolist()
            for sequence, outputs in zip(self.running, written, strict=True):
                sequence.num_tokens = sequence.prompt_tokens + outputs
