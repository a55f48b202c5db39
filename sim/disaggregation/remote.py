"""A lane whose requests' KV comes from elsewhere: who waits for it, with blocks, and who is told of that.

The rule is that of `sim/columns/receiving.py`, and `Step.admissions` decides here as there. A life begins
with the last token of its prompt, so its row is the one that is drawn for a prompt computed whole. The blocks
of those who wait for KV, or with it for a seat, are in the running sum beside those who run; when the KV
comes is known to the links alone.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Iterator
from math import inf, nextafter
from typing import Any, NamedTuple

from specfleet.hardware.stepcost import StepShape, drafter_pass_s
from specfleet.sim.calendar.crowd import CalendarCrowd
from specfleet.sim.calendar.kv.counted import CountedKV
from specfleet.sim.calendar.kv.interface import Entrant, Fresh
from specfleet.sim.calendar.kv.placeholders import with_placeholders
from specfleet.sim.calendar.lane import Lane
from specfleet.sim.calendar.stay import Stay
from specfleet.sim.calendar.trajectories import BLOCK, LifeBatch
from specfleet.sim.calendar.waiting import WaitingLine
from specfleet.sim.errors import Unsuited
from specfleet.sim.rules import NEVER
from specfleet.sim.step import Candidate, Step

FULL = "prompts whose KV has come fill the pool, and nobody runs"
"""Why a run is stepped in which one of them has to compute its prompt itself."""


class Opened(NamedTuple):
    """A request that has been given blocks for its KV, and when."""

    place: int
    time_s: float


class RemoteLine(WaitingLine):
    """As `WaitingLine`, where those who wait are let in as their KV comes, not in turn.

    `visible - head` is how many newcomers wait, as ever; which of them is in `line`.

    Args:
        inbox, arrived_s: as in `WaitingLine`.

    Attributes:
        line: newcomers that wait, in turn.
        holding: those of them that have blocks. arriving: of these, those whose KV is on its way.
        opened: who has been given blocks since the last time that somebody took them out.
        joined: who has been let in, in that order.
        woken_s: when the lane was last woken.
    """

    def __init__(self, inbox: array[int] | range, arrived_s: array[float]) -> None:
        super().__init__(inbox, arrived_s)
        self.line: list[int] = []
        self.holding: set[int] = set()
        self.arriving: set[int] = set()
        self.opened: list[Opened] = []
        self.joined = array("q")
        self.woken_s = 0.0

    def see(self, now: float) -> None:
        """As `WaitingLine.see`."""
        before = self.visible
        super().see(now)
        self.line.extend(self.inbox[before : self.visible])
        if self.lacks == NEVER:
            self.lacks = 0

    def arrived(self, place: int) -> None:
        """The KV of a prompt has come."""
        self.arriving.remove(place)
        self.lacks = 0

    @property
    def stop_s(self) -> float:
        """The time from which no turn is taken before those have been told who wait for `opened`."""
        return nextafter(self.opened[0].time_s, inf) if self.opened else inf

    def __len__(self) -> int:
        """Those who wait."""
        return len(self.line) + len(self.preempted)


class RemoteKV(CountedKV):
    """Blocks counted, those of prompts that wait for their KV too.

    Args:
        crowd: who runs.

    Attributes:
        given: blocks given in the present step to those who wait, of which it has not been told.
    """

    def __init__(self, crowd: CalendarCrowd) -> None:
        super().__init__(crowd)
        assert isinstance(crowd.waiting, RemoteLine)
        self._line = crowd.waiting
        self._index = 0
        self.given = 0

    def in_turn(self, step: Step, it: int) -> Iterator[Candidate[Fresh | Entrant]]:
        """As `KV.in_turn`; who waits for KV is passed over, with blocks for it if there are any."""
        line, waiting, lives, rules = self._line, self._line.line, self.crowd.lives, self.crowd.rules
        while line.preempted:
            yield self.returning(line.preempted[-1], step, it)
        self._index = 0
        while self._index < len(waiting):
            place = waiting[self._index]
            block, j = lives.of(place), place % BLOCK
            received = rules.blocks_received(block.prompt[j])
            if place not in line.holding and not self._open(place, received, step):
                return
            if place in line.arriving:
                self._index += 1
                continue
            least = block.blocks[j] if self.reserves else 0
            yield (place, block), block.prompt[j], block.prompt[j] - 1, received, self.given, least
        line.lacks = NEVER

    def _open(self, place: int, blocks: int, step: Step) -> bool:
        """Gives a newcomer the blocks of its prompt; False if there are too few."""
        beside = step.beside or step.seats < step.given[1]
        kept_free = self.crowd.rules.watermark_blocks if beside else 0
        if blocks > step.free_blocks - self.given - kept_free:
            self._line.lacks = blocks + kept_free
            return False
        self.given += blocks
        self.outside += blocks
        self._line.holding.add(place)
        self._line.arriving.add(place)
        self._line.opened.append(Opened(place, self.crowd.at.now))
        return True

    def let_in(self, place: int, blocks: int) -> None:
        """Somebody with so many blocks runs from now on; the step has been told of those given before."""
        del self._line.line[self._index]
        self._line.joined.append(place)
        self._line.holding.remove(place)
        self.outside -= blocks
        self.given = 0

    def refused(self, step: Step) -> None:
        """As `CountedKV.refused`."""
        self._line.lacks = step.lacks - self.given

    def padded(self, stay: Stay, drafts: int) -> Stay:
        """As `KV.padded`: the last token of a prompt whose KV came, with placeholder drafts."""
        return with_placeholders(stay, drafts, self.crowd.footprints)


class RemoteCrowd(CalendarCrowd):
    """As `CalendarCrowd`, where the KV of every newcomer comes from elsewhere.

    Attributes:
        rebuilt: prompts let in by this step, tokens, of which the drafter has to compute its KV.
    """

    kv: RemoteKV

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.rebuilt: list[int] = []

    def serve(self) -> None:
        """As `CalendarCrowd.serve`.

        Raises:
            Unsuited: nobody is left who runs, and others hold the blocks.
        """
        super().serve()
        if self.step.preempted and not self.at.acc >> self.pack.running and self.kv.outside:
            raise Unsuited(FULL)

    def join(self, life: Fresh | Entrant, tokens: int, blocks: int, drafts: int) -> None:
        """As `CalendarCrowd.join`."""
        if isinstance(life, Entrant):
            super().join(life, tokens, blocks, drafts)
            return
        place, block = life
        prompt = block.prompt[place % BLOCK]
        received = self.rules.blocks_received(prompt)
        self.kv.let_in(place, received)
        self.waiting.head += 1
        if self.config.rebuilds_drafter_kv:
            self.rebuilt.append(prompt)
        if drafts:
            self._join_padded(place, block, received + blocks, drafts)
        else:
            self.join_drawn(place, block)

    def _join_padded(self, place: int, block: LifeBatch, held: int, drafts: int) -> None:
        """Adds a request whose last prompt token comes with placeholder drafts."""
        stay = Stay.fresh(place, block, place % BLOCK)
        self.newcomers += 1
        stay = self.kv.padded(stay, drafts).holding(held, self.footprints)
        self._check_drafter(stay.tokens)
        self.step.useful |= stay.may_use_drafts
        self._add(stay)

    def end(self) -> None:
        """As `CalendarCrowd.end`; blocks of those who wait count from now on."""
        super().end()
        self.at.acc += self.kv.given << self.pack.blocks
        self.kv.given = 0


class RemoteLane(Lane):
    """As `Lane`, which stands still where everybody waits for KV."""

    waiting: RemoteLine
    crowd: RemoteCrowd

    @property
    def inbox(self) -> array[int]:
        """Places of the requests in the order in which they run."""
        return self.waiting.joined

    def _end(self, begin_s: float, shape: StepShape) -> float:
        """As `Lane._end`; where the drafter rebuilds KV, with its pass over each prompt let in."""
        end_s, crowd = super()._end(begin_s, shape), self.crowd
        for prompt in crowd.rebuilt:
            end_s += drafter_pass_s(self.cost, crowd.rules.max_num_batched_tokens, prompt)
        crowd.rebuilt.clear()
        return end_s

    def _idle(self, until: float) -> Generator[float, float, float]:
        """As `Lane._idle`."""
        at, waiting = self.at, self.waiting
        if not len(waiting) or self.crowd.begun is not None:
            return (yield from super()._idle(until))
        if not waiting.arriving:
            raise Unsuited(FULL)
        self.ends.publish(at.it - 1, at.now)
        until = yield inf
        at.now = max(at.now, waiting.woken_s)
        return until
