"""What is worked out of a run in which requests end without an answer: every figure is of what happened."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from session_worlds import Sessions, Turn, sessions, table_of
from sglang_worlds import sglang_worlds
from sim_toys import SplitCost, ToyCost, World, worlds
from timeline_worlds import requests as requests_of

from specfleet.sim.config import ClientConfig, DeploymentConfig, GatewayConfig, LoadConfig, Slo
from specfleet.sim.errors import Stall
from specfleet.sim.fleet.failing import DIES, FailureConfig, FailuresConfig
from specfleet.sim.fleet.patience import PatienceConfig
from specfleet.sim.metrics.columns import benchmark
from specfleet.sim.metrics.latency import latency_split
from specfleet.sim.metrics.patience import patience_figures
from specfleet.sim.metrics.tasks import due_s
from specfleet.sim.recorder import FINISHED, GAVE_UP, LOST, REJECTED, TIMED_OUT
from specfleet.sim.scenario import ReplicaPool, RunResult, Scenario
from specfleet.sim.simulation import simulate
from specfleet.workloads.pauses import ExponentialPause, FixedPause
from specfleet.workloads.requests import RequestTable

UNHURRIED = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
WAITS = st.sampled_from([None, FixedPause(0.05), FixedPause(0.3), ExponentialPause(0.2)])
PATIENT = st.builds(
    PatienceConfig,
    ttft_timeout_s=WAITS,
    timeout_s=WAITS,
    retries=st.integers(0, 2),
    backoff_s=st.sampled_from([0.0, 0.05]),
)
GATEWAYS = st.builds(
    GatewayConfig,
    max_outstanding=st.sampled_from([1, 2]),
    queue=st.sampled_from([0, 1, 3]),
    timeout_s=st.sampled_from([None, 0.1]),
    retries=st.integers(0, 1),
    backoff_s=st.sampled_from([0.0, 0.1]),
)
FAILING = st.builds(
    FailuresConfig,
    at=st.lists(
        st.builds(FailureConfig, replica=st.integers(0, 1), at_s=st.floats(0.0, 1.0), for_s=st.just(0.2)),
        max_size=3,
    ).map(tuple),
    mtbf_s=st.sampled_from([None, 0.3]),
    repair_s=st.just(0.1),
    kind=st.just(DIES),
    detect_s=st.sampled_from([0.0, 0.05]),
    most=st.integers(0, 2),
    backoff_s=st.just(0.02),
    keep_partial=st.booleans(),
)


def behind(world: World, patience: PatienceConfig | None, deployment: DeploymentConfig) -> Scenario:
    """A world's replicas as one pool behind what a deployment says, with clients that give up or not."""
    acceptance = world.classes or ({"": world.acceptance} if world.acceptance else {})
    load = replace(world.load, patience={} if patience is None else {"": patience})
    members = tuple(range(deployment.replicas))
    pool = ReplicaPool("all", world.engine, world.cost, members, acceptance)
    return Scenario.of_pools([pool], deployment, world.client, load)


def attempts_of(run: RunResult) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The requests and output tokens of all attempts that brought no answer, from every pool."""
    parts = run.parts or (run,)
    known = [part.attempts for part in parts if part.attempts]
    again = np.concatenate([one["request_id"] for one in known]) if known else np.zeros(0, np.int64)
    once = ~np.isin(run.requests["request_id"], again)
    rows = [{name: run.requests[name][once] for name in ("request_id", "output_tokens", "status")}, *known]
    vain = [np.isin(one["status"], (GAVE_UP, LOST)) for one in rows]
    return tuple(  # type: ignore[return-value]
        np.concatenate([one[name][lost] for one, lost in zip(rows, vain, strict=True)])
        for name in ("request_id", "output_tokens")
    )


@UNHURRIED
@given(worlds(), PATIENT, st.integers(0, 99), GATEWAYS | st.none())
def test_tokens_that_were_thrown_away_are_those_of_all_attempts_wherever_the_last_one_ended(
    world: World, patience: PatienceConfig, seed: int, gateway: GatewayConfig | None
) -> None:
    deployment = DeploymentConfig(2, "round_robin", gateway=gateway)
    table = RequestTable.of(
        world.prompt, world.output, max_tokens=world.max_tokens, arrival_s=world.arrival_s
    )
    run = simulate(behind(world, patience, deployment), table, seed)
    rows, tokens = attempts_of(run)
    wasted = np.bincount(rows, weights=tokens, minlength=len(table)).astype(np.int64)
    assert run.requests["wasted_tokens"].tolist() == wasted.tolist()
    figures = patience_figures(run)
    assert figures is not None
    assert figures.wasted_tokens == wasted[run.requests["counted"] == 1].sum()


def test_what_an_attempt_wrote_is_wasted_though_the_next_one_waits_at_the_gateway_for_good() -> None:
    """One seat: the second request gets it at 50 ms, is given up at 150 ms, and is sent again while the
    third, which had waited, is served for longer than it waits once more."""
    world = World([10] * 3, [5, 100, 12], arrival_s=[0.0, 0.0, 0.14], cost=ToyCost(0.01))
    patience = PatienceConfig(None, FixedPause(0.15), retries=1, backoff_s=0.02)
    deployment = DeploymentConfig(1, "round_robin", gateway=GatewayConfig(max_outstanding=1, timeout_s=0.06))
    table = RequestTable.of(world.prompt, world.output, arrival_s=world.arrival_s)
    run = simulate(behind(world, patience, deployment), table, 0)
    (part,) = run.parts
    assert run.requests["status"].tolist() == [FINISHED, TIMED_OUT, FINISHED]
    assert run.requests["wasted_tokens"].tolist() == [0, *part.attempts["output_tokens"], 0] == [0, 9, 0]


@UNHURRIED
@given(
    worlds(),
    st.none() | PATIENT.map(lambda one: replace(one, retries=0)),
    st.integers(0, 99),
    GATEWAYS | st.none(),
    FAILING | st.none(),
)
def test_whoever_ends_without_an_answer_misses_the_slo_but_for_those_refused_for_their_length(
    world: World,
    patience: PatienceConfig | None,
    seed: int,
    gateway: GatewayConfig | None,
    failures: FailuresConfig | None,
) -> None:
    deployment = DeploymentConfig(2, "round_robin", gateway=gateway, failures=failures)
    table = RequestTable.of(
        world.prompt, world.output, max_tokens=world.max_tokens, arrival_s=world.arrival_s
    )
    run = simulate(behind(world, patience, deployment), table, seed)
    requests, counted = run.requests, run.requests["counted"] == 1
    refused = requests["status"] == REJECTED
    if gateway is not None:
        refused &= requests["turned_away"] == 0
    good = counted & (requests["status"] == FINISHED)
    good &= requests["first_chunk_s"] - requests["sent_s"] <= 0.2
    those = int((counted & ~refused).sum())
    share = benchmark(run, Slo(ttft_s=0.2)).slo_attainment
    assert share == (pytest.approx(good.sum() / those) if those else None)


@UNHURRIED
@given(worlds(), PATIENT, st.integers(0, 99), st.sampled_from([1, 2]))
def test_the_parts_of_a_latency_add_up_though_requests_are_sent_again(
    world: World, patience: PatienceConfig, seed: int, replicas: int
) -> None:
    split_world = replace(world, cost=SplitCost())  # type: ignore[arg-type]
    scenario = behind(split_world, patience, DeploymentConfig(replicas, "least_outstanding"))
    table = RequestTable.of(
        world.prompt, world.output, max_tokens=world.max_tokens, arrival_s=world.arrival_s
    )
    for part in simulate(scenario, table, seed).parts:
        latency_split(part, SplitCost(0.0))  # it looks itself


@UNHURRIED
@given(sglang_worlds(), PATIENT, st.integers(0, 99))
def test_under_sglang_the_parts_of_a_latency_add_up_though_requests_are_sent_again(
    world: World, patience: PatienceConfig, seed: int
) -> None:
    mine = replace(world, cost=SplitCost(), load=replace(world.load, patience={"": patience}))  # type: ignore[arg-type]
    try:
        run = simulate(mine.scenario(world.classes or {}), requests_of(world), seed)
    except Stall:
        return  # an engine too small for what it was given says so
    latency_split(run, SplitCost(0.0))


@UNHURRIED
@given(
    sessions(2),
    st.none() | PATIENT,
    st.integers(0, 99),
    st.sampled_from(["gateway", "failures", "neither"]),
    GATEWAYS,
    FAILING,
)
def test_a_turn_is_due_a_pause_after_the_turn_before_however_that_ended(
    mine: Sessions,
    patience: PatienceConfig | None,
    seed: int,
    beside: str,
    gateway: GatewayConfig,
    failures: FailuresConfig,
) -> None:
    if beside == "failures" and patience is not None:
        patience = replace(patience, retries=0)
    deployment = DeploymentConfig(
        2,
        "least_outstanding",
        gateway=gateway if beside == "gateway" else None,
        failures=failures if beside == "failures" else None,
    )
    run = simulate(behind(mine.world, patience, deployment), mine.table, seed)
    due, sent = due_s(run, mine.table), run.requests["sent_s"]
    assert np.isfinite(due).all()
    serial = run.scenario.client.send_serial_s
    if serial == 0.0 and mine.world.load.max_concurrency is None:
        assert (sent == due).all(), "nothing but the client's own sends keeps a turn back"
    assert (sent >= due).all()


@pytest.mark.parametrize(
    ("deployment", "patience", "status", "freed_s"),
    [
        (DeploymentConfig(1, gateway=GatewayConfig(max_outstanding=1, queue=0)), None, REJECTED, 0.05),
        (DeploymentConfig(1), PatienceConfig(FixedPause(0.1)), GAVE_UP, 0.1),
    ],
    ids=["turned away", "given up"],
)
def test_the_turn_behind_one_without_an_answer_is_due_when_its_user_knows(
    deployment: DeploymentConfig, patience: PatienceConfig | None, status: int, freed_s: float
) -> None:
    """The first session keeps the only seat for a second; the other's first turn does not get it."""
    client = ClientConfig(send_s=0.02, receive_s=0.03, turn_s=0.5, send_serial_s=0.0, chunk_s=0.0)
    engine = replace(World([1], [1]).engine, max_num_seqs=1)
    world = World([1], [1], engine=engine, cost=ToyCost(0.01), client=client, load=LoadConfig())
    turns = [Turn(((1, 4),), 100)], [Turn(((2, 4),), 3), Turn(((2, 9),), 3, think_s=7.0)]
    table = table_of([(0.0, turns[0]), (0.01, turns[1])])
    run = simulate(behind(world, patience, deployment), table, 0)
    assert run.requests["status"].tolist()[1:] == [status, FINISHED]
    assert due_s(run, table)[2] == pytest.approx(0.01 + freed_s + 0.5 + 7.0)
    assert run.requests["sent_s"][2] == pytest.approx(due_s(run, table)[2])
