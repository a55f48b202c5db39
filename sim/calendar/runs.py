"""The calendar: the same run as `Cluster`, without touching a sequence in every iteration.

What `run` returns equals what stepping gives, to the last bit.
"""

from __future__ import annotations

from array import array
from contextlib import suppress
from heapq import heappop, heappush, heapreplace
from math import inf

import numpy as np

from specfleet.sim.calendar.clock import on_a_clock
from specfleet.sim.calendar.fleet import Fleet
from specfleet.sim.calendar.gate import stranger, why_not
from specfleet.sim.calendar.harvest import Harvest
from specfleet.sim.calendar.kv.interface import Unsuited
from specfleet.sim.calendar.luck import F64
from specfleet.sim.calendar.plan import CalendarRun
from specfleet.sim.calendar.trajectories import Rules
from specfleet.sim.calendar.watch import Watch
from specfleet.sim.router import ROUTERS, Blind, LeastOutstanding
from specfleet.sim.scenario import Ran, Scenario
from specfleet.sim.speculation.lives import Lives
from specfleet.workloads.requests import RequestTable


def run(scenario: Scenario, table: RequestTable, seed: int, lives: Lives | None) -> Ran:
    """Runs a scenario.

    Args:
        scenario: the configuration.
        table: the requests.
        seed: of luck and random routing.
        lives: luck of the requests; None without speculation.

    Raises:
        Unsuited: it has to be stepped, and why.
    """
    if reason := stranger(scenario, table, lives):
        raise Unsuited(reason)
    plan = CalendarRun(scenario, table, seed, lives)
    if reason := why_not(plan):
        raise Unsuited(reason)
    if (rules := plan.rules()) is None:
        raise Unsuited("counts that do not fit in one integer")
    if scenario.load.max_concurrency is not None:
        return on_a_clock(plan, rules)
    return _separately(plan, rules) if plan.alone else _balanced(plan, rules)


def _separately(plan: CalendarRun, rules: Rules) -> Ran:
    """Runs requests that come whatever happens, each replica alone from beginning to end."""
    scenario = plan.scenario
    sent_s, arrived_s = departures(plan)
    replicas, router = scenario.deployment.replicas, ROUTERS[scenario.deployment.router](plan.seed)
    chosen = router.picks(plan.served, replicas) if replicas > 1 and isinstance(router, Blind) else None
    harvest = Harvest(plan, rules, sent_s, arrived_s)
    for replica in range(replicas):
        rows = plan.served if chosen is None else plan.served[chosen == replica]
        if not len(rows):
            continue
        times = array("d")
        times.frombytes(arrived_s[rows].data.cast("B"))
        fleet = Fleet(plan, rules, rows)
        lane = fleet.lane(range(len(rows)), times, replica)
        walk = lane.run()
        next(walk)
        with suppress(StopIteration):
            walk.send(inf)
        fleet.lives.settle()
        del times, walk
        harvest.add(lane, slice(None))
        harvest.add_rounds(fleet.ledger)
    return harvest.ran()


def _balanced(plan: CalendarRun, rules: Rules) -> Ran:
    """Runs an open loop behind a router that asks for the number of requests outstanding.

    Nothing but an arrival looks at a replica, so each runs on alone until the next one.
    """
    replicas, router = plan.scenario.deployment.replicas, ROUTERS[plan.scenario.deployment.router](plan.seed)
    assert isinstance(router, LeastOutstanding)
    sent_s, arrived_s = departures(plan)
    fleet = Fleet(plan, rules, plan.served, replicas)
    watches = [Watch(ranks=False) for _ in range(replicas)]
    lanes = [
        fleet.lane([], array("d"), index, lane=index, watch=watch) for index, watch in enumerate(watches)
    ]
    walks = [lane.run() for lane in lanes]
    for walk in walks:
        next(walk)
    outstanding, asleep = [0] * replicas, [True] * replicas
    due: list[tuple[float, int]] = []
    lane_of = np.zeros(len(plan.served), dtype=np.int32)
    if fleet.ledger is not None:
        fleet.ledger.lane_of = lane_of
    for place, now in enumerate(arrived_s[plan.served].tolist()):
        while due and due[0][0] < now:
            index = due[0][1]
            then = walks[index].send(now)
            outstanding[index] -= watches[index].count(lanes[index].committed)
            if then == inf:
                asleep[index] = True
                heappop(due)
            else:
                heapreplace(due, (then, index))
        index = router.least(outstanding)
        outstanding[index] += 1
        lane_of[place] = index
        lanes[index].submit(place, now)
        if asleep[index]:
            asleep[index] = False
            heappush(due, (now, index))
    for _, index in due:
        while walks[index].send(inf) != inf:
            pass
    fleet.lives.settle()
    harvest = Harvest(plan, rules, sent_s, arrived_s)
    for lane in lanes:
        if lane.inbox:
            harvest.add(lane, np.array(lane.inbox))
    harvest.add_rounds(fleet.ledger)
    return harvest.ran()


def departures(plan: CalendarRun) -> tuple[F64, F64]:
    """Returns when the client sends each request, and when it reaches the cluster (open loop)."""
    client = plan.scenario.client
    sent_s: F64 = plan.table.arrival_s
    if client.send_serial_s:
        free, serial, times = 0.0, client.send_serial_s, []
        for due in plan.table.arrival_s.tolist():
            sent = due if due > free else free
            free = sent + serial
            times.append(sent)
        sent_s = np.array(times, dtype=np.float64)
    return sent_s, sent_s + client.send_s if client.send_s else sent_s
