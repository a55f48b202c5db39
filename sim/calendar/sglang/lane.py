"""One engine under SGLang's rules on the calendar.

A turn is a prefill batch, or a decode of everybody. The rules that decide are those of `sim.sglang`
(`PrefillAdder`, `admit`, `SglangRules`, `NewTokenRatio`); what they ask of those who run is read off running
sums. Whose KV is found by others, and who is retracted, is known one by one (`kv`, `retraction`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from functools import partial
from itertools import takewhile
from math import inf

from specfleet.hardware.stepcost import StepCost, StepShape, prefill_pairs, shape_fields
from specfleet.sim.calendar.quiet import new_shape
from specfleet.sim.calendar.sglang.asking import NOTHING, Asking, Followed, Prefilled, Written
from specfleet.sim.calendar.sglang.ends import SglangEnds
from specfleet.sim.calendar.sglang.kv import Count, Shared
from specfleet.sim.calendar.sglang.line import SglangLine, Sorted
from specfleet.sim.calendar.sglang.lives import SglangTrajectories
from specfleet.sim.calendar.sglang.position import SglangPosition
from specfleet.sim.calendar.sglang.quiet import SglangQuiet
from specfleet.sim.calendar.sglang.retraction import displace, retract
from specfleet.sim.calendar.sglang.sums import (
    BEFORE,
    GHOST,
    GHOST_BEYOND,
    GHOST_PAGES,
    GONE,
    SURE,
    SURE_BEFORE,
)
from specfleet.sim.calendar.trajectories import NOT_YET
from specfleet.sim.config import SglangConfig
from specfleet.sim.errors import Breach, Unsuited
from specfleet.sim.laws.names import ONE_BATCH
from specfleet.sim.rules import NEVER
from specfleet.sim.sglang.adder import PrefillAdder, PrefillRow, admit, may_try
from specfleet.sim.sglang.rules import NewTokenRatio, SglangRules, promised

CLOSE = 1e-6
"""A sum of expected outputs so near a whole number of tokens is added up one by one, as the scheduler does:
rounding might decide."""


class SglangLane(SglangPosition):
    """One engine.

    Args:
        rules: SGLang's. ratio: the share of outputs expected, to begin with.
        cost: prices a step.
        lives: its requests.
        waiting: its queue.
        kv: its pool.
        ignore_eos: every request writes all it may.
        displaces: who waits may displace who runs, and how; None: nobody may.
        ends: who has to know of ends; None if nobody has before the run is over.
        replica: its number in the cluster.

    Attributes:
        chunked: whose prompt is being cut.
    """

    __slots__ = ("chunked", "cost", "displaces", "ignore_eos", "quiet", "replica")

    def __init__(
        self,
        rules: SglangRules,
        ratio: NewTokenRatio,
        cost: StepCost,
        lives: SglangTrajectories,
        waiting: SglangLine,
        kv: Count | Shared,
        ignore_eos: bool,
        displaces: SglangConfig | None,
        ends: SglangEnds | None,
        replica: int,
    ) -> None:
        super().__init__(rules, ratio, waiting, kv, ends, lives)
        self.cost, self.replica, self.ignore_eos = cost, replica, ignore_eos
        self.displaces = displaces
        self.quiet = SglangQuiet(self.calendar, cost, self.pack, self.lag)
        self.chunked: Asking | None = None

    # the loop

    def run(self) -> Generator[float, float, None]:
        """Runs batches; a generator with the manners of `sim.calendar.lane.Lane.run`."""
        waiting, arrived_s, lag = self.waiting, self.waiting.arrived_s, self.lag
        until = yield self.now
        while True:
            if self.now >= until:
                until = yield self.now
                continue
            if waiting.visible < len(arrived_s) and arrived_s[waiting.visible] <= self.now:
                waiting.see(self.now)
            turn, flew, decode_flew, decode = self.now, self.flying, self.decode_flies, self.decodes
            if self.entry >= self.calendar.edge:
                self.calendar.move_to_front(self.entry)
                self.entry = 1
            shape = self._prefill()
            if shape is None and self._goes_on() and self.quiet.run(self, until):
                known, turn = self.decodes - 2 - lag, self.times[-1]
                if self.ends is not None and self.ends.publish(known, self.iterations - 2 - lag, turn):
                    until = yield self.now
                continue
            shape = shape or self._decode()
            if shape is not None:
                self._note(shape, decode if self.decodes > decode else 0)
                if lag and not flew:
                    continue  # nothing was in flight: this turn decides a second batch
                known = decode - 1 - (lag and decode_flew)
                if self.ends is not None and self.ends.publish(known, self.iterations - 2 - lag, turn):
                    until = yield self.now
                continue
            if self.flying:  # wait for the batch in flight, then try again
                self._learn()
                self.now, self.flying = self.last_end, False
                known = decode - 1 - decode_flew
                if self.ends is not None and self.ends.publish(known, self.iterations - 2, turn):
                    until = yield self.now
                continue
            if waiting.count or self.cutting:
                raise Unsuited("nothing can be scheduled although requests are left")
            until = yield from self._idle(until)
            if self.now == inf:
                return

    @property
    def cutting(self) -> bool:
        """Whether a prompt is being cut."""
        return self.chunked is not None

    def _idle(self, until: float) -> Generator[float, float, float]:
        """Waits for the next request: `now` becomes its time (inf: there is none)."""
        waiting = self.waiting
        self.ratio.reset()
        if waiting.visible == len(waiting.arrived_s):
            if self.ends is None:
                self.now = inf
                return until
            self.ends.publish(self.decodes - 1, self.iterations - 1, self.now)
            until = yield inf
        if waiting.visible < len(waiting.arrived_s):
            self.now = max(self.now, waiting.arrived_s[waiting.visible])
        return until

    def _note(self, numbers: tuple[int, ...], decode: int) -> None:
        """Prices, times and notes a batch: the fields of its shape, who runs, and KV pages.

        Raises:
            Breach: the price is no time.
        """
        waiting, turn = self.waiting, self.now
        begin = self.last_end if self.flying else turn
        seconds = self.cost.seconds(new_shape(StepShape, numbers[:9]))
        if not seconds >= 0.0:
            said = f"a step of {numbers[0]} tokens takes {seconds} s"
            raise Breach(ONE_BATCH, said, None, turn, self.replica)
        self.last_end = begin + seconds
        self.rows.extend((*numbers[:10], waiting.count, numbers[10], decode))
        self.times.extend((begin, self.last_end, turn))
        self.iterations += 1
        if self.lag:
            self.now, self.flying = begin, True
        else:
            self.now = self.last_end

    def _goes_on(self) -> bool:
        """Whether this turn is a decode in which nothing is new: with overlap it follows another, and so it
        does where a tree is kept; no turn tries those who wait though the list is full."""
        tries = self.displaces is not None and self.waiting.count > 0
        if tries or self.decode_flies != self.lag or self.lives.window:
            return False
        return self.shared is None or (len(self.rows) > 0 and self.rows[-1] > 0)

    # what is known of those who run

    def _runs(self) -> tuple[int, int]:
        """Returns how many are on the running list when a turn begins, and the outputs expected of them."""
        if self.decode_flies:
            return self.sum >> self.pack.count, self.reach - (self.sum & self.pack.context_mask)
        calendar, entry = self.calendar, self.entry
        ahead = self.sum + calendar.at[entry]
        left = self.reach + calendar.reach_at[entry] - (ahead & self.pack.context_mask)
        return (ahead >> self.pack.count) + self.prefilled.at_once, left + self.prefilled.left

    def _promised(self, left: int) -> float:
        """Returns `promised` of those who run, of whom `left` output tokens are left."""
        if self.ignore_eos or not left:
            return float(left)
        total = left * self.ratio.now
        if self.ratio.now == 1.0 or abs(total - round(total)) > CLOSE:
            return total
        return promised(self._listed(), self.ratio.now)

    def _listed(self) -> list[Written]:
        """Returns who is on the running list, in its order, as the rules read them."""
        return [Written(one, output) for one, output in self.runs()]

    def _learn(self, in_vain: bool = False) -> None:
        """The result of the batch in flight becomes known; `in_vain`: a decode was decided before that."""
        if self.decode_flies:
            self.decode_flies = False
            if gone := self.calendar.gone_at[GONE][self.entry]:
                self.full = False
                column = self.calendar.gone_at[BEFORE][self.entry] if self.behind else gone
                self.old_pages -= column & self.pack.context_mask
                if self.shared is not None:
                    self.shared.ended(self.decodes - 1, in_vain)
        elif self.prefilled is not NOTHING:
            self.new_pages -= self.prefilled.pages
            if self.prefilled.at_once:
                self.full = False
            if self.shared is not None:
                self.shared.computed(self.prefilled.members, in_vain)
            self.prefilled = NOTHING

    # a prefill batch

    def _prefill(self) -> tuple[int, ...] | None:
        """Puts a prefill batch together; None if nobody is admitted."""
        waiting, rules, kv, begun = self.waiting, self.rules, self.kv, self.chunked
        if self.displaces is not None:
            self.full = False
        if begun is None and (self.full or not waiting.count):
            return None  # as `may_try` says, without asking who runs
        running, left = self._runs()
        places = rules.max_running_requests - running
        if begun is None:
            tries, self.full = may_try(self.full, waiting.count, places, self.displaces is not None)
            if not tries:
                return None
        elif self.shared is not None:
            assert isinstance(begun, Followed)
            self.shared.keep(begun, begun.num_computed_tokens)
        waiting.sort()
        kv.begin(self.held)
        expected = self._promised(left)
        adder: PrefillAdder[Asking] = PrefillAdder(rules, kv, self._listed, expected, self.ratio.now, 0)
        if begun is not None:
            self.chunked = adder.go_on(begun)
        makes_room = None if self.displaces is None else partial(self._displace, adder)
        self.full = admit(
            adder, waiting.in_turn(), self.full, lambda: places + len(self.displaced), kv.match, makes_room
        )
        if not adder.pieces:
            if self.displaced:
                raise Unsuited("a request is displaced for one that does not fit")
            return None
        running -= len(self.displaced)
        if adder.chunked is not None:
            self.chunked = adder.chunked
        waiting.take([piece.sequence for piece in adder.pieces if piece.match is not None])
        if self.displaced:
            self._wait_again()
        if self.shared is not None:
            extra = rules.page * len(adder.pieces) if rules.page > 1 else 0
            self.shared.make_free(sum([piece.tokens for piece in adder.pieces]) + extra)
        return self._compute(adder.pieces, running)

    def _displace(self, adder: PrefillAdder[Asking], asking: Asking) -> bool:
        """Makes room for one who waits, if it can."""
        assert self.displaces is not None
        return displace(self, adder, asking, self.displaces)

    def _wait_again(self) -> None:
        """Those who were displaced wait behind everybody."""
        assert isinstance(self.waiting, Sorted)
        for told in self.displaced:
            self.waiting.queue.add(told)
        self.displaced.clear()

    def _compute(self, pieces: list[PrefillRow[Asking]], running: int) -> tuple[int, ...]:
        """Gives the admitted their KV; returns the batch as `_note` takes it."""
        rules, page = self.rules, self.rules.page
        ones = ones_context = ones_seen = pairs = tokens = rank = 0
        window = self.lives.window or NEVER
        batch = Prefilled()
        for asking, start, count, cut, match in pieces:
            end = start + count
            tokens += count
            asking.num_computed_tokens = end
            pages = rules.ceil_page(end) // page
            if match is None:
                self.chunk_pages = 0
            else:
                if self.shared is not None:
                    self.shared.hold(asking, match)
                if asking.admitted < 0:
                    asking.admitted = self.iterations
                    self.stays.note_cached(asking.place, start)
            if count == 1:
                ones, ones_context, ones_seen = ones + 1, ones_context + end, ones_seen + min(end, window)
            else:
                pairs += prefill_pairs(count, start)
            if cut:
                self.chunk_pages = pages
                continue
            self.new_pages += pages
            rank += 1
            self._join(asking, batch, pages, rank)
        used = self.held - self.kv.saved
        if used > self.pages:
            raise Unsuited("a prefill batch does not find its KV")
        self._learn()
        if self.chunked is not None or not running:
            self.full = False
        self.prefilled = batch
        if not self.lag:
            self._learn()
        rows = len(pieces)
        chunk = tokens - ones
        numbers = shape_fields(ones, 0, ones_context, ones_seen, rows - ones, chunk, pairs, self.passes[1])
        return (*numbers, running + rows, used)

    def _join(self, asking: Asking, batch: Prefilled, pages: int, rank: int) -> None:
        """One has its first token, and decodes from the next decode batch on."""
        block, j, place = asking.block, asking.j, asking.place
        rounds = block.rounds[j]
        asking.rank = rank
        if asking.first < 0:
            asking.first, asking.first_rank = self.iterations, rank
        asking.stay = self.stays.begin(place, self.iterations, rank, asking.admitted, self.decodes, rounds)
        asking.since, asking.last = self.decodes, self.decodes + rounds - 1
        batch.members.append(asking)
        batch.count(block, j, asking.most, pages, self.pack.context_mask, 1)
        if rounds:
            self.calendar.add(block, j, self.entry)
            self.running.append(asking)
            if len(self.running) > 4 * self.rules.max_running_requests + 64:
                self.running = [one for one in self.running if one.last >= self.decodes - 1]
        if self.lives.first[place] == NOT_YET:
            self.lives.first[place] = self.decodes - 1
        elif block.gains is not None:
            low, kept = block.start[j], int(block.kept[j])
            self.stays.resumes(asking.stay, place, self.decodes, block.gains[low : low + rounds], kept)
        if self.shared is not None:
            self.shared.joins(asking)
        if self.ends is not None:
            self.ends.expect_one(asking, self.iterations)

    # a decode batch

    def _decode(self) -> tuple[int, ...] | None:
        """Decodes everybody who runs; None if nobody does, or KV is short and somebody is about to end."""
        rows, context, pages, used, running = self._next()
        if not rows:
            return None
        if used - self.kv.saved <= self.pages:
            self.ratio.fall()
        elif self._somebody_ends():
            if self.shared is not None:
                self.shared.owe(self.shared.evictable)
            return None
        else:
            retract(self)
            rows, context, pages, used, running = self._next()
        used -= self.kv.saved
        if self.shared is not None:
            self.shared.decodes(rows, self.held, used, self._slack())
        behind, outside = self.decode_flies, self._outside()
        drafts = rows * self.k + self.more
        if not behind:
            drafts += self.prefilled.ghosts * (self.prefill_k - self.k)
        self.more = 0
        self._learn(True)
        ahead = self.sum + self.calendar.at[self.entry]
        self.sum, self.reach = ahead, self.reach + self.calendar.reach_at[self.entry]
        self.beyond += self.calendar.beyond_at[self.entry]
        self.entry, self.decodes = self.entry + 1, self.decodes + 1
        self.old_pages, self.new_pages, self.behind, self.decode_flies = pages, 0, behind, True
        if not self.lag:
            self._learn()
        tokens, passes = context + drafts, self.passes[0]
        seen = tokens - outside
        if plans := self.by_rows(self.waiting.count):
            passes = self.rules.passes(plans[rows], False)
            if plans[rows] != self.k:
                self.change(plans[rows])
        numbers = shape_fields(rows, drafts, tokens, seen, 0, 0, 0, passes)
        return (*numbers, running, used)

    def _outside(self) -> int:
        """Returns what the next decode reads and a sliding window does not see, tokens."""
        if not self.lives.window:
            return 0
        entry, vain = self.entry, self.prefilled.ghost_beyond
        if self.decode_flies:
            vain = self.calendar.gone_at[GHOST_BEYOND][entry]
        return self.beyond + self.calendar.beyond_at[entry] + vain

    def _next(self) -> tuple[int, int, int, int, int]:
        """Returns the decode that may be next: its rows, their context, the KV pages held when its outcome is
        known, those held while it runs, and who runs; pages that several share counted for each.
        """
        pack, calendar, entry = self.pack, self.calendar, self.entry
        ahead = self.sum + calendar.at[entry]
        rows, context = ahead >> pack.count, ahead & pack.context_mask
        pages = (ahead >> pack.pages) & pack.pages_mask
        used, batch = pages, self.prefilled
        if not self.decode_flies:
            running = rows + batch.at_once
            used += batch.ghost_pages + batch.sure
            return rows + batch.ghosts, context + batch.ghost_context, pages, used, running
        gone = calendar.gone_at
        running, ghosts = self.sum >> pack.count, gone[GHOST][entry]
        sure = gone[SURE][entry] & pack.context_mask
        if not self.rules.reserve:
            used += gone[GHOST_PAGES][entry] + sure
        else:
            before = (self.sum >> pack.pages) & pack.pages_mask
            pages = before - (gone[GONE][entry] & pack.context_mask)
            used = before - ((sure - gone[SURE_BEFORE][entry]) if self.behind else 0)
        rows, context = rows + (ghosts >> pack.count), context + (ghosts & pack.context_mask)
        return rows, context, pages, used, running

    def _slack(self) -> int:
        """Returns the tokens from the prompts of those who decode for the first time to whole pages."""
        if self.rules.page == 1 or not self.rules.reserve:
            return 0
        fresh = [one for one in self._last_joined() if one.since == self.decodes]
        at_once = [one for one in self.prefilled.members if one.last < one.since]
        fresh += [one for one in at_once if not one.block.leave.sure[one.j]]
        return sum([self.rules.ceil_page(one.num_tokens) - one.num_tokens for one in fresh])

    def _last_joined(self) -> Iterable[Asking]:
        """Returns those on the running list among whom all are that decode for the first time."""
        if self.stays.retractions:  # they stand in another order than they came in
            return self.running
        return takewhile(lambda one: one.since == self.decodes, reversed(self.running))

    def _somebody_ends(self) -> bool:
        """Whether a result in flight is sure to end a request."""
        if self.decode_flies:
            return bool(self.calendar.gone_at[SURE][self.entry])
        return self.prefilled.at_once > self.prefilled.ghosts

    def submit(self, place: int, now: float) -> None:
        """Puts a request into the inbox at `now`."""
        self.waiting.submit(place, now)
