"""Clients that give up: when, what becomes of a request then, and whether it is sent again.

The time of an attempt runs from its send, on the client's clock. Who has had nothing of an answer, or not all
of it, by the limit closes the connection: that reaches the cluster as late as a request would, and the engine
lets the request go at its next turn. A further attempt begins anew.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf, nan
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from specfleet.workloads.pauses import PauseLaw
from specfleet.workloads.requests import RequestTable
from specfleet.workloads.streams import Purpose, stream

if TYPE_CHECKING:  # simpy is not waited for by who only reads a configuration
    from specfleet.sim.environment import Environment

F64 = npt.NDArray[np.float64]
GIVEN_UP_COLUMNS = ("gave_up_s", "client_retries")
"""When the client gave a request up in the end, nan of the others; how often it had sent it again."""
NO_FIRST_TOKEN = "given up by its client: no first token within ttft_timeout_s"
NO_ANSWER = "given up by its client: no whole answer within timeout_s"


@dataclass(frozen=True, slots=True)
class PatienceConfig:
    """How long clients of a traffic class wait.

    Args:
        ttft_timeout_s: law of the seconds from a send within which the first token has to come; None: any.
        timeout_s: the same of the whole answer.
        retries: how often a request that was given up is sent again, from its beginning.
        backoff_s: before the first time; twice as long before each further one.
    """

    ttft_timeout_s: PauseLaw | None = None
    timeout_s: PauseLaw | None = None
    retries: int = 0
    backoff_s: float = 1.0


class Limits:
    """How long each request is waited for.

    Args:
        config: by traffic class; the key `""` serves classes not named. A class without any waits for good.
        table: the requests.
        seed: of the laws: row i has the same luck whatever else is there.

    Attributes:
        first_s, whole_s: seconds from a send, inf: any. retries, backoff_s: of each.
    """

    def __init__(self, config: Mapping[str, PatienceConfig], table: RequestTable, seed: int) -> None:
        n = len(table)
        self.first_s, self.whole_s = np.full(n, inf), np.full(n, inf)
        self.retries, self.backoff_s = np.zeros(n, dtype=np.int64), np.zeros(n)
        drawn = [stream(seed, purpose).random(n) for purpose in (Purpose.PATIENCE, Purpose.ANSWER_PATIENCE)]
        for number, name in enumerate(table.class_names):
            own = config.get(name, config.get(""))
            if own is None:
                continue
            mine = table.class_id == number
            self.retries[mine], self.backoff_s[mine] = own.retries, own.backoff_s
            laws = (own.ttft_timeout_s, own.timeout_s)
            for limit, law, u in zip((self.first_s, self.whole_s), laws, drawn, strict=True):
                if law is not None:
                    limit[mine] = law.quantile(u[mine])

    def exceeded(self, ttft_s: F64, e2el_s: F64) -> bool:
        """Whether anybody would have given up who waited so long, as a client sees it; nan: no answer."""
        return bool((ttft_s >= self.first_s).any() or (e2el_s >= self.whole_s).any())


class Givable(Protocol):
    """What stands behind the client, from which requests may be taken back."""

    def first_chunk_s(self, row: int) -> float:
        """When the client had the first chunk of a request; inf if none has left its engine."""
        ...

    def close(self, row: int) -> None:
        """Learns that the client has closed a connection; nothing of it is to be told any more."""
        ...

    def abort(self, row: int, now: float, again: bool) -> None:
        """The cluster learns of that; `again`: the request will be sent once more."""
        ...


class PatienceClock:
    """The clocks of requests under way.

    Args:
        env: the cluster's clock.
        limits: of each request.
        send_s: from the client to the cluster.
        behind: takes requests back.
        again: sends a request once more, at a time.
        over: frees the user of a request that is given up in the end, at a time.

    Attributes:
        gave_up_s, tries: of each request, as `GIVEN_UP_COLUMNS`. why: of those that were given up.
    """

    def __init__(
        self,
        env: Environment,
        limits: Limits,
        send_s: float,
        behind: Givable,
        again: Callable[[int, float], None],
        over: Callable[[int, float], None],
    ) -> None:
        self._env, self.limits, self._send_s = env, limits, send_s
        self._behind, self._again, self._over = behind, again, over
        n = len(limits.first_s)
        self.gave_up_s, self.tries = array("d", [nan]) * n, array("q", [0]) * n
        self.why: dict[int, str] = {}
        self._first_s, self._whole_s = limits.first_s.tolist(), limits.whole_s.tolist()
        self._until: dict[int, tuple[float, float]] = {}
        self._late: dict[int, float] = {}
        self._due: list[tuple[float, int, int, bool]] = []
        self._armed = inf

    def sent(self, row: int, sent_s: float) -> None:
        """A request leaves: its time runs from now on."""
        until = sent_s + self._first_s[row], sent_s + self._whole_s[row]
        self._until[row] = until
        for due, whole in zip(until, (False, True), strict=True):
            if due < inf:
                heappush(self._due, (due, row, self.tries[row], whole))
        self._arm()

    def in_time(self, row: int, first_s: float, last_s: float) -> bool:
        """Takes an answer in, whose chunks came at these times; False if the client gave up before.

        One that comes at the very limit is too late.
        """
        if row not in self._until:
            return False
        first, whole = self._until[row]
        if first_s < first and last_s < whole:
            del self._until[row]
            return True
        self._late[row] = first_s
        return False

    def refused(self, row: int) -> None:
        """Takes a refusal in: nobody waits any more."""
        self._until.pop(row, None)

    def _arm(self) -> None:
        """Sees to it that the clock stops when the next limit is reached of those still waited for."""
        due = self._due
        while due and not self._alive(due[0]):
            heappop(due)
        if due and due[0][0] < self._armed:
            self._armed = due[0][0]
            self._env.at(self._armed, self._reached)

    def _alive(self, entry: tuple[float, int, int, bool]) -> bool:
        _, row, nth, _ = entry
        return row in self._until and self.tries[row] == nth

    def _reached(self, now: float) -> None:
        if now == self._armed:
            self._armed = inf
        due = self._due
        while due and due[0][0] <= now:
            entry = heappop(due)
            _, row, _, whole = entry
            if not self._alive(entry):
                continue
            if whole or not self._first_s_of(row) < now:
                self._give_up(row, now, NO_ANSWER if whole else NO_FIRST_TOKEN)
            else:  # whatever becomes of it now, there was something in time
                self._until[row] = inf, self._until[row][1]
        self._arm()

    def _first_s_of(self, row: int) -> float:
        """When the client had the first chunk of a request, inf if it has none."""
        late = self._late.get(row)
        return self._behind.first_chunk_s(row) if late is None else late

    def _give_up(self, row: int, now: float, why: str) -> None:
        del self._until[row]
        self._late.pop(row, None)
        nth, again = self.tries[row], self.tries[row] < self.limits.retries[row]
        self._behind.close(row)
        self._env.at(now + self._send_s, lambda then: self._behind.abort(row, then, again))
        if again:
            self.tries[row] = nth + 1
            wait_s = float(self.limits.backoff_s[row]) * 2.0**nth
            self._env.at(now + wait_s, lambda then: self._again(row, then))
            return
        self.gave_up_s[row], self.why[row] = now, why
        self._over(row, now)
