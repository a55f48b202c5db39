"""One engine, row by row: where what a row drafts depends on the others in its step, or on the time.

The rules are those of `Engine`, in its order: a step is decided, priced when it starts, and taken in when
it ends; two are under way where steps are scheduled ahead. But who decodes is a row of numbers, and nothing
is made for it in a step beyond what has to be known later.
"""

from __future__ import annotations

from array import array
from math import inf

import numpy as np

from specfleet.hardware.stepcost import StepCost, StepShape, shape_fields
from specfleet.sim.calendar.ends import Ends
from specfleet.sim.calendar.lane import Turns
from specfleet.sim.calendar.position import Position
from specfleet.sim.calendar.rows.asked import RowBatch
from specfleet.sim.calendar.rows.crowd import RowCrowd
from specfleet.sim.calendar.rows.flight import RowFlight
from specfleet.sim.calendar.rows.lives import LAST, LAST_RANK, RowRequest
from specfleet.sim.calendar.rows.table import WRITTEN
from specfleet.sim.calendar.watch import Ended
from specfleet.sim.crowd import schedule
from specfleet.sim.errors import Breach, Unsuited
from specfleet.sim.laws.names import ONE_BATCH
from specfleet.sim.recorder import Recorder
from specfleet.sim.speculation.policy import Policy, observes, plan_of, tell


class RowLog:
    """What a lane writes down of its steps.

    Attributes:
        end_s: of each. recorder: all the rest.
    """

    def __init__(self, max_chunk_tokens: int) -> None:
        self.end_s = array("d")
        self.recorder = Recorder(0, max_chunk_tokens)


class RowLane:
    """One engine on the fast path, as `calendar.lane.Lane`, for whoever runs it.

    Args:
        cost: prices a step.
        crowd: those who run, and who waits.
        policy: of this engine alone.
        ends: who has to know of ends.
        replica: its number in the cluster.
    """

    def __init__(self, cost: StepCost, crowd: RowCrowd, policy: Policy, ends: Ends, replica: int) -> None:
        self.cost, self.crowd, self.policy, self.ends, self.replica = cost, crowd, policy, ends, replica
        self.waiting, self.lives = crowd.waiting, crowd.lives
        k = crowd.config.num_speculative_tokens
        self.log = RowLog(1 + k)
        self.at = Position(k)
        self._width, self._depth = k + 2, 1 + crowd.rules.in_flight
        self._observes = observes(policy)
        self._uncounted = crowd.lives.warmups > 0

    def run(self) -> Turns:
        """Runs iterations; a generator, as `Lane.run`."""
        at, ends, waiting = self.at, self.ends, self.waiting
        until = yield at.now
        while True:
            if at.now >= until:
                until = yield at.now
                continue
            due = self._turn(at.now)
            told = ends.publish(len(self.log.end_s) - 1, at.now)
            if due < inf:
                at.now = due
                if told:
                    until = yield due
                continue
            if waiting.visible == len(waiting.arrived_s):
                if ends.watch is None:
                    at.now = inf
                    return
                until = yield inf
            if waiting.visible < len(waiting.arrived_s):
                at.now = max(at.now, waiting.arrived_s[waiting.visible])

    def _turn(self, now: float) -> float:
        """As `Engine.turn`.

        Raises:
            Unsuited: work is left, nothing is in flight, and nothing can be scheduled.
        """
        crowd, waiting = self.crowd, self.waiting
        flights = crowd.flights
        if flights and flights[0].end_s <= now:
            self._commit(flights[0])
            if flights:
                self._start(flights[0], now)
        if waiting.visible < len(waiting.arrived_s):
            waiting.see(now)
        while len(flights) < self._depth and crowd.present:
            flight = self._schedule(now)
            if not flight.decodes + flight.pieces:
                if crowd.step.preempted:
                    raise Unsuited("a step preempts and schedules nothing")
                break
            flights.append(flight)
            if len(flights) == 1:
                self._start(flight, now)
        if flights:
            return flights[0].end_s
        if crowd.present:
            raise Unsuited("nothing can be scheduled although requests are left")
        return inf

    def _schedule(self, now: float) -> RowFlight:
        """Decides a step, and asks the policy for the drafts behind it."""
        crowd, policy = self.crowd, self.policy
        crowd.now = now
        schedule(crowd)
        flight, table = crowd.flight, crowd.table
        if not flight.decodes + flight.pieces:
            return flight
        sits = flight.sits
        asked = RowBatch(self.lives.run, table, sits, flight.drafts, crowd.step, crowd.piece)
        if self._observes:
            flight.asked = asked.noted()
        planned = plan_of(policy, asked, len(self.waiting), now)
        flight.unused = crowd.rules.skips_unused_drafts and crowd.drafts_unused()
        if isinstance(planned, int):
            flight.most = planned
        else:
            planned = np.asarray(planned, dtype=np.int64)
            flight.most = int(np.maximum.reduce(planned, initial=0))
            planned = planned[: flight.rows]
        if self._depth == 1:
            flight.planned = planned
            return flight
        decodes = flight.decodes
        first = slice(decodes) if flight.at is None else flight.at[:decodes]
        table.assumed[first] += flight.drafts
        table.assumed[sits] += 1
        table.drafts[sits] = planned
        return flight

    def _start(self, flight: RowFlight, now: float) -> None:
        """As `Engine._start`: draws what each row samples, and prices the step."""
        crowd, table, n = self.crowd, self.crowd.table, flight.decodes
        which = slice(n) if flight.at is None else flight.at[:n]
        context = table.context[which]
        kv = seen = int(np.add.reduce(context)) + n + flight.num_drafts
        if crowd.step.window:
            seen = int(np.minimum(context + flight.drafts + 1, crowd.step.window).sum())
        flight.new = np.ones(flight.rows, dtype=np.int64)
        if flight.num_drafts:
            self._sample(flight, which)
        elif n:
            flight.by_accepted = [n]
        sits = flight.sits
        surplus = table.written[sits] + flight.new
        surplus -= table.last[sits]
        ended = (surplus >= 0).nonzero()[0]
        flight.kept = flight.new
        if len(ended):
            flight.kept = flight.new.copy()
            flight.kept[ended] -= surplus[ended]
            flight.ended = ended.tolist()
        drafts = flight.num_drafts + flight.vain_drafts
        kv, seen = kv + flight.vain_context + flight.ones_context, seen + flight.vain_seen
        seen = seen + flight.ones_context - flight.ones_beyond if crowd.step.window else kv
        passes = crowd.rules.passes(flight.most, flight.unused)
        prompts, chunk = flight.pieces - flight.ones, flight.chunk - flight.ones
        rows = n + flight.in_vain + flight.ones
        flight.shape = shape_fields(rows, drafts, kv, seen, prompts, chunk, flight.pairs, passes)
        seconds = self.cost.seconds(tuple.__new__(StepShape, flight.shape))
        if not seconds >= 0.0:
            said = f"a step of {flight.shape[0]} tokens takes {seconds} s"
            raise Breach(ONE_BATCH, said, int(self.lives.order[0]), now, self.replica)
        flight.start_s, flight.end_s = now, now + seconds

    def _sample(self, flight: RowFlight, which: slice | np.ndarray) -> None:
        """Draws the tokens of the rows that decode, which stand at `which`."""
        table, drafts, n = self.crowd.table, flight.drafts, flight.decodes
        luck = table.luck.bytes.take(table.base[which] + table.verified[which])
        agreed = np.minimum(luck, drafts)
        idle = n - int(np.count_nonzero(drafts))
        table.verified[which] += drafts > 0 if idle else 1
        table.drafted[which] += drafts
        flight.new[:n] += agreed
        flight.by_accepted = found = np.bincount(agreed).tolist()
        if self._uncounted:
            measured = (drafts > 0) & (table.counted[which] > 0)
            found, idle = np.bincount(agreed[measured]).tolist(), 0
        histogram = self.log.recorder.rounds_by_accepted
        for accepted, rounds in enumerate(found):
            histogram[accepted] += rounds
        histogram[0] -= idle

    def _commit(self, flight: RowFlight) -> None:
        """As `Engine._commit`: takes a finished step in."""
        crowd, table, log = self.crowd, self.crowd.table, self.log
        crowd.flights.remove(flight)
        it, now, sits = len(log.end_s), flight.end_s, flight.sits
        alive = flight.rows - len(flight.stale)
        kept = flight.kept if not flight.stale else flight.kept[:alive]
        table.fields[: WRITTEN + 1, sits] += kept
        if self._depth > 1:
            asked = np.ones(alive, dtype=np.int64)
            asked[: flight.decodes] += flight.drafts[:alive]
            table.assumed[sits] -= asked
        else:
            table.drafts[sits] = flight.planned
        if flight.asked is not None:
            tell(self.policy, flight.asked, self._heard(flight), now - flight.start_s)
        surplus = sum([flight.new.item(row) - flight.kept.item(row) for row in flight.ended])
        gaps = self._gaps(flight)
        log.end_s.append(now)
        if flight.joined:
            self._begin(flight, it)
        crowd.steps = it + 1
        if flight.ended or flight.stale:
            self._end(flight, it, alive)
        state = (0, flight.running, flight.waiting, flight.blocks_used)
        output = flight.rows - surplus
        for accepted, chunks in enumerate(flight.by_accepted):
            output += accepted * chunks
        row = (self.replica, *flight.shape, *state, flight.rows, output)
        log.recorder.iteration(flight.start_s, now, row, gaps)

    def _heard(self, flight: RowFlight) -> np.ndarray:
        """Returns what a policy hears that each row sampled."""
        assert flight.asked is not None
        heard = np.zeros(flight.asked.places, dtype=np.int64)
        heard[: flight.rows] = flight.new
        return heard

    def _gaps(self, flight: RowFlight) -> list[int]:
        """Counts the measured chunks of those who decode by their tokens."""
        n, gaps = flight.decodes, [0] * self._width
        if self._uncounted:
            kept = flight.kept[:n]
            counted = self._counted(flight)
            for tokens, chunks in enumerate(np.bincount(kept[counted]).tolist()):
                gaps[tokens] += chunks
            return gaps
        for accepted, chunks in enumerate(flight.by_accepted):
            gaps[accepted + 1] += chunks
        for row in flight.ended:  # what goes beyond the end is dropped
            if row < n:
                gaps[flight.new.item(row)] -= 1
                gaps[flight.kept.item(row)] += 1
        return gaps

    def _counted(self, flight: RowFlight) -> np.ndarray:
        """Returns which of those who decode are measured."""
        alive = self.crowd.table.counted[flight.sits] > 0
        stale = np.array([row.counted for row in flight.stale], dtype=np.bool_)
        return np.concatenate((alive, stale))[: flight.decodes]

    def _begin(self, flight: RowFlight, it: int) -> None:
        """Notes the first chunks of those whose prompts are computed, and the pause of who came back."""
        table, log, end_s = self.crowd.table, self.log, self.log.end_s
        alive = flight.rows - len(flight.stale)
        for index, row in enumerate(flight.joined):
            rank = flight.decodes + index
            if row.last_iteration < 0:
                row.first_iteration, row.first_rank = it, rank + 1
                self.lives.first[row.place] = it
            else:
                gap_s = end_s[it] - end_s[row.last_iteration]
                where = (row.id, self.replica, row.last_iteration, it)
                log.recorder.odd_gap(end_s[it], gap_s, 1, where, row.counted)
            if rank < alive:
                place = rank if flight.at is None else flight.at.item(rank)
                table.first[place], table.rank[place] = row.first_iteration, row.first_rank
                table.since[place] = row.chunks - it
            row.last_iteration = it

    def _end(self, flight: RowFlight, it: int, alive: int) -> None:
        """Takes in what a step brought to who was thrown out since, and lets those go who have ended.

        Args:
            flight: the step. it: its number.
            alive: its rows whose requests were not thrown out.
        """
        crowd, table, places = self.crowd, self.crowd.table, []
        for index, row in enumerate(flight.stale):
            row.stale = False
            row.num_tokens += flight.kept.item(alive + index)
            row.chunks, row.last_iteration = row.chunks + 1, it
        for index in flight.ended:
            if index < alive:
                place = index if flight.at is None else flight.at.item(index)
                places.append(place)
                row = table.refresh(place)
                row.chunks = table.since.item(place) + it + 1
            else:
                row = flight.stale[index - alive]
                self.waiting.thrown_out.remove(row)
            tokens = row.num_output_tokens + flight.new.item(index) - flight.kept.item(index)
            self._over(row, it, index + 1, tokens - row.chunks)
        if places:
            crowd.leave(places)

    def _over(self, row: RowRequest, it: int, rank: int, accepted: int) -> None:
        """Notes that a request has ended, its last chunk at a place in step `it`."""
        numbers = (it, row.chunks, row.verified, row.drafted, accepted, row.first_rank, rank)
        self.lives.done[LAST : LAST_RANK + 1, row.place] = numbers
        if self.ends.watch is not None:
            self.ends.watch.report(Ended(row.place, row.first_rank, rank))

    def submit(self, place: int, now: float) -> None:
        """As `Lane.submit`."""
        self.waiting.submit(place, now)

    def blocks_used(self) -> int:
        """As `Lane.blocks_used`."""
        return self.crowd.kv.total_blocks - self.crowd.kv.free_blocks

    @property
    def inbox(self) -> array[int] | range:
        """As `Lane.inbox`."""
        return self.waiting.inbox

    @property
    def committed(self) -> int:
        """As `Lane.committed`."""
        return self.ends.committed
