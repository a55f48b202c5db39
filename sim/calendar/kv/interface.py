"""KV blocks as an engine on the calendar knows them: who finds what, and who goes when they run short."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol, final

from specfleet.sim.calendar.kv.holders import Holder
from specfleet.sim.calendar.stay import Begun, Stay, StayRef
from specfleet.sim.calendar.trajectories import LifeBatch
from specfleet.sim.step import Candidate, Step

Fresh = tuple[int, LifeBatch]
"""A request that has not run, and the lives drawn together of which it is one."""


@final
class Entrant(NamedTuple):
    """Somebody who waits and is not as it was drawn.

    Attributes:
        stay: what it will be.
        past: tokens found in the prefix cache.
        holder: the blocks it found, where prompts share some.
    """

    stay: Stay
    past: int = 0
    holder: Holder | None = None


class KV(Protocol):
    """The KV blocks of an engine, as those who run need them.

    Attributes:
        told: it has to be told who joins. asks_ends: it has to know when everybody ends.
        outside: blocks that those hold who wait.
    """

    told: bool
    asks_ends: bool
    outside: int

    def in_turn(self, step: Step, it: int) -> Iterator[Candidate[Fresh | Entrant]]:
        """Yields who waits, in turn, as `step.Candidate`."""
        ...

    def refused(self, step: Step) -> None:
        """Learns that the head of the queue did not find its blocks: it waits until so many are free."""
        ...

    def entered(self, who: Entrant, stay: Stay, blocks: int, done: int, it: int, i: int) -> None:
        """Learns who was let in.

        Args:
            who: the one that waited. stay: what it has become.
            blocks: new ones. done: tokens computed in this step's end.
            it, i: the iteration and its entry.
        """
        ...

    def computed(self, begun: Begun, it: int, i: int) -> None:
        """Learns of another piece of a begun prompt."""
        ...

    def padded(self, stay: Stay, drafts: int) -> Stay:
        """Returns a stay whose last prompt token comes with placeholder drafts: only behind a hit."""
        ...

    def stuck(self, step: Step, it: int) -> None:
        """Learns that a begun prompt finds no blocks for its next piece."""
        ...

    def joined(self, ref: StayRef) -> None:
        """Learns who decodes from now on."""
        ...

    def emptied(self, it: int) -> None:
        """Learns that the last have ended before iteration `it`, perhaps before they were to leave."""
        ...

    def give_up(self, stay: Stay, done: int) -> int:
        """Takes the blocks of somebody who is thrown out after `done` rounds; returns those still held."""
        ...

    def give_up_begun(self, begun: Begun) -> int:
        """Takes the blocks of a begun prompt that is thrown out; returns those still held."""
        ...

    def leave(self, stay: Stay, done: int, kept: int, landed: bool) -> int:
        """Takes the blocks of somebody who decodes and is given up; returns those still held.

        Args:
            stay: the stay. done: rounds that were scheduled; perhaps one more, in which it had no row.
            kept: of which the outcome is known; -1: that of its prefill is not either.
            landed: the last batch has been waited for, and the calendar is empty.
        """
        ...

    def leave_begun(self, begun: Begun) -> int:
        """Takes the blocks of a begun prompt that is given up; returns those still held."""
        ...

    def somebody_left(self) -> None:
        """Learns that somebody is given up: others may find blocks sooner than was thought."""
        ...

    def forget_thrown_out(self, place: int) -> None:
        """Learns that somebody who was thrown out does not come back."""
        ...

    def make_room(self, acc: int, it: int, i: int) -> int:
        """Throws sequences out from the tail until the growth of the others fits; returns the sum.

        Under FCFS the tail is never served before the shortage is met, and the growth of those before
        it only adds up: vLLM's sequential search stops at the same victims.
        """
        ...

    def before_change(self, it: int) -> None:
        """Learns that K changes before iteration `it`."""
        ...

    def after_change(self, it: int, i: int) -> None:
        """Learns that everybody has been drawn again."""
        ...
