"""Clients that give up: every request ends exactly once, whoever gives up when, and closed forms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from patient_worlds import impatient
from sglang_worlds import sglang_worlds
from sim_toys import ENGINE, SPREAD, ToyCost, World, drafting, worlds
from test_failures import FAILURES, GATEWAYS, USABLE, scenario_of
from test_pools import pool_of, table_of
from timeline_worlds import requests as requests_of
from timeline_worlds import worlds as any_worlds

from specfleet.sim.config import DeploymentConfig, GatewayConfig
from specfleet.sim.errors import Stall
from specfleet.sim.fleet.failing import FailuresConfig
from specfleet.sim.fleet.patience import PatienceConfig
from specfleet.sim.laws.everywhere import differences
from specfleet.sim.recorder import ABORTED, FINISHED, GAVE_UP, LOST, REJECTED, TIMED_OUT
from specfleet.sim.router import ROUTERS
from specfleet.sim.scenario import RunResult, Scenario
from specfleet.sim.simulation import simulate
from specfleet.workloads.pauses import ExponentialPause, FixedPause, PauseLaw

UNHURRIED = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
WAITS = (
    st.none()
    | st.builds(FixedPause, st.sampled_from([0.001, 0.02, 0.05, 0.2, 1.0]))
    | st.just(ExponentialPause(0.1))
)
PATIENT = st.builds(
    PatienceConfig,
    ttft_timeout_s=WAITS,
    timeout_s=WAITS,
    retries=st.integers(0, 2),
    backoff_s=st.sampled_from([0.0, 0.01, 0.1]),
)
ONCE = PATIENT.map(lambda config: replace(config, retries=0))


def check(run: RunResult, patience: PatienceConfig) -> None:
    """Every request has one end, whose reason is counted; who was served was so in time."""
    requests, status = run.requests, run.requests["status"]
    assert np.isin(status, (FINISHED, REJECTED, ABORTED, TIMED_OUT, LOST, GAVE_UP)).all()
    assert (status != FINISHED).sum() == sum(run.refusals.values())
    gave_up = np.isfinite(requests["gave_up_s"])
    assert gave_up[status == GAVE_UP].all() and not gave_up[status == FINISHED].any()
    assert (requests["client_retries"] <= patience.retries).all()
    assert (requests["client_retries"][status == GAVE_UP] == patience.retries).all()
    if not patience.retries:
        served = status == FINISHED
        waited = (requests["last_chunk_s"] - requests["sent_s"])[served]
        if isinstance(patience.timeout_s, FixedPause):
            assert (waited < patience.timeout_s.seconds + 1e-9).all()


@UNHURRIED
@given(worlds(), PATIENT, st.integers(0, 99), st.sampled_from(sorted(ROUTERS)), GATEWAYS)
def test_every_request_ends_exactly_once_whoever_gives_up(
    world: World, patience: PatienceConfig, seed: int, router: str, gateway: GatewayConfig | None
) -> None:
    deployment = DeploymentConfig(3, router, gateway=gateway)
    scenario, table = scenario_of(impatient(world, patience), deployment), table_of(world)
    run = simulate(scenario, table, seed, every_turn=True)
    check(run, patience)
    assert differences(run, simulate(scenario, table, seed)) == []


@UNHURRIED
@given(worlds(), ONCE, st.integers(0, 99), st.sampled_from(USABLE), FAILURES, GATEWAYS)
def test_every_request_ends_exactly_once_whatever_fails_beside(
    world: World,
    patience: PatienceConfig,
    seed: int,
    router: str,
    failures: FailuresConfig,
    gateway: GatewayConfig | None,
) -> None:
    deployment = DeploymentConfig(3, router, gateway=gateway, failures=failures)
    scenario = scenario_of(impatient(world, patience), deployment)
    check(simulate(scenario, table_of(world), seed, every_turn=True), patience)


@UNHURRIED
@given(sglang_worlds(), PATIENT, st.integers(0, 99))
def test_under_sglang_every_request_ends_exactly_once(
    world: World, patience: PatienceConfig, seed: int
) -> None:
    try:
        run = simulate(
            impatient(world, patience).scenario(world.classes or {}),
            requests_of(world),
            seed,
            every_turn=True,
        )
    except Stall:
        return  # an engine too small for what it was given says so
    check(run, patience)


@UNHURRIED
@given(worlds(), worlds(), PATIENT, st.integers(0, 99), st.sampled_from(sorted(ROUTERS)))
def test_a_further_attempt_may_be_at_another_pool(
    world: World, other: World, patience: PatienceConfig, seed: int, router: str
) -> None:
    pools = [pool_of(world, "a", (0, 1)), pool_of(other, "b", (2,))]
    mine = impatient(world, patience)
    scenario = Scenario.of_pools(pools, DeploymentConfig(3, router), mine.client, mine.load)
    check(simulate(scenario, table_of(world), seed, every_turn=True), patience)


@UNHURRIED
@given(worlds(), PATIENT, st.integers(0, 99))
def test_ranks_in_lockstep_let_go_of_who_is_given_up(
    world: World, patience: PatienceConfig, seed: int
) -> None:
    ranks = replace(impatient(world, patience), deployment=DeploymentConfig(4, "round_robin", lockstep=2))
    acceptance = {"": world.acceptance} if world.acceptance else {}
    check(simulate(ranks.scenario(acceptance), table_of(world), seed, every_turn=True), patience)


def test_an_earlier_attempt_in_vain_in_a_step_takes_no_luck_back_with_it() -> None:
    """Steps of 20 ms: the first attempt is let go at 100 ms with a row in the step until 120, when the
    second one is let go, which came in between."""
    engine = replace(drafting(3), async_scheduling=True)
    world = World([4], [90], arrival_s=[0.0], engine=engine, acceptance=SPREAD, cost=ToyCost(0.02))
    patience = PatienceConfig(FixedPause(0.025), FixedPause(0.09), retries=1, backoff_s=0.0)
    run = impatient(world, patience).run()
    assert run.attempts["chunks"].tolist() == [4, 0]
    assert sum(run.rounds_by_accepted) == run.attempts["verifications"].sum() == 3


def test_who_has_no_first_token_in_time_gives_up_and_the_others_move_up() -> None:
    world = World(
        [10] * 3,
        [10] * 3,
        arrival_s=[0.0] * 3,
        cost=ToyCost(0.1),
        engine=replace(World([1], [1]).engine, max_num_seqs=1),
    )
    run = impatient(world, PatienceConfig(FixedPause(1.5))).run()
    assert run.requests["status"].tolist() == [FINISHED, FINISHED, GAVE_UP]
    assert run.requests["gave_up_s"].tolist()[2] == 1.5
    assert run.requests["finished_s"].tolist() == pytest.approx([1.0, 2.0, 1.5])


@UNHURRIED
@given(any_worlds(("open", "closed", "capped", "balanced"), 2), st.integers(0, 99))
def test_where_nobody_gives_up_all_is_as_without_limits(world: World, seed: int) -> None:
    long = PatienceConfig(FixedPause(1e6), ExponentialPause(1e9))
    table = requests_of(world)
    scenario = impatient(world, long).scenario(world.classes or {})
    ours, theirs = simulate(scenario, table, seed), simulate(world.scenario(world.classes or {}), table, seed)
    assert ours.stepped_share == theirs.stepped_share
    assert all(np.array_equal(ours.requests[name], column, True) for name, column in theirs.requests.items())
    stepped = simulate(scenario, table, seed, engine="step")
    assert differences(ours, stepped) == []


RATE, SERVICE, STEP_S, N = 1.0, 0.8, 0.04, 3000
"""Arrivals a second; mean seconds of service, geometric in steps of so many seconds; requests."""


def queue_of_one(patience: PauseLaw, seed: int) -> float:
    """The share of requests that give up before one seat: Poisson arrivals, services almost exponential."""
    rng = np.random.default_rng(seed)
    output = rng.geometric(STEP_S / SERVICE, N)
    engine = replace(ENGINE, max_num_seqs=1)
    arrival = np.cumsum(rng.exponential(1.0 / RATE, N)).tolist()
    world = World([1] * N, output.tolist(), arrival_s=arrival, engine=engine, cost=ToyCost(STEP_S))
    status = impatient(world, PatienceConfig(patience)).run(seed).requests["status"]
    return float((status == GAVE_UP).mean())


def deterministic(patience_s: float) -> float:
    """M/M/1+D: the share of customers who meet more work than they have patience for, less a step."""
    patience_s -= STEP_S
    mu, lost = 1.0 / SERVICE, np.exp(-(1.0 / SERVICE - RATE) * patience_s)
    free = 1.0 / (1.0 + RATE * (1.0 - lost) / (mu - RATE) + RATE / mu * lost)
    return float(free * RATE / mu * lost)


def erlang_a(patience_s: float) -> float:
    """M/M/1+M (Erlang A): those who wait leave at a rate each; the share of arrivals who do, or in the first
    step of their service, in which they wait for their first token still."""
    n = np.arange(400)
    weights = np.concatenate([[1.0], np.cumprod(RATE / (1.0 / SERVICE + n / patience_s))])
    waiting = np.maximum(np.arange(len(weights)) - 1, 0)
    waits = float((weights * waiting).sum() / weights.sum() / patience_s / RATE)
    return waits + (1.0 - waits) * -float(np.expm1(-STEP_S / patience_s))


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("patience_s", [1.0, 3.0])
@pytest.mark.parametrize(
    ("law", "expected"),
    [(FixedPause, deterministic), (ExponentialPause, erlang_a)],
    ids=["M/M/1+D", "Erlang A"],
)
def test_the_share_who_give_up_is_the_closed_form_s_within_three_points(
    law: type, expected: Callable[[float], float], patience_s: float, seed: int
) -> None:
    share = queue_of_one(law(patience_s), seed)
    assert share == pytest.approx(expected(patience_s), abs=0.03)
    assert 0.04 < share < 0.4
