"""One replica's state machine: schedule, price, commit. It knows no simpy and does no I/O.

The loop is vLLM's. `turn(now)` commits the batch that ended at `now`, reads the inbox, and
schedules while there is work and room for another batch in flight: one when synchronous, two when
asynchronous. Asynchronously step n+1 is scheduled when step n starts, so a newcomer waits for two
steps, and a request that ends unforeseen costs one step too many.
"""

from __future__ import annotations

from array import array
from collections import deque
from math import inf

import numpy as np

from specfleet.hardware.stepcost import StepCost, StepShape
from specfleet.sim.attempts import undraw
from specfleet.sim.columns.luck import ColumnNotes
from specfleet.sim.config import EngineConfig
from specfleet.sim.errors import Breach, Stall
from specfleet.sim.flight import Flight as Flight
from specfleet.sim.flight import shape_of, standstill
from specfleet.sim.laws.names import ONE_BATCH
from specfleet.sim.recorder import Recorder
from specfleet.sim.requests import Request as Request
from specfleet.sim.scheduler import Scheduler
from specfleet.sim.sequence import FINISHED, AskedTokens, Batch, Head, Sequence
from specfleet.sim.sglang.aboard.head import BerthHead
from specfleet.sim.sglang.aboard.luck import LuckNotes
from specfleet.sim.sglang.aboard.scheduler import ColumnScheduler
from specfleet.sim.sglang.scheduler import SglangScheduler
from specfleet.sim.speculation.policy import Policy, tell


class Engine:
    """One engine: scheduler, price and luck, advanced from turn to turn.

    Args:
        config: limits and rules.
        cost: prices a step's shape.
        recorder: gets a row an iteration.
        replica: this engine's number.
        policy: chooses the drafts while running; None is always K.
    """

    def __init__(
        self,
        config: EngineConfig,
        cost: StepCost,
        recorder: Recorder,
        replica: int = 0,
        policy: Policy | None = None,
    ) -> None:
        self.config = config
        self.cost = cost
        self.recorder = recorder
        self.replica = replica
        self.policy = policy
        self.scheduler: Scheduler | ColumnScheduler
        self._notes: ColumnNotes | LuckNotes
        self.restart(policy)
        self.inbox: deque[Request] = deque()
        self.finished: list[tuple[Request, int]] = []
        self.aborted: list[Request] = []
        self.left: list[Request] = []
        self._aborts: list[int] = []
        self.iterations = 0
        self._ends_s = array("d")
        self._flights: deque[Flight] = deque()
        self._depth = 2 if config.async_scheduling else 1
        self._proposes = config.speculative is not None and not config.async_scheduling
        self.steps_without_drafter = 0
        self.slowdown = 1.0
        """Steps take so many times as long as their price."""

    def restart(self, policy: Policy | None) -> None:
        """Begins with nothing in its caches, as a process that has just started; nobody may be inside."""
        self.policy = policy
        if self.config.sglang is None:
            scheduler = self.scheduler = Scheduler(self.config, policy)
            self._notes = ColumnNotes(self, scheduler.crowd.columns)
        else:
            under_sglang = self.scheduler = ColumnScheduler(self.config, policy)
            self._notes = under_sglang.notes = LuckNotes(self, under_sglang.columns)

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight, queued or running, and no KV is kept for others."""
        scheduler = self.scheduler
        return not (self._flights or self.inbox or len(scheduler) or scheduler.waits_for_others)

    def refusal(self, request: Sequence | AskedTokens) -> str | None:
        """Returns why a request could never be served here, or None."""
        return self.scheduler.refusal(request)

    def turn(self, now: float) -> float:
        """Advances at `now`: when the oldest batch ends, or when a request arrives at an idle engine.

        Returns:
            When the engine has to be called next; inf when it is idle.

        Raises:
            Stall: work is left, nothing is in flight, and nothing can be scheduled.
        """
        self.settle(now)
        return self.fill(now)

    def abort(self, request_id: int) -> None:
        """Lets go of a request that nobody waits for any more: takes effect at the next turn.

        vLLM reads aborts before it takes the step in that has just ended, so what that step, and one under
        way, sampled for it is thrown away. In SGLang who runs ends with its next result, which counts.
        Who is gone at once is in `left`; who ends with a result in `finished`. Other ids mean nothing.
        """
        waiting = next((request for request in self.inbox if request.id == request_id), None)
        if waiting is None:
            self._aborts.append(request_id)
        else:
            self.inbox.remove(waiting)
            self.left.append(waiting)

    def settle(self, now: float) -> None:
        """Lets those go who were aborted, commits the batch that ended at `now`, starts the one behind it,
        and reads the inbox."""
        flights, late = self._flights, self.config.sglang is not None
        if self._aborts and not late:
            self._drop()
        if flights and flights[0].end_s <= now:
            self._commit(flights.popleft())
            if flights:
                self._start(flights[0], now)
        if self._aborts and late:
            self._drop()
        self._read(now)

    def _drop(self) -> None:
        """Carries out aborts; the luck drawn for what is in flight for whoever is gone was not used."""
        gone = self.scheduler.abort(self._aborts)
        self._aborts = []
        for flight in self._flights:
            if gone and flight.start_s < inf:
                undraw(flight.batch, flight.sampled, self.recorder.rounds_by_accepted, set(gone))
        for sequence in gone:
            assert isinstance(sequence, Request)
            self.left.append(sequence)

    def _read(self, now: float) -> None:
        """Reads the inbox; who has been aborted and is here yet has to leave before it may come again."""
        scheduler, inbox = self.scheduler, self.inbox
        leaving = scheduler.ending if isinstance(scheduler, SglangScheduler) else ()
        for _ in range(len(inbox)):
            request = inbox.popleft()
            if request.id in leaving:
                request.arrived_s = now
                inbox.append(request)
            else:
                scheduler.add(request)

    def fill(self, now: float) -> float:
        """Schedules while there is work and room for another batch; returns and raises as `turn`."""
        flights, scheduler = self._flights, self.scheduler
        while len(flights) < self._depth and len(scheduler):
            batch = scheduler.schedule(now)
            if batch.aborted:
                self._give_up(batch)
            if not batch.rows:
                if batch.preempted and not (flights and self.config.sglang is not None):
                    continue
                break
            for sequence in batch.new:
                assert isinstance(sequence, Request)
                sequence.admitted_s = now
            for sequence, tokens in batch.cached:
                assert isinstance(sequence, Request)
                if not sequence.num_preemptions:
                    sequence.cached_tokens = tokens
            flights.append(Flight(batch, scheduler))
            if len(flights) == 1:
                self._start(flights[0], now)
        if flights:
            return flights[0].end_s
        if len(scheduler) and not scheduler.waits_for_others:
            raise Stall(standstill(scheduler, self.replica, now))
        scheduler.rest()
        return inf

    def _give_up(self, batch: Batch) -> None:
        """Notes requests that the scheduler ended with an error."""
        for sequence in batch.aborted:
            assert isinstance(sequence, Request)
            self.aborted.append(sequence)

    @property
    def has_preempted(self) -> bool:
        """Whether a sequence that is here was thrown out before."""
        scheduler = self.scheduler
        running = scheduler.crowd.running if isinstance(scheduler, Scheduler) else scheduler.running
        return any(row.num_preemptions for row in (*running, *scheduler.waiting))

    @property
    def flight(self) -> Flight | None:
        """The oldest batch in flight."""
        return self._flights[0] if self._flights else None

    def land(self) -> None:
        """Commits the oldest batch in flight ahead of its end: what it does is certain once it has begun."""
        self._commit(self._flights.popleft())

    def succeed(self, other: Engine) -> None:
        """Counts iterations on from those of an engine that is no more: this one stands in its place."""
        self.iterations, self._ends_s = other.iterations, other._ends_s
        self.steps_without_drafter = other.steps_without_drafter

    def cut(self) -> float:
        """Drops what is in flight, with the luck that was drawn for it; returns when that began, or inf.

        All sequences are listed and up to date from then on.
        """
        scheduler = self.scheduler
        (scheduler.crowd if isinstance(scheduler, Scheduler) else scheduler).dissolve()
        began = self._flights[0].start_s if self._flights else inf
        for flight in self._flights:
            if flight.start_s < inf:
                undraw(flight.batch, flight.sampled, self.recorder.rounds_by_accepted, None)
        self._flights.clear()
        return began

    def chunk_s(self, iteration: int) -> float:
        """Returns when an iteration ended."""
        return self._ends_s[iteration]

    def take_over(
        self,
        ends_s: array[float],
        running: list[Request],
        waiting: list[Request],
        flight: tuple[Batch, list[int]] | None,
    ) -> None:
        """Goes on from a state that something else has reached.

        Args:
            ends_s: when each iteration so far ended; kept, and extended from now on.
            running: in the order of the running list, with their blocks.
            waiting: in the order of the queue.
            flight: the batch in flight and the tokens its rows sample. It ends at the last of `ends_s`,
                and what it does is written down already.
        """
        self._ends_s = ends_s
        self.iterations = len(ends_s)
        assert isinstance(self.scheduler, Scheduler)
        self.scheduler.take_over(running, waiting)
        if flight is not None:
            last = Flight(flight[0], self.scheduler)
            last.sampled, last.end_s, last.noted = flight[1], ends_s[-1], True
            self._flights.append(last)

    def _start(self, flight: Flight, now: float) -> None:
        """Runs the oldest batch from `now`: its luck is drawn and its shape priced.

        Priced here and not when scheduled: only now is it known how many tokens the step before
        really accepted, so how much KV this one reads.

        Raises:
            Breach: the price is no time, so that the clock would stand still or go back.
        """
        batch, head = flight.batch, flight.batch.head
        if isinstance(self.scheduler, ColumnScheduler) and isinstance(head, BerthHead):
            self.scheduler.begin(head)
        if head is not None:
            self._notes.sample(head, self.recorder.rounds_by_accepted)
        flight.sampled = self._sample(batch.tail)
        shape = shape_of(batch, self._draft_passes(batch), self.config.sliding_window)
        seconds = self._seconds(shape)
        if self.config.speculative and self.config.speculative.reroll_on_reject:
            accepted = sum(n - 1 for n, d in zip(flight.sampled, batch.tail.num_drafts, strict=True) if d)
            if head is not None:
                accepted += int(head.new.sum()) - head.n
            if accepted < shape.draft_tokens:
                flight.reroll = 1
                seconds += self.cost.seconds(shape._replace(draft_passes=0))
        seconds *= self.slowdown
        if not seconds >= 0.0:
            said = f"a step of {shape.tokens} tokens takes {seconds} s"
            raise Breach(ONE_BATCH, said, batch.sequences[0].id, now, self.replica)
        flight.shape = shape
        flight.start_s = now
        flight.end_s = now + seconds

    def _seconds(self, shape: StepShape) -> float:
        """Returns what a step takes that has the GPUs to itself."""
        return self.cost.seconds(shape)

    def _sample(self, batch: Batch) -> list[int]:
        """Returns the tokens each row yields: 1 + accepted drafts, 0 for a prefill chunk.

        Placeholders, and the wasted step of a request that has ended, are no verifications.
        """
        if not batch.sequences:
            return []
        sampled, void, histogram = [], batch.void, self.recorder.rounds_by_accepted
        for sequence, drafts, samples in zip(batch.sequences, batch.num_drafts, batch.samples, strict=True):
            if not samples:
                sampled.append(0)
            elif not drafts or sequence.state == FINISHED or (void and sequence.id in void):
                sampled.append(1)
            else:
                assert isinstance(sequence, Request)
                turn = sequence.verifications
                nth = sequence.num_output_tokens if sequence.by_output_position else turn
                agreed = sequence.accepted[nth] if nth < len(sequence.accepted) else 0
                sequence.verifications = turn + 1
                if agreed > drafts:
                    agreed = drafts
                sequence.draft_tokens += drafts
                sequence.accepted_tokens += agreed
                if sequence.counted:
                    histogram[agreed] += 1
                sampled.append(1 + agreed)
        return sampled

    def _draft_passes(self, batch: Batch) -> int:
        """Returns the drafter forwards after this batch.

        None where the longest sequence is past the drafter's positions. Where no draft could be used,
        an EAGLE drafter runs one, to keep its KV in step; a draft model runs all of them (vLLM 0.33).
        """
        if batch.drafter_too_short:
            self.steps_without_drafter += 1
            return 0
        planned = None
        if batch.tail.planned_drafts is not None:
            planned = max(batch.tail.planned_drafts, default=0)
        if batch.head is not None and batch.head.planned is not None:
            wanted = batch.head.planned
            most = wanted if isinstance(wanted, int) else int(np.maximum.reduce(wanted, initial=0))
            planned = max(planned or 0, most)
        return self.scheduler.rules.passes(planned, batch.skips_drafts)

    def _commit(self, flight: Flight) -> None:
        """Takes a finished batch in: the scheduler's books first, then the notes of the run."""
        batch, head, now, tail = flight.batch, flight.batch.head, flight.end_s, flight.batch.tail
        scheduler = self.scheduler
        take_in = scheduler.commit if head is None else scheduler.commit_rows
        outcome = take_in(batch, flight.sampled)
        if flight.noted:
            return
        if self.policy is not None:
            heard = [new if kept else 0 for new, kept in zip(flight.sampled, outcome.kept, strict=True)]
            tell(self.policy, batch, heard, now - flight.start_s)
        if self._proposes:
            self._propose(batch)
        gaps = [0] * (self.config.num_speculative_tokens + 2)
        rank, previous, current = 0, self.iterations - 1, self.iterations
        tokens = sum(outcome.kept)
        if head is not None and not isinstance(head, BerthHead):
            rank, tokens = head.n, tokens + self._note_head(head, gaps)
        for sequence, kept in zip(tail.sequences, outcome.kept, strict=True):
            if not kept:
                continue
            assert isinstance(sequence, Request)
            rank += 1
            sequence.chunks += 1
            if sequence.last_iteration == previous and sequence.chunks > 1:
                if sequence.counted:
                    gaps[kept] += 1
            elif sequence.chunks == 1:
                sequence.first_token_s = now
                sequence.first_chunk_rank = rank
                sequence.first_iteration = current
            else:
                gap = now - self._ends_s[sequence.last_iteration]
                place_in_time = (sequence.id, self.replica, sequence.last_iteration, current)
                self.recorder.odd_gap(now, gap, kept, place_in_time, sequence.counted)
            sequence.last_iteration = current
            if sequence.state == FINISHED:
                self.finished.append((sequence, rank))
        if isinstance(head, BerthHead):
            assert isinstance(self._notes, LuckNotes)
            self.finished += self._notes.ended(head, rank)
            rank += int(np.count_nonzero(head.kept))
            tokens += self._notes.note(head, now, self._ends_s, gaps, self.recorder)
        self._record(flight, rank, tokens, gaps)
        self._ends_s.append(now)
        self.iterations += 1

    def _propose(self, batch: Batch) -> None:
        """Hands the drafts of a synchronous step over: K for each row that sampled and found some."""
        if batch.head is not None:
            self._propose_head(batch.head)
        batch = batch.tail
        planned = batch.planned_drafts or [self.config.num_speculative_tokens] * len(batch.sequences)
        counts = []
        for sequence, samples, drafts in zip(batch.sequences, batch.samples, planned, strict=True):
            found = samples
            if samples and isinstance(sequence, Request) and sequence.proposals is not None:
                written = sequence.num_tokens - sequence.prompt_tokens
                step = written if sequence.by_output_position else sequence.samplings
                sequence.samplings += 1
                found = step < len(sequence.proposals) and bool(sequence.proposals[step])
            counts.append(drafts if found else 0)
        self.scheduler.propose(batch, counts)

    def _propose_head(self, head: Head) -> None:
        """As `_propose`, for the rows that are columns."""
        scheduler, notes, planned = self.scheduler, self._notes, head.planned
        if planned is None:
            planned = self.config.num_speculative_tokens
        if isinstance(head, BerthHead):
            assert isinstance(notes, LuckNotes) and isinstance(scheduler, ColumnScheduler)
            scheduler.propose_head(head, notes.proposed(head, planned))
            return
        assert isinstance(notes, ColumnNotes) and isinstance(scheduler, Scheduler)
        if not isinstance(planned, int):
            planned = scheduler.crowd.columns.drafts[: head.n - len(head.left)]
        scheduler.propose_head(notes.proposed(planned, head.n - len(head.left)))

    def _note_head(self, head: Head, gaps: list[int]) -> int:
        """Notes the chunks of rows that are columns; returns their tokens."""
        assert isinstance(self._notes, ColumnNotes)
        tokens = self._notes.gaps(head, gaps)
        for place in head.left:
            request = head.members[place]
            assert isinstance(request, Request)
            request.chunks += 1
            request.last_iteration = self.iterations
            self.finished.append((request, place + 1))
        return tokens

    def _record(self, flight: Flight, chunks: int, output_tokens: int, gaps: list[int]) -> None:
        """Writes the iteration's row."""
        assert flight.shape is not None
        state = (flight.reroll, flight.running, flight.waiting, flight.kv_blocks_used)
        row = (self.replica, *flight.shape, *state, chunks, output_tokens)
        self.recorder.iteration(flight.start_s, flight.end_s, row, gaps)
