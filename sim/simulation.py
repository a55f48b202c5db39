"""Composition root: on the calendar where that understands the run, by stepping everywhere else."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from specfleet.sim.calendar.runs import MANY, on_the_calendar
from specfleet.sim.calendar.taken import why_stepped
from specfleet.sim.cluster import Cluster
from specfleet.sim.disaggregation.run import simulate_disaggregated
from specfleet.sim.errors import ASKED_FOR, Unsuited
from specfleet.sim.fleet.patience import Limits
from specfleet.sim.fleet.run import simulate_pools, why_pools_stepped
from specfleet.sim.laws.everywhere import check_alike
from specfleet.sim.laws.whole import check_run
from specfleet.sim.recorder import FINISHED, Columns
from specfleet.sim.scenario import Outage, Ran, RunResult, Scenario
from specfleet.sim.speculation.lives import Lives
from specfleet.sim.speculation.oracle import foreseen
from specfleet.sim.stepped import Engines
from specfleet.workloads.requests import RequestTable

__all__ = ["ASKED_FOR", "RunResult", "Scenario", "simulate"]


def simulate(
    scenario: Scenario, table: RequestTable, seed: int, engine: str = "auto", every_turn: bool = False
) -> RunResult:
    """Simulates `table` on `scenario` until every request has ended.

    Args:
        scenario: the configuration.
        table: the requests; its row numbers are their ids.
        seed: of acceptance luck and random routing.
        engine: `auto` walks a calendar (`sim.calendar`) where it applies and steps elsewhere, with the
            same result to the last bit; `step` always steps.
        every_turn: whether laws are checked after each turn of each engine, and not at the end alone. All
            of the run is stepped for that; where the calendar took it, both ways must agree.

    Returns:
        Columns of requests and iterations.

    Raises:
        Stall: with a diagnosis, if the engine stands still with work left.
        Breach: a law of `sim.laws` does not hold of what was simulated.
    """
    if scenario.deployment.handover is not None:
        if scenario.load.patience:
            raise Unsuited("clients that give up are not modelled where KV is handed over")
        return simulate_disaggregated(scenario, table, seed, engine, every_turn)
    if scenario.load.patience and engine == "auto" and _stepped_since_clients_give_up(scenario, table, seed):
        patient = _if_nobody_gives_up(scenario, table, seed, every_turn)
        if patient is not None:
            return patient
    if scenario.pools:
        return simulate_pools(scenario, table, seed, engine, every_turn)
    scenario = foreseen(scenario)
    k = scenario.engine.num_speculative_tokens
    lives = Lives(scenario.acceptance, table, k, seed) if k and scenario.acceptance else None
    because, ran = ASKED_FOR, None
    if engine == "auto":
        try:
            ran = on_the_calendar(scenario, table, seed, lives)
        except Unsuited as unsuited:
            because = str(unsuited)
    stepped = None
    if ran is None or every_turn:
        engines = Engines(scenario, table, lives, every_turn)
        cluster = Cluster(scenario, table, seed, engines)
        cluster.run()
        stepped = _result(scenario, table, seed, engines.ran(cluster.client), because, cluster.outages())
    result = stepped if ran is None else _result(scenario, table, seed, ran, ran.stepped_because)
    assert result is not None
    if len(table) >= MANY:
        gc.collect()
    check_run(result, table)
    if stepped is not None and stepped is not result:
        check_alike(result, stepped)
    return result


def _why_stepped(scenario: Scenario, table: RequestTable, seed: int) -> str:
    """Returns why a run would be stepped; empty where the calendar begins it. Runs nothing."""
    if scenario.pools:
        return why_pools_stepped(scenario, table, seed)
    k = scenario.engine.num_speculative_tokens
    lives = Lives(scenario.acceptance, table, k, seed) if k and scenario.acceptance else None
    return why_stepped(foreseen(scenario), table, seed, lives)


def _stepped_since_clients_give_up(scenario: Scenario, table: RequestTable, seed: int) -> bool:
    """Whether a run whose clients may give up is stepped for that alone."""
    without = replace(scenario, load=replace(scenario.load, patience={}))
    return bool(_why_stepped(scenario, table, seed)) and not _why_stepped(without, table, seed)


def _if_nobody_gives_up(
    scenario: Scenario, table: RequestTable, seed: int, every_turn: bool
) -> RunResult | None:
    """Simulates a run whose clients may give up as if none did.

    Where none would have, that is the run; None where one would.
    """
    without = replace(scenario, load=replace(scenario.load, patience={}))
    found = simulate(without, table, seed, every_turn=every_turn)
    requests, limits = found.requests, Limits(scenario.load.patience, table, seed)
    served = requests["status"] == FINISHED
    heard_s = requests["arrived_s"] + scenario.client.receive_s  # of who is turned away
    ttft_s = np.where(served, requests["first_chunk_s"], heard_s) - requests["sent_s"]
    e2el_s = np.where(served, requests["last_chunk_s"], heard_s) - requests["sent_s"]
    if limits.exceeded(ttft_s, e2el_s):
        return None
    parts = tuple(replace(part, requests=part.requests | _nobody(part.requests)) for part in found.parts)
    return replace(found, scenario=scenario, requests=requests | _nobody(requests), parts=parts)


def _nobody(requests: Columns) -> Columns:
    """Returns the columns of requests of which none was given up."""
    n = len(requests["status"])
    counts = dict.fromkeys(("client_retries", "wasted_tokens"), np.zeros(n, dtype=np.int64))
    return {"gave_up_s": np.full(n, np.nan), **counts}


def _result(
    scenario: Scenario,
    table: RequestTable,
    seed: int,
    ran: Ran,
    because: str,
    outages: tuple[Outage, ...] = (),
) -> RunResult:
    """Returns what a run left behind, with what was known of its requests before."""
    n = len(table)
    request_id: npt.NDArray[np.integer[Any]] = np.arange(n, dtype=np.int32 if n < 1 << 31 else np.int64)
    requests = ran.requests | {
        "request_id": request_id,
        "class_id": table.class_id,
        "prompt_tokens": table.prompt_tokens,
        "max_tokens": table.max_tokens,
        "counted": request_id >= scenario.load.num_warmups,
    }
    if table.think_s is not None:
        requests |= {"session_id": table.session_id, "turn": table.turn, "think_s": table.think_s}
    return RunResult(
        scenario=scenario,
        seed=seed,
        requests=requests,
        iterations=ran.iterations,
        odd_gaps=ran.odd_gaps,
        rounds_by_accepted=ran.rounds_by_accepted,
        refusals=ran.refusals,
        steps_without_drafter=ran.steps_without_drafter,
        stepped_share=ran.stepped_share,
        stepped_because=because,
        attempts=ran.attempts,
        cuts=ran.cuts,
        outages=outages,
    )
