"""Replicas that fail: closed forms, and that every request ends exactly once, whatever fails when."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sglang_worlds import sglang_worlds
from sim_toys import SPREAD, SplitCost, ToyCost, World, drafting, worlds
from test_pools import pool_of, table_of
from timeline_worlds import requests as requests_of

from specfleet.sim.config import DeploymentConfig, GatewayConfig
from specfleet.sim.errors import Stall
from specfleet.sim.fleet.failing import DIES, HANGS, SLOW, FailureConfig, FailuresConfig
from specfleet.sim.laws.everywhere import differences
from specfleet.sim.metrics.failures import failure_figures
from specfleet.sim.metrics.latency import latency_split
from specfleet.sim.recorder import FINISHED, LOST, REJECTED, TIMED_OUT
from specfleet.sim.router import ROUTERS, Remembering
from specfleet.sim.scenario import RunResult, Scenario
from specfleet.sim.simulation import simulate

UNHURRIED = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
USABLE = sorted(name for name, router in ROUTERS.items() if not issubclass(router, Remembering))
KINDS = st.sampled_from([DIES, HANGS, SLOW])
TIMES = st.sampled_from([0.0, 0.01, 0.013, 0.1, 0.3])
FAILURES = st.builds(
    FailuresConfig,
    at=st.lists(
        st.builds(
            FailureConfig,
            replica=st.integers(0, 2),
            at_s=TIMES | st.floats(0.0, 1.5),
            for_s=st.none() | TIMES,
            kind=KINDS,
        ),
        max_size=4,
    ).map(tuple),
    mtbf_s=st.sampled_from([None, 0.05, 0.5]),
    repair_s=TIMES,
    kind=KINDS,
    detect_s=TIMES,
    most=st.integers(0, 3),
    backoff_s=TIMES,
    keep_partial=st.booleans(),
)
GATEWAYS = st.none() | st.builds(
    GatewayConfig,
    max_outstanding=st.sampled_from([None, 1, 2]),
    queue=st.sampled_from([None, 0, 1, 3]),
    timeout_s=st.sampled_from([None, 0.01, 0.3]),
    admit_ttft_s=st.sampled_from([None, 0.05]),
    retries=st.integers(0, 2),
    backoff_s=st.sampled_from([0.0, 0.1]),
)


def scenario_of(world: World, deployment: DeploymentConfig) -> Scenario:
    """A world's replicas, one pool where something stands before the router."""
    acceptance = {"": world.acceptance} if world.acceptance else {}
    if deployment.gateway is None and not deployment.refresh_s:
        return replace(world, deployment=deployment).scenario(acceptance)
    pool = pool_of(world, "all", tuple(range(deployment.replicas)))
    return Scenario.of_pools([pool], deployment, world.client, world.load)


@UNHURRIED
@given(
    worlds(),
    st.integers(0, 2**32),
    st.sampled_from(USABLE),
    FAILURES,
    GATEWAYS,
    st.sampled_from([0.0, 0.05]),
)
def test_every_request_ends_exactly_once_whatever_fails(
    world: World,
    seed: int,
    router: str,
    failures: FailuresConfig,
    gateway: GatewayConfig | None,
    refresh_s: float,
) -> None:
    deployment = DeploymentConfig(3, router, refresh_s=refresh_s, gateway=gateway, failures=failures)
    table = table_of(world)
    run = simulate(scenario_of(world, deployment), table, seed, every_turn=True)
    requests, status = run.requests, run.requests["status"]
    assert np.isin(status, (FINISHED, REJECTED, TIMED_OUT, LOST)).all()
    done = status == FINISHED
    assert (requests["output_tokens"][done] == table.output_tokens[done]).all()
    assert (~done).sum() == sum(run.refusals.values())
    assert (requests["retries"] <= failures.most).all()
    assert (requests["retries"][status == LOST] == failures.most).all()
    lost = [row for outage in run.outages for row in outage.lost]
    cut = run.attempts or run.parts[0].attempts
    assert sorted(lost) == sorted(cut["request_id"][cut["status"] == LOST].tolist())
    again = simulate(scenario_of(world, deployment), table, seed)
    assert differences(run, again) == [] and run.outages == again.outages


@UNHURRIED
@given(sglang_worlds(), st.integers(0, 99), st.sampled_from(USABLE), FAILURES)
def test_the_parts_of_a_latency_under_sglang_add_up_whatever_fails(
    world: World, seed: int, router: str, failures: FailuresConfig
) -> None:
    deployment = DeploymentConfig(3, router, failures=failures)
    priced = replace(world, cost=SplitCost(), deployment=deployment)  # type: ignore[arg-type]
    try:
        run = simulate(priced.scenario(world.classes or {}), requests_of(world), seed, every_turn=True)
    except Stall:
        return  # an engine too small for what it was given says so
    done = run.requests["status"] == FINISHED
    whole = (run.requests["last_chunk_s"] - run.requests["sent_s"])[done]
    split = latency_split(run, SplitCost(0.0))
    assert sum(split.values(), np.zeros(len(whole))) == pytest.approx(whole, abs=1e-9)


@UNHURRIED
@given(worlds(), st.integers(0, 99), st.sampled_from(USABLE), FAILURES)
def test_the_parts_of_a_latency_add_up_whatever_fails(
    world: World, seed: int, router: str, failures: FailuresConfig
) -> None:
    deployment = DeploymentConfig(3, router, failures=failures)
    priced = replace(world, cost=SplitCost())  # type: ignore[arg-type]
    run = simulate(scenario_of(priced, deployment), table_of(priced), seed)
    done = run.requests["status"] == FINISHED
    whole = (run.requests["last_chunk_s"] - run.requests["sent_s"])[done]
    split = latency_split(run, SplitCost(0.0))
    assert sum(split.values(), np.zeros(len(whole))) == pytest.approx(whole, abs=1e-9)


def two(
    failures: FailuresConfig, n: int = 4, output: int = 20, router: str = "round_robin", **more: Any
) -> RunResult:
    """n requests of 20 tokens at time 0 before two replicas whose steps take 0.1 s, half of them at each."""
    world = World([10] * n, [output] * n, arrival_s=[0.0] * n, cost=ToyCost(0.1), **more)
    return replace(world, deployment=DeploymentConfig(2, router, failures=failures)).run()


@pytest.mark.parametrize("keep_partial", [False, True])
@pytest.mark.parametrize("router", ["round_robin", "least_outstanding"])
def test_who_was_at_the_replica_that_died_begins_anew_or_goes_on(keep_partial: bool, router: str) -> None:
    dies = FailureConfig(replica=1, at_s=1.05)
    run = two(FailuresConfig((dies,), backoff_s=0.15, keep_partial=keep_partial), router=router)
    finished_s, requests = run.requests["finished_s"], run.requests
    assert finished_s[::2] == pytest.approx([2.0, 2.0])  # 20 steps of 0.1 s, beside whom nobody is lost
    # ten tokens at 1.05 s; anew at 1.2 s, when a step begins: a prompt, and 19 steps more or 9
    assert finished_s[1::2] == pytest.approx([1.2 + (1.0 if keep_partial else 2.0)] * 2)
    first_s = requests["first_token_s"][1::2]
    assert first_s == pytest.approx([0.1, 0.1] if keep_partial else [1.3, 1.3])
    assert requests["retries"].tolist() == [0, 1, 0, 1]
    assert requests["wasted_tokens"].tolist() == ([0] * 4 if keep_partial else [0, 10, 0, 10])
    assert requests["recomputed_tokens"].tolist() == [0, 19, 0, 19]  # the tenth token has no KV yet
    (outage,) = run.outages
    assert outage.lost == (1, 3) and outage.settled_s == finished_s[1] and outage.back_s == inf


def test_requests_that_may_not_be_sent_anew_fail_when_their_replica_dies() -> None:
    run = two(FailuresConfig((FailureConfig(1, 1.05),), most=0))
    assert run.requests["status"].tolist() == [FINISHED, LOST, FINISHED, LOST]
    assert run.requests["finished_s"] == pytest.approx([2.0, 1.05, 2.0, 1.05])
    assert run.requests["wasted_tokens"].tolist() == [0, 10, 0, 10]
    assert sum(run.refusals.values()) == 2


def test_a_dead_replica_refuses_until_it_is_found_and_one_that_hangs_keeps_its_requests() -> None:
    dies = FailuresConfig((FailureConfig(1, 0.0),), detect_s=1.0, most=5, backoff_s=0.4)
    run = two(dies)
    # sent to it at 0 s and refused; round robin tries both in turn
    assert run.requests["status"].tolist() == [FINISHED] * 4
    assert run.requests["retries"][[0, 2]].tolist() == [0, 0]
    hangs = replace(dies, at=(FailureConfig(1, 0.55, kind=HANGS),))
    run = two(hangs)
    # five tokens, no more; lost when it is found at 1.55 s; anew at 1.95 s, in the step from 2.0 s on
    assert run.requests["finished_s"] == pytest.approx([2.0, 4.0, 2.0, 4.0], abs=0.11)
    assert run.requests["wasted_tokens"].tolist() == [0, 5, 0, 5]
    assert run.outages[0].found_s == pytest.approx(1.55)


def test_a_replica_that_is_slow_for_a_while_takes_longer_for_the_steps_that_begin_then() -> None:
    slow = FailureConfig(1, 0.55, for_s=1.0, kind=SLOW, factor=3.0)
    run = two(FailuresConfig((slow,)))
    # six steps of 0.1 s, four of 0.3 s from 0.6 s to 1.8 s (the last begins at 1.5 s), ten of 0.1 s
    assert run.requests["finished_s"] == pytest.approx([2.0, 2.8, 2.0, 2.8])
    assert not run.requests["retries"].any()


@pytest.mark.parametrize("kind", [DIES, HANGS])
def test_availability_is_mtbf_over_mtbf_and_repair(kind: str) -> None:
    mtbf_s, repair_s, detect_s, n = 10.0, 2.0, 0.5, 4
    world = World([1, 1], [1, 1], arrival_s=[0.0, 1e4], cost=ToyCost(1e-3))
    failures = FailuresConfig(mtbf_s=mtbf_s, repair_s=repair_s, kind=kind, detect_s=detect_s, most=50)
    run = replace(world, deployment=DeploymentConfig(n, failures=failures)).run()
    found = failure_figures(run)
    assert found is not None
    down_s = repair_s + (detect_s if kind == HANGS else 0.0)
    expected = mtbf_s / (mtbf_s + down_s)
    cycles = n * 1e4 / (mtbf_s + down_s)
    # of a renewal process: the share of time up has the variance of its exponential part over the cycles
    error = expected * (1.0 - expected) / cycles**0.5
    assert found.availability == pytest.approx(expected, abs=4.0 * error)
    assert found.failures == pytest.approx(cycles, abs=4.0 * cycles**0.5)


def test_nothing_but_seed_and_replica_moves_a_failure() -> None:
    failures = FailuresConfig(mtbf_s=0.3, repair_s=0.1, most=50)
    few = two(failures, n=2, output=5)
    many = two(failures, n=8, output=40, router="least_outstanding")
    last = few.outages[-1].at_s
    assert len(many.outages) > len(few.outages) > 0
    assert [(o.replica, o.at_s) for o in few.outages] == [
        (o.replica, o.at_s) for o in many.outages if o.at_s <= last
    ]


def test_luck_goes_on_where_output_is_kept_and_is_the_first_one_again_where_it_is_not() -> None:
    plain = World([10] * 2, [60] * 2, arrival_s=[0.0] * 2, cost=ToyCost(0.1), engine=drafting(3))
    world = replace(plain, acceptance=SPREAD)
    whole = world.run().requests
    for keep_partial in (False, True):
        failures = FailuresConfig((FailureConfig(1, 1.05),), keep_partial=keep_partial)
        run = replace(world, deployment=DeploymentConfig(2, failures=failures)).run()
        one, attempts = run.requests, run.attempts
        lost, again = (
            np.flatnonzero(attempts["status"] == LOST)[0],
            np.flatnonzero(attempts["status"] != LOST)[0],
        )
        assert one["verifications"][0] == whole["verifications"][0]
        if keep_partial:
            # the first token of the second attempt comes without a verification
            assert 0 <= one["verifications"][1] - whole["verifications"][1] + 1 <= 1
            assert one["output_tokens"][1] == 60
        else:
            assert attempts["verifications"][again] == whole["verifications"][1]
            assert attempts["accepted_tokens"][again] == whole["accepted_tokens"][1]
        assert attempts["verifications"][lost] == 9
