"""The load generator: who sends what, when, and what it sees.

Open loop (requests at their arrival times), closed loop (a user sends again when answered), or
both (arrival times under a cap). The client is part of what a benchmark measures: a request takes
time to reach the engine, sends queue behind each other, and the chunks of a step are handled one
after another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator

import numpy as np
import simpy

from specfleet.sim.config import ClientConfig, LoadConfig
from specfleet.sim.engine import Request
from specfleet.sim.environment import ARRIVAL, Environment
from specfleet.sim.recorder import Recorder

Arrive = Callable[[int, float], None]
"""Takes a request's row and the time at which it reaches the cluster."""


class Client:
    """One load generator in front of the cluster.

    Args:
        env: the cluster's clock.
        arrival_s: when each request is due, sorted.
        config: the client's own delays.
        load: the cap on requests in flight.
        recorder: gets the client-side times.
        arrive: hands a request to the cluster.
    """

    def __init__(
        self,
        env: Environment,
        arrival_s: np.ndarray[tuple[int], np.dtype[np.float64]],
        config: ClientConfig,
        load: LoadConfig,
        recorder: Recorder,
        arrive: Arrive,
    ) -> None:
        self.env = env
        self.config = config
        self.max_concurrency = load.max_concurrency or len(arrival_s)
        self.recorder = recorder
        self.in_flight = 0
        self._arrive = arrive
        self._arrival_s = arrival_s.tolist()
        self._ready: deque[int] = deque()
        self._free_s = 0.0
        env.process(self._offer())

    def _offer(self) -> Generator[simpy.Event, None, None]:
        """A simpy process: each request becomes due at its arrival time."""
        for row, due in enumerate(self._arrival_s):
            if due > 0.0:
                yield self.env.until(due)
            if self.in_flight < self.max_concurrency:
                self._send(row, due)
            else:
                self._ready.append(row)

    def _send(self, row: int, now: float) -> None:
        """Sends a request at `now`, or as soon as the sends before it are out."""
        sent = max(now, self._free_s)
        self._free_s = sent + self.config.send_serial_s
        self.in_flight += 1
        self.recorder.request(row, sent_s=sent)
        arrives = sent + self.config.send_s
        self.env.at(arrives, ARRIVAL, lambda event: self._arrive(row, arrives))

    def chunk_received_s(self, engine_s: float, place: int) -> float:
        """Returns when the client has handled the chunk in `place` (from 1) of a step that ended then."""
        return engine_s + self.config.receive_s + self.config.chunk_s * place

    def answered(self, request: Request, place: int, finished_s: float) -> None:
        """Notes what the client saw of a finished request; its user's slot frees after the turn-round."""
        last = self.chunk_received_s(finished_s, place)
        first = self.chunk_received_s(request.first_token_s, request.first_place)
        self.recorder.request(request.id, first_chunk_s=first, last_chunk_s=last)
        self._free_slot(last + self.config.turn_s)

    def refused(self, now: float) -> None:
        """A request was refused on arrival: the user hears of it and sends the next one."""
        self._free_slot(now + self.config.receive_s + self.config.turn_s)

    def _free_slot(self, free_s: float) -> None:
        def freed(event: simpy.Event) -> None:
            self.in_flight -= 1
            if self._ready:
                self._send(self._ready.popleft(), free_s)

        self.env.at(free_s, ARRIVAL, freed)
