"""What an engine on the fast path decides, in the fields of a recorded step.

While the calendar runs, its view is asked whenever a step is priced: everything is decided then. While it
is stepped (`Stepper`), the scheduler's own calls are listened to, as in the replay of the listed crowd.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from calendar_engine import Pieces

from specfleet.sim.calendar import view
from specfleet.sim.calendar.lane import Lane
from specfleet.sim.calendar.stepper import Stepper
from specfleet.sim.calendar.view import Running
from specfleet.sim.engine import Engine
from specfleet.sim.scheduler import Outcome, Scheduler
from specfleet.sim.sequence import Batch, Sequence

Fields = dict[str, Any]


@dataclass
class Decided:
    """One batch.

    Attributes:
        schedule: what was decided, by field; sums of the calendar are missing until the turn is over.
        rows, finished: what came of it. Tokens sampled are None where a row is in vain.
        end: `free_end` and `state_end` of the step that scheduled it.
        processed: the recorded loop has processed it. `Engine` commits a step later, or ahead of its time.
    """

    schedule: Fields
    rows: list[list[int | None]] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)
    end: Fields = field(default_factory=dict)
    processed: bool = False


class Row(NamedTuple):
    """A running sequence with what it computes in an iteration, prompts included.

    Attributes:
        request: its id. running: as the calendar says.
        tokens: 0 without a row; of which drafts. past: tokens found in the prefix cache or computed before.
    """

    request: int
    running: Running
    tokens: int
    drafts: int
    past: int


class Notes:
    """Writes down batch after batch.

    Args:
        lane: the engine, at a fixed K.
        pieces: of prompts that it computes.
        requests: of the recording, by place.

    Attributes:
        decided: batches that nobody has asked for yet.
        ended: requests whose end is known, as far as batches are processed.
        running: the running list after the last batch was scheduled.
        stepping: `Engine` stands in for the calendar.
        stepped: batches that it has scheduled.
    """

    def __init__(self, lane: Lane, pieces: Pieces, requests: list[dict[str, Any]]) -> None:
        self.lane, self.pieces = lane, pieces
        self.ids = [request["id"] for request in requests]
        self._prompt_tokens = [request["prompt_len"] for request in requests]
        self.decided: deque[Decided] = deque()
        self.ended: set[int] = set()
        self.running: list[int] = []
        self.stepping = False
        self.stepped = 0
        self._admitted: set[int] = set()
        self._unpriced: list[tuple[int, int, Decided]] = []
        self._batches: list[tuple[Batch, Decided]] = []
        self._open: Decided | None = None
        self._last = nothing(view.usable_blocks(lane))
        if lane.stepper is not None:
            self._listen_to(lane.stepper)

    def price(self) -> None:
        """Notes the iteration that the calendar has just decided: its price is being asked for."""
        lane, it = self.lane, len(self.lane.log.end_s)
        rows, lag = self._rows(it), lane.rules.lag
        found = self._newcomers(rows)
        running = [row.request for row in rows]
        thrown_out = [row for row in reversed(self.running) if row not in self.ended and row not in running]
        back = [self.ids[place] for place, _ in view.thrown_out(lane)]
        doomed = [request for request in thrown_out if request not in back]
        queue = [*reversed(doomed), *back, *self._fresh()]
        noted = lane.log.waiting
        found |= {
            "preempted": thrown_out,
            "tokens": sum(row.tokens for row in rows),
            "num_waiting": noted[-1] if len(noted) and noted[-2] == it else 0,
            "running_order": running,
            "waiting_order": queue,
            "sched_rows": [[row.request, row.tokens, row.drafts] for row in rows if row.tokens],
        }
        batch = Decided(found)
        for request, now, tokens, drafts, _ in rows:
            if tokens:
                batch.rows.append([request, tokens, drafts, None if now.over else now.sampled, now.kept])
            if now.ends:
                batch.finished.append(request)
        stay = [row for row in rows if not (row.running.over if lag else row.running.ends)]
        batch.end["state_end"] = self._states(stay)
        self.running = running
        self._unpriced.append((it, view.returning_blocks(lane, it), batch))
        self._note(batch)

    def process(self, batch: Decided) -> None:
        """The outcome of a batch is delivered."""
        batch.processed = True
        self.ended.update(batch.finished)

    def close_turn(self) -> None:
        """Notes the sums of what the calendar has decided in this turn."""
        for it, returning, batch in self._unpriced:
            running, free = view.totals(self.lane, it)
            batch.schedule |= {"num_running": running, "free_after_schedule": free}
            batch.end["free_end"] = free + returning
        self._unpriced.clear()

    def wait(self) -> None:
        """Notes a batch without rows: nothing can be scheduled until the batch in flight is over."""
        rows = self._rows(len(self.lane.log.end_s))
        queue = [self.ids[place] for place, _ in view.thrown_out(self.lane)] + self._fresh()
        self.running = [row.request for row in rows]
        batch = nothing(self._last.end["free_end"], self.running, queue)
        stay = [row for row in rows if not row.running.over]
        batch.end = {"free_end": view.usable_blocks(self.lane), "state_end": self._states(stay)}
        self._note(batch)

    def _note(self, batch: Decided) -> None:
        self._last = batch
        self.decided.append(batch)

    def _rows(self, it: int) -> list[Row]:
        """Returns who runs in iteration `it`, with the pieces of prompts that were computed in it."""
        pieces = deque(self.pieces.latest)
        rows = []
        for now in view.running(self.lane, it):
            request, tokens, drafts, past = self.ids[now.place], now.tokens, now.drafts, 0
            if now.prompting and pieces and sum(pieces[0][:2]) == now.computed:
                piece, past, drafts = pieces.popleft()
                tokens = piece + drafts
            elif now.prompting and request not in self.running:
                tokens = now.computed  # admitted whole
            rows.append(Row(request, now, tokens, drafts, past))
        return rows

    def _newcomers(self, rows: list[Row]) -> Fields:
        """Returns who was admitted, and how."""
        come = [row for row in rows if row.request not in self.running]
        new = [row.request for row in come if row.request not in self._admitted]
        self._admitted.update(new)
        return {
            "new": new,
            "resumed": [row.request for row in come if row.request not in new],
            "cached": [[row.request, row.past] for row in come if row.past],
            "padded": [row.request for row in come if row.drafts],
        }

    def _fresh(self) -> list[int]:
        """Returns who has arrived and was never admitted, first come first."""
        return [self.ids[place] for place in view.fresh(self.lane)]

    def _states(self, rows: Iterable[Row]) -> list[list[int | str]]:
        """Returns `state_end`: synchronously this iteration's outcome is known, asynchronously it is not."""
        lag = self.lane.rules.lag
        states: list[list[int | str]] = []
        for request, now, tokens, drafts, _ in rows:
            computed, known = now.computed, now.known
            if lag:
                computed += drafts if now.prompting else tokens
            else:
                computed += 0 if now.prompting else now.sampled
                known += now.sampled
            states.append([request, "R", computed, known, now.blocks])
        for place, known in view.thrown_out(self.lane):
            states.append([self.ids[place], "P", 0, known, 0])
        for place in view.fresh(self.lane):
            states.append([self.ids[place], "W", 0, self._prompt_tokens[place], 0])
        return sorted(states)

    def _listen_to(self, stepper: Stepper) -> None:
        """Notes what is decided while the engine is stepped, from one hand-over to the other."""
        hand_over, take_back = stepper._hand_over, stepper._take_back

        def handed_over(*position: Any) -> Engine:
            engine = hand_over(*position)
            self.stepping = True
            assert isinstance(engine.scheduler, Scheduler)
            self._listen_to_scheduler(engine.scheduler)
            return engine

        def taken_back(*position: Any) -> Any:
            self.stepping = False
            return take_back(*position)

        vars(stepper).update(_hand_over=handed_over, _take_back=taken_back)

    def _listen_to_scheduler(self, scheduler: Scheduler) -> None:
        schedule, commit = scheduler.schedule, scheduler.commit

        def scheduled(now: float = 0.0) -> Batch:
            self._close(scheduler)
            batch = schedule(now)
            self._schedule(scheduler, batch)
            return batch

        def committed(batch: Batch, sampled: Rows[int]) -> Outcome:
            outcome = commit(batch, sampled)
            self._commit(batch, sampled, outcome)
            self._close(scheduler)
            return outcome

        vars(scheduler).update(schedule=scheduled, commit=committed)

    def _of(self, sequences: Iterable[Sequence]) -> list[int]:
        return [self.ids[sequence.id] for sequence in sequences]

    def _schedule(self, scheduler: Scheduler, batch: Batch) -> None:
        rows = zip(self._of(batch.sequences), batch.num_tokens, batch.num_drafts, strict=True)
        self.running = self._of(scheduler.running)
        self._open = noted = Decided(
            {
                "new": self._of(batch.new),
                "resumed": self._of(batch.resumed),
                "cached": [],
                "preempted": self._of(batch.preempted),
                "padded": self._of(batch.padded),
                "tokens": batch.total_tokens,
                "free_after_schedule": scheduler.kv.free_blocks,
                "num_running": len(scheduler.running),
                "num_waiting": len(scheduler.waiting),
                "running_order": self.running,
                "waiting_order": self._of(scheduler.waiting),
                "sched_rows": [list(row) for row in rows],
            }
        )
        self._admitted.update(noted.schedule["new"])
        self._batches.append((batch, noted))
        self._note(noted)
        self.stepped += 1

    def _commit(self, batch: Batch, sampled: Rows[int], outcome: Outcome) -> None:
        """Notes the outcome of a batch; that of one which the calendar has scheduled is noted already."""
        for known, noted in self._batches:
            if known is batch:
                rows = zip(noted.schedule["sched_rows"], sampled, outcome.kept, strict=True)
                noted.rows += [[*row, None if new and not kept else new, kept] for row, new, kept in rows]
                noted.finished += self._of(outcome.finished)
                if noted.processed:
                    self.ended.update(noted.finished)
        self._batches = [entry for entry in self._batches if entry[0] is not batch]

    def _close(self, scheduler: Scheduler) -> None:
        """Notes where the step ends that was scheduled last."""
        if self._open is None:
            return
        here = [*scheduler.running, *scheduler.waiting]
        states = [[self.ids[s.id], s.state, s.num_computed_tokens, s.num_tokens, s.num_blocks] for s in here]
        self._open.end |= {"free_end": scheduler.kv.free_blocks, "state_end": sorted(states)}
        self._open = None


def nothing(free: int, running: Rows[int] = (), queue: Rows[int] = ()) -> Decided:
    """Returns a batch without rows.

    Args:
        free: KV blocks.
        running, queue: requests in order.
    """
    lists: Fields = {name: [] for name in ("new", "resumed", "cached", "preempted", "padded", "sched_rows")}
    counts = {"tokens": 0, "num_running": len(running), "num_waiting": len(queue)}
    orders = {"running_order": list(running), "waiting_order": list(queue), "free_after_schedule": free}
    return Decided(lists | counts | orders, end={"free_end": free, "state_end": []})
