"""The load generator: who sends what, when, and what it sees.

Open loop (requests at their arrival times), closed loop (a user sends again when answered), or
both (arrival times under a cap). Where requests are the turns of sessions, a user goes through one
session, turn by turn, each a while after the answer before, and then takes the next. The client is
part of what a benchmark measures: a request takes time to reach the engine, sends queue behind each
other, and the chunks of a step are handled one after another.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Generator, Iterator
from functools import partial
from math import nan
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import simpy

from specfleet.sim.config import ClientConfig, LoadConfig
from specfleet.sim.environment import Environment, Moment
from specfleet.sim.fleet.patience import GIVEN_UP_COLUMNS, Givable, Limits, PatienceClock
from specfleet.sim.recorder import Columns
from specfleet.workloads.requests import RequestTable

F64 = npt.NDArray[np.float64]
_BLOCK = 4096
CLIENT_TIMES = ("sent_s", "first_chunk_s", "last_chunk_s")
Arrive = Callable[[int, float], None]
"""Takes a request's row and the time at which it reaches the cluster."""


class Answer(NamedTuple):
    """What a client asks of a request that has ended.

    Attributes:
        row: of the request table.
        first_token_s, finished_s: when its first and its last chunk left the engine.
        first_rank, last_rank: of these chunks within their steps, from 1.
        failed: it ended with an error; nothing of it is measured.
        left: the replica that it has left because its client gave it up; None of other ends.
    """

    row: int
    first_token_s: float
    first_rank: int
    finished_s: float
    last_rank: int
    failed: bool = False
    left: int | None = None


class Sends:
    """When requests leave the client: one send occupies it for a while, the next ones queue behind it.

    Args:
        serial_s: seconds that a send takes.
    """

    def __init__(self, serial_s: float) -> None:
        self.serial_s = serial_s
        self._free_s = 0.0

    def next(self, due_s: float) -> float:
        """Returns when the next request leaves, which is due at `due_s`."""
        sent_s = due_s if due_s > self._free_s else self._free_s
        self._free_s = sent_s + self.serial_s
        return sent_s

    def all(self, due_s: F64) -> F64:
        """Returns when the next requests leave, which are due at these times, sorted."""
        return np.array([*map(self.next, due_s.tolist())]) if self.serial_s else due_s


class Client:
    """One load generator in front of the cluster.

    Args:
        env: the cluster's clock.
        table: the requests.
        config: the client's own delays.
        load: the cap on requests in flight, or on sessions that are under way.
        arrive: hands a request to the cluster.
        behind: takes requests back, and the time that each is waited for; None: nobody gives up.
    """

    def __init__(
        self,
        env: Environment,
        table: RequestTable,
        config: ClientConfig,
        load: LoadConfig,
        arrive: Arrive,
        behind: tuple[Givable, Limits] | None = None,
    ) -> None:
        self.env = env
        self.config = config
        self.max_concurrency = load.max_concurrency or len(table)
        never = array("d", [nan]) * len(table)
        self._sent_s, self._first_chunk_s, self._last_chunk_s = never, never[:], never[:]
        self.in_flight = self.ended = 0
        self._sends = Sends(config.send_serial_s)
        self._arrive = arrive
        self._arrival_s = table.arrival_s
        follows = table.follows
        self._think_s: list[float] = [] if table.think_s is None else table.think_s.tolist()
        self._follows: list[bool] = [] if follows is None else [*follows.tolist(), False]
        self._next = self._due = 0  # of the rows between, those that follow no other wait for a user
        self._answers: dict[int, Moment] = {}
        self.patience: PatienceClock | None = None
        self._refused: set[int] = set()
        if behind is not None:
            self.patience = PatienceClock(
                env, behind[1], config.send_s, behind[0], self._send_again, self._free
            )
        env.process(self._offer())

    def _offer(self) -> Generator[simpy.Event, None, None]:
        """A simpy process: requests become due at their arrival times, and take a user or wait for one."""
        for row, due in enumerate(_one_by_one(self._arrival_s)):
            if self._follows and self._follows[row]:
                continue
            if due > 0.0:
                yield self.env.until(due)
            if self.in_flight < self.max_concurrency:
                self.in_flight += 1
                self._next = row + 1
                self.env.process(self._use(row, self._send(row, due)))
            else:
                self._due = row + 1

    def _use(self, row: int, arrives: Moment) -> Generator[Moment, float, None]:
        """A simpy process: a user waits for an answer, turns round, thinks, and sends its next turn, or the
        request that has waited longest."""
        while True:
            self._answers[row] = free = self.env.moment()
            arrives.callbacks.append(partial(self._arrives, row))
            free_s = yield free
            if self._follows and self._follows[row + 1]:
                row += 1
            elif self._next < self._due:
                row = self._first_waiting()
                self._next = row + 1
            else:
                break
            if self._think_s and self._think_s[row]:
                free_s = yield self.env.until(free_s + self._think_s[row])
            arrives = self._send(row, free_s)
        self.in_flight -= 1

    def _arrives(self, row: int, arrival: simpy.Event) -> None:
        """A request has come: its user may have given it up already."""
        assert arrival.value is not None
        self._arrive(row, arrival.value)

    def _first_waiting(self) -> int:
        """Returns the first row that waits for a user, if any does."""
        row = self._next
        while self._follows and self._follows[row]:
            row += 1
        return row

    def _send(self, row: int, now: float) -> Moment:
        """Sends a request at `now`, or as soon as the sends before it are out; returns when it arrives."""
        self._sent_s[row] = sent = self._sends.next(now)
        if self.patience is not None:
            self.patience.sent(row, sent)
        return self.env.until(sent + self.config.send_s)

    def _send_again(self, row: int, now: float) -> None:
        """Sends a request once more that was given up."""
        if row in self._refused:
            return
        sent = self._sends.next(now)
        assert self.patience is not None
        self.patience.sent(row, sent)
        self.env.at(sent + self.config.send_s, lambda then: self._arrive_again(row, then))

    def _arrive_again(self, row: int, now: float) -> None:
        if row not in self._refused:
            self._arrive(row, now)

    def _free(self, row: int, now: float) -> None:
        """A request was given up in the end: its user goes on with the next one."""
        self.ended += 1
        self._answers.pop(row).happen(now + self.config.turn_s)

    def chunk_s(self, left_s: float, rank: int) -> float:
        """Returns when the client has a chunk that left its engine then, with so many before it."""
        return left_s + self.config.receive_s + self.config.chunk_s * rank

    def answered(self, answer: Answer) -> None:
        """Notes what the client saw of a finished request; its user is free after the turn-round."""
        row = answer.row
        if answer.failed:
            self.refused(row, answer.finished_s)
            return
        first = self.chunk_s(answer.first_token_s, answer.first_rank)
        last = max(self.chunk_s(answer.finished_s, answer.last_rank), first)
        if self.patience is not None and not self.patience.in_time(row, first, last):
            return
        self._first_chunk_s[row], self._last_chunk_s[row] = first, last
        self.ended += 1
        self._answers.pop(row).happen(last + self.config.turn_s)

    def refused(self, row: int, now: float) -> None:
        """A request was refused, or given up: the user hears of it and sends the next one."""
        if self.patience is not None:
            self.patience.refused(row)
            self._refused.add(row)
            if row not in self._answers:
                return  # its user has gone
        self.ended += 1
        self._answers.pop(row).happen(now + self.config.receive_s + self.config.turn_s)

    @property
    def all_ended(self) -> bool:
        """Whether every request has been answered, or refused."""
        return self.ended == len(self._arrival_s)

    def times(self) -> dict[str, F64]:
        """Returns `sent_s`, `first_chunk_s` and `last_chunk_s` by row; nan where it never happened."""
        noted = zip(CLIENT_TIMES, (self._sent_s, self._first_chunk_s, self._last_chunk_s), strict=True)
        return {name: np.frombuffer(times) for name, times in noted}

    def given_up(self) -> Columns:
        """Returns `GIVEN_UP_COLUMNS`; nothing where nobody gives up."""
        if self.patience is None:
            return {}
        each = np.frombuffer(self.patience.gave_up_s), np.array(self.patience.tries, dtype=np.int64)
        return dict(zip(GIVEN_UP_COLUMNS, each, strict=True))


def _one_by_one(values: F64) -> Iterator[float]:
    """Yields the values of a column, few of them as Python's numbers at a time."""
    for start in range(0, len(values), _BLOCK):
        yield from values[start : start + _BLOCK].tolist()
