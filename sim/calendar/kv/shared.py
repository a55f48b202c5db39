"""Prompts that begin where others have been.

A hit changes what a prompt costs and which blocks are new. What the request does after its prefill stays
as it was drawn, so its row does too; but a block that two of them hold must count once, and go when the last
of them does. Who leaves when is known at admission, and so is the correction.
"""

from __future__ import annotations

from collections.abc import Iterator

from specfleet.sim.calendar.books.terms import TermBooks
from specfleet.sim.calendar.crowd import CalendarCrowd
from specfleet.sim.calendar.kv.counted import CountedKV
from specfleet.sim.calendar.kv.holders import Holder
from specfleet.sim.calendar.kv.interface import Entrant, Fresh
from specfleet.sim.calendar.kv.placeholders import with_placeholders
from specfleet.sim.calendar.kv.pool import Pool
from specfleet.sim.calendar.kv.prompts import Prompts
from specfleet.sim.calendar.kv.victims import keyed_and_held, keyed_and_held_early, make_room_in_turn
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
        self._holders: dict[int, Holder] = {}
        """Of those who decode, by place; with some who have ended."""
        self._begun: Holder | None = None
        """Of the prompt that is computed in pieces."""
        self._blocked: tuple[int, int, int] = (-1, 0, NEVER)
        """A request whose blocks were not free, those thrown out then, and the iteration before which they
        will not be."""

    def in_turn(self, step: Step, it: int) -> Iterator[Candidate[Fresh | Entrant]]:
        """As in `CountedKV`: each begins where what it finds ends."""
        waiting, pool, rules, lives = self.crowd.waiting, self.pool, self.crowd.rules, self.crowd.lives
        used, leave = rules.usable_blocks - step.free_blocks, pool.next_leave
        if used and it < leave and self._blocked == (waiting.first, len(waiting.preempted), leave):
            return
        pool.advance(it, used, self.crowd.log.blocks_used)
        while waiting.preempted:
            yield self.returning(waiting.preempted[-1], step, it)
        while waiting.head < waiting.visible:
            place = waiting.inbox[waiting.head]
            stay, keys = lives.fresh(place), self.prompts.keys(self._rows[place])
            hit = pool.lookup(keys, findable_blocks(stay.prompt, rules.block_size))
            del hit[rules.usable_hit(len(hit)) :]
            past, idle = len(hit) * rules.block_size, sum([1 for block in hit if not block.users])
            yield Entrant(stay, past, Holder(place, keys, hit)), stay.prompt, past, len(hit), idle, 0

    def returning(self, stay: Stay, step: Step, it: int) -> Candidate[Fresh | Entrant]:
        """As in `CountedKV`: it may find what prompts share, and behind that blocks of its own."""
        rules, pool, place = self.crowd.rules, self.pool, stay.place
        keys = self.prompts.keys(self._rows[place])
        hit = pool.lookup(keys, len(keys))
        own = pool.left_of(place) if len(hit) == len(keys) else 0
        found = rules.usable_hit(min(len(hit) + own, findable_blocks(stay.tokens, rules.block_size)))
        del hit[found:]
        own = found - len(hit)
        idle = own + sum([1 for block in hit if not block.users])
        holder = Holder(place, keys, hit, own)
        return (
            Entrant(stay, found * rules.block_size, holder),
            stay.tokens,
            found * rules.block_size,
            found,
            idle,
            0,
        )

    def refused(self, step: Step) -> None:
        """As in `CountedKV`: nobody looks again before blocks come back."""
        waiting = self.crowd.waiting
        self._blocked = waiting.first, len(waiting.preempted), self.pool.next_leave

    def padded(self, stay: Stay, drafts: int) -> Stay:
        """As in `CountedKV`."""
        return with_placeholders(stay, drafts, self.crowd.footprints)

    def entered(self, who: Entrant, stay: Stay, blocks: int, done: int, it: int, i: int) -> None:
        """As in `CountedKV`."""
        holder, pool = who.holder, self.pool
        assert holder is not None
        whole, log = done == stay.tokens, self.crowd.log
        until = it + len(stay.row) if whole else NEVER
        if not whole:
            holder.note_others()
            self._begun = holder
        if stay.place in log.preemptions:
            pool.take_back(stay.place, holder.own)
        self.crowd.calendar.keep_blocks(pool.hold(holder, blocks, until), i - it)
        pool.register(holder, self._keyed(stay, done), until)
        if who.past and stay.place not in log.preemptions:
            log.cached.extend((stay.place, who.past))
        if whole:
            self._expect(holder, stay, until)

    def _keyed(self, stay: Stay, done: int) -> int:
        """Returns the blocks that have a key once so many tokens of a prompt are computed."""
        return self.crowd.rules.keyed_blocks(done, stay.prompt)

    def _expect(self, holder: Holder, stay: Stay, until: int) -> None:
        """Tells the pool when a request will leave, and with which blocks."""
        pack, rules = self.crowd.pack, self.crowd.rules
        self._holders[stay.place] = holder
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

    def stuck(self, step: Step, it: int) -> None:
        """As in `CountedKV`: the others have taken their blocks before it gives its own back."""
        used = self.crowd.rules.usable_blocks - step.free_blocks
        self.pool.advance(it, used, self.crowd.log.blocks_used)

    def _refuse_changes(self) -> None:
        """Somebody has to be thrown out.

        Raises:
            Unsuited: others may ask for what it has written, once it has ended.
        """
        if self.prompts.with_outputs:
            raise Unsuited("a preempted sequence may find its own blocks again")

    def _refuse_left_over(self, place: int) -> None:
        if self.pool.has_left_over(place):
            raise Unsuited("blocks of its own are left over")

    def give_up(self, stay: Stay, done: int) -> int:
        """As in `CountedKV`: what nobody else holds goes into the free list."""
        self._refuse_left_over(stay.place)
        holder, at = self._holders.pop(stay.place), self.crowd.at
        self.pool.withdraw(holder)
        self.crowd.calendar.keep_blocks(self.pool.let_go(holder), at.i - at.it)
        return self.pool.throw_out(holder, *keyed_and_held(self.crowd, stay, done))

    def give_up_begun(self, begun: Begun) -> int:
        """As in `CountedKV`."""
        holder, at = self._begun, self.crowd.at
        self._refuse_changes()
        assert holder is not None
        self._begun = None
        self._refuse_left_over(begun.stay.place)
        self.crowd.calendar.keep_blocks(self.pool.let_go_begun(holder), at.i - at.it)
        keyed = self.crowd.rules.keyed_blocks(begun.done, begun.stay.tokens)
        return self.pool.throw_out(holder, keyed, begun.held)

    def leave(self, stay: Stay, done: int, kept: int, landed: bool) -> int:
        """As in `CountedKV`: what others hold, too, they hold alone from now on."""
        holder, pool, at = self._holders.pop(stay.place), self.pool, self.crowd.at
        keyed, held = keyed_and_held_early(self.crowd, stay, done, kept, landed)
        pool.come_to(at.it, self.crowd.log.blocks_used)
        pool.withdraw(holder)
        if not landed and holder.until > at.it:
            self.crowd.calendar.keep_blocks(pool.let_go(holder), at.i - at.it)
        return pool.leave(holder, keyed, held, self._begun)

    def leave_begun(self, begun: Begun) -> int:
        """As in `CountedKV`."""
        holder, pool, at = self._begun, self.pool, self.crowd.at
        assert holder is not None
        self._begun = None
        pool.come_to(at.it, self.crowd.log.blocks_used)
        self.crowd.calendar.keep_blocks(pool.let_go_begun(holder), at.i - at.it)
        keyed = self.crowd.rules.keyed_blocks(begun.done, begun.stay.tokens)
        return pool.leave(holder, keyed, begun.held)

    def somebody_left(self) -> None:
        """As in `CountedKV`."""
        self._blocked = -1, 0, NEVER

    def forget_thrown_out(self, place: int) -> None:
        """As in `CountedKV`."""
        self.pool.forget_thrown_out(place)

    def make_room(self, acc: int, it: int, i: int) -> int:
        """As in `CountedKV`, in vLLM's order."""
        self._refuse_changes()
        return make_room_in_turn(self.crowd, self.pool, acc, it, i)

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
