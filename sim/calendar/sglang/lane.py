"""One engine under SGLang's rules on the calendar.

A turn is a prefill batch, or a decode of everybody. The rules that decide are those of `sim.sglang`
(`PrefillAdder`, `admit`, `SglangRules`, `NewTokenRatio`); what they ask of those who run is read off running
sums. Where a request would be retracted the run is stepped.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator, Iterator
from math import inf

from specfleet.hardware.stepcost import StepCost, StepShape, prefill_pairs, shape_fields
from specfleet.sim.calendar.quiet import new_shape
from specfleet.sim.calendar.sglang.ends import SglangEnds
from specfleet.sim.calendar.sglang.lives import SglangLives, SglangTrajectories
from specfleet.sim.calendar.sglang.position import SglangPosition
from specfleet.sim.calendar.sglang.quiet import SglangQuiet
from specfleet.sim.calendar.sglang.sums import (
    BEFORE,
    GHOST,
    GHOST_PAGES,
    GONE,
    SURE,
    SURE_BEFORE,
    SglangCalendar,
)
from specfleet.sim.calendar.trajectories import BLOCK
from specfleet.sim.calendar.waiting import WaitingLine
from specfleet.sim.errors import Breach, Unsuited
from specfleet.sim.laws.names import ONE_BATCH
from specfleet.sim.sglang.adder import PrefillAdder, PrefillRow, admit, may_try
from specfleet.sim.sglang.pool import Match
from specfleet.sim.sglang.rules import CLIP_MAX_NEW_TOKENS, NewTokenRatio, SglangRules, promised

NO_MATCH = Match(None, 0)
CLOSE = 1e-6
"""A sum of expected outputs so near a whole number of tokens is added up one by one, as the scheduler does:
rounding might decide."""


class Asking:
    """One who waits, or whose prompt is being cut, as `PrefillAdder` reads it."""

    __slots__ = ("block", "ignore_eos", "j", "max_tokens", "num_computed_tokens", "num_tokens", "place")
    num_output_tokens = 0

    def __init__(self, place: int, block: SglangLives, ignore_eos: bool) -> None:
        j = place % BLOCK
        self.place, self.block, self.j = place, block, j
        self.num_tokens, self.max_tokens = block.prompt[j], block.most[j]
        self.num_computed_tokens = 0
        self.ignore_eos = ignore_eos


class Written:
    """One who runs, as the rules read it."""

    __slots__ = ("ignore_eos", "max_tokens", "num_output_tokens", "num_tokens")
    num_computed_tokens = 0

    def __init__(self, prompt: int, output: int, most: int, ignore_eos: bool) -> None:
        self.num_tokens, self.num_output_tokens = prompt + output, output
        self.max_tokens, self.ignore_eos = most, ignore_eos


class Count:
    """A KV pool of which only what is left counts: nothing in it can be found by anybody else."""

    def __init__(self, radix: bool) -> None:
        self.available = 0
        self.tree: object | None = self if radix else None

    def lock(self, match: Match) -> None:
        """Nothing was found."""

    def unlock(self, match: Match) -> None:
        """Nothing was found."""


class Prefilled:
    """A prefill batch whose result is not known yet.

    Attributes:
        members: its requests, but for one whose prompt goes on.
        at_once: those that end with their first token; pages: of their prompts.
        sure: KV pages of those of them whose end is certain; ghosts, ghost_context, ghost_pages: of the
            others, who decode once in vain.
        left: what an admission expects of its requests on top of what it will expect once their first token
            is known.
    """

    __slots__ = ("at_once", "ghost_context", "ghost_pages", "ghosts", "left", "members", "pages", "sure")

    def __init__(self) -> None:
        self.at_once = self.pages = self.sure = 0
        self.ghosts = self.ghost_context = self.ghost_pages = 0
        self.left = 0
        self.members: list[Asking] = []


NOTHING = Prefilled()


class SglangLane(SglangPosition):
    """One engine.

    Args:
        rules: SGLang's. ratio: the share of outputs expected, to begin with.
        cost: prices a step.
        lives: its requests.
        waiting: its queue.
        radix, ignore_eos: the tree is used; every request writes all it may.
        ends: who has to know of ends; None if nobody has before the run is over.
        replica: its number in the cluster.

    Attributes:
        chunked: whose prompt is being cut. chunk_pages, chunk_since: its KV pages, and the iteration of its
            first piece.
        prefilled: the prefill batch in flight. decode_flies: a decode is.
        place, first, rank, admitted: of each request in order of its first token: its place, the iteration of
            that, its rank in it, and the iteration of its admission.
    """

    def __init__(
        self,
        rules: SglangRules,
        ratio: NewTokenRatio,
        cost: StepCost,
        lives: SglangTrajectories,
        waiting: WaitingLine,
        radix: bool,
        ignore_eos: bool,
        ends: SglangEnds | None,
        replica: int,
    ) -> None:
        super().__init__(rules, ratio, waiting, ends)
        self.cost, self.lives, self.replica, self.ignore_eos = cost, lives, replica, ignore_eos
        self.lag = rules.in_flight > 0
        self.pack = lives.layout
        self.calendar = SglangCalendar(lives.longest_row, self.lag)
        self.quiet = SglangQuiet(self.calendar, cost, self.pack, self.lag)
        self.pool = Count(radix)
        self.place, self.first, self.rank, self.admitted = array("q"), array("q"), array("q"), array("q")
        self.chunked: Asking | None = None
        self.chunk_pages = self.chunk_since = 0
        self.decode_flies = False
        self.prefilled = NOTHING
        self._running: list[tuple[int, int, SglangLives, int]] = []

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
            shape = self._prefill() or self._decode()
            if shape is not None:
                self._note(shape, decode if self.decodes > decode else 0)
                if lag and not flew:
                    continue  # nothing was in flight: this turn decides a second batch
                known = decode - 1 - (lag and decode_flew)
                if self.ends is not None and self.ends.publish(known, self.iterations - 2 - lag, turn):
                    until = yield self.now
                elif self.decodes > decode and self.chunked is None:
                    self.quiet.run(self, until)
                continue
            if self.flying:  # wait for the batch in flight, then try again
                self._learn()
                self.now, self.flying = self.last_end, False
                known = decode - 1 - decode_flew
                if self.ends is not None and self.ends.publish(known, self.iterations - 2, turn):
                    until = yield self.now
                continue
            if waiting.head < waiting.visible or self.chunked is not None:
                raise Unsuited("nothing can be scheduled although requests are left")
            until = yield from self._idle(until)
            if self.now == inf:
                return

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
        self.rows.extend(numbers[:10])
        self.rows.extend((waiting.visible - waiting.head, numbers[10], decode))
        self.times.extend((begin, self.last_end, turn))
        self.iterations += 1
        if self.lag:
            self.now, self.flying = begin, True
        else:
            self.now = self.last_end

    # what is known of those who run

    def _runs(self) -> tuple[int, int]:
        """Returns how many are on the running list when a turn begins, and the outputs expected of them."""
        if self.decode_flies:
            return self.sum >> self.pack.count, self.left
        calendar, entry = self.calendar, self.entry
        running = (self.sum + calendar.at[entry]) >> self.pack.count
        left = self.left + calendar.left_at[entry]
        return running + self.prefilled.at_once, left + self.prefilled.left

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
        seen = self.decodes - (1 if self.decode_flies else 0)
        self._running = [one for one in self._running if one[0] >= seen]
        query, listed = 1 + self.rules.num_speculative_tokens, []
        fresh = {one.place for one in self.prefilled.members}
        for _, since, block, j in self._running:
            if block.first_place + j not in fresh:
                prompt, place = block.prompt[j], block.start[j] + seen - since
                output = int(block.context[place]) - query - prompt + 1
                listed.append(Written(prompt, output, block.most[j], self.ignore_eos))
        return listed + [
            Written(one.num_tokens, 0, one.max_tokens, one.ignore_eos) for one in self.prefilled.members
        ]

    def _learn(self) -> None:
        """The result of the batch in flight becomes known."""
        if self.decode_flies:
            self.decode_flies = False
            if gone := self.calendar.gone_at[GONE][self.entry]:
                self.full = False
                column = self.calendar.gone_at[BEFORE][self.entry] if self.behind else gone
                self.old_pages -= column & self.pack.context_mask
        elif self.prefilled is not NOTHING:
            self.new_pages -= self.prefilled.pages
            if self.prefilled.at_once:
                self.full = False
            self.prefilled = NOTHING

    # a prefill batch

    def _prefill(self) -> tuple[int, ...] | None:
        """Puts a prefill batch together; None if nobody is admitted."""
        waiting, rules = self.waiting, self.rules
        if self.chunked is None and (self.full or waiting.head == waiting.visible):
            return None  # as `may_try` says, without asking who runs
        running, left = self._runs()
        places = rules.max_running_requests - running
        if self.chunked is None:
            tries, self.full = may_try(self.full, waiting.visible - waiting.head, places, False)
            if not tries:
                return None
        held = self.old_pages + self.new_pages + self.chunk_pages
        self.pool.available = (self.pages - held) * rules.page
        adder = PrefillAdder[Asking](rules, self.pool, self._listed, self._promised(left), self.ratio.now, 0)
        begun = self.chunked
        if begun is not None:
            self.chunked = adder.go_on(begun)
        self.full = admit(adder, self._in_turn(), self.full, lambda: places, lambda asking: NO_MATCH)
        if not adder.pieces:
            return None
        if adder.chunked is not None:
            self.chunked = adder.chunked
        return self._compute(adder.pieces, begun, running)

    def _in_turn(self) -> Iterator[Asking]:
        """Yields who waits, in turn."""
        waiting, block, number = self.waiting, None, -1
        for index in range(waiting.head, waiting.visible):
            place = waiting.inbox[index]
            if place // BLOCK != number or block is None:
                number = place // BLOCK
                block = self.lives.block(number)
            assert isinstance(block, SglangLives)
            yield Asking(place, block, self.ignore_eos)

    def _compute(
        self, pieces: list[PrefillRow[Asking]], begun: Asking | None, running: int
    ) -> tuple[int, ...]:
        """Gives the admitted their KV; returns the batch as `_note` takes it."""
        rules, page = self.rules, self.rules.page
        ones = ones_context = pairs = tokens = rank = 0
        batch = Prefilled()
        for asking, start, count, cut, match in pieces:
            end = start + count
            tokens += count
            asking.num_computed_tokens = end
            pages = rules.ceil_page(end) // page
            if match is not None:
                self.waiting.head += 1
                since = self.iterations
            else:
                assert asking is begun
                since, self.chunk_pages = self.chunk_since, 0
            if count == 1:
                ones, ones_context = ones + 1, ones_context + end
            else:
                pairs += prefill_pairs(count, start)
            if cut:
                self.chunk_pages, self.chunk_since = pages, since
                continue
            self.new_pages += pages
            rank += 1
            self._join(asking, batch, pages, rank, since)
        used = self.old_pages + self.new_pages + self.chunk_pages
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
        numbers = shape_fields(ones, 0, ones_context, ones_context, rows - ones, chunk, pairs, self.passes[1])
        return (*numbers, running + rows, used)

    def _join(self, asking: Asking, batch: Prefilled, pages: int, rank: int, since: int) -> None:
        """One has its first token, and decodes from the next decode batch on."""
        block, j, place = asking.block, asking.j, asking.place
        rounds = block.rounds[j]
        self.place.append(place)
        self.first.append(self.iterations)
        self.rank.append(rank)
        self.admitted.append(since)
        self.lives.first[place] = self.decodes - 1
        most = min(asking.max_tokens, CLIP_MAX_NEW_TOKENS)
        batch.members.append(asking)
        if rounds:
            self.calendar.add(block, j, self.entry)
            batch.left += most - min(asking.max_tokens - 1, CLIP_MAX_NEW_TOKENS)
            self._running.append((self.decodes + rounds - 1, self.decodes, block, j))
            if len(self._running) > 4 * self.rules.max_running_requests + 64:
                self._running = [one for one in self._running if one[0] >= self.decodes - 1]
            if self.ends is not None:
                self.ends.expect(self.decodes + rounds - 1, place, rank)
            return
        leave = block.leave
        batch.left += most
        batch.at_once += 1
        batch.pages += pages
        if leave.sure[j]:
            batch.sure += pages
        else:
            batch.ghosts += 1
            batch.ghost_context += leave.ghost[j] & self.pack.context_mask
            batch.ghost_pages += leave.ghost_pages[j]
        if self.ends is not None:
            self.ends.at_once(self.iterations, place, rank)

    # a decode batch

    def _decode(self) -> tuple[int, ...] | None:
        """Decodes everybody who runs; None if nobody does."""
        pack, calendar, entry = self.pack, self.calendar, self.entry
        ahead = self.sum + calendar.at[entry]
        rows, context = ahead >> pack.count, ahead & pack.context_mask
        pages = (ahead >> pack.pages) & pack.pages_mask
        used, behind, batch = pages, self.decode_flies, self.prefilled
        if not behind:
            running = rows + batch.at_once
            rows, context = rows + batch.ghosts, context + batch.ghost_context
            used += batch.ghost_pages + batch.sure
        else:
            gone = calendar.gone_at
            running, ghosts = self.sum >> pack.count, gone[GHOST][entry]
            rows += ghosts >> pack.count
            context += ghosts & pack.context_mask
            sure = gone[SURE][entry] & pack.context_mask
            if not self.rules.reserve:
                used += gone[GHOST_PAGES][entry] + sure
            else:
                before = (self.sum >> pack.pages) & pack.pages_mask
                pages = before - (gone[GONE][entry] & pack.context_mask)
                used = before - ((sure - gone[SURE_BEFORE][entry]) if self.behind else 0)
        if not rows:
            return None
        if used > self.pages:
            raise Unsuited("requests are retracted for lack of KV")
        self.ratio.fall()
        self._learn()
        self.sum, self.left = ahead, self.left + calendar.left_at[entry]
        self.entry, self.decodes = entry + 1, self.decodes + 1
        self.old_pages, self.new_pages, self.behind, self.decode_flies = pages, 0, behind, True
        if not self.lag:
            self._learn()
        drafts = rows * self.rules.num_speculative_tokens
        numbers = shape_fields(rows, drafts, context, context, 0, 0, 0, self.passes[0])
        return (*numbers, running, used)

    def submit(self, place: int, now: float) -> None:
        """Puts a request into the inbox at `now`."""
        self.waiting.submit(place, now)
