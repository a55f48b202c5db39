"""The fast path of one engine: a calendar of what its sequences contribute, walked by iteration.

See ARCHITECTURE.md for the picture. Every number a turn needs is a field of one running sum, so a
turn costs the same for one sequence and for a thousand; a sequence is touched when it is admitted,
and then not again.
"""

from __future__ import annotations

from array import array
from collections.abc import Generator
from math import inf
from typing import TYPE_CHECKING

from specfleet.hardware.stepcost import StepCost, StepShape, shape_fields
from specfleet.sim.calendar.crowd import CalendarCrowd
from specfleet.sim.calendar.plans import Plans, seen
from specfleet.sim.calendar.quiet import Ahead, Quiet, new_shape
from specfleet.sim.calendar.trajectories import Trajectories
from specfleet.sim.crowd import schedule
from specfleet.sim.errors import Breach, Unsuited
from specfleet.sim.laws.names import BLOCKS, ONE_BATCH
from specfleet.sim.recorder import Recorder

if TYPE_CHECKING:
    from specfleet.sim.calendar.stepper import Stepper

Turns = Generator[float, float, None]
"""Yields the time of the next turn (inf: idle); is sent the time before which every turn is taken."""


class Lane:
    """One engine on the fast path: `run` walks it.

    Args:
        cost: prices a step.
        crowd: those who run, with their calendar, their queue and their books.
        plans: K by batch size and queue; None is always K.
        replica: its number in the cluster.

    Attributes:
        stepper: steps it where the calendar cannot go on (None: never).
        at: where it stands.
    """

    def __init__(self, cost: StepCost, crowd: CalendarCrowd, plans: Plans | None, replica: int) -> None:
        self.cost = cost
        self.crowd = crowd
        self.plans = plans
        self.replica = replica
        self.stepper: Stepper | None = None
        self.rules = crowd.footprints
        self.calendar, self.waiting, self.books = crowd.calendar, crowd.waiting, crowd.books
        self.ends, self.log = crowd.ends, crowd.log
        self.passes_at = crowd.books.passes_at
        self.at = crowd.at
        self._budget = crowd.rules.max_num_batched_tokens
        self._context_mask = crowd.pack.context_mask
        speculative = crowd.config.speculative
        self._rerolls = speculative is not None and speculative.reroll_on_reject
        self._plain = not (self._rerolls or crowd.config.rebuilds_drafter_kv)
        self._own_drafts = len(self.calendar.drafts) > 0
        self._landing = 0  # blocks of those who end with the batch in flight, after which nobody is left
        at_k = crowd.drafts_at, self.passes_at
        self.quiet = Quiet(self.calendar, cost, self.log, self.ends, plans, *at_k)

    def run(self) -> Turns:
        """Runs iterations; a generator, which rests whenever somebody else may have something to do."""
        at, crowd, waiting, ends, pack = self.at, self.crowd, self.waiting, self.ends, self.crowd.pack
        row_bit, row_mask, charge, budget = pack.rows, pack.rows_mask, crowd.row_charge, self._budget
        block_bit, block_mask, total = pack.blocks, pack.blocks_mask, crowd.rules.usable_blocks
        calendar, entry, arrived_s = self.calendar, self.calendar.entry, waiting.arrived_s
        has_side, lag, own, drafts = self.rules.has_side, self.rules.lag, self._own_drafts, calendar.drafts
        bare = crowd.rules.row_charge(0)
        until = yield at.now
        while True:
            if at.now >= until:
                until = yield at.now
                continue
            self.quiet.ran_ahead = None
            if waiting.visible < len(arrived_s) and arrived_s[waiting.visible] <= at.now:
                waiting.see(at.now)
            if at.i >= calendar.edge:
                calendar.move_to_front(at)
            if at.it >= at.until:
                crowd.change_k(at.k)
            at.acc = acc = at.acc + entry[at.i]
            if has_side:
                calendar.side_sum += calendar.side.item(at.i)
            n, short = (acc >> row_bit) & row_mask, (acc >> block_bit) & block_mask > total
            left = budget - (n * bare + drafts.item(at.i) if own else n * charge[at.k])
            pieces, crowd.step.preempted = 0, False
            if left < 0:
                until = yield from self._step(until)
                continue
            if short or crowd.may_serve():
                schedule(crowd)
                until = min(until, waiting.stop_s)
                n, pieces = (at.acc >> row_bit) & row_mask, crowd.step.pieces
            if n or pieces:
                queue, turn, flew = len(waiting.preempted) + waiting.ending, at.now, at.flying
                queue += waiting.visible - waiting.head
                step_s = self._price(n, pieces, queue)
                if lag and not flew:
                    continue  # nothing was in flight: this turn schedules a second batch
                if ends.stops and ends.publish(ends.committed, turn):
                    until = yield at.now
                elif not queue and crowd.begun is None:
                    self._run_quiet(until, step_s)
                continue
            self._skip()
            if at.flying:  # wait for the batch in flight, then try again
                if self._land():
                    until = yield at.now
                continue
            until = yield from self._idle(until)
            if at.now == inf:
                return

    def _skip(self) -> None:
        """Nothing runs in this turn.

        Raises:
            Unsuited: somebody was thrown out in it, and may not come back before the tokens in flight.
        """
        if self.crowd.step.preempted:
            raise Unsuited("a step preempts and schedules nothing")
        self.calendar.skip(self.at.i)
        self.crowd.forget_dead(self.at.it)

    def _price(self, n: int, pieces: int, queue: int) -> float:
        """Prices, times and notes a step, and moves on to the next; returns its seconds.

        Args:
            n: rows that decode. pieces: of prompts. queue: requests that wait.
        """
        at, log, rules, plans = self.at, self.log, self.rules, self.plans
        self._landing = 0
        window, lag, flying = rules.window, rules.lag, at.flying
        it, i, k, acc, begin = at.it, at.i, at.k, at.acc, at.now
        following = k if plans is None else self._drafts(n, pieces, queue)
        context, beyond, passes = acc & self._context_mask, 0, self.passes_at[following]
        drafts = n * self.crowd.drafts_at[k]
        if self._own_drafts:
            drafts, passes = log.own(*self.calendar.own_drafts(i, self.passes_at))
        in_vain = rules.notes_unused and passes and self.calendar.unused.item(i) == n
        if in_vain and not (pieces and self.crowd.step.useful):
            passes = 1
            log.one_pass.append(it)
        if rules.packing.wide:
            context = self.calendar.side_sum
            log.beyond.append(context)
        if window:
            beyond = self.calendar.side_sum & self._context_mask
        in_window, ones, chunk, pairs = context - beyond, 0, 0, 0
        if pieces:
            step = self.crowd.step
            ones, pairs, padded, chunk = step.ones, step.pairs, step.padded, step.chunk
            log.prefills.extend((it, chunk, pieces, ones, step.ones_context, pairs))
            if ones:  # they count as decode rows
                context += step.ones_context
                in_window += step.ones_context - step.ones_beyond
                drafts, chunk = drafts + padded, chunk - ones - padded
                if padded:
                    log.padded.extend((it, padded))
        numbers = shape_fields(n + ones, drafts, context, in_window, pieces - ones, chunk, pairs, passes)
        if queue:
            log.waiting.extend((it, queue))
            self.waiting.ending = 0
        if flying:
            begin = at.last_end
        elif lag or begin != at.last_end:
            log.wakes.append(it)
            log.wake_s.append(begin)
        shape = new_shape(StepShape, numbers)
        end = begin + self.cost.seconds(shape) if self._plain else self._end(begin, shape)
        log.end_s.append(end)
        log.sums.append(acc)
        if window:
            log.beyond.append(context - in_window)
        if plans is not None and plans.learns:
            self._show(plans, n, pieces, end - begin)
        self.ends.committed = it - 1 - flying
        at.it, at.i, at.last_end, at.now = it + 1, i + 1, end, end
        if lag:
            at.now, at.flying = begin, True
        if following != k:
            self.crowd.change_k(following)
        return end - begin

    def _show(self, plans: Plans, n: int, pieces: int, seconds: float) -> None:
        """Notes what the present step will show; arguments as `_price`, and the seconds that it takes."""
        at, outcomes = self.at, self.calendar.outcomes[self.at.i].tolist()
        drafts = self.crowd.drafts_at[at.k]
        if drafts and at.k < plans.void_below:
            outcomes = []  # void drafts show nothing
        plans.note(at.it, seen(drafts, outcomes, n + pieces, pieces > 0, seconds))

    def _end(self, begin_s: float, shape: StepShape) -> float:
        """Returns when a step ends that begins at a time."""
        return begin_s + (self._with_rerun(shape) if self._rerolls else self.cost.seconds(shape))

    def _with_rerun(self, shape: StepShape) -> float:
        """Returns the seconds of a step that runs again, without the drafter, if it rejects a draft."""
        seconds, outcomes = self.cost.seconds(shape), self.calendar.outcomes[self.at.i].tolist()
        accepted = sum([(tokens - 1) * count for tokens, count in enumerate(outcomes)])
        if accepted < shape.draft_tokens:
            self.log.rerolled.append(self.at.it)
            seconds += self.cost.seconds(shape._replace(draft_passes=0))
        return seconds

    def _drafts(self, n: int, pieces: int, queue: int) -> int:
        """Asks the policy for the drafts after a step; arguments as `_price`."""
        plans, at, kv = self.plans, self.at, 0
        assert plans is not None
        if plans.learns:
            plans.hear(at.it - 1 - at.flying)
        if plans.reads_kv:
            kv = (self.calendar.side_sum >> self.crowd.pack.blocks) + (self.crowd.step.past if pieces else 0)
        drafts = plans.drafts(n + pieces, queue, kv)
        if plans.void_below and not self.calendar.beyond.item(at.i):
            drafts += plans.void_below
        return drafts

    def _run_quiet(self, until: float, step_s: float) -> None:
        """Runs on while only the calendar changes anything; arguments as `run` and `_price`."""
        at, limit = self.at, self.waiting.next_arrival(inf if self.ends.runs_ahead else until)
        whole = (at.acc >> self.crowd.pack.running) * self.crowd.row_charge[at.k] <= self._budget
        if at.now < limit and whole and not len(self.calendar.outcomes):
            if self.ends.runs_ahead:
                self.quiet.ran_ahead = Ahead.of(at, self.quiet)
            self.quiet.run(at, limit, step_s)

    def _step(self, until: float) -> Generator[float, float, float]:
        """Steps what the calendar cannot take; returns the time until which it may go on."""
        if self.stepper is None:
            raise Unsuited("a step that the calendar cannot take")
        return (yield from self.stepper.run(self.at, until))

    def _land(self) -> bool:
        """Nobody runs: waits for the batch in flight; True if somebody ended whom others wait for."""
        at, turn = self.at, self.at.now
        self._landing = (at.acc >> self.crowd.pack.blocks) & self.crowd.pack.blocks_mask
        self.crowd.kv.emptied(at.it)
        self.calendar.row[at.i + 1] = 0
        self.calendar.skip_beside(at.i + 1)
        at.now, at.flying, at.acc = at.last_end, False, self.crowd.kv.outside << self.crowd.pack.blocks
        return self.ends.publish(at.it - 2, turn)

    def _idle(self, until: float) -> Generator[float, float, float]:
        """Waits for the next request: `at.now` becomes its time (inf: there is none); returns as `_step`."""
        at, waiting = self.at, self.waiting
        self._landing = 0
        if waiting.head < waiting.visible or waiting.preempted or self.crowd.begun is not None:
            raise Unsuited("nothing can be scheduled although requests are left")
        if at.acc:
            raise Breach(
                BLOCKS, f"nobody is left, and the running sum is {at.acc}", None, at.now, self.replica
            )
        if waiting.visible == len(waiting.arrived_s):
            if self.ends.watch is None:
                at.now = inf
                return until
            self.ends.publish(at.it - 1, at.now)
            until = yield inf
        if waiting.visible < len(waiting.arrived_s):
            at.now = max(at.now, waiting.arrived_s[waiting.visible])
        return until

    def _check_empty(self) -> None:
        """Nobody is here: nothing is held, and the clock has come here by times.

        Raises:
            Breach: something is, or it has not.
        """
        at = self.at
        if at.acc:
            said = f"nobody is left, and the running sum is {at.acc}"
            raise Breach(BLOCKS, said, None, at.now, self.replica)
        if not at.now >= 0.0:
            first_row = int(self.lives.order[0])
            raise Breach(ONE_BATCH, f"steps end at {at.now} s", first_row, at.now, self.replica)

    def submit(self, place: int, now: float) -> None:
        """Puts a request into the inbox at `now`."""
        if self.ends.runs_ahead:
            self.quiet.take_back(self.at, now)
        self.waiting.submit(place, now)

    def blocks_used(self) -> int:
        """Returns the KV blocks that are held where the lane rests."""
        if self.stepper is not None and self.stepper.engine is not None:
            kv = self.stepper.engine.scheduler.kv
            return kv.total_blocks - kv.free_blocks
        pack = self.crowd.pack
        return self._landing + ((self.at.acc >> pack.blocks) & pack.blocks_mask)

    @property
    def inbox(self) -> array[int] | range:
        """Places of the requests in the order in which they come to run."""
        return self.waiting.inbox

    @property
    def lives(self) -> Trajectories:
        """The lives of its requests, at the largest K."""
        return self.books.lives

    @property
    def committed(self) -> int:
        """Last iteration whose outcome is known."""
        return self.ends.committed

    @property
    def recorder(self) -> Recorder | None:
        """What `Engine` wrote down of the iterations it stepped (None: never)."""
        return self.log.recorder

    def finish(self) -> None:
        """Books what is left to book at the end of the run."""
        self.books.finish(self.crowd.refs)
