"""Lanes on the cluster's clock: closed and capped loops, where an answer lets the next request go."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from math import inf, nextafter
from typing import TYPE_CHECKING

import numpy as np

from specfleet.sim.calendar.fleet import Fleet
from specfleet.sim.calendar.harvest import Harvest
from specfleet.sim.calendar.lane import Lane
from specfleet.sim.calendar.trajectories import Rules
from specfleet.sim.calendar.watch import Ended, Watch
from specfleet.sim.clients import Client
from specfleet.sim.environment import WAKE, Environment
from specfleet.sim.recorder import Recorder
from specfleet.sim.router import ROUTERS
from specfleet.sim.scenario import Ran

if TYPE_CHECKING:
    from specfleet.sim.calendar.plan import CalendarRun

OnEnd = Callable[[Lane, Ended, float], None]


class Answer:
    """What a client asks of a request that has ended."""

    __slots__ = ("first_place", "first_token_s", "id")

    def __init__(self, id: int, first_token_s: float, first_place: int) -> None:
        self.id = id
        self.first_token_s = first_token_s
        self.first_place = first_place


class LaneReplica:
    """A lane in the place of a `Replica`: the same wake-ups, one a window.

    Args:
        env: the cluster's clock.
        lane: the engine.
        on_end: learns of every end, with its time.
    """

    def __init__(self, env: Environment, lane: Lane, on_end: Callable[[Lane, Ended, float], None]) -> None:
        self.env = env
        self.lane = lane
        self.outstanding = 0
        self._on_end = on_end
        self._walk = lane.run()
        self._asleep = True
        next(self._walk)

    def submit(self, place: int, now: float) -> None:
        """Puts a request into the lane's inbox at `now`; an idle lane wakes at that time."""
        self.outstanding += 1
        self.lane.submit(place, now)
        if self._asleep:
            self._asleep = False
            self.env.at(now, WAKE, lambda event: self._run(now))

    def _run(self, now: float) -> None:
        """Takes turns from `now` until something else is due, or there is nothing to do."""
        env, lane = self.env, self.lane
        while True:
            # the turn that woke it is taken whatever else is due now
            due = self._walk.send(max(env.peek(), nextafter(now, inf)))
            ended, lane.ends.ended = lane.ends.ended, []
            for end in ended:
                self.outstanding -= 1
                self._on_end(lane, end, lane.ends.turn_s)
            if due == inf:
                self._asleep = True
                return
            if env.peek() <= due:
                env.at(due, WAKE, self._waker(due))
                return
            now = due

    def _waker(self, due: float) -> Callable[[object], None]:
        return lambda event: self._run(due)


def on_a_clock(plan: CalendarRun, rules: Rules) -> Ran:
    """Runs a closed or capped loop under simpy, with the client of the step engine."""
    scenario, replicas = plan.scenario, plan.scenario.deployment.replicas
    table, n = plan.table, len(plan.table)
    env, recorder = Environment(), Recorder(n, 1)
    fleet = Fleet(plan, rules, plan.served, replicas)
    lives, ledger = fleet.lives, fleet.ledger
    place_of = np.full(n, -1)
    place_of[plan.served] = np.arange(len(plan.served))
    places, router = place_of.tolist(), ROUTERS[scenario.deployment.router](plan.seed)
    arrived_s = np.full(n, np.nan)

    def arrive(row: int, now: float) -> None:
        arrived_s[row] = now
        if places[row] < 0:
            client.refused(now)
            return
        chosen = router.pick(row, shells)
        if ledger is not None:
            ledger.lane_of[places[row]] = chosen
        shells[chosen].submit(places[row], now)

    def ended(lane: Lane, end: Ended, now: float) -> None:
        first_s = lane.log.end_s[lives.first[end.place]]
        answer = Answer(int(lives.order[end.place]), first_s, end.first_rank)
        client.answered(answer, end.last_rank, now)  # type: ignore[arg-type]

    client = Client(env, table.arrival_s, scenario.client, scenario.load, recorder, arrive)
    ranks = scenario.client.chunk_s != 0.0
    shells = [
        LaneReplica(env, fleet.lane([], array("d"), index, index, Watch(ranks), stops=True), ended)
        for index in range(replicas)
    ]
    env.run()
    lives.settle()
    harvest = Harvest(plan, rules, recorder.requests()["sent_s"], arrived_s)
    for shell in shells:
        if shell.lane.inbox:
            harvest.add(shell.lane, np.array(shell.lane.inbox))
    harvest.add_rounds(ledger)
    return harvest.ran()
