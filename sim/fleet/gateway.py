"""What stands before the router: holds requests while replicas are full, turns away, gives up, and lets
clients send again. Every request that it does not hand on ends here, once, with its reason."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from heapq import heappop, heappush
from math import inf

from specfleet.sim.clients import Answer
from specfleet.sim.config import ClientConfig, GatewayConfig
from specfleet.sim.environment import Environment
from specfleet.sim.fleet.groups import GroupRouter, Groups
from specfleet.sim.fleet.views import DeskClock, View
from specfleet.sim.recorder import GAVE_UP, REJECTED, TIMED_OUT

FULL = "the gateway's queue was full"
LATE = "held at the gateway for longer than its time-out"
SLOW = "predicted to wait for its first token for longer than the gateway admits"
RECENT = 0.05
"""Share of the newest answer in what is predicted from answers."""


class Gateway:
    """Requests between their arrival and the router.

    Args:
        env: the cluster's clock.
        config: its limits.
        client: how long it takes to hear of a refusal, and to send again.
        groups: of the requests.
        router: chooses among replicas.
        views: of every replica.
        clock: by which views are as old as they are.
        send: hands a request to a replica at a time.
        ended: is told of a request that ends here, and when.
        closed: whether the client of a request has closed the connection.

    Attributes:
        status: of each request that ended here.
        refusals: reasons, with counts.
        attempts: how often each request that was turned away was sent.
    """

    def __init__(
        self,
        env: Environment,
        config: GatewayConfig,
        client: ClientConfig,
        groups: Groups,
        router: GroupRouter,
        views: Sequence[View],
        clock: DeskClock,
        send: Callable[[int, int, float], None],
        ended: Callable[[int, float], None],
        closed: Callable[[int], bool] = lambda row: False,
    ) -> None:
        self._env, self.config, self._client = env, config, client
        self._router, self._views, self._send, self._ended = router, views, send, ended
        self._clock, self._closed = clock, closed
        self._members = groups.members
        self._prompt, self._priority = groups.table.prompt_tokens, groups.table.priority
        self.status: dict[int, int] = {}
        self.refusals: dict[str, int] = {}
        self.attempts: dict[int, int] = {}
        self._held: dict[int, int] = {}
        self._queues: list[list[tuple[int, int, int]]] = [[] for _ in groups.members]
        self._away: dict[int, float] = {}
        self._turn = 0
        self._sent_with: dict[int, tuple[float, int]] = {}
        self._token_s: float | None = None
        self._between_s: float | None = None
        self._last_end_s: float | None = None

    def arrive(self, row: int, now: float) -> None:
        """Takes a request that may be served: sends it on, holds it, or turns it away."""
        self._clock.now = now
        limit = self.config.admit_ttft_s
        if limit is not None and self.predicted_s(row) > limit:
            self._turn_away(row, now, REJECTED, SLOW)
            return
        group = self._router.group_of(row)
        if not self._queues[group] and self._sends(row, now):
            return
        if self.config.queue is not None and len(self._held) >= self.config.queue:
            self._turn_away(row, now, REJECTED, FULL)
            return
        self._turn += 1
        self._held[row] = turn = self._turn
        heappush(self._queues[group], (int(self._priority[row]), turn, row))
        if self.config.timeout_s is not None:
            due = now + self.config.timeout_s
            self._env.until(due).callbacks.append(lambda event: self._late(row, turn, due))

    def answered(self, answer: Answer) -> None:
        """Learns of an end: who is held may go, from that time on."""
        arrived_s, tokens = self._sent_with.pop(answer.row)
        now = answer.finished_s
        if not answer.failed:
            self._token_s = _recent(self._token_s, (answer.first_token_s - arrived_s) / tokens)
        if self._last_end_s is not None:
            self._between_s = _recent(self._between_s, max(now - self._last_end_s, 0.0))
        self._last_end_s = now
        if self._held:
            self._env.until(now).callbacks.append(lambda event: self.let_in(now))

    def held_of(self, groups: Container[int]) -> int:
        """Returns how many requests of some groups are held."""
        return sum(self._router.group_of(row) in groups for row in self._held)

    def taken_back(self, row: int, now: float) -> None:
        """Learns that a replica has lost a request: who is held may go in its place."""
        del self._sent_with[row]
        if self._held:
            self._env.until(now).callbacks.append(lambda event: self.let_in(now))

    def given_up(self, row: int) -> None:
        """Learns that a request at a replica was given up, which has not let it go yet."""
        del self._sent_with[row]

    def freed(self, now: float) -> None:
        """Learns that a replica has let such a request go: who is held may go in its place."""
        if self._held:
            self._env.until(now).callbacks.append(lambda event: self.let_in(now))

    def withdraw(self, row: int, now: float, why: str | None) -> bool:
        """Lets a request go that is held, or is about to be sent again; False if it is neither.

        Args:
            row: its client has given it up.
            now: when that is known.
            why: it ends here, and why; None: its client sends it once more.
        """
        held = self._held.pop(row, None) is not None
        away = self._away.pop(row, None) is not None
        if held:
            self._alive(self._queues[self._router.group_of(row)])
        if not held and not away:
            return False
        if why is not None:
            self._end(row, now, GAVE_UP, why)
        return True

    def predicted_s(self, row: int) -> float:
        """Returns the seconds to the first token that a request is predicted to wait: those of a prompt token
        outstanding, as answers have had them, times the tokens at the least loaded replica; and who is held
        before it, as requests have ended."""
        if self._token_s is None:
            return 0.0
        members = self._router.members_of(self._router.group_of(row), self._views)
        least = min(self._views[member].tokens_inside for member in members)
        return self._token_s * (least + int(self._prompt[row])) + len(self._held) * (self._between_s or 0.0)

    def _sends(self, row: int, now: float) -> bool:
        """Sends a request on, unless every replica that it may go to is full, or none is up."""
        most = self.config.max_outstanding
        if not self._router.somebody(self._router.group_of(row)):
            return False
        chosen = self._router.pick(row, self._views)
        if most is not None and self._views[chosen].inside >= most:
            members = self._router.members_of(self._router.group_of(row), self._views)
            chosen = min(members, key=lambda member: self._views[member].inside)
            if self._views[chosen].inside >= most:
                return False
        tokens = self._views[chosen].tokens_inside + int(self._prompt[row])
        self._sent_with[row] = now, tokens
        self._send(row, chosen, now)
        return True

    def let_in(self, now: float) -> None:
        """Sends on who is held, the first of each group, as long as there is room."""
        self._clock.now = now
        going = True
        while going and self._held:
            going = False
            for queue in sorted((q for q in map(self._alive, self._queues) if q), key=lambda q: q[0]):
                row = queue[0][2]
                if self._sends(row, now):
                    del self._held[row]
                    heappop(queue)
                    going = True
                    break

    def _alive(self, queue: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        """Returns a queue whose first is still held."""
        while queue and self._held.get(queue[0][2]) != queue[0][1]:
            heappop(queue)
        return queue

    def _late(self, row: int, turn: int, now: float) -> None:
        """Gives up a request that is still held at its time-out."""
        if self._held.get(row) == turn:
            del self._held[row]
            self._alive(self._queues[self._router.group_of(row)])
            self._turn_away(row, now, TIMED_OUT, LATE)

    def _back(self, row: int, now: float) -> None:
        """A client that was turned away sends again, unless it has given up."""
        if self._away.get(row) == now:
            del self._away[row]
            self.arrive(row, now)

    def _turn_away(self, row: int, now: float, status: int, reason: str) -> None:
        """The client sends again after a while, or the request ends."""
        if self._closed(row):
            self._away[row] = inf  # nobody hears of it: it is withdrawn in a moment
            return
        before = self.attempts.get(row, 0)
        self.attempts[row] = before + 1
        if before < self.config.retries:
            wait_s = self._client.receive_s + self.config.backoff_s * 2.0**before + self._client.send_s
            self._away[row] = again = now + wait_s
            self._env.until(again).callbacks.append(lambda event: self._back(row, again))
            return
        self._end(row, now, status, reason)

    def _end(self, row: int, now: float, status: int, reason: str) -> None:
        self.status[row] = status
        self.refusals[reason] = self.refusals.get(reason, 0) + 1
        self._ended(row, now)


def _recent(before: float | None, now: float) -> float:
    """Returns a mean in which the newest value counts `RECENT`."""
    return now if before is None else before + RECENT * (now - before)
