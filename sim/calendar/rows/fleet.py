"""Builds the lanes that go row by row and share a list of requests."""

from __future__ import annotations

from array import array

from specfleet.sim.calendar.ends import Ends
from specfleet.sim.calendar.footprints import Footprints
from specfleet.sim.calendar.luck import I64
from specfleet.sim.calendar.plan import CalendarRun
from specfleet.sim.calendar.rows.crowd import RowCrowd, RowLine
from specfleet.sim.calendar.rows.lane import RowLane
from specfleet.sim.calendar.rows.lives import RowLives
from specfleet.sim.calendar.watch import Watch


class RowFleet:
    """As `calendar.fleet.Fleet`, of lanes that go row by row.

    Args:
        plan: the run. rules: of its engines.
        rows: their requests; a *place* is an index into it.
    """

    ledger = None

    def __init__(self, plan: CalendarRun, rules: Footprints, rows: I64) -> None:
        self.plan, self._rules = plan, rules
        self.lives = RowLives(plan, rows)

    def lane(
        self,
        inbox: array[int] | range,
        arrived_s: array[float],
        replica: int,
        lane: int = 0,
        watch: Watch | None = None,
        stops: bool = False,
        runs_ahead: bool = False,
    ) -> RowLane:
        """As `Fleet.lane`; it never runs ahead of an arrival."""
        plan, waiting = self.plan, RowLine(inbox, arrived_s)
        waiting.thrown_out = []
        crowd = RowCrowd(plan.config, self._rules.window, self.lives, waiting)
        policy = plan.make_policy()
        assert policy is not None
        return RowLane(plan.scenario.cost, crowd, policy, Ends(watch, stops), replica)
