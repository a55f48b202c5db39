"""A run in which prompts are computed on some replicas and decoded on others, from engines to one result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from specfleet.sim.calendar.harvest import by_end
from specfleet.sim.calendar.taken import taken
from specfleet.sim.disaggregation.cluster import HandingCluster, HandingServers
from specfleet.sim.disaggregation.config import PREFILL, STEPPED
from specfleet.sim.disaggregation.lanes import RoleLanes
from specfleet.sim.disaggregation.servers import RoleEngines
from specfleet.sim.disaggregation.transfers import COUNTS, TIMES
from specfleet.sim.errors import ASKED_FOR, Unsuited
from specfleet.sim.fleet.join import counts_of, numbered, result_of, sums_of, wide
from specfleet.sim.laws.everywhere import check_alike
from specfleet.sim.laws.handover import check_handover
from specfleet.sim.laws.whole import check_run
from specfleet.sim.recorder import FINISHED, REJECTED, REQUEST_COUNTS, REQUEST_TIMES, Columns
from specfleet.sim.router import ROUTERS, Looking
from specfleet.sim.scenario import Ran, RunResult, Scenario
from specfleet.sim.source import some_rows
from specfleet.sim.speculation.lives import Lives
from specfleet.sim.speculation.oracle import foreseen
from specfleet.workloads.requests import RequestTable

I64 = npt.NDArray[np.int64]


def simulate_disaggregated(
    scenario: Scenario, table: RequestTable, seed: int, engine: str = "auto", every_turn: bool = False
) -> RunResult:
    """Simulates requests whose KV is handed over; arguments, result and errors as `simulation.simulate`."""
    pools = [replace(pool, cost=foreseen(scenario.part(pool)).cost) for pool in scenario.pools]
    scenario = replace(scenario, pools=tuple(pools))
    because, result = ASKED_FOR, None
    if engine == "auto":
        try:
            result = _run(scenario, table, seed, _lanes(scenario, table, seed), STEPPED)
        except Unsuited as unsuited:
            because = str(unsuited)
    if result is None or every_turn:
        stepped = _run(scenario, table, seed, {}, because, every_turn)
        if result is None:
            return stepped
        check_alike(result, stepped)
    return result


def why_decoding_is_stepped(scenario: Scenario, table: RequestTable, seed: int) -> str:
    """Returns why replicas that decode would be stepped; empty where the calendar begins them."""
    try:
        _lanes(scenario, table, seed)
    except Unsuited as reason:
        return str(reason)
    return ""


def _lanes(scenario: Scenario, table: RequestTable, seed: int) -> dict[int, RoleLanes]:
    """Returns the lanes of pools that decode, by number of the pool.

    Raises:
        Unsuited: they have to be stepped, and why.
    """
    handover, found = scenario.deployment.handover, {}
    assert handover is not None
    if issubclass(ROUTERS[handover.router], Looking):
        raise Unsuited(f"the router {handover.router} looks into engines")
    for index, pool in enumerate(scenario.pools):
        if pool.role != PREFILL:
            part = scenario.part(pool)
            run, rules = taken(part, table, seed, _lives(part, table, seed))
            assert rules is not None, "SGLang's pools are not disaggregated"
            found[index] = RoleLanes(run, rules)
    return found


def _run(
    scenario: Scenario,
    table: RequestTable,
    seed: int,
    lanes: Mapping[int, RoleLanes],
    because: str,
    every_turn: bool = False,
) -> RunResult:
    """Runs pools on lanes, and steps those without.

    Raises:
        Unsuited: a lane cannot go on, and why.
    """
    prompts = prompts_of(table)
    parts: list[RoleEngines | RoleLanes] = []
    for index, pool in enumerate(scenario.pools):
        part = scenario.part(pool)
        mine, lives = (prompts, None) if pool.role == PREFILL else (table, _lives(part, table, seed))
        parts.append(lanes[index] if index in lanes else RoleEngines(part, mine, lives, every_turn))
    servers = HandingServers(scenario, parts, len(table))
    cluster = HandingCluster(scenario, table, seed, servers)
    cluster.run()
    rans = [part.ran(cluster.client) for part in parts]
    result = _joined(scenario, table, seed, rans, servers, cluster, because)
    check_handover(result, table)
    return result


def prompts_of(table: RequestTable) -> RequestTable:
    """Returns the requests as the replicas see them that compute prompts: of one token."""
    one = np.ones(len(table), dtype=np.int64)
    return replace(table, output_tokens=one, max_tokens=one)


def _lives(part: Scenario, table: RequestTable, seed: int) -> Lives | None:
    k = part.engine.num_speculative_tokens
    return Lives(part.acceptance, table, k, seed) if k and part.acceptance else None


def _joined(
    scenario: Scenario,
    table: RequestTable,
    seed: int,
    rans: Sequence[Ran],
    servers: HandingServers,
    cluster: HandingCluster,
    because: str,
) -> RunResult:
    """Returns the run, its parts beside it, each of which obeys the laws of a run of its own.

    Raises:
        Breach: a law does not hold.
    """
    requests = _columns(scenario, table, servers, cluster)
    names = list(dict.fromkeys(pool.name for pool in scenario.pools))
    found: dict[int, RunResult] = {}
    for index in sorted(range(len(rans)), key=lambda index: scenario.pools[index].role != PREFILL):
        pool, ran = scenario.pools[index], rans[index]
        computes = pool.role == PREFILL
        where = requests["prefill_replica"] if computes else servers.replica_of
        rows = np.flatnonzero((servers.replica_of >= 0) & np.isin(where, pool.members))
        mine = {name: column[rows] for name, column in ran.requests.items()}
        here = some_rows(prompts_of(table) if computes else table, rows)
        if computes:  # nobody sees what it samples
            mine |= {"first_chunk_s": mine["first_token_s"], "last_chunk_s": mine["finished_s"]}
            requests["cached_tokens"][rows] = mine["cached_tokens"]
            requests["admitted_s"][rows] = mine["admitted_s"]
        else:
            _take_in(requests, mine, rows)
            mine["cached_tokens"] = here.prompt_tokens - 1  # its KV came
            mine |= {name: requests[name][rows] for name in (*TIMES, "decode_admitted_s")}
            mine |= {f"prompt_{name}": requests[name][rows] for name in ("arrived_s", "admitted_s")}
            requests["replica"][rows] = servers.replica_of[rows]
            requests["pool"][rows] = names.index(pool.name)
        requests["preemptions"][rows] += mine["preemptions"]
        known = ("request_id", "class_id", "counted", "prompt_tokens")
        mine |= {name: requests[name][rows] for name in known} | {"max_tokens": here.max_tokens}
        part = result_of(scenario.part(pool), seed, ran, mine)
        check_run(part, here)
        found[index] = part
    parts = [found[index] for index in range(len(rans))]
    widest = max(part.iterations["gaps_by_tokens"].shape[1] for part in parts)
    members = [np.array(pool.members) for pool in scenario.pools]
    each = list(zip(parts, members, strict=True))
    return RunResult(
        scenario=scenario,
        seed=seed,
        requests=requests,
        iterations=by_end([wide(part.iterations, of, widest) for part, of in each]),
        odd_gaps=by_end([numbered(part.odd_gaps, of) for part, of in each]),
        rounds_by_accepted=sums_of([part.rounds_by_accepted for part in parts]),
        refusals=counts_of([servers.refusals]),
        steps_without_drafter=sum(part.steps_without_drafter for part in parts),
        stepped_share=_stepped_share(parts),
        stepped_because=because,
        parts=tuple(parts),
        standing=by_end([numbered(part.standing, of) for part, of in each]),
    )


def _stepped_share(parts: Sequence[RunResult]) -> float:
    """Returns the share of all iterations that were stepped."""
    each = [len(part.iterations["end_s"]) for part in parts]
    stepped = sum(count * part.stepped_share for count, part in zip(each, parts, strict=True))
    return stepped / max(sum(each), 1)


def _columns(
    scenario: Scenario, table: RequestTable, servers: HandingServers, cluster: HandingCluster
) -> Columns:
    """Returns the columns of requests of which no pool has said anything: those that were refused."""
    n = len(table)
    requests: Columns = {name: np.full(n, np.nan) for name in REQUEST_TIMES}
    requests |= {name: np.zeros(n, dtype=np.int64) for name in REQUEST_COUNTS}
    requests["status"][:] = REJECTED
    requests |= cluster.client.times() | {"arrived_s": servers.arrived_s, "pool": np.full(n, -1)}
    requests |= cluster.transfers.columns
    requests["decode_admitted_s"] = np.full(n, np.nan)
    requests |= {"request_id": np.arange(n), "class_id": table.class_id}
    requests |= {"prompt_tokens": table.prompt_tokens, "max_tokens": table.max_tokens}
    requests["counted"] = np.arange(n) >= scenario.load.num_warmups
    if table.think_s is not None:
        requests |= {"session_id": table.session_id, "turn": table.turn, "think_s": table.think_s}
    return requests


def _take_in(requests: Columns, mine: Columns, rows: I64) -> None:
    """Takes what the replicas that decode know of requests into the columns of the run."""
    for name in (*REQUEST_TIMES, *REQUEST_COUNTS):
        if name not in ("sent_s", "arrived_s", "admitted_s", "cached_tokens", "preemptions", *COUNTS):
            requests[name][rows] = mine[name]
    requests["decode_admitted_s"][rows] = mine["admitted_s"]
    assert (requests["status"][rows] == FINISHED).all()
