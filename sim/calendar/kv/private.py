"""Private prompts with prefix caching on: whoever was thrown out may find its own blocks again.

Nobody else asks for them, so the pool's order matters only between a preemption and the return. The blocks
given up stand as one run in the free list, its tail in front: what is left of it when its owner comes back is
the beginning of its prompt.
"""

from __future__ import annotations

from specfleet.sim.calendar.crowd import CalendarCrowd
from specfleet.sim.calendar.kv.counted import CountedKV
from specfleet.sim.calendar.kv.interface import Entrant, Fresh
from specfleet.sim.calendar.kv.pool import Holder, Pool
from specfleet.sim.calendar.stay import Begun, Stay, StayRef
from specfleet.sim.calendar.trajectories import BLOCK
from specfleet.sim.errors import Unsuited
from specfleet.sim.rules import findable_blocks
from specfleet.sim.step import Candidate, Step


class PrivateKV(CountedKV):
    """Blocks that only their owner asks for again.

    Args:
        crowd: who runs.

    Attributes:
        pool: the blocks in vLLM's order.
    """

    told = True

    def __init__(self, crowd: CalendarCrowd) -> None:
        super().__init__(crowd)
        self.pool = Pool(crowd.rules.usable_blocks)
        self._holders: dict[int, Holder] = {}

    def _bring_to(self, step: Step, it: int) -> None:
        """Brings the pool to where this step stands; what it takes from here on is read off later."""
        used = self.crowd.rules.usable_blocks - step.free_blocks
        self.pool.advance(it, used, self.crowd.log.blocks_used)
        self.pool.told = it - 1

    def returning(self, stay: Stay, step: Step, it: int) -> Candidate[Fresh | Entrant]:
        """As in `CountedKV`: computed from where its own blocks end."""
        rules = self.crowd.rules
        self._bring_to(step, it)
        left = self.pool.left_of(stay.place)
        found = rules.usable_hit(min(left, findable_blocks(stay.tokens, rules.block_size)))
        if left > found:
            raise Unsuited("blocks of its own are left over")
        past = found * rules.block_size
        return Entrant(stay, past), stay.tokens, past, found, found, 0

    def refused(self, step: Step) -> None:
        """As in `CountedKV`: it may find other blocks of its own next time, so it is looked at again."""

    def entered(self, who: Entrant, stay: Stay, blocks: int, done: int, it: int, i: int) -> None:
        """As in `CountedKV`."""
        if who.past:
            self.pool.take_back(stay.place)

    def padded(self, stay: Stay, drafts: int) -> Stay:
        """As in `CountedKV`."""
        raise Unsuited("one token is left to compute, with placeholder drafts")

    def stuck(self, step: Step, it: int) -> None:
        """As in `CountedKV`."""
        self._bring_to(step, it)

    def joined(self, ref: StayRef) -> None:
        """As in `CountedKV`: tells the pool when it will leave, and with which blocks."""
        last, _, place, source = ref
        if isinstance(source, Stay):
            release, final = int(source.row[-1]), source.final
        else:
            release, final = int(source.row[source.end[place % BLOCK] - 1]), source.final[place % BLOCK]
        pack = self.crowd.pack
        holder = self._holders[place] = Holder(place, [], [])
        held = (-release >> pack.blocks) & pack.blocks_mask
        self.pool.expect(holder, last + 1, held, self.crowd.rules.keyed_blocks(final, final + 1))

    def emptied(self, it: int) -> None:
        """As in `CountedKV`."""
        self.pool.release(it, self.crowd.log.blocks_used, everybody=True)

    def make_room(self, acc: int, it: int, i: int) -> int:
        """As in `CountedKV`, in vLLM's order: each takes its blocks in turn; the tail goes when they end."""
        crowd, pool, pack = self.crowd, self.pool, self.crowd.pack
        pool.catch_up(it, crowd.log.blocks_used)
        crowd.forget_dead(it)
        free, taken, turn = crowd.rules.usable_blocks - pool.used, 0, 0
        growth = self._growth(it)
        while turn < len(crowd.refs):
            wanted = growth[turn]
            if wanted <= free:
                free -= wanted
                taken += wanted
                turn += 1
                continue
            pool.take(taken)
            taken, before = 0, pool.used
            acc -= crowd.evict(crowd.refs.pop(), it, i) if crowd.begun is None else crowd.evict_begun()
            free += before - pool.used
        pool.take(taken)
        assert pool.used == (acc >> pack.blocks) & pack.blocks_mask, "the pool and the calendar disagree"
        return acc

    def _growth(self, it: int) -> list[int]:
        """Returns the blocks that each running sequence takes in iteration `it`: read off its row."""
        bit, mask, growth = self.crowd.pack.blocks, self.crowd.pack.blocks_mask, []
        for _, first, place, source in self.crowd.refs:
            start = 0 if isinstance(source, Stay) else source.start[place % BLOCK]
            change = source.row.item(start + it - first - 1)
            growth.append((change >> bit) & mask if change > 0 else 0)  # below 0: its end was certain
        return growth

    def give_up(self, stay: Stay, done: int) -> None:
        """As in `CountedKV`: they go into the free list."""
        self.pool.withdraw(self._holders.pop(stay.place))
        self.pool.throw_out(stay.place, self._keyed(stay, done), self._held(stay, done))

    def _keyed(self, stay: Stay, done: int) -> int:
        """Returns the blocks of a sequence that have a key after `done` rounds: of tokens known by then."""
        rules, footprints = self.crowd.rules, self.crowd.footprints
        if rules.in_flight and not done:  # the step in flight computes the end of its prompt
            return rules.keyed_blocks(stay.tokens, stay.tokens)
        assert stay.footprint is not None
        word = int(stay.footprint[done - rules.in_flight])
        computed = (word & footprints.packing.context_mask) - footprints.query
        return rules.keyed_blocks(computed, computed + 1)

    def _held(self, stay: Stay, done: int) -> int:
        """Returns the blocks that a sequence holds after `done` rounds."""
        assert stay.footprint is not None
        pack = self.crowd.pack
        return (int(stay.footprint[done - 1]) >> pack.blocks) & pack.blocks_mask if done else stay.blocks

    def give_up_begun(self, begun: Begun) -> None:
        """As in `CountedKV`: they go into the free list."""
        keyed = self.crowd.rules.keyed_blocks(begun.done, begun.stay.tokens)
        self.pool.throw_out(begun.stay.place, keyed, begun.held)
