"""The running sequences of an engine: decoding ones as columns, the others one by one."""

from __future__ import annotations

import numpy as np

from specfleet.sim.columns.state import Columns
from specfleet.sim.config import EngineConfig
from specfleet.sim.kvcache import KVCache
from specfleet.sim.listed import ListedCrowd
from specfleet.sim.rules import SchedulerRules
from specfleet.sim.sequence import RUNNING, Batch, Head, Sequence

LEAST_ROWS = 6
"""Sequences below which columns cost more than they spare."""
MOST_PATIENCE = 256


class ColumnCrowd(ListedCrowd):
    """As `ListedCrowd`, where the first of those who run are columns.

    A step that they do not fit whole (budget, positions, KV under another order than that of admission) is
    decided one by one; they come aboard again a little later, and later each time.

    Attributes:
        columns: those aboard. flying: their rows in flight.
    """

    def __init__(self, config: EngineConfig, rules: SchedulerRules, kv: KVCache, k_varies: bool) -> None:
        super().__init__(config, rules, kv, k_varies)
        self.columns = Columns(config.max_num_seqs, config.block_size, config.max_model_len)
        self.flying: Head | None = None
        self.usable = not config.async_scheduling
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
        while columns.n < len(running) and self._decodes(running[columns.n]):
            columns.board(running[columns.n])

    def _decodes(self, sequence: Sequence) -> bool:
        """Whether a sequence has nothing but decode rows ahead, and the same behind it as those aboard."""
        if not self.columns.n:
            self.columns.void = sequence.drafts_are_void
        return (
            not sequence.is_prefill_chunk
            and sequence.num_computed_tokens == sequence.num_tokens - 1
            and not sequence.num_in_flight_tokens
            and not sequence.num_stale_tokens
            and sequence.state == RUNNING
            and sequence.drafts_are_void == self.columns.void
            and (self.columns.notes is None or self.columns.notes.ready(sequence))
        )

    def refresh(self) -> None:
        """Writes back what those aboard have."""
        columns, flying = self.columns, self.flying
        in_flight = (flying.drafts + 1).tolist() if flying is not None else [0] * columns.n
        for place in range(columns.n):
            columns.refresh(self.running[place], place, in_flight[place])

    def dissolve(self) -> None:
        """Lists everybody one by one from now on, for a while."""
        if not self.columns.n:
            return
        self.refresh()
        self.columns.clear()
        self._waits = self._patience
        self._patience, self._lasted = min(2 * self._patience, MOST_PATIENCE), 0

    def serve(self) -> None:
        """As `ListedCrowd.serve`: those aboard together, then the others."""
        if self.columns.n and not self._serve_together():
            self.dissolve()
        head = self.batch.head
        if head is None:
            self._close(self._serve_each(0, self.step.tokens))
            return
        self._close(
            self._serve_each(head.n, self.step.tokens - head.n * self.rules.row_charge(0) - head.num_drafts)
        )

    def _serve_together(self) -> bool:
        """Gives those aboard their rows; False, with nothing given, if not everybody gets a whole one."""
        columns, rules, config, step = self.columns, self.rules, self.config, self.step
        n, k = columns.n, rules.num_speculative_tokens
        wanted = columns.drafts[:n]
        if config.trims_drafts_to_max_tokens:
            wanted = np.minimum(wanted, columns.most[:n] - columns.written[:n] - 1)
        drafts = wanted.copy()
        ends = columns.context[:n] + drafts
        ends += 1
        head = Head(self.running, drafts, ends, columns.void)
        if head.num_drafts + n * rules.row_charge(0) > step.tokens or step.cap <= k:
            return False
        if columns.longest + 2 * k + 2 + rules.lookahead >= rules.max_model_len:
            columns.longest = int(columns.context[:n].max())
            if columns.longest + 2 * k + 2 + rules.lookahead >= rules.max_model_len:
                return False
        columns.longest += 1 + k
        if not self._hold(head):
            return False
        if self.k_varies:
            head.ids, head.written = columns.ids[: head.n].copy(), columns.written[: head.n].copy()
        columns.drafts[:n] = 0
        self.batch.head = head
        if config.enable_prefix_caching:
            self.key(head, rules.keyed_blocks_each(head.ends, columns.context[: head.n] + 1))
        return True

    def _hold(self, head: Head) -> bool:
        """Gives the rows their KV blocks; False, with nothing given, if that has to be seen one by one."""
        columns, kv, n = self.columns, self.kv, head.n
        held = columns.blocks[:n]
        needed = np.maximum(self.rules.blocks_each(head.ends), held)
        growth = int(np.add.reduce(needed)) - columns.num_blocks
        if self.config.policy == "priority" and growth + self._others_growth() > kv.free_blocks:
            return False
        if growth <= kv.free_blocks and not self.config.enable_prefix_caching:
            kv.hold(growth)
            held[:] = needed
            columns.num_blocks += growth
            return True
        size, slots, places = self.rules.block_size, self.rules.slots, np.flatnonzero(needed > held)
        rows = zip(places.tolist(), held[places].tolist(), head.ends[places].tolist(), strict=True)
        for place, before, end in rows:
            if place >= columns.n:
                break
            sequence = self.running[place]
            sequence.num_blocks, sequence.slots = before, before * size
            if not self._make_room(sequence, slots(end), place, 0)[2]:
                break
            held[place] = sequence.num_blocks
            columns.num_blocks += sequence.num_blocks - before
        if columns.n < n:
            head.cut(columns.n)
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
            columns.refresh(victim, columns.n - 1)
            columns.drop_last()
        super()._preempt(victim)

    def key(self, head: Head, keyed: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        """Makes blocks of those aboard findable, where more of them are full than have a key."""
        columns = self.columns
        before = columns.keyed[: head.n]
        places = np.flatnonzero(keyed > before)
        full, size, register = keyed[places], self.rules.block_size, self.kv.register
        before[places] = full
        rows = zip(places.tolist(), columns.written[places].tolist(), full.tolist(), strict=True)
        for place, written, blocks in rows:
            sequence = head.members[place]
            sequence.num_tokens = sequence.prompt_tokens + written
            register(sequence, blocks * size)
