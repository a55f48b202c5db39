"""Replays recorded decisions of the real vLLM scheduler through the calendar of the fast path.

An engine on the fast path is driven turn by turn through the loop of the recording, and asked after each
turn who runs, who waits and what everybody holds. Then the same requests run once more without a stop, as
`simulate` runs them, and the sums of every iteration are held against the record.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf

from calendar_engine import STEP_S, Pieces, Price, Recording
from calendar_notes import Decided, Notes, nothing
from calendar_run import Run, differences_of_sums
from records import Differences, Step, Trace, differences

from specfleet.sim.calendar import stepper, view
from specfleet.sim.calendar.lane import Lane
from specfleet.sim.config import EngineConfig
from specfleet.sim.errors import Unsuited


@contextmanager
def handing_back_at_once() -> Iterator[None]:
    """Lets engines be stepped no longer than they must: both sides of a hand-over are replayed."""
    before = stepper.LEAST_STEPS, stepper.MOST_STEPS
    stepper.LEAST_STEPS = stepper.MOST_STEPS = 1
    try:
        yield
    finally:
        stepper.LEAST_STEPS, stepper.MOST_STEPS = before


class Turns:
    """An engine on the fast path, driven a turn at a time.

    Args:
        lane: the engine.
        notes: get what it decides.

    Attributes:
        clock: time of its next turn, seconds.
    """

    def __init__(self, lane: Lane, notes: Notes) -> None:
        self.lane = lane
        self.notes = notes
        self._walk = lane.run()
        self.clock = next(self._walk)
        self._flying = False

    @property
    def opens_two(self) -> bool:
        """Whether the iteration that is being priced is the first of two batches of one turn."""
        lag, wakes = self.lane.rules.lag, self.lane.log.wakes
        return bool(lag and not self.notes.stepping and wakes and wakes[-1] == len(self.lane.log.end_s))

    def decide(self) -> Decided:
        """Returns the next batch; a turn is taken unless the last one has decided it already.

        Raises:
            Unsuited: the calendar cannot go on.
        """
        decided = self.notes.decided
        if not decided:
            self._take()
        return decided.popleft()

    def _take(self) -> None:
        """Takes a turn. Asynchronously it decides two batches if nothing is in flight."""
        decided, asynchronous = self.notes.decided, bool(self.lane.rules.lag)
        batches = 2 if asynchronous and not self._flying else 1
        due = self._walk.send(self.clock + STEP_S / 2)
        self.notes.close_turn()
        if due == inf:
            decided.append(nothing(view.usable_blocks(self.lane)))
        else:
            self.clock = due
            if asynchronous and len(decided) < batches and not self.notes.stepping:
                self.notes.wait()
        self._flying = bool(decided[-1].schedule["tokens"])

    def settle(self) -> None:
        """Lets the outcomes of what was stepped last be known, a turn late for each batch in flight."""
        for _ in range(1 + bool(self.lane.rules.lag)):
            if self.notes.stepping and self.clock < inf:
                self.clock = self._walk.send(self.clock + STEP_S / 2)


class CalendarReplay:
    """The loop of the recording around an engine on the fast path.

    Args:
        trace: a parsed trace; only its inputs are used.
        config: of its engine.

    Attributes:
        recording: the inputs.
        notes: what was decided.
        obstacle: why the calendar could not go on before the end, or None.
        arrival_s: when each request arrived, by row, on the calendar's clock.
        splits: rows that arrived between two batches of one turn.

    Raises:
        NotTaken: the calendar refuses the trace.
    """

    def __init__(self, trace: Trace, config: EngineConfig) -> None:
        self.recording = Recording(trace, config)
        price = Price()
        price.bell = self._priced
        lane = self.recording.lane(price)
        self.notes = Notes(lane, Pieces.of(lane), self.recording.requests)
        self.turns = Turns(lane, self.notes)
        self.obstacle: str | None = None
        self.arrival_s: list[float] = []
        self.splits: set[int] = set()
        self._step = 0
        self._early: list[int] = []
        self._in_flight: deque[tuple[int, Decided]] = deque()
        self._batches = 0
        self._processed: Decided | None = None

    @property
    def goes_on(self) -> bool:
        """Whether requests are left."""
        arrived, all_of_them = len(self.arrival_s), len(self.recording.requests)
        return arrived < all_of_them or self._unfinished > 0 or bool(self._in_flight)

    @property
    def _unfinished(self) -> int:
        return len(self.arrival_s) - len(self.notes.ended)

    def steps(self, most: int) -> list[Step]:
        """Returns our record of each step until all requests have finished, `most` at the most."""
        parts: list[tuple[Step, list[Decided | None]]] = []
        turn = self._asynchronous_step if self.recording.config.async_scheduling else self._synchronous_step
        try:
            while len(parts) < most and self.goes_on:
                head: Step = {"step": self._step, "arrived": self._early + self._arrive(self._step)}
                self._early = []
                more, *decided = turn()
                parts.append((head | more, decided))
                self._step += 1
            self.turns.settle()
        except Unsuited as met:
            self.obstacle = str(met)
        return [_step(head, *decided) for head, decided in parts]

    def _arrive(self, step: int) -> list[int]:
        """Lets the requests of a step arrive, at the time of the next turn."""
        requests, arrived = self.recording.requests, []
        while len(self.arrival_s) < len(requests):
            request = requests[len(self.arrival_s)]
            if request["arrival_step"] > step:
                break
            self.turns.lane.submit(len(self.arrival_s), self.turns.clock)
            self.arrival_s.append(self.turns.clock)
            arrived.append(request["id"])
        return arrived

    def _priced(self) -> None:
        """A step has been decided and is priced.

        The recorded loop returns between the two batches that open a busy stretch asynchronously, so that
        requests arrive there; the engine decides both in one turn. They are let in here, in between.
        """
        if self.notes.stepping:
            return
        self.notes.price()
        if self.turns.opens_two:
            before = len(self.arrival_s)
            self._early = self._arrive(self._step + 1)
            self.splits.update(range(before, len(self.arrival_s)))

    def _synchronous_step(self) -> tuple[Step, Decided | None, Decided | None]:
        """One step: what was decided, and the batch whose outcome is processed, which is the same."""
        batch = self.turns.decide() if self._unfinished else nothing(view.usable_blocks(self.turns.lane))
        self.notes.process(batch)
        return {}, batch, batch

    def _asynchronous_step(self) -> tuple[Step, Decided | None, Decided | None]:
        """One turn of the asynchronous loop: schedule while there is work, then process the older batch."""
        nobody_left = nothing(view.usable_blocks(self.turns.lane))
        record: Step = {"batch": None, "processed_batch": None} | nobody_left.end
        batch = None
        if self._unfinished or (self._processed is not None and self._processed.finished):
            batch = self.turns.decide() if self._unfinished else nobody_left
            record["batch"] = self._batches
            self._in_flight.append((self._batches, batch))
            self._batches += 1
            self._processed = None
            if batch.schedule["tokens"] and len(self._in_flight) < 2:
                return record, batch, None
        self._processed = None
        if self._in_flight:
            record["processed_batch"], self._processed = self._in_flight.popleft()
            self.notes.process(self._processed)
        return record, batch, self._processed


def _step(head: Step, decided: Decided | None, processed: Decided | None) -> Step:
    """Returns a step as it is recorded."""
    step = head | {"rows": [], "finished": []}
    if decided is not None:
        step |= decided.schedule | decided.end
    if processed is not None:
        step |= {"rows": processed.rows, "finished": processed.finished}
    return step


@dataclass
class Compared:
    """A trace that the calendar takes.

    Attributes:
        found: differences, and the steps compared.
        stepped: of these, in how many `Engine` stood in for the calendar.
        obstacle: why the calendar could not go on, or None.
    """

    found: Differences
    stepped: int
    obstacle: str | None


def compare(trace: Trace, config: EngineConfig) -> Compared:
    """Replays one trace through the calendar.

    Raises:
        NotTaken: the calendar refuses it.
    """
    most = len(trace["steps"])
    with handing_back_at_once():
        replay = CalendarReplay(trace, config)
        steps = replay.steps(most)
        whole = replay.obstacle is None
        beyond: list[Step] = [{}] if replay.goes_on and whole else []
        found = differences(trace, steps + beyond, in_part=not whole)
        if whole and len(replay.arrival_s) == len(replay.recording.requests):
            run = Run(replay.recording, replay.arrival_s, replay.splits)
            found.add(differences_of_sums(trace, run, config.usable_blocks))
    return Compared(found, replay.notes.stepped, replay.obstacle)
