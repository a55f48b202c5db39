"""The running sequences of an engine: decoding ones as columns, the others one by one."""

from __future__ import annotations

from collections import deque

import numpy as np

from specfleet.sim.columns.state import Columns
from specfleet.sim.config import EngineConfig
from specfleet.sim.kvcache import KVCache
from specfleet.sim.listed import ListedCrowd
from specfleet.sim.rules import I64, SchedulerRules, reaches_max_tokens
from specfleet.sim.sequence import RUNNING, Batch, Head, Sequence

LEAST_ROWS = 6
"""Sequences below which columns cost more than they spare."""
MOST_PATIENCE = 256


class ColumnCrowd(ListedCrowd):
    """As `ListedCrowd`, where the first of those who run are columns.

    A step that they do not fit whole (budget, positions, KV under another order than that of admission) is
    decided one by one; they come aboard again a little later, and later each time.

    Attributes:
        columns: those aboard.
        flying: the batches in flight, without the rows that are columns, and those rows.
        pending: who came aboard with a row of its own in flight, and where.
        usable: columns are used at all.
    """

    def __init__(self, config: EngineConfig, rules: SchedulerRules, kv: KVCache, k_varies: bool) -> None:
        super().__init__(config, rules, kv, k_varies)
        ahead = config.async_scheduling
        self.columns = Columns(config.max_num_seqs, config.block_size, config.max_model_len, ahead)
        self.flying: deque[tuple[Batch, Head | None]] = deque()
        self.pending: dict[Sequence, int] = {}
        self.usable = True
        self._patience, self._waits, self._lasted = 1, 0, 0

    def begin(self) -> Batch:
        """As `ListedCrowd.begin`; who can come aboard does."""
        if self.usable:
            self._board()
        return super().begin()

    def _board(self) -> None:
        columns, running = self.columns, self.running
        if self._waits:
            self._waits -= 1
            return
        if columns.n:
            self._lasted += 1
            if self._lasted == MOST_PATIENCE:
                self._patience = 1
        elif len(running) < LEAST_ROWS or sum(map(self._decodes, running)) < LEAST_ROWS:
            return
        while columns.n < len(running) and self._decodes(sequence := running[columns.n]):
            if sequence.num_in_flight_tokens:
                self.pending[sequence] = columns.n
            columns.board(sequence)

    def _decodes(self, sequence: Sequence) -> bool:
        """Whether a sequence has nothing but decode rows ahead, and the same behind it as those aboard."""
        if not self.columns.n:
            self.columns.void = sequence.drafts_are_void
        assumed = sequence.num_output_placeholders
        return (
            not sequence.is_prefill_chunk
            and sequence.num_computed_tokens == sequence.num_tokens - 1 + assumed
            and sequence.num_in_flight_tokens == assumed
            and bool(assumed or not self.flying)
            and not sequence.num_stale_tokens
            and sequence.state == RUNNING
            and sequence.drafts_are_void == self.columns.void
            and (self.columns.notes is None or self.columns.notes.ready(sequence))
        )

    def refresh(self) -> None:
        """Writes back what those aboard have."""
        for place in range(self.columns.n):
            self.columns.refresh(self.running[place], place)

    def dissolve(self) -> None:
        """Lists everybody one by one from now on, for a while."""
        if not self.columns.n:
            return
        self.refresh()
        for batch, head in self.flying:
            if head is not None:
                head.take_out(list(range(head.n)), batch)
        self.pending.clear()
        self.columns.clear()
        self._waits = self._patience
        self._patience, self._lasted = min(2 * self._patience, MOST_PATIENCE), 0

    def serve(self) -> None:
        """As `ListedCrowd.serve`: those aboard together, then the others."""
        budget = self.step.tokens
        if self.columns.n and not self._serve_together():
            self.dissolve()
        if (head := self.batch.head) is not None:
            budget -= head.n * self.rules.row_charge(0) + head.num_drafts
        self._close(self._serve_each(self.columns.n, budget))

    def _serve_together(self) -> bool:
        """Gives those aboard their rows; False, with nothing given, if not everybody gets a whole one."""
        columns, rules, step = self.columns, self.rules, self.step
        n, k = columns.n, rules.num_speculative_tokens
        drafts, over = columns.drafts[:n].copy(), self._sure_to_end()
        if self.config.trims_drafts_to_max_tokens:
            np.minimum(drafts, columns.most[:n] - columns.written[:n] - 1, out=drafts)
        ends = columns.context[:n] + drafts
        ends += 1
        if columns.ahead:
            ends += columns.assumed[:n]
        if over:
            ends[over] -= drafts[over] + 1
            drafts[over] = 0
        total = n - len(over) + int(np.add.reduce(drafts))
        if total + (n - len(over)) * rules.draft_slots > step.tokens or step.cap <= k:
            return False
        if columns.longest + 3 * (k + 1) + rules.lookahead >= rules.max_model_len:
            columns.longest = int(columns.context[:n].max())
            if columns.longest + 3 * (k + 1) + rules.lookahead >= rules.max_model_len:
                return False
        if not self._hold(ends):
            return False
        columns.longest += 1 + k
        self.batch.head = self._head(drafts[: columns.n], ends[: columns.n], over)
        return True

    def _sure_to_end(self) -> list[int]:
        """Returns the places of those who end with the batch in flight, whatever it brings."""
        columns, n = self.columns, self.columns.n
        if not columns.ahead:
            return []
        last = reaches_max_tokens(columns.written[:n], 1, columns.most[:n])
        return [place for place in np.flatnonzero(last).tolist() if columns.assumed[place]]

    def _head(self, drafts: I64, ends: I64, over: list[int]) -> Head | None:
        """Returns the rows of those aboard who have one."""
        columns, n = self.columns, self.columns.n
        members, places = self.running[:n], None
        over = [place for place in over if place < n]
        if over:
            places = np.delete(np.arange(n), over)
            members = [members[place] for place in places.tolist()]
            drafts, ends = drafts[places], ends[places]
        if not members:
            return None
        head = Head(members, drafts, ends, columns.void)
        head.places = places
        which = slice(n) if places is None else places
        if self.k_varies:
            head.ids, head.written = columns.ids[which].copy(), columns.written[which].copy()
            head.assumed = columns.assumed[which].copy()
        columns.drafts[which] = 0
        if self.config.enable_prefix_caching:
            self.key(head, self.rules.keyed_blocks_each(ends, columns.context[which] + 1))
        return head

    def _hold(self, ends: I64) -> bool:
        """Gives those aboard their KV blocks; False, with nothing given, if that has to be seen one by one.

        Args:
            ends: tokens that each has to hold.
        """
        columns, kv, n = self.columns, self.kv, self.columns.n
        held = columns.blocks[:n]
        needed = np.maximum(self.rules.blocks_each(ends), held)
        growth = int(np.add.reduce(needed)) - columns.num_blocks
        if self.config.policy == "priority" and growth + self._others_growth() > kv.free_blocks:
            return False
        if growth <= kv.free_blocks and not self.config.enable_prefix_caching:
            kv.hold(growth)
            held[:] = needed
            columns.num_blocks += growth
            return True
        size, slots, places = self.rules.block_size, self.rules.slots, np.flatnonzero(needed > held)
        rows = zip(places.tolist(), held[places].tolist(), ends[places].tolist(), strict=True)
        for place, before, end in rows:
            if place >= columns.n:
                break
            sequence = self.running[place]
            sequence.num_blocks, sequence.slots = before, before * size
            if not self._make_room(sequence, slots(end), place, 0)[2]:
                break
            held[place] = sequence.num_blocks
            columns.num_blocks += sequence.num_blocks - before
        return True

    def _others_growth(self) -> int:
        """Returns the blocks that those who are not aboard may ask for in this step, at most."""
        size = self.rules.block_size
        others = len(self.running) - self.columns.n
        if self.rules.layout is not None:
            return self.rules.usable_blocks
        return self.step.tokens // size + 1 + others * (2 + self.rules.lookahead // size)

    def _preempt(self, victim: Sequence) -> None:
        columns = self.columns
        if len(self.running) < columns.n:  # it was aboard, and the last one
            place = columns.n - 1
            columns.refresh(victim, place)
            columns.drop_last()
            self.pending.pop(victim, None)
            for batch, head in self.flying:
                if head is not None and place < head.n:
                    head.take_out([place], batch)
        super()._preempt(victim)

    def drop(self, places: list[int]) -> None:
        """Lets those at places go, who have ended; a row of theirs that is in flight still is in vain."""
        self.columns.drop(places)
        for batch, head in self.flying:
            if head is None:
                continue
            rows = [place for place in places if place < head.n]
            if head.places is not None:  # all who had no row have ended now
                rows = np.flatnonzero(np.isin(head.places, places)).tolist()
            if rows:
                head.take_out(rows, batch)
            head.places = None

    def remove(self, sequence: Sequence) -> None:
        """As `ListedCrowd.remove`; its rows in flight are listed from now on, and in vain."""
        columns, place = self.columns, self.running.index(sequence)
        del self.running[place]
        if place >= columns.n:
            return
        columns.refresh(sequence, place)
        columns.drop([place])
        pending = ((other, at) for other, at in self.pending.items() if other is not sequence)
        self.pending = {other: at - (at > place) for other, at in pending}
        for batch, head in self.flying:
            if head is not None:
                self._take_out(head, place, batch)

    def _take_out(self, head: Head, place: int, batch: Batch) -> None:
        """Moves the row, if any, of who stood at a place; those who stand behind it have moved up."""
        rows = [place] if place < head.n else []
        if head.places is not None:
            rows = np.flatnonzero(head.places == place).tolist()
        if rows:
            head.take_out(rows, batch)
        if head.places is not None:
            head.places = head.places - (head.places > place)
            if (head.places == np.arange(head.n)).all():
                head.places = None

    def key(self, head: Head, keyed: I64) -> None:
        """Makes blocks of those aboard findable, where more of them are full than have a key."""
        columns = self.columns
        before = columns.keyed[: head.n] if head.places is None else columns.keyed[head.places]
        rows = np.flatnonzero(keyed > before)
        places = rows if head.places is None else head.places[rows]
        full, size, register = keyed[rows], self.rules.block_size, self.kv.register
        columns.keyed[places] = full
        each = zip(rows.tolist(), columns.written[places].tolist(), full.tolist(), strict=True)
        for row, written, blocks in each:
            sequence = head.members[row]
            sequence.num_tokens = sequence.prompt_tokens + written
            register(sequence, blocks * size)
