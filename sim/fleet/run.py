"""A run of several pools: each on the calendar where that understands it, on one clock where answers, or the
router, look at all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from specfleet.sim.attempts import Story
from specfleet.sim.calendar.footprints import Footprints
from specfleet.sim.calendar.gate import FALLIBLE
from specfleet.sim.calendar.lanes import Lanes, Sites
from specfleet.sim.calendar.patience.lanes import PatientLanes
from specfleet.sim.calendar.plan import CalendarRun
from specfleet.sim.calendar.runs import apart
from specfleet.sim.calendar.sglang.retraction import Retracts
from specfleet.sim.calendar.sglang.runs import SglangLanes
from specfleet.sim.calendar.taken import taken
from specfleet.sim.cluster import Cluster, OpenArrivals
from specfleet.sim.errors import ASKED_FOR, Unsuited
from specfleet.sim.fleet.gateway import Gateway
from specfleet.sim.fleet.groups import REFUSED, GroupRouter, Groups
from specfleet.sim.fleet.join import Ways, joined
from specfleet.sim.fleet.scalers import Scalers, Surroundings
from specfleet.sim.fleet.scaling import LOOKS
from specfleet.sim.fleet.servers import PoolServers
from specfleet.sim.fleet.tries import Sums
from specfleet.sim.laws.everywhere import check_alike
from specfleet.sim.laws.scaling import check_scaling
from specfleet.sim.recorder import Recorder
from specfleet.sim.scenario import Ran, RunResult, Scenario
from specfleet.sim.speculation.lives import Lives
from specfleet.sim.speculation.oracle import foreseen
from specfleet.sim.stepped import Engines, EngineServer
from specfleet.workloads.requests import RequestTable

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class PartRun:
    """A pool that is about to run.

    Attributes:
        scenario: of the pool alone.
        lives: luck of the requests there; None without speculation.
        rows: the requests that may come.
        run, rules: on the calendar, as `runs.taken` gives them; None where it is stepped.
        because: why it is stepped; empty where it is not, or where nobody comes.
    """

    scenario: Scenario
    lives: Lives | None
    rows: I64
    run: CalendarRun | None
    rules: Footprints | None
    because: str


def simulate_pools(
    scenario: Scenario, table: RequestTable, seed: int, engine: str = "auto", every_turn: bool = False
) -> RunResult:
    """Simulates requests on several pools; arguments, result and errors as `simulation.simulate`."""
    pools = [replace(pool, cost=foreseen(scenario.part(pool)).cost) for pool in scenario.pools]
    scenario = replace(scenario, pools=tuple(pools))
    fleet = PooledRun(scenario, table, seed)
    because, result = ASKED_FOR, None
    if engine == "auto":
        try:
            result = fleet.run()
        except Unsuited as unsuited:  # what only a run can show: all pools are stepped then
            because = str(unsuited)
    if result is None or (every_turn and result.stepped_share < 1.0):
        stepped = fleet.stepped(because, every_turn)
        if result is None:
            return stepped
        check_alike(result, stepped)
    return result


def why_pools_stepped(scenario: Scenario, table: RequestTable, seed: int) -> str:
    """Returns why pools would be stepped; empty where the calendar begins all of them. Runs nothing."""
    return PooledRun(scenario, table, seed).because()


class PooledRun:
    """Requests in front of several pools.

    Args:
        scenario: the configuration.
        table: the requests.
        seed: of luck and random routing.
    """

    def __init__(self, scenario: Scenario, table: RequestTable, seed: int) -> None:
        self.scenario, self.table, self.seed = scenario, table, seed
        self.groups = Groups(scenario, table)
        waits = scenario.load.max_concurrency is not None or table.think_s is not None
        self._open = not waits and not scenario.load.patience

    def run(self) -> RunResult:
        """Runs each pool on the calendar where that understands it."""
        fails = bool(self.groups.fallible)
        if self._open and self.groups.blind and not fails:
            chosen = GroupRouter(self.groups, self.seed).picks()
            chosen[self.groups.of == REFUSED] = -1
            where = np.where(chosen >= 0, self.groups.pool_of[chosen], -1)
            parts = [self._part(index, np.flatnonzero(where == index)) for index in range(self._count)]
            if not any(part.because for part in parts):
                return self._apart(parts, chosen)
        parts = [self._part(index, self.groups.rows_of(index)) for index in range(self._count)]
        on_lanes = all(part.rules is not None or not len(part.rows) for part in parts)
        if self._open and self.groups.counts and on_lanes and not fails:
            return self._counted(parts)
        try:
            return self._clocked(parts, every_turn=False)
        except Retracts:
            return self._clocked(parts, every_turn=False, retracts=True)

    def because(self) -> str:
        """Returns why pools would be stepped, as `run` finds it."""
        return self._because([self._part(index, self.groups.rows_of(index)) for index in range(self._count)])

    def stepped(self, because: str, every_turn: bool) -> RunResult:
        """Steps every engine; `every_turn` checks laws after each turn."""
        found = []
        for index in range(self._count):
            part = self._alone(index)
            rows = self.groups.rows_of(index)
            found.append(PartRun(part, self._lives(part), rows, None, None, because))
        return self._clocked(found, every_turn)

    @property
    def _count(self) -> int:
        return len(self.scenario.pools)

    def _alone(self, index: int) -> Scenario:
        return self.groups.part(index)

    def _lives(self, part: Scenario) -> Lives | None:
        k = part.engine.num_speculative_tokens
        return Lives(part.acceptance, self.table, k, self.seed) if k and part.acceptance else None

    def _part(self, index: int, rows: I64) -> PartRun:
        """Returns a pool with the requests that may come there, on the calendar if it takes them."""
        part = self._alone(index)
        lives = self._lives(part)
        if not len(rows):
            return PartRun(part, lives, rows, None, None, "")
        if index in self.groups.fallible:
            return PartRun(part, lives, rows, None, None, FALLIBLE)
        if self.groups.looks and part.engine.sglang is not None:
            because = f"the router {self.scenario.deployment.router} looks into engines"
            return PartRun(part, lives, rows, None, None, because)
        if because := self._scaled_by_engines(index, part):
            return PartRun(part, lives, rows, None, None, because)
        try:
            run, rules = taken(part, self.table, self.seed, lives, rows)
        except Unsuited as unsuited:
            return PartRun(part, lives, rows, None, None, str(unsuited))
        return PartRun(part, lives, rows, run, rules, "")

    def _scaled_by_engines(self, index: int, part: Scenario) -> str:
        """Why an autoscaler needs engines that are stepped; empty where it does not."""
        config = self.scenario.pools[index].autoscale
        if config is None:
            return ""
        if config.on in LOOKS:
            return f"autoscaling on {config.on} looks into engines"
        shares = part.engine.enable_prefix_caching and self.table.segment_offset is not None
        if shares or part.policy is not None:
            kept = "prefix cache" if shares else "draft policy"
            return f"a replica that is ordered again starts with a new {kept}"
        return ""

    def _apart(self, parts: Sequence[PartRun], chosen: I64) -> RunResult:
        """Runs requests that come whatever happens, each replica alone."""
        times = OpenArrivals(self.scenario, self.seed).times(self.table.arrival_s)
        local = np.where(chosen >= 0, self.groups.local[chosen], 0)
        rans = [
            _idle(part, len(self.table))
            if part.run is None
            else apart(part.run, part.rules, times, local[part.rows])
            for part in parts
        ]
        return joined(self.groups, self.seed, rans, Ways(*times, chosen, self.groups.refusals()), because="")

    def _counted(self, parts: Sequence[PartRun]) -> RunResult:
        """Runs requests that come whatever happens behind a router that asks for the number outstanding."""
        sent_s, arrived_s = OpenArrivals(self.scenario, self.seed).times(self.table.arrival_s)
        lanes = [
            None
            if part.run is None or part.rules is None
            else Lanes(part.run, part.rules, clocked=False, among=True)
            for part in parts
        ]
        chosen = self._between_arrivals(parts, lanes, arrived_s)
        went = set(self.groups.pool_of[chosen[chosen >= 0]].tolist())
        rans = [
            _idle(part, len(self.table)) if lane is None or index not in went else lane.ran(sent_s, arrived_s)
            for index, (part, lane) in enumerate(zip(parts, lanes, strict=True))
        ]
        ways = Ways(sent_s, arrived_s, chosen, self.groups.refusals())
        return joined(self.groups, self.seed, rans, ways, because="")

    def _between_arrivals(
        self, parts: Sequence[PartRun], lanes: Sequence[Lanes | None], arrived_s: F64
    ) -> I64:
        """Runs the lanes from arrival to arrival; returns each request's replica, -1 of those refused."""
        of = list(zip(self.groups.pool_of.tolist(), self.groups.local.tolist(), strict=True))
        there = {}
        for number, (pool, local) in enumerate(of):
            if (own := lanes[pool]) is not None:
                there[number] = (own.servers[local], own.watches[local])
        sites = Sites(there)
        noted = [
            None if lane is None else lane.lane_of(len(part.rows))
            for lane, part in zip(lanes, parts, strict=True)
        ]
        router = GroupRouter(self.groups, self.seed)
        chosen = np.full(len(self.table), -1)
        for row, (now, group) in enumerate(zip(arrived_s.tolist(), self.groups.of.tolist(), strict=True)):
            if group == REFUSED:
                continue
            sites.run_until(now)
            chosen[row] = replica = router.choose(row, sites.outstanding)
            pool, local = of[replica]
            for other in self.groups.pools[group]:
                lane, lane_of = lanes[other], noted[other]
                assert lane is not None
                assert lane_of is not None
                if other == pool:
                    place = lane.place(row)
                    lane_of[place] = local
                    sites.submit(replica, place, now)
                else:
                    lane.send_away(row)
        sites.finish()
        return chosen

    def _clocked(self, parts: Sequence[PartRun], every_turn: bool, retracts: bool = False) -> RunResult:
        """Runs all pools on one clock; `retracts`: as `SglangFleet`."""
        inside: list[Lanes | PatientLanes | SglangLanes | Engines] = []
        stories: dict[int, Story] = {}
        sums: Sums = {}
        for part in parts:
            if part.run is None:
                inside.append(Engines(part.scenario, self.table, part.lives, every_turn, stories, sums))
            elif part.rules is None:
                inside.append(SglangLanes(part.run, retracts))
            elif part.run.patient:
                inside.append(PatientLanes(part.run, part.rules, sums))
            else:
                inside.append(Lanes(part.run, part.rules, clocked=True))
        servers = PoolServers(self.groups, inside)
        router = GroupRouter(self.groups, self.seed)
        cluster = Cluster(self.scenario, self.table, self.seed, servers, router)
        router.up = None if cluster.failures is None else cluster.failures.up
        gateway = self._gateway(cluster, servers, router)
        scalers = self._scalers(cluster, servers, router, gateway, inside)
        cluster.run()
        sent_s = cluster.client.times()["sent_s"]
        chosen = np.array(servers.replica_of)
        went = set(self.groups.pool_of[chosen[chosen >= 0]].tolist())
        for mine in inside:
            if isinstance(mine, PatientLanes):
                mine.settle()
        rans = []
        for index, (part, mine) in enumerate(zip(parts, inside, strict=True)):
            if isinstance(mine, Engines | PatientLanes):
                rans.append(mine.ran(cluster.client))
            else:
                rans.append(mine.ran(sent_s) if index in went else _idle(part, len(self.table)))
        refusals = self.groups.refusals()
        ways = Ways(sent_s, np.array(servers.arrived_s), chosen, refusals)
        if gateway is not None:
            refusals |= gateway.refusals
            ways = replace(ways, status=gateway.status, attempts=gateway.attempts, gateway=True)
        ways = replace(ways, outages=cluster.outages())
        result = joined(self.groups, self.seed, rans, ways, self._because(parts))
        if scalers is None:
            return result
        logs = scalers.logs()
        scaled = [replace(part, scaling=logs.get(index)) for index, part in enumerate(result.parts)]
        result = replace(result, parts=tuple(scaled))
        check_scaling(result)
        return result

    def _scalers(
        self,
        cluster: Cluster,
        servers: PoolServers,
        router: GroupRouter,
        gateway: Gateway | None,
        inside: Sequence[Lanes | PatientLanes | SglangLanes | Engines],
    ) -> Scalers | None:
        """Lets autoscalers decide which replicas are up, of pools that have one."""
        if all(pool.autoscale is None for pool in self.scenario.pools):
            return None

        def restarted(replica: int) -> None:
            mine = inside[int(self.groups.pool_of[replica])]
            if isinstance(mine, Engines):
                mine.restart(int(self.groups.local[replica]))

        probes = [server if isinstance(server, EngineServer) else None for server in servers.servers]
        around = Surroundings(self.groups, router, gateway, probes, restarted, self.seed)
        cluster.scaler = scalers = Scalers(cluster, around)
        return scalers

    def _gateway(self, cluster: Cluster, servers: PoolServers, router: GroupRouter) -> Gateway | None:
        """Puts the gateway before the router, if the deployment has one."""
        config = self.scenario.deployment.gateway
        if config is None:
            return None

        def ended(row: int, now: float) -> None:
            servers.send_away(row, now)
            cluster.refused(row, now)
            if cluster.failures is not None:
                servers.turned_away(row)
                cluster.failures.ended(row, now)

        cluster.gateway = gateway = Gateway(
            cluster.env,
            config,
            self.scenario.client,
            self.groups,
            router,
            cluster.views,
            cluster.clock,
            cluster.send,
            ended,
            lambda row: cluster.closed[row] > 0,
        )
        return gateway

    def _because(self, parts: Sequence[PartRun]) -> str:
        """Why pools are stepped, by name; once where all are for one reason."""
        reasons = {
            pool.name: part.because
            for pool, part in zip(self.scenario.pools, parts, strict=True)
            if part.because
        }
        if len(set(reasons.values())) == 1 and len(reasons) == len({p.name for p in self.scenario.pools}):
            return next(iter(reasons.values()))
        return "; ".join(f"pool {name}: {reason}" for name, reason in reasons.items())


def _idle(part: PartRun, n: int) -> Ran:
    """Returns what a pool leaves behind to which nobody went."""
    recorder = Recorder(n, part.scenario.engine.num_speculative_tokens + 1)
    return Ran(
        recorder.requests(),
        recorder.iterations(),
        recorder.odd_gaps(),
        tuple(recorder.rounds_by_accepted),
        {},
    )
