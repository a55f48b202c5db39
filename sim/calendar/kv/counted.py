"""KV blocks of which only the number matters."""

from __future__ import annotations

from collections.abc import Iterator

from specfleet.sim.calendar.crowd import CalendarCrowd
from specfleet.sim.calendar.kv.interface import Entrant, Fresh
from specfleet.sim.calendar.stay import Begun, Stay, StayRef, stay_of
from specfleet.sim.calendar.trajectories import BLOCK
from specfleet.sim.errors import Unsuited
from specfleet.sim.step import Candidate, Step


class CountedKV:
    """Blocks of which only the number matters: it stands in the running sum.

    Args:
        crowd: who runs.

    Attributes:
        told: it has to be told who joins. asks_ends: it has to know when everybody ends.
        outside: blocks that those hold who wait.
    """

    told = asks_ends = False
    outside = 0

    def __init__(self, crowd: CalendarCrowd) -> None:
        self.crowd = crowd
        self.reserves = crowd.rules.reserves_max_tokens

    def in_turn(self, step: Step, it: int) -> Iterator[Candidate[Fresh | Entrant]]:
        """As `KV.in_turn`."""
        reserves, waiting, lives = self.reserves, self.crowd.waiting, self.crowd.lives
        while waiting.preempted:
            yield self.returning(waiting.preempted[-1], step, it)
        inbox, visible, block, number = waiting.inbox, waiting.visible, None, -1
        while waiting.head < visible:
            place = inbox[waiting.head]
            if place // BLOCK != number or block is None:
                number = place // BLOCK
                block = lives.of(place)
            j = place % BLOCK
            yield (place, block), block.prompt[j], 0, 0, 0, block.blocks[j] if reserves else 0

    def returning(self, stay: Stay, step: Step, it: int) -> Candidate[Fresh | Entrant]:
        """Returns who was thrown out, as `in_turn`."""
        return Entrant(stay), stay.tokens, 0, 0, 0, stay.blocks if self.reserves else 0

    def refused(self, step: Step) -> None:
        """Learns that the head of the queue did not find its blocks: it waits until so many are free."""
        self.crowd.waiting.lacks = step.lacks

    def entered(self, who: Entrant, stay: Stay, blocks: int, done: int, it: int, i: int) -> None:
        """Learns who was let in.

        Args:
            who: the one that waited. stay: what it has become.
            blocks: new ones. done: tokens computed in this step's end.
            it, i: the iteration and its entry.
        """

    def computed(self, begun: Begun, it: int, i: int) -> None:
        """Learns of another piece of a begun prompt."""

    def padded(self, stay: Stay, drafts: int) -> Stay:
        """Returns a stay whose last prompt token comes with placeholder drafts: only behind a hit."""
        raise AssertionError("placeholder drafts without a hit")

    def stuck(self, step: Step, it: int) -> None:
        """Learns that a begun prompt finds no blocks for its next piece."""

    def joined(self, ref: StayRef) -> None:
        """Learns who decodes from now on."""

    def emptied(self, it: int) -> None:
        """Learns that the last have ended before iteration `it`, perhaps before they were to leave."""

    def give_up(self, stay: Stay, done: int) -> int:
        """Takes the blocks of somebody who is thrown out after `done` rounds; returns those still held."""
        return self._refuse_caches()

    def give_up_begun(self, begun: Begun) -> int:
        """Takes the blocks of a begun prompt that is thrown out; returns those still held."""
        return self._refuse_caches()

    def leave(self, stay: Stay, done: int, kept: int, landed: bool) -> int:
        """Takes the blocks of somebody who decodes and is given up; as `KV.leave`."""
        return 0

    def leave_begun(self, begun: Begun) -> int:
        """Takes the blocks of a begun prompt that is given up; returns those still held."""
        return 0

    def somebody_left(self) -> None:
        """Learns that somebody is given up: others may find blocks sooner than was thought."""
        self.crowd.waiting.lacks = 0

    def forget_thrown_out(self, place: int) -> None:
        """Learns that somebody who was thrown out does not come back."""

    def _refuse_caches(self) -> int:
        if self.crowd.config.enable_prefix_caching:
            raise Unsuited("a preempted sequence may find its own blocks again")
        return 0

    def make_room(self, acc: int, it: int, i: int) -> int:
        """Throws sequences out from the tail until the growth of the others fits; returns the sum.

        Under FCFS the tail is never served before the shortage is met, and the growth of those before
        it only adds up: vLLM's sequential search stops at the same victims.
        """
        crowd = self.crowd
        bit, mask, total = crowd.pack.blocks, crowd.pack.blocks_mask, crowd.rules.usable_blocks
        while (acc >> bit) & mask > total:
            if crowd.begun is not None:
                acc -= crowd.evict_begun()
                continue
            ref = crowd.books.tail(crowd.refs)
            if ref[0] >= it:
                acc -= crowd.evict(ref, it, i)
            elif crowd.books.k_varies:
                crowd.books.over(stay_of(ref), ref[1])
        return acc

    def before_change(self, it: int) -> None:
        """Learns that K changes before iteration `it`."""

    def after_change(self, it: int, i: int) -> None:
        """Learns that everybody has been drawn again."""
