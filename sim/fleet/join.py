"""What several pools did, as one run: every request in one place, every iteration in order of time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from specfleet.sim.calendar.harvest import by_end
from specfleet.sim.fleet.groups import Groups
from specfleet.sim.fleet.patience import GIVEN_UP_COLUMNS
from specfleet.sim.laws.fleet import check_fleet
from specfleet.sim.laws.whole import check_run
from specfleet.sim.recorder import GAVE_UP, REJECTED, REQUEST_COUNTS, REQUEST_TIMES, Columns
from specfleet.sim.scenario import Outage, Ran, RunResult
from specfleet.sim.source import some_rows

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Ways:
    """Where each request went, and when.

    Attributes:
        sent_s, arrived_s: on the client's and the cluster's clock.
        replica: number in the cluster, of those that were served; -1 of the others.
        refusals: reasons for which requests went nowhere, with counts.
        status: of those that ended at the gateway.
        attempts: how often each that was turned away there was.
        gateway: whether there is one.
        outages: failures of replicas.
    """

    sent_s: F64
    arrived_s: F64
    replica: I64
    refusals: Mapping[str, int]
    status: Mapping[int, int] = field(default_factory=dict)
    attempts: Mapping[int, int] = field(default_factory=dict)
    gateway: bool = False
    outages: tuple[Outage, ...] = ()


def joined(groups: Groups, seed: int, rans: Sequence[Ran], ways: Ways, because: str) -> RunResult:
    """Returns the run, its parts beside it; every law is checked of each part and of the whole.

    Args:
        groups: of its requests.
        seed: of luck and routing.
        rans: what each pool left behind; of requests that went elsewhere its columns say nothing.
        ways: where requests went.
        because: why some pools were stepped; empty if none was.

    Raises:
        Breach: a law does not hold.
    """
    scenario, table = groups.scenario, groups.table
    n = len(table)
    requests = _before(ways, n)
    noted = [name for name in (*REQUEST_TIMES, *REQUEST_COUNTS) if name not in ("sent_s", "arrived_s")]
    counted = np.arange(n) >= scenario.load.num_warmups
    parts = []
    names = list(dict.fromkeys(pool.name for pool in scenario.pools))
    requests |= _more(rans, noted)
    went = np.where(ways.replica >= 0, groups.pool_of[ways.replica], -1)
    for index, (pool, ran) in enumerate(zip(scenario.pools, rans, strict=True)):
        rows = np.flatnonzero(went == index)
        mine = {name: column[rows] for name, column in ran.requests.items()}
        for name in noted:
            requests[name][rows] = mine[name]
        if ran.attempts:
            requests["arrived_s"][rows] = mine["arrived_s"]
        requests["replica"][rows] = ways.replica[rows]
        requests["pool"][rows] = names.index(pool.name)
        here = some_rows(table, rows)
        mine |= {"request_id": rows, "class_id": here.class_id, "counted": counted[rows]}
        mine |= {"prompt_tokens": here.prompt_tokens, "max_tokens": here.max_tokens}
        part = result_of(groups.part(index), seed, ran, mine)
        check_run(part, here)
        parts.append(part)
    _add_wasted(requests, rans, ways)
    requests |= {"request_id": np.arange(n), "class_id": table.class_id, "counted": counted}
    requests |= {"prompt_tokens": table.prompt_tokens, "max_tokens": table.max_tokens}
    widest = max(part.iterations["gaps_by_tokens"].shape[1] for part in parts)
    members = [np.array(pool.members) for pool in scenario.pools]
    steps = [len(part.iterations["end_s"]) for part in parts]
    stepped = sum(part.stepped_share * count for part, count in zip(parts, steps, strict=True))
    whole = RunResult(
        scenario=scenario,
        seed=seed,
        requests=requests,
        iterations=by_end([wide(p.iterations, m, widest) for p, m in zip(parts, members, strict=True)]),
        odd_gaps=by_end([numbered(p.odd_gaps, m) for p, m in zip(parts, members, strict=True)]),
        rounds_by_accepted=sums_of([part.rounds_by_accepted for part in parts]),
        refusals=counts_of([ways.refusals, *(part.refusals for part in parts)]),
        steps_without_drafter=sum(part.steps_without_drafter for part in parts),
        stepped_share=stepped / max(sum(steps), 1),
        stepped_because=because,
        parts=tuple(parts),
        outages=ways.outages,
    )
    check_fleet(whole, table)
    return whole


def _more(rans: Sequence[Ran], noted: Sequence[str]) -> Columns:
    """Returns the columns of requests that not every run has: what a pool knows of its own requests is added
    up, what the client knows is the same for all."""
    given = next((ran.requests for ran in rans if GIVEN_UP_COLUMNS[0] in ran.requests), {})
    found = {name: np.array(given[name]) for name in GIVEN_UP_COLUMNS if name in given}
    known = {*noted, *GIVEN_UP_COLUMNS, "sent_s", "arrived_s"}
    for name in sorted({name for ran in rans for name in ran.requests} - known):
        found[name] = np.sum([ran.requests[name] for ran in rans if name in ran.requests], axis=0)
    return found


def _add_wasted(requests: Columns, rans: Sequence[Ran], ways: Ways) -> None:
    """Adds what attempts had written of requests that their clients sent again, and that ended before they
    were at a replica once more: no pool has them among its own."""
    for ran in rans:
        if "wasted_tokens" in requests and ran.attempts:
            gone = ran.attempts["status"] == GAVE_UP
            gone &= ways.replica[ran.attempts["request_id"]] < 0
            rows, tokens = (ran.attempts[name][gone] for name in ("request_id", "output_tokens"))
            np.add.at(requests["wasted_tokens"], rows, tokens)


def _before(ways: Ways, n: int) -> Columns:
    """Returns the columns of requests of which no pool has said anything: those that ended before one."""
    requests: Columns = {name: np.full(n, np.nan) for name in REQUEST_TIMES}
    requests |= {name: np.zeros(n, dtype=np.int64) for name in REQUEST_COUNTS}
    requests |= {"sent_s": ways.sent_s, "arrived_s": ways.arrived_s, "pool": np.full(n, -1)}
    requests["status"][:] = REJECTED
    requests["status"][[*ways.status]] = [*ways.status.values()]
    if ways.gateway:
        requests["turned_away"] = np.zeros(n, dtype=np.int64)
        requests["turned_away"][[*ways.attempts]] = [*ways.attempts.values()]
    return requests


def result_of(part: Any, seed: int, ran: Ran, requests: Columns) -> RunResult:
    """Returns what a pool did as a run of its own."""
    return RunResult(
        part,
        seed,
        requests,
        ran.iterations,
        ran.odd_gaps,
        ran.rounds_by_accepted,
        ran.refusals,
        ran.steps_without_drafter,
        ran.stepped_share,
        ran.stepped_because,
        attempts=ran.attempts,
        cuts=ran.cuts,
        standing=ran.standing,
    )


def numbered(columns: Columns, members: I64) -> Columns:
    """Returns rows with the cluster's numbers in place of the pool's."""
    return {**columns, "replica": members[columns["replica"]]}


def wide(columns: Columns, members: I64, widest: int) -> Columns:
    """Returns iterations with the cluster's numbers, and room for the longest chunk of any pool."""
    gaps = columns["gaps_by_tokens"]
    wide = np.zeros((len(gaps), widest), dtype=gaps.dtype)
    wide[:, : gaps.shape[1]] = gaps
    return numbered(columns, members) | {"gaps_by_tokens": wide}


def sums_of(rows: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Returns sums by place of rows that need not be equally long."""
    most = max(map(len, rows))
    return tuple(sum(row[at] for row in rows if at < len(row)) for at in range(most))


def counts_of(tables: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Returns counts of several tables, added up."""
    counts: dict[str, int] = {}
    for table in tables:
        for reason, count in table.items():
            counts[reason] = counts.get(reason, 0) + count
    return counts
