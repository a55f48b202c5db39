"""Private prompts with prefix caching on: whoever was thrown out may find its own blocks again.

Nobody else asks for them, so the pool's order matters only between a preemption and the return. The blocks
given up stand as one run in the free list, its tail in front: what is left of it when its owner comes back is
the beginning of its prompt.
"""

from __future__ import annotations

from specfleet.sim.calendar.crowd import CalendarCrowd
from specfleet.sim.calendar.kv.counted import CountedKV
from specfleet.sim.calendar.kv.holders import Holder
from specfleet.sim.calendar.kv.interface import Entrant, Fresh
from specfleet.sim.calendar.kv.placeholders import with_placeholders
from specfleet.sim.calendar.kv.pool import Pool
from specfleet.sim.calendar.kv.victims import keyed_and_held, keyed_and_held_early, make_room_in_turn
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
        past = found * rules.block_size
        return Entrant(stay, past), stay.tokens, past, found, found, 0

    def refused(self, step: Step) -> None:
        """As in `CountedKV`: it may find other blocks of its own next time, so it is looked at again."""

    def entered(self, who: Entrant, stay: Stay, blocks: int, done: int, it: int, i: int) -> None:
        """As in `CountedKV`."""
        if stay.place in self.crowd.log.preemptions:
            self.pool.take_back(stay.place, who.past // self.crowd.rules.block_size)

    def padded(self, stay: Stay, drafts: int) -> Stay:
        """As in `CountedKV`."""
        return with_placeholders(stay, drafts, self.crowd.footprints)

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
        """As in `CountedKV`, in vLLM's order."""
        return make_room_in_turn(self.crowd, self.pool, acc, it, i)

    def _refuse_left_over(self, place: int) -> None:
        if self.pool.has_left_over(place):
            raise Unsuited("blocks of its own are left over")

    def give_up(self, stay: Stay, done: int) -> int:
        """As in `CountedKV`: they go into the free list."""
        self._refuse_left_over(stay.place)
        self.pool.withdraw(self._holders[stay.place])
        keyed, held = keyed_and_held(self.crowd, stay, done)
        self.pool.throw_out(self._holders.pop(stay.place), keyed, held)
        return 0

    def leave(self, stay: Stay, done: int, kept: int, landed: bool) -> int:
        """As in `CountedKV`."""
        holder = self._holders.pop(stay.place)
        keyed, held = keyed_and_held_early(self.crowd, stay, done, kept, landed)
        if landed:  # `emptied` has taken them back, as if it had ended
            self.pool.unkey(holder.private - keyed)
            return 0
        self._come_to()
        self.pool.withdraw(holder)
        self.pool.leave(holder, keyed, held)
        return 0

    def leave_begun(self, begun: Begun) -> int:
        """As in `CountedKV`."""
        self._come_to()
        keyed = self.crowd.rules.keyed_blocks(begun.done, begun.stay.tokens)
        self.pool.leave(Holder(begun.stay.place, [], []), keyed, begun.held)
        return 0

    def _come_to(self) -> None:
        """Brings the pool to where the next step is about to be scheduled."""
        self.pool.come_to(self.crowd.at.it, self.crowd.log.blocks_used)

    def forget_thrown_out(self, place: int) -> None:
        """As in `CountedKV`."""
        self.pool.forget_thrown_out(place)

    def give_up_begun(self, begun: Begun) -> int:
        """As in `CountedKV`: they go into the free list."""
        self._refuse_left_over(begun.stay.place)
        keyed = self.crowd.rules.keyed_blocks(begun.done, begun.stay.tokens)
        self.pool.throw_out(Holder(begun.stay.place, [], []), keyed, begun.held)
        return 0
