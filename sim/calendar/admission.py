"""Who enters an engine on the fast path: fresh requests, prompts in pieces, and those thrown out before.

A request is touched here, when it is admitted, and then not again: its row goes into the calendar.
"""

from __future__ import annotations

from array import array

import numpy as np

from specfleet.hardware.stepcost import StepCost
from specfleet.sim.calendar.ledger import Ledger
from specfleet.sim.calendar.log import Log
from specfleet.sim.calendar.luck import I64, U8
from specfleet.sim.calendar.seat import Counts, Prefill, Seat
from specfleet.sim.calendar.step import Step
from specfleet.sim.calendar.trajectories import BLOCK, Block, Trajectories
from specfleet.sim.calendar.watch import Ended, Watch
from specfleet.sim.config import EngineConfig

LONGEST_WINDOW = 4096
"""Most iterations priced at once."""
SHORTEST_CALENDAR = 1 << 14
"""Iterations a calendar looks ahead at least: its future moves to the front now and then."""
Stay = tuple[int, int, int, Seat | Block]
"""Last iteration in the running list, iteration of the prefill's end, place, and where its row is."""


class Unsuited(Exception):  # noqa: N818 - not an error: the run is stepped instead
    """The run met something that only `Engine` can do."""


class Admission:
    """One engine on the fast path, as far as requests enter it.

    Args:
        config: its limits and rules.
        cost: prices a step.
        lives: the requests it may be given, at the largest K.
        ledger: counts rounds; None without speculation.
        inbox: places of the requests in order of arrival; may grow while the lane rests.
        arrived_s: when each of them arrives.
        watch: notes who ends when; None if nobody has to know before the run is over.
        stops: the lane rests whenever somebody has ended, instead of running on.
        lane: its number among those that share `lives`.
        replica: its number in the cluster.
        learns: a policy has to know what every step showed.

    Attributes:
        k: drafts of a row.
        head: the first of `inbox` that is not admitted.
        back: who was thrown out and waits in front of everybody else; the last is the next.
        stays: of those running, in the order of the running list, with some dead ones among them.
        ended, turn_s: who has ended when the lane rests, and the time of the turn.
        committed: last iteration whose outcome is known.
        calendar, unused, side: packed differences by place; rows none of whose drafts can be used;
            differences of the second packed word, whose running sum is `side_sum`.
        outcomes: rounds by place and tokens sampled, if a policy learns.
    """

    def __init__(
        self,
        config: EngineConfig,
        cost: StepCost,
        lives: Trajectories,
        ledger: Ledger | None,
        inbox: list[int] | range,
        arrived_s: array[float],
        watch: Watch | None = None,
        stops: bool = False,
        lane: int = 0,
        replica: int = 0,
        learns: bool = False,
    ) -> None:
        self.config = config
        self.cost = cost
        self.lives = self.drawn = lives
        self.rules = lives.rules
        self.k = lives.rules.k
        self.ledger = ledger
        self.inbox = inbox
        self.arrived_s = arrived_s
        self.watch = watch
        self.stops = stops
        self.lane = lane
        self.replica = replica
        self.log = Log()
        self.head = 0
        self.back: list[Seat] = []
        self.prefill: Prefill | None = None
        self.stays: list[Stay] = []
        self.tracks = lives.keeps_footprints
        self.ended: list[Ended] = []
        self.turn_s = 0.0
        self.committed = -1
        self.newcomers = 0
        self.slots = config.speculative.draft_slots if config.speculative else 0
        self.passes = config.speculative.draft_passes if config.speculative else 0
        self.step = Step(self.slots, self.rules.window)
        self.total = config.usable_blocks
        self.watermark = int(config.watermark * config.num_gpu_blocks)
        size = max(SHORTEST_CALENDAR, 3 * (lives.longest_row + LONGEST_WINDOW))
        self.calendar: I64 = np.zeros(size, dtype=np.int64)
        self.unused: I64 = np.zeros(size, dtype=np.int64)
        self.side: I64 = np.zeros(size if self.rules.has_side else 0, dtype=np.int64)
        self.side_sum = 0
        width = self.rules.k + 2
        self.learns = learns
        self.outcomes: I64 = np.zeros((size if learns else 0, width), dtype=np.int64)
        self._done: dict[int, Counts] = {}
        self._home: tuple[int, Block | None] = (-1, None)

    def submit(self, place: int, now: float) -> None:
        """Puts a request into the inbox at `now`."""
        assert isinstance(self.inbox, list)
        self.inbox.append(place)
        self.arrived_s.append(now)

    def forget(self, place: int) -> None:
        """Forgets what an ended request did, so that another may have its place."""
        self._done.pop(place, None)

    def _admit(self, step: Step, it: int, i: int, visible: int) -> None:
        """Admits fresh requests in order of arrival while budget, seats and blocks last."""
        inbox, head, slots, row_at = self.inbox, self.head, self.slots, i + 1
        calendar, unused, add, first = self.calendar, self.unused.data, np.add, self.lives.first.data
        tracks, watch, lag, notes = self.tracks, self.watch, self.rules.lag, self.rules.notes_unused
        has_side = self.rules.has_side
        acc, used, left, before, pairs = step.acc, step.used, step.left, head, 0
        number, block = self._home
        beside = self.watermark  # blocks left free beside others, and only beside others
        total = self.total - beside if acc >> self.rules.packing.running else self.total
        end = min(visible, head + step.room)
        while head < end and left > slots:
            place = inbox[head]
            if place // BLOCK != number:
                number = place // BLOCK
                block = self.drawn.block(number)
                self._home = number, block
            assert block is not None
            j = place % BLOCK
            tokens = block.prompt[j]
            if tokens > left - slots:
                break
            used += block.blocks[j]
            if used > total:
                used -= block.blocks[j]
                break
            acc += block.admitted[j]
            left -= tokens + slots
            pairs += block.pairs[j]
            if tokens == 1:  # priced as a decode row
                step.ones += 1
                step.ones_context += 1
                pairs -= 1
            low, high = block.start[j], block.end[j]
            part = calendar[row_at : row_at + high - low]
            add(part, block.row[low:high], part)
            first[place] = it
            head += 1
            total = self.total - beside
            if notes:
                step.useful |= block.most[j] > 1
                if block.unused[j] >= 0:
                    unused[row_at + block.unused[j]] += 1
            if has_side:
                assert block.side is not None
                part = self.side[row_at : row_at + high - low]
                add(part, block.side[low:high], part)
            if self.learns:
                gains = None if block.gains is None else block.gains[low:high]
                self._expect_outcomes(row_at, gains, high - low - 1 - lag)
            if tracks:
                self.newcomers += 1
                self.stays.append((it + high - low - 1, it, place, block))
            if watch is not None:
                watch.expect(it, place, high - low - 1 - lag)
        rows = head - before
        step.chunk += step.left - left - rows * slots
        step.rows += rows
        step.room -= rows
        step.pairs += pairs
        step.acc, step.used, step.left = acc, used, left
        self.head = head
        if head < end and left > slots and self.config.enable_chunked_prefill:
            assert block is not None
            j = inbox[head] % BLOCK
            if self.prefill is None and block.prompt[j] > left - slots:
                self.head += self._start_prefill(step, Seat.fresh(inbox[head], block, j), it)

    def _start_prefill(self, step: Step, seat: Seat, it: int) -> bool:
        """Computes as much of a longer prompt as the budget allows; False if its blocks are not free."""
        room = step.left - self.slots
        blocks = self.rules.prefill_blocks(room)
        if max(blocks, self._reserve(seat)) > self._free_blocks(step):
            return False
        self.prefill = Prefill(seat, room, blocks, it)
        if seat.last_emission < 0:
            self.newcomers += 1
            self.log.admitted.setdefault(seat.place, it)
        step.acc += self.rules.prefilling(blocks)
        step.used += blocks
        step.room -= 1
        step.add(room, 0)
        return True

    def _reserve(self, seat: Seat) -> int:
        """Returns the blocks that must be free before a request is admitted, whatever it takes at once."""
        return -(-seat.tokens // self.rules.block_size) if self.config.scheduler_reserve_full_isl else 0

    def _used_at(self, it: int) -> int:
        """Returns the blocks held in an iteration that is over."""
        pack = self.rules.packing
        return (self.log.sums[it] >> pack.blocks) & pack.blocks_mask

    def _free_blocks(self, step: Step) -> int:
        """Returns the blocks that an admission may take."""
        beside = self.watermark if step.acc >> self.rules.packing.running else 0
        return self.total - step.used - beside

    def _continue(self, step: Step, it: int, i: int) -> bool:
        """Computes the next piece of the prompt that was begun, whose drafter slots are taken now.

        False if its blocks are not free.
        """
        prefill, rules = self.prefill, self.rules
        assert prefill is not None
        seat, past = prefill.seat, prefill.done
        done = past + min(seat.tokens - past, step.left - self.slots)
        held = max(prefill.held, -(-(done + rules.lookahead) // rules.block_size))
        grown = held - prefill.held
        if grown > self.total - step.used:
            return False
        step.acc += grown << rules.packing.blocks
        step.used += grown
        step.add(done - past, past)
        prefill.done, prefill.held, prefill.last = done, held, it
        if done == seat.tokens:
            step.useful |= seat.may_use_drafts
            self.prefill = None
            self._take(seat.holding(held, rules), it, i)
        return True

    def _readmit(self, step: Step, it: int, i: int) -> bool:
        """Admits the first of those thrown out; False if it has to wait."""
        seat = self.back[-1]
        if seat.tokens > step.left - self.slots:
            if not self.config.enable_chunked_prefill or not self._start_prefill(step, seat, it):
                return False
            self.back.pop()
            return True
        if seat.blocks > self._free_blocks(step):
            return False
        self.back.pop()
        self.newcomers += seat.last_emission < 0
        step.acc += self.rules.prefilling(seat.blocks)
        step.used += seat.blocks
        step.room -= 1
        step.add(seat.tokens, 0)
        step.useful |= seat.may_use_drafts
        self._take(seat, it, i)
        return True

    def _expect_outcomes(self, i: int, gains: U8 | None, rounds: int) -> None:
        """Notes what the rounds of a sequence will show, from place `i` on (without gains: a token each)."""
        if gains is None:
            self.outcomes[i : i + rounds, 1] += 1
        else:
            self.outcomes[np.arange(i, i + rounds), gains[:rounds]] += 1

    def _take(self, seat: Seat, it: int, i: int) -> None:
        """Puts a sequence whose prefill ends in `it` into the calendar."""
        row, place, log = seat.row, seat.place, self.log
        self.calendar[i + 1 : i + 1 + len(row)] += row
        if seat.side is not None:
            self.side[i + 1 : i + 1 + len(row)] += seat.side
        if self.learns:
            self._expect_outcomes(i + 1, seat.gains, seat.rounds)
        if seat.unused >= 0:
            self.unused[i + 1 + seat.unused] += 1
        if self.tracks:
            self.stays.append((it + len(row) - 1, it, place, seat))
        if self.watch is not None:
            self.watch.expect(it, place, seat.rounds)
        if seat.last_emission < 0:
            self.lives.first[place] = it
            return
        log.odd_gaps.extend((it, seat.last_emission, place))
        seat.extra = len(log.stays)
        log.stays.append([place, it, seat.rounds, self.newcomers])
        self._book(seat, it)

    def _book(self, seat: Seat, it: int) -> None:
        """Books a stay that follows another one, as if it went on to the request's end."""
        if seat.gains is not None and self.ledger is not None:
            self.ledger.book_stay(self.lane, seat.place, it, seat.gains, seat.kept, 1)
        counts = self._done[seat.place].plus(seat.gains, seat.rounds, self.rules.k, 1 + seat.rounds)
        self.log.totals[seat.place] = counts, it + seat.rounds
