"""The running sequences of an engine: decoding ones as columns, the others one by one."""

from __future__ import annotations

from bisect import bisect_left
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
        self._origin: list[int] = []

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

    def leave(self, sequence: Sequence, place: int) -> None:
        """Writes back what somebody has who leaves, and makes its full blocks findable.

        Nobody asks for blocks of an output before whoever writes it has left.
        """
        columns = self.columns
        columns.refresh(sequence, place)
        if self.config.enable_prefix_caching:
            keyed = columns.keyed.item(place)
            if columns.ahead or self.rules.num_speculative_tokens:
                keyed = max(keyed, columns.context.item(place))
            self.kv.register(sequence, keyed)

    def dissolve(self) -> None:
        """Lists everybody one by one from now on, for a while."""
        if not self.columns.n:
            return
        for place in range(self.columns.n):
            self.leave(self.running[place], place)
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
        drafts, over = columns.drafts[:n].copy(), self._sure_to_end() if columns.ahead else []
        if self.config.trims_drafts_to_max_tokens:
            columns.each = None
            np.minimum(drafts, columns.most[:n] - columns.written[:n] - 1, out=drafts)
        ends = columns.context[:n] + drafts
        ends += 1
        if columns.ahead:
            ends += columns.assumed[:n]
        if over:
            ends[over] -= drafts[over] + 1
            drafts[over] = 0
        held = ends
        if self._near_the_end():
            spare = np.minimum(rules.max_model_len - 1 - ends, 0)
            spare[over] = 0
            if (drafts + spare < 0).any():
                return False
            columns.each, drafts, ends = None, drafts + spare, ends + spare
            held = np.minimum(ends, rules.max_model_len - rules.lookahead)
        rows = n - len(over)
        total = rows + (int(np.add.reduce(drafts)) if columns.each is None else rows * columns.each)
        if total + rows * rules.draft_slots > step.tokens or step.cap <= k:
            return False
        if not self._hold(held):
            return False
        columns.longest += 1 + k
        if columns.n < n:
            stay = np.array(self._origin, dtype=np.int64)
            drafts, ends = drafts[stay], ends[stay]
            over = [place for place, first in enumerate(self._origin) if first in over]
        self.batch.head = self._head(drafts, ends, over) if columns.n else None
        return True

    def _near_the_end(self) -> bool:
        """Whether drafts, or blocks for them, may go beyond the positions of the model."""
        columns, rules = self.columns, self.rules
        most = rules.max_model_len - 3 * (rules.num_speculative_tokens + 1) - rules.lookahead
        if columns.longest >= most:
            columns.longest = int(columns.context[: columns.n].max())
        return columns.longest >= most

    def _sure_to_end(self) -> list[int]:
        """Returns the places of those who end with the batch in flight, whatever it brings."""
        columns, n = self.columns, self.columns.n
        last = reaches_max_tokens(columns.written[:n], 1, columns.most[:n])
        return [place for place in last.nonzero()[0].tolist() if columns.assumed[place]]

    def _head(self, drafts: I64, ends: I64, over: list[int]) -> Head | None:
        """Returns the rows of those aboard who have one."""
        columns, n = self.columns, self.columns.n
        members, places = self.running[:n], None
        if over:
            stays = np.ones(n, dtype=np.bool_)
            stays[over] = False
            places = stays.nonzero()[0]
            members = [members[place] for place in places.tolist()]
            drafts, ends = drafts[places], ends[places]
        if not members:
            return None
        head = Head(members, drafts, ends, columns.void, columns.each)
        head.places = places
        which = slice(n) if places is None else places
        if self.k_varies:
            head.ids, head.written, head.assumed = (
                columns.ids[which].copy(),
                columns.written[which],
                columns.assumed[which],
            )
        columns.drafts[which] = 0
        if self.config.enable_prefix_caching:
            columns.keyed[which] = columns.context[which] + (1 - self.rules.hash_lookahead)
        return head

    def _hold(self, ends: I64) -> bool:
        """Gives those aboard their KV blocks; who stays is `_origin`, by the places of before.

        False, with nothing given, where somebody in the middle may have to go whose row in flight keeps its
        place among the others.

        Args:
            ends: tokens that each has to hold.
        """
        columns, kv, n = self.columns, self.kv, self.columns.n
        self._origin = list(range(n))
        held = columns.blocks[:n]
        needed = np.maximum(self.rules.blocks_each(ends), held)
        growth = int(np.add.reduce(needed)) - columns.num_blocks
        by_priority = columns.ahead and self.config.policy == "priority"
        if by_priority and growth + self._others_growth() > kv.free_blocks:
            return False
        if growth <= kv.free_blocks:
            if not self.config.enable_prefix_caching:
                kv.hold(growth)
            elif growth:
                more = needed - held
                places = more.nonzero()[0]
                kv.grow_each([self.running[place] for place in places.tolist()], more[places].tolist())
            held[:] = needed
            columns.num_blocks += growth
            return True
        self._hold_each((needed > held).nonzero()[0].tolist(), ends)
        return True

    def _others_growth(self) -> int:
        """Returns the blocks that those who are not aboard may ask for in this step, at most."""
        size = self.rules.block_size
        others = len(self.running) - self.columns.n
        if self.rules.layout is not None:
            return self.rules.usable_blocks
        return self.step.tokens // size + 1 + others * (2 + self.rules.lookahead // size)

    def _hold_each(self, short: list[int], ends: I64) -> None:
        """Gives those at some places their KV blocks, in turn, and throws others out for that."""
        columns, size, slots, origin = self.columns, self.rules.block_size, self.rules.slots, self._origin
        for first in short:
            place = bisect_left(origin, first)
            if place == len(origin):
                return
            if origin[place] != first:
                continue
            sequence, before = self.running[place], columns.blocks.item(place)
            sequence.num_blocks, sequence.slots = before, before * size
            if not self._make_room(sequence, slots(ends.item(first)), place, 0)[2]:
                continue
            place = bisect_left(origin, first)
            columns.blocks[place] = sequence.num_blocks
            columns.num_blocks += sequence.num_blocks - before

    def _withdraw(self, victim: Sequence, position: int) -> int | None:
        head = self.batch.head
        if position >= self.columns.n or head is None:
            return super()._withdraw(victim, position)
        places, row, tokens = head.places, position, None
        if places is not None:
            row = int(np.searchsorted(places, position))
        if places is None or (row < head.n and places[row] == position):
            tokens = 1 + head.drafts.item(row)
            head.without([row])
        if head.places is not None:
            head.places[row:] -= 1
        if not head.n:
            self.batch.head = None
        return tokens

    def _preempt(self, victim: Sequence, position: int) -> None:
        columns = self.columns
        if position < columns.n:
            self.leave(victim, position)
            columns.drop([position])
            del self._origin[position : position + 1]
            self.pending.pop(victim, None)
            for other, place in self.pending.items():
                self.pending[other] = place - (place > position)
            for batch, head in self.flying:
                if head is not None:
                    self._take_out(head, position, batch)
        super()._preempt(victim, position)

    def drop(self, places: list[int]) -> None:
        """Lets those at places go, who have ended; a row of theirs that is in flight still is in vain."""
        self.columns.drop(places)
        for place in reversed(places):
            del self.running[place]
        for batch, head in self.flying:
            if head is None:
                continue
            rows = [place for place in places if place < head.n]
            if head.places is not None:  # all who had no row have ended now
                gone = set(places)
                rows = [row for row, place in enumerate(head.places.tolist()) if place in gone]
            if rows:
                head.take_out(rows, batch)
            head.places = None

    def remove(self, sequence: Sequence) -> None:
        """As `ListedCrowd.remove`; its rows in flight are listed from now on, and in vain."""
        columns, place = self.columns, self.running.index(sequence)
        del self.running[place]
        if place >= columns.n:
            return
        self.leave(sequence, place)
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
