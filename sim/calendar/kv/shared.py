"""Prompts that begin where others have been.

A hit changes what a prompt costs and which blocks are new. What the request does after its prefill stays
as it was drawn, so its row does too; but a block that two of them hold must count once, and go when the last
of them does. Who leaves when is known at admission, and so is the correction.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from specfleet.sim.calendar.books.terms import TermBooks
from specfleet.sim.calendar.crowd import CalendarCrowd
from specfleet.sim.calendar.footprints import Footprints
from specfleet.sim.calendar.kv.counted import CountedKV
from specfleet.sim.calendar.kv.interface import Entrant, Fresh
from specfleet.sim.calendar.kv.pool import Holder, Pool
from specfleet.sim.calendar.kv.prompts import Prompts
from specfleet.sim.calendar.stay import Begun, Stay
from specfleet.sim.errors import Unsuited
from specfleet.sim.rules import NEVER, findable_blocks
from specfleet.sim.step import Candidate, Step


class SharedKV(CountedKV):
    """Blocks that other prompts may find.

    Args:
        crowd: who runs.
        prompts: the requests' prompts.

    Attributes:
        pool: the blocks in vLLM's order.
    """

    asks_ends = True

    def __init__(self, crowd: CalendarCrowd, prompts: Prompts) -> None:
        super().__init__(crowd)
        self.prompts = prompts
        self.pool = Pool(crowd.rules.usable_blocks)
        self._rows = crowd.lives.now.order.data
        self._begun: Holder | None = None
        """Of the prompt that is computed in pieces."""
        self._blocked: tuple[int, int] = (-1, NEVER)
        """A request whose blocks were not free, and the iteration before which they will not be."""

    def in_turn(self, step: Step, it: int) -> Iterator[Candidate[Fresh | Entrant]]:
        """As in `CountedKV`: each begins where what it finds ends."""
        waiting, pool, rules, lives = self.crowd.waiting, self.pool, self.crowd.rules, self.crowd.lives
        used, leave = rules.usable_blocks - step.free_blocks, pool.next_leave
        if used and it < leave and self._blocked == (waiting.head, leave):
            return
        pool.advance(it, used, self.crowd.log.blocks_used)
        while waiting.head < waiting.visible:
            place = waiting.inbox[waiting.head]
            stay, keys = lives.fresh(place), self.prompts.keys(self._rows[place])
            hit = pool.lookup(keys, findable_blocks(stay.prompt, rules.block_size))
            del hit[rules.usable_hit(len(hit)) :]
            past, idle = len(hit) * rules.block_size, sum([1 for block in hit if not block.users])
            yield Entrant(stay, past, Holder(place, keys, hit)), stay.prompt, past, len(hit), idle, 0

    def refused(self, step: Step) -> None:
        """As in `CountedKV`: nobody looks again before blocks come back."""
        self._blocked = self.crowd.waiting.head, self.pool.next_leave

    def padded(self, stay: Stay, drafts: int) -> Stay:
        """As in `CountedKV`."""
        return _padded(stay, drafts, self.crowd.footprints)

    def entered(self, who: Entrant, stay: Stay, blocks: int, done: int, it: int, i: int) -> None:
        """As in `CountedKV`."""
        holder, pool = who.holder, self.pool
        assert holder is not None
        whole = done == stay.prompt
        until = it + len(stay.row) if whole else NEVER
        if not whole:
            holder.note_others()
            self._begun = holder
        self.crowd.calendar.keep_blocks(pool.hold(holder, blocks, until), i - it)
        pool.register(holder, self._keyed(stay, done), until)
        if who.past:
            self.crowd.log.cached.extend((stay.place, who.past))
        if whole:
            self._expect(holder, stay, until)

    def _keyed(self, stay: Stay, done: int) -> int:
        """Returns the blocks that have a key once so many tokens of a prompt are computed."""
        return self.crowd.rules.keyed_blocks(done, stay.prompt)

    def _expect(self, holder: Holder, stay: Stay, until: int) -> None:
        """Tells the pool when a request will leave, and with which blocks."""
        pack, rules = self.crowd.pack, self.crowd.rules
        held = (-int(stay.row[-1]) >> pack.blocks) & pack.blocks_mask
        self.pool.expect(holder, until, held, rules.keyed_blocks(stay.final, stay.final + 1))

    def computed(self, begun: Begun, it: int, i: int) -> None:
        """As in `CountedKV`."""
        holder, stay = self._begun, begun.stay
        assert holder is not None
        self.pool.register(holder, self._keyed(stay, begun.done), NEVER)
        if self.crowd.begun is None:
            self._begun = None
            until = it + len(stay.row)
            self.crowd.calendar.keep_blocks(self.pool.settle(holder, until), i - it)
            self._expect(holder, stay, until)

    def give_up_begun(self, begun: Begun) -> None:
        """As in `CountedKV`."""
        self._refuse_caches()

    def make_room(self, acc: int, it: int, i: int) -> int:
        """As in `CountedKV`."""
        raise Unsuited("a preempted sequence may find its own blocks again")

    def before_change(self, it: int) -> None:
        """As in `CountedKV`."""
        self.pool.release(it, self.crowd.log.blocks_used)

    def after_change(self, it: int, i: int) -> None:
        """As in `CountedKV`: everybody leaves at another time now."""
        books, pack = self.crowd.books, self.crowd.pack
        assert isinstance(books, TermBooks)
        twice, kept = self.pool.reseat(books.leaves(pack, self.crowd.rules.in_flight), self._begun)
        self.crowd.calendar.row[i] -= twice << pack.blocks
        self.crowd.calendar.keep_blocks(kept, i - it)


def _padded(stay: Stay, drafts: int, footprints: Footprints) -> Stay:
    """Returns a stay whose last prompt token came with placeholder drafts.

    They are gone when its first round is priced, but an asynchronous engine has scheduled that round
    before it knew, and holds the blocks at least until the next.
    """
    pack, rules = footprints.packing, footprints.scheduler
    begun = np.cumsum(stay.row[:2]) + footprints.prefilling(stay.blocks)
    decodes = (begun >> pack.rows) & pack.rows_mask
    if not rules.in_flight or not decodes[0]:
        return stay
    end = stay.prompt + footprints.query
    more = (rules.blocks(end + drafts) - rules.blocks(end)) << pack.blocks
    ends = 1 if decodes[1] or not begun[1] else 2  # no row follows a certain end, but its blocks stay
    row = stay.row.copy()
    row[0] += more
    row[ends] -= more
    footprint = stay.footprint
    if footprint is not None:
        footprint = footprint.copy()
        footprint[:ends] += more
    return replace(stay, row=row, footprint=footprint)
