"""A replica in the cluster: wakes what it runs when that has something to do.

Between two events of the rest of the world an engine runs on its own, iteration after iteration;
simpy sees one event a window. Whatever else happens at the very time a window ends goes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf, nextafter
from typing import Protocol

import simpy

from specfleet.sim.clients import Answer
from specfleet.sim.environment import Environment


class Server(Protocol):
    """What a replica runs: an engine, or a lane of the calendar in its place."""

    def submit(self, row: int, now: float) -> None:
        """Puts a request into the inbox at `now`."""
        ...

    def advance(self, now: float, until: float) -> float:
        """Takes the turn that is due at `now`, and perhaps later ones before `until`.

        Returns:
            When the next turn is due; inf when there is nothing to do.
        """
        ...

    def answers(self) -> Iterable[Answer]:
        """Returns who has ended since the last call."""
        ...


class Replica:
    """A server on the cluster's clock.

    Args:
        env: the cluster's clock.
        server: what it runs.
        answered: learns of every end.
    """

    def __init__(self, env: Environment, server: Server, answered: Callable[[Answer], None]) -> None:
        self.env = env
        self.server = server
        self._answered = answered
        self._asleep = True
        self._called = False
        self._life = 0

    def stop(self, hung: bool = False) -> None:
        """Takes no turn that was due; the next request wakes what is put in its place, unless it hangs."""
        self._life += 1
        self._asleep = not hung

    def submit(self, row: int, now: float) -> None:
        """Takes a request at `now`; an idle server wakes at that time."""
        self.server.submit(row, now)
        self.wake(now)

    def wake(self, now: float) -> None:
        """Takes a turn at `now` if it sleeps, or is about to: something that it waits for has come."""
        self._called = True
        if self._asleep:
            self._asleep = False
            self.env.wake(now, self._waker(now))

    def _waker(self, due: float) -> Callable[[simpy.Event], None]:
        life = self._life
        return lambda event: self._run(due) if life == self._life else None

    def _run(self, now: float) -> None:
        """Takes turns from `now` until something else is due, or there is nothing to do."""
        env, server = self.env, self.server
        while True:
            self._called = False
            # the turn that woke it is taken whatever else is due now
            due = server.advance(now, max(env.peek(), nextafter(now, inf)))
            for answer in server.answers():
                self._answered(answer)
            if due == inf:
                if self._called:
                    due = now
                else:
                    self._asleep = True
                    return
            if env.peek() <= due:
                env.wake(due, self._waker(due))
                return
            now = due
