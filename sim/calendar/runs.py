"""The calendar: the same run as stepping, without touching a sequence in every iteration.

What `on_the_calendar` returns equals what stepping gives, to the last bit.
"""

from __future__ import annotations

import gc
from array import array
from contextlib import suppress
from math import inf

import numpy as np

from specfleet.sim.calendar.fleet import Fleet
from specfleet.sim.calendar.footprints import Footprints
from specfleet.sim.calendar.harvest import Harvest
from specfleet.sim.calendar.lanes import Lanes
from specfleet.sim.calendar.luck import F64, I64
from specfleet.sim.calendar.patience.lanes import PatientLanes
from specfleet.sim.calendar.plan import CalendarRun
from specfleet.sim.calendar.rows.fleet import RowFleet
from specfleet.sim.calendar.sglang.runs import sglang_apart, sglang_on_the_calendar
from specfleet.sim.calendar.taken import taken
from specfleet.sim.cluster import Cluster, OpenArrivals
from specfleet.sim.errors import Unsuited
from specfleet.sim.router import ROUTERS, Counting
from specfleet.sim.scenario import Ran, Scenario
from specfleet.sim.speculation.lives import Lives
from specfleet.workloads.requests import RequestTable

MANY = 50_000
"""Requests of a run whose memory is given back as soon as it has ended: its parts refer to each other."""


def on_the_calendar(scenario: Scenario, table: RequestTable, seed: int, lives: Lives | None) -> Ran:
    """Runs a scenario.

    Args:
        scenario: the configuration.
        table: the requests.
        seed: of luck and random routing.
        lives: luck of the requests; None without speculation.

    Raises:
        Unsuited: it has to be stepped, and why.
    """
    run, rules = taken(scenario, table, seed, lives)
    if run.alone:
        loop, replicas = OpenArrivals(scenario, seed), scenario.deployment.replicas
        times = loop.times(table.arrival_s)
        return apart(run, rules, times, loop.replicas(run.served) if replicas > 1 else None)
    if rules is None:
        return sglang_on_the_calendar(run)
    if run.patient:
        return _patient(run, rules)
    counts = not run.waits_for_answers and issubclass(ROUTERS[scenario.deployment.router], Counting)
    return _counted(run, rules) if counts else _clocked(run, rules)


def why_given_up(scenario: Scenario, table: RequestTable, seed: int, lives: Lives | None) -> str:
    """Returns why a run that the calendar begins is stepped after all; empty where it comes to its end.

    It is run on the calendar alone, so that takes microseconds a request. Arguments as `on_the_calendar`.
    """
    try:
        on_the_calendar(scenario, table, seed, lives)
    except Unsuited as reason:
        return str(reason)
    return ""


def _clocked(run: CalendarRun, rules: Footprints) -> Ran:
    """Runs a closed or capped loop, or sessions, where an answer lets the next request go."""
    lanes = Lanes(run, rules, clocked=True)
    cluster = Cluster(run.scenario, run.table, run.seed, lanes)
    cluster.run()
    sent_s = cluster.client.times()["sent_s"]
    if len(run.table) >= MANY:  # what the cluster kept of each is not needed beside the columns of all
        del cluster
        gc.collect()
    return lanes.ran(sent_s)


def _patient(run: CalendarRun, rules: Footprints) -> Ran:
    """Runs requests that their clients may give up."""
    lanes = PatientLanes(run, rules)
    cluster = Cluster(run.scenario, run.table, run.seed, lanes)
    cluster.run()
    return lanes.ran(cluster.client)


def _counted(run: CalendarRun, rules: Footprints) -> Ran:
    """Runs an open loop behind a router that asks for the number of requests outstanding."""
    loop, lanes = OpenArrivals(run.scenario, run.seed), Lanes(run, rules, clocked=False)
    sent_s, arrived_s = loop.times(run.table.arrival_s)
    assert isinstance(loop.router, Counting)
    lanes.between_arrivals(arrived_s[run.served].tolist(), loop.router)
    return lanes.ran(sent_s, arrived_s)


def apart(run: CalendarRun, rules: Footprints | None, times: tuple[F64, F64], chosen: I64 | None) -> Ran:
    """Runs requests that come whatever happens behind a router that asks nobody: each replica alone.

    Args:
        run: that is about to begin.
        rules: of its engines; None where they are SGLang's.
        times: when each request of the table is sent, and when it arrives.
        chosen: the replica of each that is served; None where there is one.
    """
    if rules is None:
        return sglang_apart(run, times, chosen)
    sent_s, arrived_s = times
    harvest = Harvest(run, rules, sent_s, arrived_s)
    for replica in range(run.scenario.deployment.replicas):
        rows = run.served if chosen is None else run.served[chosen == replica]
        if not len(rows):
            continue
        due = array("d")
        due.frombytes(arrived_s[rows].data.cast("B"))
        fleet = RowFleet(run, rules, rows) if run.by_rows else Fleet(run, rules, rows)
        lane = fleet.lane(range(len(rows)), due, replica)
        walk = lane.run()
        next(walk)
        with suppress(StopIteration):
            walk.send(inf)
        fleet.lives.settle()
        del due, walk
        harvest.add(lane, slice(None) if isinstance(lane.inbox, range) else np.array(lane.inbox))
        harvest.add_rounds(fleet.ledger)
    return harvest.ran()
