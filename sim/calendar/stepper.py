"""From the calendar to `Engine` and back, in the middle of a run.

Where a step cannot be read off the calendar (its token budget does not give every decoding sequence
its whole row, or KV runs short under a policy) the engine takes over: every sequence is handed to it
as it stands, with the step in flight, and handed back when each of them has a whole row again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from collections.abc import Sequence as Rows
from dataclasses import replace
from math import inf
from typing import NamedTuple

import numpy as np

from specfleet.sim.calendar.admission import Unsuited
from specfleet.sim.calendar.lane import Lane
from specfleet.sim.calendar.members import Members, Standing
from specfleet.sim.calendar.quiet import Walk
from specfleet.sim.calendar.seat import Counts, Prefill, Seat
from specfleet.sim.calendar.trajectories import BLOCK
from specfleet.sim.calendar.watch import Ended
from specfleet.sim.engine import Engine, Request
from specfleet.sim.recorder import Recorder
from specfleet.sim.sequence import FINISHED, PREEMPTED, RUNNING, Batch
from specfleet.sim.speculation.policy import Policy, Seen

LEAST_STEPS, MOST_STEPS = 32, 1024
"""Iterations that are stepped at least. To hand 180 sequences over and back costs 9.5 ms, as much as 25
steps: so the least doubles, up to the most, while the calendar does not last as long."""


class Resumed(NamedTuple):
    """Where the calendar goes on.

    Attributes:
        acc: the packed running sum, without those who are in the calendar.
        it: next iteration. now: time of its turn. last_end: of the iteration before.
        flying: that one is in flight. k: drafts of a row.
        visible: requests that have arrived. until: as in `Lane.run`.
    """

    acc: int
    it: int
    now: float
    last_end: float
    flying: bool
    k: int
    visible: int
    until: float


Steps = Generator[float, float, Resumed]


class Relay:
    """The policy of an engine that steps for a while: the lane's own, told at the lane's time."""

    def __init__(self, lane: Lane, policy: Policy) -> None:
        self.lane = lane
        self.policy = policy
        self.plan = policy.plan

    def observe(self, batch: Batch, sampled: Rows[int], seconds: float) -> None:
        """Notes what a step showed; `Stepper` lets the policy hear of it."""
        if self.lane.plans is not None:
            seen = Seen.of(batch, sampled, seconds)
            self.lane.plans.note(len(self.lane.log.end_s), seen)


class Stepper:
    """Steps one engine now and then.

    Args:
        lane: the engine on its calendar.
        make: makes the request of a place, with its luck.
        policy: of the engine; None is always K.
        members: draws again whoever comes back.
    """

    def __init__(
        self, lane: Lane, make: Callable[[int], Request], policy: Policy | None, members: Members
    ) -> None:
        self.lane = lane
        self.make = make
        self.policy = None if policy is None else Relay(lane, policy)
        self.members = members
        self.recorder = Recorder(0, lane.rules.k + 1)
        self._place_of: dict[int, int] = {}
        self._fresh: set[int] = set()
        self._aboard: list[Request] = []
        self._least, self._until = LEAST_STEPS, -LEAST_STEPS

    def run(self, walk: Walk, flying: bool, visible: int, until: float) -> Steps:
        """Steps from where the lane stands; a part of `Lane.run`, with its manners."""
        _, it, i, now, _ = walk
        lane, log = self.lane, self.lane.log
        lasted = it - self._until >= self._least
        self._least = LEAST_STEPS if lasted else min(2 * self._least, MOST_STEPS)
        lane.hear(it - 1 - flying)
        engine = self._hand_over(it, flying, visible)
        while True:
            due = engine.fill(now)
            if lane.config.enable_prefix_caching and engine.has_preempted:
                raise Unsuited("a preempted sequence may find its own blocks again")
            if due == inf:  # nobody is left: the lane tells of the last ends
                break
            noted = engine.flight is not None and engine.flight.noted
            if lane.settle(len(log.end_s) - 1 - noted, now):
                until = yield due
            now = due
            while now >= until:
                until = yield now
            while visible < len(lane.arrived_s) and lane.arrived_s[visible] <= now:
                engine.inbox.append(self._newcomer(lane.inbox[visible]))
                visible += 1
            engine.settle(now)
            lane.hear(len(log.end_s) - 1)
            self._tell(engine)
            if engine.iterations - it >= self._least and self._is_regular(engine):
                break
        self._until = engine.iterations
        return self._take_back(engine, it, i, now, visible)._replace(until=until)

    def _hand_over(self, it: int, flying: bool, visible: int) -> Engine:
        """Makes an engine that stands where the lane stands before it schedules iteration `it`."""
        lane, log, batch, sampled = self.lane, self.lane.log, Batch(), []
        lane.recorder = self.recorder
        self._fresh.clear()
        self._place_of.clear()
        running: list[Request] = []
        for left in lane.leave(it):
            request = self._revive(left.place, left.counts, it - 1)
            running.append(request)
            request.state, request.is_prefill_chunk, request.num_drafts = RUNNING, False, lane.k
            self._give_blocks(request, left.held)
            request.num_computed_tokens, request.num_tokens = left.computed, left.computed + 1
            if flying:
                known = request.prompt_tokens + left.known
                drafts = left.asked - known
                request.num_computed_tokens, request.num_tokens = left.asked, known
                request.num_in_flight_tokens = request.num_output_placeholders = 1 + drafts
                batch.place(request, 1 + drafts, drafts)
                sampled.append(left.computed - (known - 1))
        if lane.prefill is not None:
            prefill, lane.prefill = lane.prefill, None
            request = self._revive_seat(prefill.seat)
            running.append(request)
            request.state, request.num_computed_tokens = RUNNING, prefill.done
            self._give_blocks(request, prefill.held)
            if flying and prefill.last == it - 1:
                request.num_in_flight_tokens = 1
                batch.place(request, 1, 0)
                sampled.append(0)
        waiting = [self._revive_seat(seat) for seat in reversed(lane.back)]
        for request in waiting:
            request.state = PREEMPTED
        lane.back.clear()
        waiting += [self._newcomer(lane.inbox[j]) for j in range(lane.head, visible)]
        self._aboard = running
        config = replace(lane.config, enable_prefix_caching=False)
        engine = Engine(config, lane.cost, self.recorder, lane.replica, self.policy)
        engine.take_over(log.end_s, running, waiting, (batch, sampled) if flying else None)
        if lane.watch is not None:
            lane.watch.forget(it - 1)
        return engine

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
        request.num_preemptions = self.lane.log.preemptions.get(place, 0)
        request.last_iteration = last
        request.first_iteration = int(self.lane.lives.first[place])
        return request

    def _revive_seat(self, seat: Seat) -> Request:
        """Makes a request that has (again) to compute what it has written."""
        if seat.last_emission < 0:
            request = self._newcomer(seat.place)
            request.num_preemptions = self.lane.log.preemptions.get(seat.place, 0)
        else:
            request = self._revive(seat.place, self.lane.counts(seat.place), seat.last_emission)
        request.num_tokens = seat.tokens
        return request

    def _give_blocks(self, request: Request, blocks: int) -> None:
        request.num_blocks, request.slots = blocks, blocks * self.lane.config.block_size

    def _tell(self, engine: Engine) -> None:
        """Notes who has ended, and lets the lane's watch report it."""
        for request in self._aboard:  # whose end in the step in flight at the hand-over is noted already
            if request.state == FINISHED and request.num_preemptions:
                self.lane.log.preemptions[self._place_of[request.id]] = request.num_preemptions
        self._aboard = []
        ended, engine.finished = engine.finished, []
        for request, rank in ended:
            place = self._note(request)
            self.lane.log.last_rank[place] = rank
            if (watch := self.lane.watch) is not None:
                watch.report(Ended(place, watch.first_rank(place) or request.first_place, rank))

    def _note(self, request: Request) -> int:
        """Writes down what a request has had so far; returns its place."""
        lane, place = self.lane, self._place_of[request.id]
        log = lane.log
        if request.num_preemptions:
            log.preemptions[place] = request.num_preemptions
        if place in self._fresh and request.admitted_s < inf:
            log.admitted_s.setdefault(place, request.admitted_s)
        if request.chunks:
            if place in self._fresh:
                self._fresh.discard(place)
                log.first_rank[place] = request.first_place
                lane.disown(place, request.first_iteration)
                if lane.watch is not None:
                    lane.watch.begun(place, request.first_place)
            self.members.verifications[place] = request.verifications
            numbers = request.verifications, request.accepted_tokens, request.chunks, request.draft_tokens
            lane.note(place, Counts(*numbers), request.last_iteration)
        return place

    def _is_regular(self, engine: Engine) -> bool:
        """Whether the calendar can go on: everybody who decodes has a whole row in this step and the next."""
        lane, running, flight = self.lane, engine.scheduler.running, engine.flight
        waiting = list(engine.scheduler.waiting)
        lag, k = lane.rules.lag, lane.k
        decoding = [request for request in running if not request.is_prefill_chunk]
        if decoding and lane.plans is not None:
            k = decoding[0].num_drafts
        if lag:
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
            and len(decoding) * (1 + k + lane.slots) <= lane.config.max_num_batched_tokens
            and all(row.id in emitting and row.num_drafts == k for row in decoding)
            and not any(row.num_stale_tokens for row in waiting)
            and (lane.plans is None or not any(row.num_preemptions for row in (*waiting, *begun)))
        )

    def _take_back(self, engine: Engine, began: int, i: int, now: float, visible: int) -> Resumed:
        """Puts everybody back into the calendar, from place `i` on."""
        lane, log, scheduler = self.lane, self.lane.log, engine.scheduler
        running = [row for row in scheduler.running if isinstance(row, Request)]
        partial = running.pop() if running and running[-1].is_prefill_chunk else None
        flying = engine.flight is not None
        known = [row.num_output_tokens for row in running]
        asked = [row.num_computed_tokens for row in running]
        held = [row.num_blocks for row in running]
        k = running[0].num_drafts if running and lane.plans is not None else lane.k
        if flying:
            engine.land()
            for request, rank in engine.finished:
                log.last_rank[self._note(request)] = rank
        it = engine.iterations
        log.stepped.extend(range(began, it))
        for column in (log.sums, log.beyond) if lane.rules.window else (log.sums,):
            column.frombytes(bytes(8 * (it - began)))
        places = [self._note(row) for row in running]
        waiting = [row for row in scheduler.waiting if isinstance(row, Request)]
        thrown_out = [row for row in waiting if row.state == PREEMPTED]
        for row in thrown_out:
            self._note(row)
        lane.head = visible - (len(waiting) - len(thrown_out))
        unborn = thrown_out if partial is None else [*thrown_out, partial]
        lane.newcomers = lane.head - sum(not row.chunks for row in unborn)
        computed = [row.num_computed_tokens for row in running]
        columns = [np.array(column, dtype=np.int64) for column in (places, computed, known, asked, held)]
        alive = [row.state != FINISHED for row in running]
        lane.clear(i)
        lane.enter(self.members, Standing(*columns), alive, it, i, k)
        lane.back = self._seats(list(reversed(thrown_out)))
        acc = 0
        if partial is not None:
            self._note(partial)
            (seat,) = self._seats([partial])
            lane.newcomers += seat.last_emission < 0
            blocks = partial.num_blocks
            lane.prefill = Prefill(seat, partial.num_computed_tokens, blocks, it - 1)
            acc = lane.rules.prefilling(blocks)
        return Resumed(acc, it, now, log.end_s[-1], flying, k, visible, inf)

    def _seats(self, requests: list[Request]) -> list[Seat]:
        """Returns the seats of requests that have (again) to compute what they have written."""
        lane, rules = self.lane, self.lane.rules
        again = [row for row in requests if row.chunks]
        tokens = np.array([row.num_tokens for row in again], dtype=np.int64)
        held = -(-(tokens + rules.at_admission) // rules.block_size)
        places = np.array([self._place_of[row.id] for row in again], dtype=np.int64)
        known = tokens - np.array([row.prompt_tokens for row in again], dtype=np.int64)
        drawn = iter(lane.seats(self.members, Standing(places, tokens, known, tokens, held)))
        seats = []
        for row in requests:
            if row.chunks:
                seats.append(replace(next(drawn), last_emission=row.last_iteration))
            else:
                place = self._place_of[row.id]
                seats.append(Seat.fresh(place, lane.drawn.block(place // BLOCK), place % BLOCK))
        return seats
