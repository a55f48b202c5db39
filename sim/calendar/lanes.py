"""Replicas on the calendar: lanes in the place of engines."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from heapq import heappop, heappush
from math import inf, nan
from typing import Protocol

import numpy as np
import numpy.typing as npt

from specfleet.sim.calendar.columns import Places
from specfleet.sim.calendar.fleet import USUAL, Fleet
from specfleet.sim.calendar.footprints import Footprints
from specfleet.sim.calendar.harvest import Harvest
from specfleet.sim.calendar.lane import Lane, Turns
from specfleet.sim.calendar.luck import F64
from specfleet.sim.calendar.plan import CalendarRun
from specfleet.sim.calendar.rows.fleet import RowFleet
from specfleet.sim.calendar.rows.lane import RowLane
from specfleet.sim.calendar.rows.lives import RowLives
from specfleet.sim.calendar.trajectories import Trajectories
from specfleet.sim.calendar.watch import Watch
from specfleet.sim.clients import Answer
from specfleet.sim.errors import Unsuited
from specfleet.sim.router import Counting
from specfleet.sim.scenario import Ran

AnyLane = Lane | RowLane


class LaneServer:
    """A lane in a replica.

    Args:
        lane: the engine.
        lives: its requests.
        places: index of each row among them.

    Attributes:
        walk: the lane's iterations; it yields when the next one is due, and is sent until when to go on.
    """

    def __init__(self, lane: AnyLane, lives: Trajectories | RowLives, places: array[int]) -> None:
        self.lane = lane
        self._lives = lives
        self._places = places
        self.walk = lane.run()
        next(self.walk)

    def submit(self, row: int, now: float) -> None:
        """Puts a request into the lane's inbox at `now`."""
        self.lane.submit(self._places[row], now)

    def advance(self, now: float, until: float) -> float:
        """Takes every turn before `until`, or until somebody has ended whom others wait for."""
        return self.walk.send(until)

    def kv_usage(self) -> float:
        """Returns the share of the engine's KV blocks in use."""
        used, total = self.lane.blocks_used(), self.lane.crowd.rules.usable_blocks
        return 1.0 - (total - used) / total

    def answers(self) -> Iterator[Answer]:
        """Yields who has ended since the last call."""
        lane, lives = self.lane, self._lives
        ended, lane.ends.ended = lane.ends.ended, []
        for place, first_rank, last_rank in ended:
            first_s = lane.log.end_s[lives.first[place]]
            yield Answer(int(lives.order[place]), first_s, first_rank, lane.ends.turn_s, last_rank)


class Lanes:
    """The lanes of all replicas, which share their requests.

    Args:
        run: that is about to begin.
        rules: of its engines.
        clocked: somebody waits for each end, on a clock; or else ends are counted.
        among: requests may go to other pools instead.
        order: the row of each place; None is a place each that is served.

    Attributes:
        servers: a lane a replica.
        places: index of each row among those of the fleet; -1 of those that are refused.
        watches: who ends there, a watch a replica.
        arrived_s: when each request of the table has arrived; nan of the others.
    """

    serves: type[LaneServer] = LaneServer
    kinds = USUAL

    def __init__(
        self,
        run: CalendarRun,
        rules: Footprints,
        clocked: bool,
        among: bool = False,
        order: npt.NDArray[np.int64] | None = None,
    ) -> None:
        self._run, self._rules = run, rules
        replicas = run.scenario.deployment.replicas
        usual = self.kinds is USUAL
        if run.by_rows and run.looks_at_requests and not usual:
            raise Unsuited("drafts that depend on other rows, where KV is handed over")
        self._fleet: Fleet | RowFleet
        if run.by_rows and usual:
            self._fleet = RowFleet(run, rules, run.served)
        else:
            self._fleet = Fleet(run, rules, run.served if order is None else order, replicas, self.kinds)
        fleet = self._fleet
        self.places = _places(run) if clocked or among else array("q")
        self.arrived_s = array("d", [nan]) * len(self.places)
        ranks = clocked and run.scenario.client.chunk_s != 0.0
        self.watches = [Watch(ranks) for _ in range(replicas)]
        lanes = [
            fleet.lane(array("q"), array("d"), index, index, watch, clocked, not clocked)
            for index, watch in enumerate(self.watches)
        ]
        self.servers = [self.serves(lane, fleet.lives, self.places) for lane in lanes]

    def accepts(self, row: int, now: float) -> bool:
        """Whether a request that arrives at `now` can be served."""
        self.arrived_s[row] = now
        return self.places[row] >= 0

    def between_arrivals(self, arrived_s: list[float], router: Counting) -> None:
        """Runs requests that come whatever happens: nothing but an arrival looks at a lane, so each runs on
        alone until the next one, and no clock is needed.

        Args:
            arrived_s: when each request that is served arrives.
            router: asks for the number of requests outstanding.
        """
        sites = Sites(dict(enumerate(zip(self.servers, self.watches, strict=True))))
        rows = self._run.served.tolist()
        lane_of = self.lane_of(len(arrived_s))
        for place, now in enumerate(arrived_s):
            sites.run_until(now)
            index = router.choose(rows[place], sites.outstanding)
            lane_of[place] = index
            sites.submit(index, place, now)
        sites.finish()

    def send_away(self, row: int) -> None:
        """Notes that a request which might have come has gone to another pool, or nowhere."""
        self._fleet.lives.send_away(self.places[row])

    def place(self, row: int) -> int:
        """Returns the place of a request, where `among` others."""
        return self.places[row]

    def lane_of(self, requests: int) -> npt.NDArray[np.int32]:
        """Returns where the lane of each of so many requests is to be noted."""
        lane_of = np.zeros(requests, dtype=np.int32)
        if self._fleet.ledger is not None:
            self._fleet.ledger.lane_of = lane_of
        return lane_of

    def assign(self, row: int, replica: int) -> None:
        """Notes which replica a request goes to."""
        if self._fleet.ledger is not None:
            self._fleet.ledger.lane_of[self.places[row]] = replica

    def ran(self, sent_s: F64, arrived_s: F64 | None = None) -> Ran:
        """Returns what the lanes did.

        Args:
            sent_s: when each request was sent.
            arrived_s: when it arrived; None: as `accepts` was told.
        """
        if arrived_s is None:
            arrived_s = np.frombuffer(self.arrived_s)
        del self.places[:]
        harvest = Harvest(self._run, self._rules, sent_s, arrived_s)
        self.bring_in(harvest)
        return harvest.ran()

    def bring_in(self, harvest: Harvest) -> None:
        """Hands over what the lanes did."""
        self._fleet.lives.settle()
        for server in self.servers:
            server.lane.waiting.forget_times()
            if server.lane.inbox:
                harvest.add(server.lane, self._places_of(server.lane))
        harvest.add_rounds(self._fleet.ledger)

    def _places_of(self, lane: AnyLane) -> Places:
        """Returns the requests of a lane, in order of arrival; a slice if it had all, in their own order."""
        places = np.asarray(lane.inbox, dtype=np.int64)
        if len(places) == len(self._fleet.lives.order) and (places[1:] > places[:-1]).all():
            return slice(None)
        return places


class Walked(Protocol):
    """A lane that is walked."""

    @property
    def lane(self) -> AnyLane:
        """The engine."""
        ...

    @property
    def walk(self) -> Turns:
        """Its iterations."""
        ...


class Sites:
    """Lanes that nothing but an arrival looks at: each runs on alone until the next one.

    Args:
        there: the lanes with the watches of their ends, by number; who is sent nobody may be left out.

    Attributes:
        outstanding: requests at each lane that have not ended.
    """

    def __init__(self, there: Mapping[int, tuple[Walked, Watch]]) -> None:
        self._lanes = {number: server.lane for number, (server, _) in there.items()}
        self._advance = {number: server.walk.send for number, (server, _) in there.items()}
        self._watches = {number: watch for number, (_, watch) in there.items()}
        self.outstanding = [0] * (1 + max(there))
        self._due: list[tuple[float, int]] = []
        self._next = [inf] * len(self.outstanding)

    def run_until(self, now: float) -> None:
        """Takes every turn that is due before `now`."""
        due, following = self._due, self._next
        while due and due[0][0] < now:
            then, index = heappop(due)
            if then == following[index]:  # else it has been taken back since
                self._advanced(index, now)

    def _advanced(self, index: int, until: float) -> float:
        """Takes a lane's turns before a time; returns when its next one is due."""
        self._next[index] = then = self._advance[index](until)
        self.outstanding[index] -= self._watches[index].count(self._lanes[index].committed)
        if then < inf:
            heappush(self._due, (then, index))
        return then

    def submit(self, index: int, place: int, now: float) -> None:
        """Hands a request that arrives at `now` to a lane, which may have run ahead of it."""
        self.outstanding[index] += 1
        self._lanes[index].submit(place, now)
        if self._next[index] == inf:
            self._next[index] = now
            heappush(self._due, (now, index))
        else:
            self.rested(index)

    def rested(self, index: int) -> None:
        """Learns that a lane may have taken back what it ran ahead."""
        due = self._lanes[index].at.now
        if due != self._next[index] < inf:
            self._next[index] = due
            heappush(self._due, (due, index))

    def finish(self) -> None:
        """Takes every turn that is left."""
        for index, then in enumerate(self._next):
            while then < inf:
                then = self._advanced(index, inf)


def _places(run: CalendarRun) -> array[int]:
    """Returns the index of each row among those that are served; -1 of those that are not."""
    place_of = np.full(len(run.table), -1)
    place_of[run.served] = np.arange(len(run.served))
    places = array("q")
    places.frombytes(place_of.data.cast("B"))
    return places
