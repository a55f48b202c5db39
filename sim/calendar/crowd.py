"""Those who run on the calendar: who joins them, who gets a piece of its prompt, who is thrown out.

`sim.step` decides who is let in; here it is carried out. A sequence is touched when it joins, and then not
again: its row goes into the calendar.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from specfleet.sim.calendar.books.books import Books
from specfleet.sim.calendar.books.standing import Standing
from specfleet.sim.calendar.books.terms import TermBooks
from specfleet.sim.calendar.ends import Ends
from specfleet.sim.calendar.kv.interface import KV, Entrant, Fresh
from specfleet.sim.calendar.position import Position
from specfleet.sim.calendar.stay import Begun, Left, Stay, StayRef, stay_of
from specfleet.sim.calendar.sums import Calendar
from specfleet.sim.calendar.trajectories import BLOCK, LifeBatch, Trajectories
from specfleet.sim.calendar.waiting import WaitingLine
from specfleet.sim.config import EngineConfig
from specfleet.sim.step import Candidate, Step


class DrawnLives:
    """The lives of an engine's requests, at the K at which it drafts now.

    Args:
        by_k: lives by K; a single entry where K never changes.

    Attributes:
        now: those at the present K.
        first: the iteration of each request's first token, by place.
    """

    def __init__(self, by_k: list[Trajectories]) -> None:
        self.by_k = by_k
        self.now = by_k[-1]
        self.first = self.now.first.data
        self._latest: tuple[int, LifeBatch | None] = (-1, None)

    def of(self, place: int) -> LifeBatch:
        """Returns the lives drawn together of which a request's is one."""
        number, block = self._latest
        if block is None or place // BLOCK != number:
            number = place // BLOCK
            block = self.now.block(number)
            self._latest = number, block
        return block

    def fresh(self, place: int) -> Stay:
        """Returns the first stay of a request."""
        return Stay.fresh(place, self.of(place), place % BLOCK)

    def go_over(self, k: int) -> None:
        """Draws at another K from now on."""
        self.now = self.by_k[k]
        self.forget()

    def forget(self) -> None:
        """Forgets the lives it looked at last, which an idle engine need not hold."""
        self._latest = -1, None


class CalendarCrowd:
    """The running sequences of one engine.

    Args:
        config: its limits and rules.
        lives: its requests.
        calendar: what the running sequences will contribute.
        waiting: who waits.
        books: what the requests have had.
        ends: who has to know of ends.

    Attributes:
        at: where it stands.
        kv: its blocks; set by whoever puts the engine together.
        drafts_at, row_charge: drafts and budget tokens of a decode row, by K.
        step: what the present step has to give and gave.
        refs: who decodes, in the order of the running list, with some dead ones among them; kept only if
            `tracks`. begun: the prompt that is computed in pieces, behind them all.
        newcomers: requests that have entered.
        evicted, evicted_in: who decoded and was thrown out last, by place, and in which iteration.
        tracks: somebody may be thrown out, or stepped. tells: more has to be told of who joins than the
            calendar's first word.
        drafting: decides the drafts of each life; None is K for all.
    """

    def __init__(
        self,
        config: EngineConfig,
        lives: DrawnLives,
        calendar: Calendar,
        waiting: WaitingLine,
        books: Books,
        ends: Ends,
    ) -> None:
        self.config = config
        self.lives = lives
        self.calendar = calendar
        self.waiting = waiting
        self.books = books
        self.ends = ends
        self.log = books.log
        self.footprints = lives.now.rules
        self.pack = self.footprints.packing
        self.rules = self.footprints.scheduler
        k, varied = self.footprints.k, books.k_varies
        self.drafts_at = [drawn.rules.k for drawn in lives.by_k] if varied else [k] * (1 + k)
        self.row_charge = [self.rules.row_charge(k) for k in self.drafts_at]
        self.at = Position(len(lives.by_k) - 1 if varied else k)
        self.kv: KV
        self.step = Step(self.rules, self.footprints.window)
        self.refs: list[StayRef] = []
        self.begun: Begun | None = None
        self.newcomers = 0
        self.evicted: dict[int, StayRef] = {}
        self.evicted_in = -1
        self.tracks = lives.now.keeps_footprints
        learns, watched = len(calendar.outcomes) > 0, ends.watch is not None
        self.drafting = lives.now.drafting
        own = self.drafting is not None or self.rules.drafter_positions > 0
        self.tells = self.footprints.has_side or learns or self.tracks or watched or own
        chosen = books.k_varies and not lives.by_k[0].rules.k  # a policy's K goes down to 0
        chosen = chosen or (self.drafting is not None and self.drafting.planned)
        self._pads = self.rules.placeholders > 0 and not chosen

    def may_serve(self) -> bool:
        """Whether a step may have anything for a prompt: one is begun, or the next may find its blocks."""
        if self.begun is not None:
            return True
        waiting, pack, acc = self.waiting, self.pack, self.at.acc
        if waiting.head == waiting.visible and not waiting.preempted:
            return False
        running, lacks = acc >> pack.running, waiting.lacks
        if running >= self.rules.max_num_seqs:
            return False
        used = (acc >> pack.blocks) & pack.blocks_mask
        return not lacks or not running or used + lacks <= self.rules.usable_blocks

    def serve(self) -> None:
        """As `sim.crowd.Crowd.serve`: those who decode have their rows in the sum, if blocks suffice."""
        step, pack, rules, at, begun = self.step, self.pack, self.rules, self.at, self.begun
        acc, total = at.acc, rules.usable_blocks
        used = (acc >> pack.blocks) & pack.blocks_mask
        short = used > total
        if short:
            acc = at.acc = self.kv.make_room(acc, at.it, at.i)
            used, begun = (acc >> pack.blocks) & pack.blocks_mask, self.begun
        n = (acc >> pack.rows) & pack.rows_mask
        budget = rules.max_num_batched_tokens - n * self.row_charge[at.k]
        if self.drafting is not None:
            budget += n * self.footprints.k - self.calendar.drafts.item(at.i)
        running = acc >> pack.running
        step.begin(budget, rules.max_num_seqs - running, total - used, n)
        step.preempted, step.beside = short, running > 0
        if begun is not None and budget > rules.draft_slots and not self._next_piece(begun):
            step.preempted = True
            at.acc -= self.evict_begun()
        if self._pads:
            step.pads = not step.pieces
        self.waiting.lacks = 0

    def _next_piece(self, begun: Begun) -> bool:
        """Computes the next piece of the prompt that was begun; False if its blocks are not free."""
        step, it = self.step, self.at.it
        piece = step.next_piece(begun.stay.tokens, begun.done, begun.held)
        if piece is None:
            self.kv.stuck(step, it)
            return False
        if not piece.tokens:
            return True
        begun.done, begun.held, begun.last = begun.done + piece.tokens, begun.held + piece.blocks, it
        self._check_drafter(begun.done)
        if begun.done < begun.stay.tokens:
            self._want_for_piece(begun.stay.place)
        else:
            step.useful |= begun.stay.may_use_drafts
            self.begun = None
            begun.stay = self.books.again(begun.stay).holding(begun.held, self.footprints)
            self._add(begun.stay)
        self.kv.computed(begun, it, self.at.i)
        return True

    def in_turn(self) -> Iterator[Candidate[Fresh | Entrant]]:
        """As `sim.crowd.Crowd.in_turn`."""
        return self.kv.in_turn(self.step, self.at.it)

    def join(self, life: Fresh | Entrant, tokens: int, blocks: int, drafts: int) -> None:
        """As `sim.crowd.Crowd.join`; a fresh request whose prompt is computed whole is added as drawn."""
        if type(life) is Entrant:
            self._enter(life, tokens, blocks, drafts)
            return
        place, block = life
        j = place % BLOCK
        if tokens != block.prompt[j]:
            self._enter(Entrant(Stay.fresh(place, block, j)), tokens, blocks, drafts)
            return
        self.waiting.head += 1
        self.join_drawn(place, block)

    def join_drawn(self, place: int, block: LifeBatch) -> None:
        """Adds a fresh request as it was drawn: its prompt ends in this step."""
        calendar, entry, j = self.calendar, self.at.i + 1, place % BLOCK
        low, high = block.start[j], block.end[j]
        part = calendar.row[entry : entry + high - low]
        np.add(part, block.row[low:high], part)
        self.lives.first[place] = self.at.it
        if self.footprints.notes_unused:
            if block.uses_drafts[j]:
                self.step.useful = True
            if (unused := block.unused[j]) >= 0:
                calendar.unused_entry[entry + unused] += 1
        if self.tells:
            self._tell(place, block, j)

    def _tell(self, place: int, block: LifeBatch, j: int) -> None:
        """Tells of a fresh request that has joined whoever has to know."""
        calendar, it, entry = self.calendar, self.at.it, self.at.i + 1
        low, high = block.start[j], block.end[j]
        if block.rows:
            calendar.beyond[entry + block.spared[j] : entry + block.rows[j]] += 1
            self._check_drafter(block.prompt[j])
        if block.drafts is not None:
            wants = None if block.wants is None else block.wants[low:high]
            calendar.expect_drafts(entry, block.drafts[low:high], wants)
        rounds = high - low - 1 - self.footprints.lag
        if block.side is not None:
            calendar.side[entry : entry + high - low] += block.side[low:high]
        if len(calendar.outcomes):
            drawn = min(rounds, self.at.until - it - 1)
            calendar.expect_outcomes(entry, None if block.gains is None else block.gains[low:high], drawn)
        if self.tracks:
            self.newcomers += 1
            self.refs.append((it + high - low - 1, it, place, block))
            if self.kv.told:
                self.kv.joined(self.refs[-1])
        if self.ends.watch is not None:
            self.ends.watch.expect(it, place, rounds)

    def end(self) -> None:
        """As `sim.crowd.Crowd.end`: who was let in counts in the running sum from now on."""
        step, pack, at = self.step, self.pack, self.at
        _, seats, free = step.given
        at.acc += ((seats - step.seats) << pack.running) + ((free - step.free_blocks) << pack.blocks)
        if step.lacks > step.free_blocks:
            self.kv.refused(step)
        if len(self.refs) > 4 * self.rules.max_num_seqs + 64:
            self.forget_dead(at.it)

    def _enter(self, who: Entrant, tokens: int, blocks: int, drafts: int) -> None:
        """Lets somebody in who is not as it was drawn, or whose prompt is computed in pieces.

        Args:
            who: somebody at the head of the queue.
            tokens, blocks, drafts: as in `sim.step.Admission`.
        """
        stay, waiting, at = who.stay, self.waiting, self.at
        done = who.past + tokens - drafts
        held = blocks + who.past // self.rules.block_size
        whole = done == stay.tokens
        self._check_drafter(done + drafts)
        if waiting.preempted:
            waiting.preempted.pop()
            stay = self.books.again(stay) if whole else stay
        else:
            waiting.head += 1
        if stay.last_emission < 0:
            self.newcomers += 1
            if not whole:
                self.log.admitted.setdefault(stay.place, at.it)
        if drafts:
            stay = self.kv.padded(stay, drafts)
        if whole:
            stay = stay.holding(held, self.footprints)
            self.step.useful |= stay.may_use_drafts
            self._add(stay)
        else:
            self.begun = Begun(stay, done, held, at.it)
            self._want_for_piece(stay.place)
        self.kv.entered(who, stay, blocks, done, at.it, at.i)

    def _check_drafter(self, done: int) -> None:
        """Notes whether a prompt computed up to `done` leaves the drafter positions enough."""
        if self.rules.outgrows_drafter(done):
            self.calendar.beyond[self.at.i] += 1

    def _want_for_piece(self, place: int) -> None:
        """Notes the drafts that a policy wants of a row that computes a piece of a prompt."""
        wants = self.calendar.wants
        if len(wants):
            wants[self.at.i] |= 1 << self.books.wanted_of_piece(place)

    def _add(self, stay: Stay) -> None:
        """Puts a sequence into the calendar whose prefill ends in this step."""
        place, log, it = stay.place, self.log, self.at.it
        self.calendar.add(stay, self.at.i + 1)
        if self.tracks:
            self.refs.append((it + len(stay.row) - 1, it, place, stay))
            if self.kv.told:
                self.kv.joined(self.refs[-1])
        if self.ends.watch is not None:
            self.ends.watch.expect(it, place, stay.rounds)
        if stay.last_emission < 0:
            self.lives.first[place] = it
        else:
            log.odd_gaps.extend((it, stay.last_emission, place))
            self.books.came_back(stay, it, self.newcomers)

    def evict(self, ref: StayRef, it: int, i: int) -> int:
        """Takes a sequence out of the calendar from `it` on; returns its share of the running sum."""
        stay, first, log = stay_of(ref), ref[1], self.log
        if it != self.evicted_in:
            self.evicted, self.evicted_in = {}, it
        self.evicted[stay.place] = ref[0], first, stay.place, stay
        done = it - first - 1
        still_held = self.kv.give_up(stay, done)
        share = self.calendar.take_out(stay, done, i) - (still_held << self.pack.blocks)
        log.preemptions[stay.place] = log.preemptions.get(stay.place, 0) + 1
        if done == stay.rounds:
            self.books.over(stay, first)
            self.waiting.ending += 1
            return share
        self.waiting.put_back(self.books.rest(stay, done, it - 1))
        self.books.cut(stay, first, done)
        if self.ends.watch is not None:
            self.ends.watch.unexpect(stay.place, first + stay.rounds, it - 1)
        return share

    def evict_begun(self) -> int:
        """Throws out the prompt that is computed in pieces; returns its share of the running sum."""
        begun, log = self.begun, self.log
        assert begun is not None
        still_held = self.kv.give_up_begun(begun)
        self.begun = None
        self.newcomers -= begun.stay.last_emission < 0
        self.waiting.put_back(begun.stay)
        place = begun.stay.place
        log.preemptions[place] = log.preemptions.get(place, 0) + 1
        return self.footprints.prefilling(begun.held) - (still_held << self.pack.blocks)

    def forget_dead(self, it: int) -> None:
        """Drops those who have left before iteration `it`."""
        if not self.books.k_varies:
            self.refs[:] = [ref for ref in self.refs if ref[0] >= it]

    def leave(self, it: int) -> list[Left]:
        """Takes everybody out of the calendar before iteration `it`; returns them as `listed`."""
        left = self.books.leave(self.refs, it)
        self.refs.clear()
        if self.ends.watch is not None:
            self.ends.watch.forget(it - 1)
        return left

    def come_back(self, standing: Standing, alive: list[bool], it: int, i: int, k: int) -> None:
        """Puts sequences into the calendar that run where iteration `it` begins.

        Args:
            standing: where they stand.
            alive: whether each goes on; the others have ended in the step that is in flight.
            it, i: the iteration and its entry.
            k: drafts of a row.
        """
        calendar, books, watch = self.calendar, self.books, self.ends.watch
        calendar.clear(i)
        drawn, self.refs, rounds = books.draw_running(standing, alive, it, k, self.newcomers)
        calendar.add_together(drawn, i)
        if isinstance(books, TermBooks):
            self.lives.go_over(k)
            self.at.until = books.until
            if len(calendar.outcomes):
                calendar.expect_all(i, *books.outcomes())
        if watch is not None:
            for place, count in zip(standing.place.tolist(), rounds, strict=True):
                watch.expect(it - 1, place, count)

    def thrown_out(self) -> list[int]:
        """Returns who has begun, or had, and does not decode."""
        begun = [] if self.begun is None else [self.begun.stay.place]
        return [stay.place for stay in self.waiting.preempted] + begun

    def listed(self, it: int) -> list[Left]:
        """Returns who decodes before iteration `it`, in the order of the running list; changes nothing.

        Only where somebody may be thrown out or stepped: the others are not remembered one by one.
        """
        assert self.tracks
        return self.books.listed(self.refs, it)

    def change_k(self, k: int) -> None:
        """Draws everybody again from the next iteration on: at another K, or since they end beyond it."""
        books, calendar, acc, it, i = self.books, self.calendar, self.at.acc, self.at.it, self.at.i
        assert isinstance(books, TermBooks)
        self.kv.before_change(it)
        standing = books.close(it, self.refs)
        self.refs.clear()
        books.go_over(it, k)
        if k != self.at.k:
            self.lives.go_over(k)
        calendar.clear(i)
        if self.begun is not None:
            acc -= self.footprints.prefilling(self.begun.held)
        acc -= self.kv.outside << self.pack.blocks
        calendar.row[i] = -acc
        calendar.add_together(books.draw_term(standing, it, self.kv.asks_ends), i)
        self.at.until = books.until
        if len(calendar.outcomes):
            calendar.expect_all(i, *books.outcomes())
        if self.ends.watch is not None:
            self.ends.watch.move(books.ends(), it)
        self.kv.after_change(it, i)
        self.at.k = k
