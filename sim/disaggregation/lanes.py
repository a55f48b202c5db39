"""Replicas that decode prompts computed elsewhere, on the calendar: lanes in the place of stepped engines."""

from __future__ import annotations

from array import array
from dataclasses import replace
from math import inf
from typing import cast

from specfleet.sim.calendar.fleet import LaneKinds
from specfleet.sim.calendar.footprints import Footprints
from specfleet.sim.calendar.lane import Lane
from specfleet.sim.calendar.lanes import Lanes, LaneServer
from specfleet.sim.calendar.plan import CalendarRun
from specfleet.sim.calendar.trajectories import Trajectories
from specfleet.sim.clients import Client
from specfleet.sim.disaggregation.remote import RemoteCrowd, RemoteKV, RemoteLane, RemoteLine
from specfleet.sim.disaggregation.servers import Standstills, Takes, joined_standstills
from specfleet.sim.scenario import Ran
from specfleet.sim.sequence import Sequence


class RemoteServer(LaneServer):
    """A lane of either kind of K, whose requests' KV comes from elsewhere; arguments as `LaneServer`.

    Attributes:
        standing: when it stood still.
        told: who wants to know what becomes of KV.
        arrived_s: when each request of the table has reached it; nan of the others.
    """

    told: Takes
    arrived_s: array[float]

    def __init__(self, lane: Lane, lives: Trajectories, places: array[int]) -> None:
        super().__init__(lane, lives, places)
        assert isinstance(lane.waiting, RemoteLine)
        self._line, self._row = lane.waiting, lives.order
        self.standing = Standstills()

    def submit(self, row: int, now: float) -> None:
        """As `LaneServer.submit`."""
        self.arrived_s[row] = now
        super().submit(row, now)

    def advance(self, now: float, until: float) -> float:
        """As `LaneServer.advance`; takes no turn behind one of which somebody has to be told."""
        self.standing.end(now)
        line = self._line
        line.woken_s = now
        due = super().advance(now, until)
        if line.opened:
            opened, line.opened = line.opened, []
            for place, time_s in opened:
                self.told.opened(int(self._row[place]), time_s)
        if due == inf:
            self.standing.begin(self.lane.at.now, len(line))
        return due

    @property
    def busy(self) -> bool:
        """Whether anybody is inside."""
        return self.lane.at.acc != 0 or len(self._line) > 0

    def arrived(self, row: int) -> None:
        """The KV of a prompt has come."""
        self._line.arrived(self._places[row])


class RemoteLanes(Lanes):
    """The lanes of a pool with requests whose KV comes from elsewhere; arguments as `Lanes`."""

    serves = RemoteServer
    kinds = LaneKinds(RemoteLine, RemoteCrowd, RemoteKV, RemoteLane)


class RoleLanes:
    """The lanes of a pool that decodes, in the place of `servers.RoleEngines`.

    Args:
        run: that is about to begin.
        rules: of its engines.

    Attributes:
        servers: a lane a replica.
    """

    def __init__(self, run: CalendarRun, rules: Footprints) -> None:
        self._lanes = RemoteLanes(run, rules, clocked=True, among=True)
        self._run = run
        self.servers = cast("list[RemoteServer]", self._lanes.servers)
        for server in self.servers:
            server.arrived_s = self._lanes.arrived_s

    def refusal(self, row: int) -> str | None:
        """Returns why a request could never be served here, or None."""
        if self._lanes.place(row) >= 0:
            return None
        table = self._run.table
        prompt, most = int(table.prompt_tokens[row]), int(table.max_tokens[row])
        return self._run.engine.refusal(Sequence(row, prompt, most))

    def send_away(self, row: int) -> None:
        """A request which might have come goes nowhere."""
        if self._lanes.place(row) >= 0:
            self._lanes.send_away(row)

    def assign(self, row: int, replica: int) -> None:
        """Notes which replica a request goes to."""
        self._lanes.assign(row, replica)

    def ran(self, client: Client) -> Ran:
        """Returns what the lanes did, and when they stood still."""
        ran = self._lanes.ran(client.times()["sent_s"])
        return replace(
            ran, refusals={}, standing=joined_standstills([server.standing for server in self.servers])
        )
