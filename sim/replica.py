"""The simpy shell of one engine: wakes it when it has something to do.

Between two events of the rest of the world the engine runs on its own, iteration after iteration;
simpy sees one event a window. Whatever else happens at the very time a window ends goes first.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import simpy

from specfleet.sim.engine import Engine, Request
from specfleet.sim.environment import WAKE, Environment

OnFinish = Callable[[Request, int, float], None]
"""Called with a finished request, its last chunk's place in the step, and the engine's time."""


class Replica:
    """An engine in the cluster.

    Args:
        env: the cluster's clock.
        engine: the state machine.
        on_finish: learns of every end.
    """

    def __init__(self, env: Environment, engine: Engine, on_finish: OnFinish) -> None:
        self.env = env
        self.engine = engine
        self.outstanding = 0
        self._on_finish = on_finish
        self._asleep = True

    def submit(self, request: Request, now: float) -> None:
        """Puts a request into the engine's inbox at `now`; an idle engine wakes at that time."""
        request.arrived_s = now
        self.outstanding += 1
        self.engine.inbox.append(request)
        if self._asleep:
            self._asleep = False
            self.env.at(now, WAKE, lambda event: self._run(now))

    def _run(self, now: float) -> None:
        """Runs iterations from `now` until something else is due, or there is nothing to do."""
        env, engine = self.env, self.engine
        while True:
            due = engine.turn(now)
            if engine.finished:
                self._deliver(now)
            if due == inf:
                self._asleep = True
                return
            if env.peek() <= due:
                env.at(due, WAKE, self._waker(due))
                return
            now = due

    def _waker(self, due: float) -> Callable[[simpy.Event], None]:
        return lambda event: self._run(due)

    def _deliver(self, now: float) -> None:
        """Reports the requests that ended in the iteration that ended at `now`."""
        ended, self.engine.finished = self.engine.finished, []
        for request, place in ended:
            self.outstanding -= 1
            self._on_finish(request, place, now)
