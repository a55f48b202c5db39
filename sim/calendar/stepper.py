"""From the calendar to `Engine` and back, in the middle of a run.

Where a step cannot be read off the calendar (its token budget does not give every decoding sequence
its whole row) the engine takes over: every sequence is handed to it
as it stands, with the step in flight, and handed back when each of them has a whole row again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from collections.abc import Sequence as Rows
from dataclasses import replace
from math import inf

import numpy as np

from specfleet.hardware.stepcost import StepCost
from specfleet.sim.calendar.books.log import Log
from specfleet.sim.calendar.books.members import Members
from specfleet.sim.calendar.books.standing import Standing
from specfleet.sim.calendar.crowd import CalendarCrowd
from specfleet.sim.calendar.plans import Plans
from specfleet.sim.calendar.position import Position
from specfleet.sim.calendar.stay import Begun, Counts, Left, Stay
from specfleet.sim.calendar.watch import Ended
from specfleet.sim.engine import Engine, Request
from specfleet.sim.errors import Unsuited
from specfleet.sim.recorder import Recorder
from specfleet.sim.scheduler import Scheduler
from specfleet.sim.sequence import FINISHED, PREEMPTED, RUNNING, Batch
from specfleet.sim.speculation.policy import Policy, Seen

LEAST_STEPS, MOST_STEPS = 32, 1024
"""Iterations that are stepped at least. To hand 180 sequences over and back costs 9.5 ms, as much as 25
steps: so the least doubles, up to the most, while the calendar does not last as long."""


Steps = Generator[float, float, float]


class Relay:
    """The policy of an engine that steps for a while: the lane's own, told at the lane's time."""

    def __init__(self, plans: Plans, log: Log, policy: Policy) -> None:
        self.plans = plans
        self.log = log
        self.policy = policy
        self.plan = policy.plan

    def observe(self, batch: Batch, sampled: Rows[int], seconds: float) -> None:
        """Notes what a step showed; `Stepper` lets the policy hear of it."""
        self.plans.note(len(self.log.end_s), Seen.of(batch, sampled, seconds))


class Stepper:
    """Steps one engine now and then.

    Args:
        crowd: the engine on its calendar.
        cost: prices a step. replica: its number in the cluster.
        make: makes the request of a place, with its luck.
        plans, policy: choose K while running; None is always K.
        members: draws again whoever comes back.

    Attributes:
        engine: that steps now; None while the calendar goes on.
    """

    def __init__(
        self,
        crowd: CalendarCrowd,
        cost: StepCost,
        replica: int,
        make: Callable[[int], Request],
        plans: Plans | None,
        policy: Policy | None,
        members: Members,
    ) -> None:
        self.crowd = crowd
        self.cost = cost
        self.replica = replica
        self.make = make
        self.plans = plans
        self.policy = None if policy is None or plans is None else Relay(plans, crowd.log, policy)
        self.members = members
        self.recorder = Recorder(0, crowd.footprints.k + 1)
        self.engine: Engine | None = None
        self._place_of: dict[int, int] = {}
        self._fresh: set[int] = set()
        self._aboard: list[Request] = []
        self._least, self._until = LEAST_STEPS, -LEAST_STEPS

    def run(self, at: Position, until: float) -> Steps:
        """Steps from where the lane stands; a part of `Lane.run`, with its manners.

        Args:
            at: where it stands; afterwards, where the calendar goes on.
            until: as what `Lane.run` is sent; the return value is its successor.
        """
        crowd, log, waiting, ends, it = self.crowd, self.crowd.log, self.crowd.waiting, self.crowd.ends, at.it
        lasted = it - self._until >= self._least
        self._least = LEAST_STEPS if lasted else min(2 * self._least, MOST_STEPS)
        self._hear(it - 1 - at.flying)
        engine = self.engine = self._hand_over(at)
        while True:
            due = engine.fill(at.now)
            if crowd.config.enable_prefix_caching and engine.has_preempted:
                raise Unsuited("a preempted sequence may find its own blocks again")
            if due == inf:  # nobody is left: the lane tells of the last ends
                break
            noted = engine.flight is not None and engine.flight.noted
            if ends.publish(len(log.end_s) - 1 - noted, at.now):
                until = yield due
            at.now = due
            while at.now >= until:
                until = yield at.now
            arrived = waiting.visible
            waiting.see(at.now)
            engine.inbox.extend(self._newcomer(waiting.inbox[j]) for j in range(arrived, waiting.visible))
            engine.settle(at.now)
            self._hear(len(log.end_s) - 1)
            self._tell(engine)
            if engine.iterations - it >= self._least and self._is_regular(engine, at.k):
                break
        self._until = engine.iterations
        self._take_back(engine, at)
        self.engine = None
        return until

    def _hear(self, upto: int) -> None:
        """Lets the policy learn what the iterations up to `upto` showed."""
        if self.plans is not None:
            self.plans.hear(upto)

    def _hand_over(self, at: Position) -> Engine:
        """Makes an engine that stands where the lane stands before it schedules its next iteration."""
        crowd, log, waiting, batch = self.crowd, self.crowd.log, self.crowd.waiting, Batch()
        log.recorder = self.recorder
        self._fresh.clear()
        self._place_of.clear()
        sampled: list[int] = []
        running = [self._running(left, at, batch, sampled) for left in crowd.leave(at.it)]
        if crowd.begun is not None:
            begun, crowd.begun = crowd.begun, None
            request = self._revive_stay(begun.stay)
            running.append(request)
            request.state, request.num_computed_tokens = RUNNING, begun.done
            self._give_blocks(request, begun.held)
            if at.flying and begun.last == at.it - 1:
                request.num_in_flight_tokens = 1
                batch.place(request, 1, 0)
                sampled.append(0)
        queue = [self._revive_stay(stay) for stay in reversed(waiting.preempted)]
        for request in queue:
            request.state = PREEMPTED
        waiting.preempted.clear()
        queue += [self._newcomer(waiting.inbox[j]) for j in range(waiting.head, waiting.visible)]
        self._aboard = running
        config = replace(crowd.config, enable_prefix_caching=False)
        engine = Engine(config, self.cost, self.recorder, self.replica, self.policy)
        engine.take_over(log.end_s, running, queue, (batch, sampled) if at.flying else None)
        return engine

    def _running(self, left: Left, at: Position, batch: Batch, sampled: list[int]) -> Request:
        """Makes a decoding request as it stands; if a step is in flight, with its row in `batch`."""
        request = self._revive(left.place, left.counts, at.it - 1)
        request.state, request.is_prefill_chunk, request.num_drafts = RUNNING, False, at.k
        self._give_blocks(request, left.held)
        request.num_computed_tokens, request.num_tokens = left.computed, left.computed + 1
        if at.flying:
            known = request.prompt_tokens + left.known
            drafts = left.asked - known
            request.num_computed_tokens, request.num_tokens = left.asked, known
            request.num_in_flight_tokens = request.num_output_placeholders = 1 + drafts
            batch.place(request, 1 + drafts, drafts)
            sampled.append(left.computed - (known - 1))
        return request

    def _newcomer(self, place: int) -> Request:
        """Makes a request that the lane has not touched."""
        self._fresh.add(place)
        return self._made(place)

    def _made(self, place: int) -> Request:
        request = self.make(place)
        self._place_of[request.id] = place
        return request

    def _revive(self, place: int, counts: Counts, last: int) -> Request:
        """Makes a request with what it has had, up to its chunk of iteration `last`."""
        request = self._made(place)
        request.verifications, request.accepted_tokens, request.chunks, request.draft_tokens = counts
        request.num_preemptions = self.crowd.log.preemptions.get(place, 0)
        request.last_iteration = last
        request.first_iteration = int(self.crowd.lives.now.first[place])
        return request

    def _revive_stay(self, stay: Stay) -> Request:
        """Makes a request that has (again) to compute what it has written."""
        if stay.last_emission < 0:
            request = self._newcomer(stay.place)
            request.num_preemptions = self.crowd.log.preemptions.get(stay.place, 0)
        else:
            request = self._revive(stay.place, self.crowd.books.counts(stay.place), stay.last_emission)
        request.num_tokens = stay.tokens
        return request

    def _give_blocks(self, request: Request, blocks: int) -> None:
        request.num_blocks, request.slots = blocks, blocks * self.crowd.config.block_size

    def _tell(self, engine: Engine) -> None:
        """Notes who has ended, and lets the lane's watch report it."""
        # their last token was in the batch in flight when stepping began: the lane has logged that end,
        # only the preemptions are missing
        for request in self._aboard:
            if request.state == FINISHED and request.num_preemptions:
                self.crowd.log.preemptions[self._place_of[request.id]] = request.num_preemptions
        self._aboard = []
        ended, engine.finished = engine.finished, []
        for request, rank in ended:
            place = self._note(request)
            self.crowd.log.last_rank[place] = rank
            if (watch := self.crowd.ends.watch) is not None:
                watch.report(Ended(place, watch.first_rank(place) or request.first_chunk_rank, rank))

    def _note(self, request: Request) -> int:
        """Writes down what a request has had so far; returns its place."""
        crowd, log, place = self.crowd, self.crowd.log, self._place_of[request.id]
        if request.num_preemptions:
            log.preemptions[place] = request.num_preemptions
        if place in self._fresh and request.admitted_s < inf:
            log.admitted_s.setdefault(place, request.admitted_s)
        if request.chunks:
            if place in self._fresh:
                self._fresh.discard(place)
                log.first_rank[place] = request.first_chunk_rank
                crowd.books.begun_elsewhere(place, request.first_iteration)
                if crowd.ends.watch is not None:
                    crowd.ends.watch.begun(place, request.first_chunk_rank)
            self.members.verifications[place] = request.verifications
            numbers = request.verifications, request.accepted_tokens, request.chunks, request.draft_tokens
            crowd.books.stepped(place, Counts(*numbers), request.last_iteration)
        return place

    def _is_regular(self, engine: Engine, k: int) -> bool:
        """Whether the calendar can go on: everybody who decodes has a whole row in this step and the next."""
        rules, running, flight = self.crowd.rules, engine.scheduler.running, engine.flight
        waiting = list(engine.scheduler.waiting)
        decoding = [request for request in running if not request.is_prefill_chunk]
        if decoding and self.plans is not None:
            k = decoding[0].num_drafts
        if rules.in_flight:
            if flight is None or flight.noted:
                return False
            rows = zip(flight.batch.sequences, flight.batch.samples, strict=True)
            emitting = {row.id for row, samples in rows if samples}
        else:
            last = engine.iterations - 1
            emitting = {row.id for row in running if isinstance(row, Request) and row.last_iteration == last}
        begun = running[len(decoding) :]
        return (
            running[: len(decoding)] == decoding
            and len(begun) <= 1
            and len(decoding) * rules.row_charge(k) <= rules.max_num_batched_tokens
            and all(row.id in emitting and row.num_drafts == k for row in decoding)
            and not any(row.num_stale_tokens for row in waiting)
        )

    def _take_back(self, engine: Engine, at: Position) -> None:
        """Puts everybody back into the calendar, from the entry at which stepping began."""
        crowd, log, scheduler = self.crowd, self.crowd.log, engine.scheduler
        assert isinstance(scheduler, Scheduler)
        scheduler.crowd.dissolve()
        running = [row for row in scheduler.running if isinstance(row, Request)]
        partial = running.pop() if running and running[-1].is_prefill_chunk else None
        flying = engine.flight is not None
        known = [row.num_output_tokens for row in running]
        asked = [row.num_computed_tokens for row in running]
        held = [row.num_blocks for row in running]
        if running and self.plans is not None:
            at.k = running[0].num_drafts
        if flying:
            engine.land()
            for request, rank in engine.finished:
                log.last_rank[self._note(request)] = rank
        began, it = at.it, engine.iterations
        log.stepped.extend(range(began, it))
        for column in (log.sums, log.beyond) if crowd.footprints.notes_low else (log.sums,):
            column.frombytes(bytes(8 * (it - began)))
        places = [self._note(row) for row in running]
        thrown_out = self._take_back_queue(scheduler, partial)
        computed = [row.num_computed_tokens for row in running]
        columns = [np.array(column, dtype=np.int64) for column in (places, computed, known, asked, held)]
        alive = [row.state != FINISHED for row in running]
        crowd.come_back(Standing(*columns), alive, it, at.i, at.k)
        crowd.waiting.preempted = self._stays(thrown_out, at.k)
        at.acc = 0 if partial is None else self._take_back_begun(partial, it, at.k)
        at.it, at.last_end, at.flying = it, log.end_s[-1], flying

    def _take_back_queue(self, scheduler: Scheduler, partial: Request | None) -> list[Request]:
        """Sets the queue; returns those in it who were thrown out, the next one last."""
        crowd = self.crowd
        waiting = [row for row in scheduler.waiting if isinstance(row, Request)]
        thrown_out = [row for row in waiting if row.state == PREEMPTED]
        for row in thrown_out:
            self._note(row)
        crowd.waiting.lacks = 0
        crowd.waiting.head = crowd.waiting.visible - (len(waiting) - len(thrown_out))
        unborn = thrown_out if partial is None else [*thrown_out, partial]
        crowd.newcomers = crowd.waiting.head - sum(not row.chunks for row in unborn)
        return list(reversed(thrown_out))

    def _take_back_begun(self, partial: Request, it: int, k: int) -> int:
        """Takes back the prompt that is computed in pieces; returns its share of the running sum."""
        crowd = self.crowd
        self._note(partial)
        (stay,) = self._stays([partial], k)
        crowd.newcomers += stay.last_emission < 0
        crowd.begun = Begun(stay, partial.num_computed_tokens, partial.num_blocks, it - 1)
        return crowd.footprints.prefilling(partial.num_blocks)

    def _stays(self, requests: list[Request], k: int) -> list[Stay]:
        """Returns the stays of requests that have (again) to compute what they have written."""
        again = [row for row in requests if row.chunks]
        tokens = np.array([row.num_tokens for row in again], dtype=np.int64)
        held = self.crowd.rules.blocks_at_admission_each(tokens)
        places = np.array([self._place_of[row.id] for row in again], dtype=np.int64)
        known = tokens - np.array([row.prompt_tokens for row in again], dtype=np.int64)
        drawn = iter(self.crowd.books.draw(Standing(places, tokens, known, tokens, held), k))
        return [
            replace(next(drawn), last_emission=row.last_iteration)
            if row.chunks
            else self.crowd.lives.fresh(self._place_of[row.id])
            for row in requests
        ]
