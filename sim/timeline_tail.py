"""The tail of the running list: prompts computed in pieces, and who is thrown out when KV runs short.

Under FCFS both happen at the tail alone, so both are rare; the loop over iterations is in
`timeline_lane`.
"""

from __future__ import annotations

from array import array

import numpy as np
import numpy.typing as npt

from hardware.stepcost import StepCost
from sim.config import EngineConfig
from sim.timeline_ledger import Ledger
from sim.timeline_log import Log
from sim.timeline_luck import I64
from sim.timeline_seat import Prefill, Seat
from sim.timeline_trajectories import BLOCK, Block, Trajectories
from sim.timeline_watch import Ended, Watch

WINDOW, LONGEST_WINDOW = 64, 4096
"""Iterations priced at once: numpy's 60 calls cost as much as 64 turns of the loop."""
SHORTEST_CALENDAR = 1 << 14
"""Iterations a calendar looks ahead at least: its future moves to the front now and then."""
Piece = tuple[int, int, int, int, bool, int]
"""A piece of prefill: tokens, pairs, rows of one token, their context, whether its drafts may be used,
blocks taken."""


class Unsuited(Exception):  # noqa: N818 - not an error: the run is stepped instead
    """The run met something that only `Engine` can do."""


class Tail:
    """One engine on the fast path.

    Args:
        config: its limits and rules.
        cost: prices a step.
        lives: the requests it may be given.
        ledger: counts rounds; None without speculation.
        inbox: places of the requests in order of arrival; may grow while the lane rests.
        arrived_s: when each of them arrives.
        watch: notes who ends when; None if nobody has to know before the run is over.
        stops: the lane rests whenever somebody has ended, instead of running on.
        lane: its number among those that share `lives`.
        replica: its number in the cluster.

    Attributes:
        verified, drafts: verifications and drafts by place, where K is not the same for all.
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
    ) -> None:
        self.config = config
        self.cost = cost
        self.lives = lives
        self.rules = lives.rules
        self.ledger = ledger
        self.inbox = inbox
        self.arrived_s = arrived_s
        self.watch = watch
        self.stops = stops
        self.ended: list[Ended] = []
        self.turn_s = 0.0
        self.committed = -1
        self.reach = 4 * WINDOW
        self.verified: I64 | None = None
        self.drafts: I64 | None = None
        self.log = Log()
        self.passes = config.speculative.draft_passes if config.speculative else 0
        self.tracks = lives.keeps_footprints
        size = max(SHORTEST_CALENDAR, 3 * (lives.longest_row + LONGEST_WINDOW))
        self.calendar: I64 = np.zeros(size, dtype=np.int64)
        self.unused: I64 = np.zeros(size, dtype=np.int64)
        self.prefill: Prefill | None = None
        self.back: list[Seat] = []
        self.stays: list[tuple[int, int, int, Seat | Block]] = []
        self.newcomers = 0
        self.doomed = 0
        self.lane = lane
        self.replica = replica
        self._done: dict[int, tuple[int, int, int]] = {}

    def finish(self) -> None:
        """Books what is left to book at the end of the run: nothing here."""

    def drafts_by_iteration(self) -> npt.NDArray[np.int32]:
        """Returns the drafts verified by each decoding row, by iteration (or one number for all)."""
        return np.array(self.rules.k, dtype=np.int32)

    def passes_by_iteration(self) -> npt.NDArray[np.int32]:
        """Returns the drafter's passes after each iteration whose drafts might be used."""
        return np.full(len(self.log.end_s), self.passes, dtype=np.int32)

    def submit(self, place: int, now: float) -> None:
        """Puts a request into the inbox at `now`."""
        assert isinstance(self.inbox, list)
        self.inbox.append(place)
        self.arrived_s.append(now)

    def _slide(self, i: int) -> None:
        """Moves the calendars' future to their front."""
        for table in (self.calendar, self.unused):
            future = table[i:].copy()
            table[: len(future)] = future
            table[len(future) :] = 0

    def _start_prefill(self, seat: Seat, it: int, room: int, free_blocks: int) -> Piece | None:
        """Computes the first `room` tokens of a prompt that is longer."""
        blocks = self.rules.prefill_blocks(room)
        reserve = -(-seat.tokens // self.rules.block_size) if self.config.scheduler_reserve_full_isl else 0
        if max(blocks, reserve) > free_blocks:
            return None
        self.prefill = Prefill(seat, room, blocks)
        self.newcomers += seat.last_emission < 0
        if seat.last_emission < 0:
            self.log.admitted.setdefault(seat.place, it)
        return _piece(room, 0, False, blocks)

    def _continue(self, it: int, i: int, room: int, free_blocks: int) -> Piece | None:
        """Computes the next piece of the prompt that was begun; its drafter slots are taken now."""
        prefill = self.prefill
        assert prefill is not None
        seat = prefill.seat
        tokens = min(seat.tokens - prefill.done, room)
        done = prefill.done + tokens
        held = max(prefill.held, -(-(done + self.rules.lookahead) // self.rules.block_size))
        grown = held - prefill.held
        if grown > free_blocks:
            return None
        piece = _piece(tokens, prefill.done, self._is_useful(seat, done), grown)
        prefill.done, prefill.held = done, held
        if done == seat.tokens:
            self.prefill = None
            self._take(seat, held, it, i)
        return piece

    def _readmit(self, it: int, i: int, room: int, free_blocks: int) -> Piece | None:
        """Admits the first of those thrown out."""
        seat = self.back[-1]
        if seat.tokens > room:
            if not self.config.enable_chunked_prefill:
                return None
            piece = self._start_prefill(seat, it, room, free_blocks)
            if piece is not None:
                self.back.pop()
            return piece
        if seat.blocks > free_blocks:
            return None
        self.back.pop()
        self.newcomers += seat.last_emission < 0
        self._take(seat, seat.blocks, it, i)
        return _piece(seat.tokens, 0, self._is_useful(seat, seat.tokens), seat.blocks)

    def _is_useful(self, seat: Seat, done: int) -> bool:
        """Whether a draft proposed after a piece of prefill that ends at `done` might be used."""
        return done == seat.tokens and seat.tokens - seat.prompt + 1 < seat.most

    def _take(self, seat: Seat, held: int, it: int, i: int) -> None:
        """Puts a sequence whose prefill ends in `it` into the calendar."""
        row, place, log = seat.row, seat.place, self.log
        part = self.calendar[i + 1 : i + 1 + len(row)]
        part += row
        if held != seat.blocks:
            if not seat.rounds and self.rules.lag:
                raise Unsuited("a chunked prefill that ends a request holds more than one in a piece")
            part[0] -= (held - seat.blocks) << self.rules.packing.blocks
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
        rounds, accepted, chunks = self._done[place]
        if seat.gains is not None:
            assert self.ledger is not None
            self.ledger.book_stay(self.lane, place, it, seat.gains, seat.kept, 1)
            accepted += int(seat.gains.sum()) - seat.rounds
        log.totals[place] = [rounds + seat.rounds, accepted, chunks + 1 + seat.rounds, it + seat.rounds]

    def _make_room(self, acc: int, it: int, i: int) -> int:
        """Throws sequences out from the tail until the growth of the others fits; returns the sum.

        Under FCFS the tail is never served before the shortage is met, and the growth of those before
        it only adds up: vLLM's sequential search stops at the same victims.
        """
        pack, total = self.rules.packing, self.config.usable_blocks
        while (acc >> pack.blocks) & pack.blocks_mask > total:
            if self.prefill is not None:
                acc = self._evict_prefill(acc)
                continue
            last, first, place, home = self.stays.pop()
            if last >= it:
                seat = home if isinstance(home, Seat) else Seat.fresh(place, home, place % BLOCK)
                acc -= self._evict(seat, first, it, i)
        return acc

    def _evict_prefill(self, acc: int) -> int:
        prefill, pack = self.prefill, self.rules.packing
        assert prefill is not None
        if self.config.enable_prefix_caching:
            raise Unsuited("a preempted sequence may find its own blocks again")
        self.prefill = None
        self.newcomers -= prefill.seat.last_emission < 0
        self.back.append(prefill.seat)
        place = prefill.seat.place
        self.log.preemptions[place] = self.log.preemptions.get(place, 0) + 1
        return acc - (1 << pack.running) - (prefill.held << pack.blocks)

    def _evict(self, seat: Seat, first: int, it: int, i: int) -> int:
        """Takes a sequence out of the calendar from `it` on; returns its share of the running sum."""
        if self.config.enable_prefix_caching:
            raise Unsuited("a preempted sequence may find its own blocks again")
        assert seat.footprint is not None
        log, place, done = self.log, seat.place, it - first - 1
        rest = seat.row[done + 1 :]
        self.calendar[i + 1 : i + 1 + len(rest)] -= rest
        if seat.unused >= done:
            self.unused[i + seat.unused - done] -= 1
        log.preemptions[place] = log.preemptions.get(place, 0) + 1
        if done == seat.rounds:
            self.doomed += 1  # its last tokens are in flight: it ends in the queue
            return int(seat.footprint[done])
        self.back.append(seat.rest(done, self.rules, it - 1))
        rounds, accepted, chunks = self._done.get(place, (0, 0, 0))
        if seat.gains is not None:
            assert self.ledger is not None
            self.ledger.book_stay(self.lane, place, first, seat.gains, seat.kept, -1)
            self.ledger.book_stay(self.lane, place, first, seat.gains[:done], 0, 1)
            accepted += int(seat.gains[:done].sum()) - done
        self._done[place] = (rounds + done, accepted, chunks + 1 + done)
        if seat.extra < 0:
            log.cut[place] = done
        else:
            log.stays[seat.extra][2] = done
        if self.watch is not None:
            self.watch.unexpect(place, first + seat.rounds, it - 1)
        return int(seat.footprint[done])

    def _forget_dead(self, it: int) -> None:
        self.stays[:] = [stay for stay in self.stays if stay[0] >= it]


def _piece(tokens: int, past: int, useful: bool, blocks: int) -> Piece:
    """Returns a piece of prefill; one of a single token is priced as a decode row (as the engine does)."""
    if tokens == 1:
        return 1, 0, 1, past + 1, useful, blocks
    return tokens, tokens * past + tokens * (tokens + 1) // 2, 0, 0, useful, blocks
