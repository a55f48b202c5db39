"""Preemption with prefix caching on: who was thrown out may find its own blocks again.

Prompts are private here, so nobody else asks for a block, and the pool's order matters only between a
preemption and the return. The blocks given up stand as one run in the free list, its tail in front:
what is left of it when its owner comes back is the beginning of its prompt.
"""

from __future__ import annotations

from specfleet.sim.calendar.admission import Stay, Unsuited
from specfleet.sim.calendar.lane import Lane
from specfleet.sim.calendar.pool import Holder, Pool
from specfleet.sim.calendar.seat import Prefill, Seat
from specfleet.sim.calendar.step import Step
from specfleet.sim.calendar.trajectories import BLOCK


class OwnLane(Lane):
    """One engine whose prompts are private and whose cache is on.

    Attributes:
        pool: its blocks.
    """

    pool: Pool

    def begin(self) -> None:
        """Empties the cache."""
        config = self.config
        self.pool = Pool(self.total)
        self._holders: dict[int, Holder] = {}
        self._ahead = int(config.uses_eagle and config.prefix_hash_covers_next_token)
        self._drops = config.uses_eagle and not config.prefix_hash_covers_next_token
        self._pads = config.num_speculative_tokens > 0 and config.pads_one_token_admission

    def _admit(self, step: Step, it: int, i: int, visible: int) -> None:
        """As in `Lane`."""
        before = len(self.stays)
        super()._admit(step, it, i, visible)
        for stay in self.stays[before:]:
            self._expect(stay)

    def _take(self, seat: Seat, it: int, i: int) -> None:
        """As in `Lane`."""
        super()._take(seat, it, i)
        self._expect(self.stays[-1])

    def _expect(self, stay: Stay) -> None:
        """Tells the pool when a request will leave, and with which blocks."""
        last, _, place, home = stay
        if isinstance(home, Seat):
            release, final = int(home.row[-1]), home.final
        else:
            release, final = int(home.row[home.end[place % BLOCK] - 1]), home.final[place % BLOCK]
        pack = self.rules.packing
        holder = self._holders[place] = Holder(place, [], [])
        held = (-release >> pack.blocks) & pack.blocks_mask
        self.pool.expect(holder, last + 1, held, final // self.rules.block_size)

    def _emptied(self, it: int) -> None:
        """As in `Lane`."""
        self.pool.release(it, self._used_at, everybody=True)

    def _refuse_own_blocks(self) -> None:
        """They are looked for."""

    def _make_room(self, acc: int, it: int, i: int) -> int:
        """As in `Lane`, in vLLM's order: each takes its blocks in turn, and the tail goes when they end."""
        pool, pack = self.pool, self.rules.packing
        pool.catch_up(it, self._used_at)
        self._forget_dead(it)
        free, taken, turn = self.total - pool.used, 0, 0
        growth = self._growth(it)
        while turn < len(self.stays):
            wanted = growth[turn]
            if wanted <= free:
                free -= wanted
                taken += wanted
                turn += 1
                continue
            pool.take(taken)
            taken, before = 0, pool.used
            if self.prefill is not None:
                acc = self._evict_prefill(acc)
            else:
                _, first, place, home = self.stays.pop()
                seat = home if isinstance(home, Seat) else Seat.fresh(place, home, place % BLOCK)
                acc -= self._evict(seat, first, it, i)
            free += before - pool.used
        pool.take(taken)
        assert pool.used == (acc >> pack.blocks) & pack.blocks_mask, "the pool and the calendar disagree"
        return acc

    def _growth(self, it: int) -> list[int]:
        """Returns the blocks that each running sequence takes in iteration `it`: read off its row."""
        bit, mask, growth = self.rules.packing.blocks, self.rules.packing.blocks_mask, []
        for _, first, place, home in self.stays:
            start = 0 if isinstance(home, Seat) else home.start[place % BLOCK]
            change = home.row.item(start + it - first - 1)
            growth.append((change >> bit) & mask if change > 0 else 0)  # below 0: its end was certain
        return growth

    def _evict(self, seat: Seat, first: int, it: int, i: int) -> int:
        """As in `Lane`; its blocks go into the free list."""
        done = it - first - 1
        self.pool.withdraw(self._holders.pop(seat.place))
        self.pool.throw_out(seat.place, self._keyed(seat, done), self._held(seat, done))
        return super()._evict(seat, first, it, i)

    def _keyed(self, seat: Seat, done: int) -> int:
        """Returns the blocks of a sequence that have a key after `done` rounds: of tokens known by then."""
        rules = self.rules
        if rules.lag and not done:  # the step in flight computes the end of its prompt
            return (seat.tokens - self._ahead) // rules.block_size
        assert seat.footprint is not None
        word = int(seat.footprint[done - rules.lag])
        return ((word & rules.packing.context_mask) - rules.query) // rules.block_size

    def _held(self, seat: Seat, done: int) -> int:
        """Returns the blocks that a sequence holds after `done` rounds."""
        assert seat.footprint is not None
        pack = self.rules.packing
        return (int(seat.footprint[done - 1]) >> pack.blocks) & pack.blocks_mask if done else seat.blocks

    def _evict_prefill(self, acc: int) -> int:
        """As in `Lane`; its blocks go into the free list."""
        prefill, size = self.prefill, self.rules.block_size
        assert prefill is not None
        keyed = min(prefill.done, prefill.seat.tokens - self._ahead) // size
        self.pool.throw_out(prefill.seat.place, keyed, prefill.held)
        return super()._evict_prefill(acc)

    def _continue(self, step: Step, it: int, i: int) -> bool:
        """As in `Lane`."""
        if super()._continue(step, it, i):
            return True
        self._bring_to(step, it)
        return False

    def _bring_to(self, step: Step, it: int) -> None:
        """Brings the pool to where this step stands; what it takes from here on is read off later."""
        self.pool.advance(it, step.used, self._used_at)
        self.pool.told = it - 1

    def _readmit(self, step: Step, it: int, i: int) -> bool:
        """As in `Lane`, from where its own blocks end."""
        seat, rules, size = self.back[-1], self.rules, self.rules.block_size
        self._bring_to(step, it)
        left = self.pool.left_of(seat.place)
        hits = min(left, (seat.tokens - 1) // size)
        if self._drops and hits:
            hits -= 1
        if left > hits:
            raise Unsuited("blocks of its own are left over")
        if not hits:
            return super()._readmit(step, it, i)
        past, room = hits * size, step.left - self.slots
        tokens = seat.tokens - past
        if tokens == 1 and self._pads:
            raise Unsuited("one token is left to compute, with placeholder drafts")
        if tokens > room:
            if not self.config.enable_chunked_prefill:
                return False
            tokens = room
        blocks = max(rules.prefill_blocks(past + tokens), hits)
        if max(blocks, self._reserve(seat)) > self._free_blocks(step):
            return False
        self.pool.take_back(seat.place)
        self.back.pop()
        self._return(step, seat, past + tokens, past, blocks, it, i)
        return True

    def _return(self, step: Step, seat: Seat, done: int, past: int, blocks: int, it: int, i: int) -> None:
        """Lets a request in again whose first `past` tokens are found, to compute up to `done`."""
        step.acc += self.rules.prefilling(blocks)
        step.used += blocks
        step.room -= 1
        step.add(done - past, past)
        if seat.last_emission < 0:
            self.newcomers += 1
            self.log.admitted.setdefault(seat.place, it)
        if done == seat.tokens:
            step.useful |= seat.may_use_drafts
            self._take(seat.holding(blocks, self.rules), it, i)
        else:
            self.prefill = Prefill(seat, done, blocks, it)
