"""Lanes from which clients take requests back: in the place of `stepped.Engines`, where clients give up."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import replace
from math import inf, nan, nextafter
from typing import cast

import numpy as np

from specfleet.sim.calendar.footprints import Footprints
from specfleet.sim.calendar.lane import Lane
from specfleet.sim.calendar.lanes import Lanes, LaneServer
from specfleet.sim.calendar.luck import I64
from specfleet.sim.calendar.patience.harvest import AttemptHarvest, History
from specfleet.sim.calendar.patience.leaving import Leaving
from specfleet.sim.calendar.plan import CalendarRun
from specfleet.sim.calendar.trajectories import NOT_YET, Trajectories
from specfleet.sim.clients import Answer, Client
from specfleet.sim.fleet.patience import Limits
from specfleet.sim.fleet.tries import Sums
from specfleet.sim.scenario import Ran


class PatientServer(LaneServer):
    """A lane that lets single requests go; arguments as `LaneServer`.

    Attributes:
        number: of its replica in the cluster.
        history: of the attempts of all lanes.
        arrived_s: when each attempt came, by place.
    """

    history: History
    arrived_s: array[float]

    def __init__(self, lane: Lane, lives: Trajectories, places: array[int]) -> None:
        super().__init__(lane, lives, places)
        self.number = lane.replica
        self._leaving = Leaving(lane)
        self._gone: list[tuple[int, bool]] = []
        self._going: list[tuple[int, bool]] = []
        self._turn_s = 0.0

    def submit(self, row: int, now: float) -> None:
        """As `LaneServer.submit`."""
        self.arrived_s[self._places[row]] = now
        super().submit(row, now)

    def first_token(self, row: int) -> tuple[float, int] | None:
        """When the first token of a request inside left, and its rank in its step; None: it has none yet."""
        place, lane = self._places[row], self.lane
        first, known, watch = self._lives.first.item(place), lane.ends.committed, lane.ends.watch
        if first == NOT_YET or first > known:
            return None
        assert watch is not None
        watch.catch_up(known)
        return lane.log.end_s[first], watch.first_rank(place)

    def abort(self, row: int, again: bool) -> None:
        """Nobody waits for a request inside any more: it leaves at the next turn; as `EngineServer.abort`."""
        place = self._places[row]
        (self._gone if self._leaving.never_read(place) else self._going).append((place, again))

    def advance(self, now: float, until: float) -> float:
        """As `LaneServer.advance`; of a turn in which somebody leaves is told before the next is taken."""
        if self._going or self._gone:
            self._turn_s, until = now, nextafter(now, inf)
            for place, again in self._going:
                self._leaving.let_go(place)
                self._gone.append((place, again))
            self._going.clear()
        return super().advance(now, until)

    def answers(self) -> Iterator[Answer]:
        """Yields who has left or ended since the last call."""
        gone, self._gone = self._gone, []
        for place, again in gone:
            self.history.note(place, again, self._turn_s)
            row = int(self._lives.order[place])
            yield Answer(row, 0.0, 0, self._turn_s, 0, failed=True, left=self.number)
        yield from super().answers()


class _AttemptLanes(Lanes):
    serves = PatientServer

    @property
    def lives(self) -> Trajectories:
        """The lives of all attempts."""
        lives = self._fleet.lives
        assert isinstance(lives, Trajectories)
        return lives


class PatientLanes:
    """The lanes of all replicas, whose clients may give up.

    Each attempt of a request has a place of its own: the first ones stand in front, then the second ones of
    those who may be sent again, and so on.

    Args:
        run: that is about to begin.
        rules: of its engines.
        sums: as `Tries` shares them between pools.

    Attributes:
        servers: a lane a replica.
    """

    def __init__(self, run: CalendarRun, rules: Footprints, sums: Sums | None = None) -> None:
        self._run, self._rules = run, rules
        retries = Limits(run.scenario.load.patience, run.table, run.seed).retries[run.served]
        rounds = range(1 + int(retries.max(initial=0)))
        self._of_round = [run.served[retries >= nth] for nth in rounds]
        self._begin = np.cumsum([0, *map(len, self._of_round)]).tolist()
        self._order: I64 = np.concatenate(self._of_round)
        self._lanes = _AttemptLanes(run, rules, clocked=True, among=True, order=self._order)
        self._places = self._lanes.places
        self._attempts = array("q", [0]) * len(run.table)
        self._replica = array("q", [0]) * len(self._order)
        self._arrived_s = array("d", [nan]) * len(self._order)
        self._history = History(self._order, {} if sums is None else sums)
        self._harvest: AttemptHarvest | None = None
        self.servers = cast("list[PatientServer]", self._lanes.servers)
        for server in self.servers:
            server.history, server.arrived_s = self._history, self._arrived_s

    def accepts(self, row: int, now: float) -> bool:
        """Whether a request that arrives at `now` can be served."""
        return self._lanes.accepts(row, now)

    def assign(self, row: int, replica: int) -> None:
        """Notes which replica a request goes to: another attempt begins."""
        nth = self._attempts[row]
        self._attempts[row] = nth + 1
        if nth:
            index = int(np.searchsorted(self._of_round[nth], row))
            self._places[row] = self._begin[nth] + index
        self._replica[self._places[row]] = replica
        self._lanes.assign(row, replica)

    def send_away(self, row: int) -> None:
        """A request which might have come has gone elsewhere: nothing is known of it here."""

    def withdrawn(self, row: int, reason: str) -> None:
        """Where replicas fail they are stepped."""
        raise AssertionError(reason)

    def begins_anew(self, row: int) -> None:
        """Notes that a request that ended too late is sent once more."""
        if self._attempts[row]:
            self._history.note(self._places[row], True, None)

    def goes_again(self, row: int) -> None:
        """Notes that a request which is sent once more is nowhere until it comes."""

    def settle(self) -> None:
        """Every turn has been taken: notes what each attempt came to; of several pools before any `ran`."""
        lives = self._lanes.lives
        for place in np.flatnonzero(lives.first == NOT_YET).tolist():
            lives.send_away(place)
        arrived_s, replica = np.array(self._arrived_s), np.array(self._replica)
        self._harvest = harvest = AttemptHarvest(self._run, self._rules, self._order, arrived_s, replica)
        self._lanes.bring_in(harvest)
        harvest.let_go(self._history.past)
        current = np.where(np.array(self._attempts) > 0, np.array(self._places), -1)
        self._found = harvest.by_request(self._history, current, np.array(self._lanes.arrived_s))

    def ran(self, client: Client) -> Ran:
        """Returns what the lanes did, and what the client saw."""
        if self._harvest is None:
            self.settle()
        assert self._harvest is not None
        requests, tries = self._found
        refusals = dict(self._run.refusals())
        found, attempts = tries.merged(requests | client.times(), client, refusals)
        return replace(self._harvest.ran(), requests=found, attempts=attempts, refusals=refusals)
