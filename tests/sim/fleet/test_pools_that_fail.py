"""Several pools of which some fail: every request ends once, wherever it was begun, and parts add up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sim_toys import ENGINE, SPREAD, SplitCost, ToyCost, World, drafting, worlds
from test_autoscaler import LIMITS, SEES
from test_failures import FAILURES, GATEWAYS, TIMES, UNHURRIED, USABLE
from test_pools import pool_of, table_of

from specfleet.sim.config import NO_CLIENT, DeploymentConfig, GatewayConfig, LoadConfig, RoutingConfig
from specfleet.sim.fleet.failing import DIES, HANGS, SLOW, ChanceConfig, FailureConfig, FailuresConfig
from specfleet.sim.fleet.groups import members_of
from specfleet.sim.fleet.scaling import FIXED, AutoscaleConfig, ScalingLog
from specfleet.sim.fleet.spot import SpotConfig, TakenAt
from specfleet.sim.laws.everywhere import differences
from specfleet.sim.metrics.failures import failure_figures
from specfleet.sim.metrics.latency import latency_split
from specfleet.sim.metrics.pools import by_pool
from specfleet.sim.recorder import FINISHED, LOST, REJECTED, TIMED_OUT
from specfleet.sim.scenario import ReplicaPool, RunResult, Scenario
from specfleet.sim.simulation import simulate
from specfleet.workloads.requests import RequestTable

COMING_AND_GOING = ["least_kv", "least_outstanding", "least_tokens", "power_of_two", "random", "round_robin"]
ROUTINGS = st.sampled_from(
    [
        RoutingConfig(),
        RoutingConfig({"a": "fast", "b": "plain"}),
        RoutingConfig({"a": "fast", "b": "plain"}, {"fast": (1.0, "plain")}),
    ]
)
BY_POOL = st.lists(
    st.builds(
        ChanceConfig,
        mtbf_s=st.sampled_from([None, 0.05, 0.5]),
        repair_s=TIMES,
        kind=st.sampled_from([DIES, HANGS, SLOW]),
    ),
    max_size=2,
)


def ended_once(run: RunResult, table: RequestTable, most: int) -> None:
    """Every request has one end, its tokens if it was served, and a reason if it was not."""
    requests, status = run.requests, run.requests["status"]
    assert np.isin(status, (FINISHED, REJECTED, TIMED_OUT, LOST)).all()
    done = status == FINISHED
    assert (requests["output_tokens"][done] == table.output_tokens[done]).all()
    assert (~done).sum() == sum(run.refusals.values())
    assert (requests["retries"] <= most).all()
    assert (requests["retries"][status == LOST] == most).all()
    lost = [row for outage in run.outages for row in outage.lost]
    cut = [
        part.attempts["request_id"][part.attempts["status"] == LOST] for part in run.parts if part.attempts
    ]
    assert sorted(lost) == sorted(np.concatenate(cut).tolist())


def parts_add_up(run: RunResult) -> None:
    """The parts of the latency of each request, in the pool that ended it, sum to the whole."""
    for part in run.parts:
        done = part.requests["status"] == FINISHED
        whole = (part.requests["last_chunk_s"] - part.requests["sent_s"])[done]
        split = latency_split(part, SplitCost(0.0))
        assert sum(split.values(), np.zeros(len(whole))) == pytest.approx(whole, abs=1e-9)


@UNHURRIED
@given(
    *(worlds(), worlds(), st.integers(0, 2**32), st.sampled_from(USABLE), ROUTINGS, FAILURES, BY_POOL),
    *(GATEWAYS, st.sampled_from([0.0, 0.05])),
)
def test_every_request_ends_once_whichever_pool_fails(
    world: World,
    other: World,
    seed: int,
    router: str,
    routing: RoutingConfig,
    failures: FailuresConfig,
    by_pool: list[ChanceConfig],
    gateway: GatewayConfig | None,
    refresh_s: float,
) -> None:
    fast, plain = members_of([2, 1])
    own = tuple(zip((plain, fast), by_pool, strict=False))
    failures = replace(failures, of=own)
    deployment = DeploymentConfig(
        3, router, routing=routing, refresh_s=refresh_s, gateway=gateway, failures=failures
    )
    pools = [pool_of(world, "fast", fast), pool_of(other, "plain", plain)]
    pools = [replace(pool, cost=SplitCost()) for pool in pools]
    scenario, table = Scenario.of_pools(pools, deployment, world.client, world.load), table_of(world)
    run = simulate(scenario, table, seed, every_turn=True)
    ended_once(run, table, failures.most)
    parts_add_up(run)
    again = simulate(scenario, table, seed)
    assert differences(run, again) == [] and run.outages == again.outages


def two_pools(failures: FailuresConfig, by_class: Mapping[str, str], **more: Any) -> RunResult:
    """Requests of class a and b in turn, 20 tokens each at 0.1 s, before a pool that drafts and one that does
    not."""
    pools = [
        ReplicaPool("fast", drafting(3), ToyCost(0.1), (0,), {"": SPREAD}),
        ReplicaPool("plain", ENGINE, ToyCost(0.1), (1, 2)),
    ]
    deployment = DeploymentConfig(3, routing=RoutingConfig(by_class), failures=failures, **more)
    table = RequestTable.of(
        [10] * 6, [20] * 6, arrival_s=[0.0] * 6, class_id=[0, 1] * 3, class_names=("a", "b")
    )
    return simulate(Scenario.of_pools(pools, deployment, NO_CLIENT, LoadConfig()), table, 0, every_turn=True)


def test_a_request_of_a_pool_that_died_goes_on_in_another_one_with_what_it_had() -> None:
    dies = FailuresConfig((FailureConfig(0, 0.45),), backoff_s=0.05, keep_partial=True)
    run = two_pools(dies, {})
    # round robin: requests 0 and 3 are at replica 0, which has written the tokens of four steps by 0.4 s
    moved = np.flatnonzero(run.requests["retries"])
    assert moved.tolist() == [0, 3]
    assert run.requests["pool"].tolist() == [1] * 6
    fast, plain = by_pool(run)
    assert plain.acceptance_length == 1.0 < fast.acceptance_length  # each has its own rounds
    first = run.parts[0].attempts
    assert (first["status"] == LOST).all() and len(run.parts[0].requests["status"]) == 0
    for row in moved.tolist():
        kept = int(first["output_tokens"][first["request_id"] == row][0])
        assert kept >= 4 and run.requests["first_token_s"][row] == pytest.approx(0.1)
        # lost at 0.45 s, sent anew at 0.5 s: a prompt of what there is, and a step for each further token
        assert run.requests["finished_s"][row] == pytest.approx(0.5 + 0.1 * (20 - kept))


def test_a_pool_whose_requests_cannot_come_from_one_that_fails_stays_on_the_calendar() -> None:
    failures = FailuresConfig((FailureConfig(0, 0.45),))
    run = two_pools(failures, {"a": "fast", "b": "plain"})
    assert run.parts[1].stepped_share == 0.0 and run.parts[0].stepped_share == 1.0
    assert run.stepped_because == "pool fast: replicas that fail, with requests that begin anew elsewhere"
    assert run.parts[1].scenario.deployment.failures is None
    assert (run.requests["retries"] > 0).tolist() == [True, False] * 3


def test_a_pool_fails_by_its_own_law_or_not_at_all() -> None:
    table = RequestTable.of([1, 1], [1, 1], arrival_s=[0.0, 2e4], class_id=[0, 1], class_names=("a", "b"))
    pools = [
        ReplicaPool(name, ENGINE, ToyCost(1e-3), m) for name, m in (("x", (0, 1)), ("y", (2,)), ("z", (3,)))
    ]
    config = FailuresConfig(
        mtbf_s=20.0,
        repair_s=1.0,
        most=50,
        of=(((2,), ChanceConfig(5.0, 5.0, HANGS)), ((3,), ChanceConfig(None))),
    )
    deployment = DeploymentConfig(4, "random", failures=replace(config, detect_s=0.5))
    run = simulate(Scenario.of_pools(pools, deployment, NO_CLIENT, LoadConfig()), table, 0)
    at = {n: [outage for outage in run.outages if outage.replica == n] for n in range(4)}
    assert not at[3] and {outage.kind for outage in at[2]} == {HANGS}
    for replica, cycle_s, down_s in ((0, 21.0, 1.0), (1, 21.0, 1.0), (2, 10.5, 5.5)):
        assert len(at[replica]) == pytest.approx(2e4 / cycle_s, rel=0.1)
        assert all(outage.back_s - outage.at_s == pytest.approx(down_s) for outage in at[replica])
        down = sum(min(outage.back_s, 2e4) - outage.at_s for outage in at[replica])
        assert 1.0 - down / 2e4 == pytest.approx(1.0 - down_s / cycle_s, rel=0.03)
        assert inf not in {outage.back_s for outage in at[replica]}


SPOTS = st.none() | st.builds(
    SpotConfig,
    on_demand=st.integers(0, 1),
    mtti_s=st.sampled_from([None, 0.1, 0.7]),
    at=st.lists(
        st.builds(TakenAt, TIMES | st.floats(0.0, 1.5), st.integers(1, 3), st.sampled_from([0.0, 0.4])),
        max_size=3,
    ).map(tuple),
    notice_s=TIMES,
    unavailable_s=st.sampled_from([0.0, 0.0, 0.2]),
    provision_s=st.sampled_from([0.0, 0.05]),
    most=st.just(3),
    backoff_s=TIMES,
    keep_partial=st.booleans(),
)


@st.composite
def scalings(draw: st.DrawFn) -> AutoscaleConfig | None:
    """A pool of one or two replicas that is fixed, or follows some metric up to three."""
    on = draw(st.sampled_from([None, FIXED, *sorted(SEES)]))
    if on is None:
        return None
    spare = draw(st.sampled_from([0, 2]))
    if on == FIXED:
        return AutoscaleConfig(FIXED, 1.0, 2, 2, 2, draw(TIMES), inf, spare=spare)
    target = SEES[on] * draw(st.floats(0.1, 1.0))
    every, least = draw(st.sampled_from([0.05, 0.2])), draw(st.integers(1, 2))
    return AutoscaleConfig(
        *(on, target, least, 3, draw(st.integers(least, 3)), draw(TIMES), every, 2.0 * every, 0.1, None),
        *(2.5 * every, LIMITS, spare),
    )


def integral(log: ScalingLog, to_s: float) -> float:
    """Replica-seconds that are paid for up to a time, from the counts."""
    rows = log.changes
    paid = rows["starting"] + rows["up"] + rows["draining"] + rows["noticed"]
    times = np.minimum(np.append(rows["time_s"], to_s), to_s)
    return float((paid * np.diff(times)).sum())


@UNHURRIED
@given(
    *(worlds(), worlds(), st.integers(0, 2**32), st.sampled_from(COMING_AND_GOING), ROUTINGS),
    *(FAILURES, GATEWAYS, scalings(), scalings(), SPOTS, SPOTS),
)
def test_every_request_ends_once_whatever_comes_goes_fails_and_is_taken(
    world: World,
    other: World,
    seed: int,
    router: str,
    routing: RoutingConfig,
    failures: FailuresConfig,
    gateway: GatewayConfig | None,
    fast: AutoscaleConfig | None,
    plain: AutoscaleConfig | None,
    first: SpotConfig | None,
    second: SpotConfig | None,
) -> None:
    """`simulate` checks the laws of requests, steps and numbers of replicas."""
    members = members_of([2 if each is None else each.slots for each in (fast, plain)])
    failures = replace(failures, most=3, of=((members[1], ChanceConfig(None)),))
    replicas = sum(map(len, members))
    deployment = DeploymentConfig(replicas, router, routing=routing, gateway=gateway, failures=failures)
    pools = [
        replace(pool_of(of, name, mine), cost=SplitCost(), autoscale=scaled, spot=spot if scaled else None)
        for of, name, mine, scaled, spot in zip(
            (world, other), ("fast", "plain"), members, (fast, plain), (first, second), strict=True
        )
    ]
    scenario, table = Scenario.of_pools(pools, deployment, world.client, world.load), table_of(world)
    run = simulate(scenario, table, seed, every_turn=True)
    ended_once(run, table, failures.most)
    parts_add_up(run)
    for part in run.parts:
        if part.scaling is not None:
            end_s = float(part.scaling.changes["time_s"][-1])
            assert part.scaling.paid_s(0.0, end_s) == pytest.approx(integral(part.scaling, end_s), abs=1e-9)
    again = simulate(scenario, table, seed)
    assert differences(run, again) == [] and run.outages == again.outages


def alone(
    spot: SpotConfig | None, failures: FailuresConfig, end_s: float = 2e4, start_s: float = 3.0
) -> RunResult:
    """Four replicas that stay as many, with a request at the beginning and one at the end."""
    table = RequestTable.of([1, 1], [1, 1], arrival_s=[0.0, end_s])
    spare = 4 if spot is not None else 0
    config = AutoscaleConfig(FIXED, 1.0, 4, 4, 4, 3.0, inf, spare=spare)
    members = tuple(range(config.slots))
    pool = ReplicaPool("", ENGINE, ToyCost(1e-3), members, autoscale=config, spot=spot)
    deployment = DeploymentConfig(len(members), "random", failures=failures)
    return simulate(Scenario.of_pools([pool], deployment, NO_CLIENT, LoadConfig()), table, 0)


def test_interruptions_are_the_hours_of_instances_over_the_mean() -> None:
    run = alone(SpotConfig(mtti_s=60.0, notice_s=1.0, most=50), FailuresConfig(most=50))
    log = run.parts[0].scaling
    assert log is not None
    expected = log.paid_s(0.0, 2e4) / 60.0  # an instance is there from its order on
    assert expected > 1000.0
    assert len(run.outages) == pytest.approx(expected, rel=0.03 + 3.0 / expected**0.5)
    figures = failure_figures(run)
    assert figures is not None and figures.interruptions == len(run.outages) and figures.failures == 0
    # of each mean time a replacement takes 3 s, and nobody drains for long
    assert figures.availability == pytest.approx(60.0 / 63.0, rel=0.03)


@pytest.mark.parametrize("kind", [DIES, HANGS])
def test_availability_of_those_replaced_is_mtbf_over_mtbf_and_what_that_takes(kind: str) -> None:
    failures = FailuresConfig(mtbf_s=40.0, kind=kind, detect_s=2.0, most=50)
    figures = failure_figures(alone(None, failures))
    assert figures is not None and figures.interruptions is None
    # until it is found, and until another serves; a number is not there to fail again meanwhile
    assert figures.availability == pytest.approx(40.0 / (40.0 + 2.0 + 3.0), rel=0.03)
    assert figures.failures == pytest.approx(4 * 2e4 / 45.0, rel=0.06)


def test_a_dead_replica_is_paid_for_until_it_is_found_and_replaced_at_once() -> None:
    failures = FailuresConfig((FailureConfig(1, 10.0),), detect_s=2.0, most=50)
    run = alone(None, failures, end_s=100.0)
    log, (outage,) = run.parts[0].scaling, run.outages
    assert log is not None
    stays = {name: column.tolist() for name, column in log.stays.items()}
    assert stays["gone_s"][1] == 12.0 and stays["ordered_s"][4] == 12.0 and stays["up_s"][4] == 15.0
    assert stays["replaces"] == [0.0, 0.0, 0.0, 0.0, 1.0] and log.scale_outs == 0
    assert (outage.found_s, outage.back_s) == (12.0, 15.0)
    (late,) = alone(None, replace(failures, at=(FailureConfig(1, 97.0),)), end_s=100.0).outages
    assert (late.found_s, late.back_s) == (99.0, inf)  # nobody serves in its place before the end


def test_who_is_on_spot_drains_from_the_notice_on_and_what_is_left_is_lost_at_its_end() -> None:
    table = RequestTable.of([10] * 4, [20, 60, 20, 60], arrival_s=[0.0] * 4)  # 2 s and 6 s
    spot = SpotConfig(1, at=(TakenAt(1.05),), notice_s=2.0, most=1, backoff_s=0.15, keep_partial=True)
    config = AutoscaleConfig(FIXED, 1.0, 2, 2, 2, 1.0, inf, spare=1)
    pool = ReplicaPool("", ENGINE, ToyCost(0.1), (0, 1, 2), autoscale=config, spot=spot)
    deployment = DeploymentConfig(3, failures=FailuresConfig())
    scenario = Scenario.of_pools([pool], deployment, NO_CLIENT, LoadConfig())
    run = simulate(scenario, table, 0, every_turn=True)
    # round robin: 1 and 3 are at replica 1, which is gone at 3.05 s with 30 tokens of each
    (outage,) = run.outages
    assert (outage.at_s, outage.gone_s, outage.back_s, outage.lost) == (1.05, 3.05, 2.05, (1, 3))
    assert run.requests["retries"].tolist() == [0, 1, 0, 1] and not run.requests["wasted_tokens"].any()
    assert run.requests["finished_s"][[1, 3]] == pytest.approx([3.2 + 3.0] * 2)
    log = run.parts[0].scaling
    assert log is not None and log.peak() == 3 and log.paid_s(0.0, 10.0) == pytest.approx(10.0 + 3.05 + 8.95)
    fixed = replace(spot, at=())
    calm = replace(scenario, pools=(replace(pool, spot=fixed),))
    whole = simulate(calm, table, 0).requests
    assert (whole["finished_s"][[1, 3]] < run.requests["finished_s"][[1, 3]]).all()


def test_no_instance_is_ordered_while_none_is_to_be_had_and_the_gateway_holds_who_comes() -> None:
    table = RequestTable.of([10] * 3, [5] * 3, arrival_s=[0.0, 2.0, 4.0])
    spot = SpotConfig(at=(TakenAt(1.0, 1, 4.0),), notice_s=0.0)
    config = AutoscaleConfig(FIXED, 1.0, 1, 1, 1, 1.0, inf)
    pool = ReplicaPool("", ENGINE, ToyCost(0.1), (0,), autoscale=config, spot=spot)
    for gateway in (None, GatewayConfig()):
        deployment = DeploymentConfig(1, failures=FailuresConfig(), gateway=gateway)
        run = simulate(
            Scenario.of_pools([pool], deployment, NO_CLIENT, LoadConfig()), table, 0, every_turn=True
        )
        served = run.requests["status"] == FINISHED
        log = run.parts[0].scaling
        assert log is not None
        if gateway is None:  # nobody is there: refused, once more, and lost
            assert served.tolist() == [True, False, False]
            continue
        assert served.all() and log.stays["ordered_s"].tolist() == [0.0, 5.0]
        assert run.requests["finished_s"][1:] == pytest.approx([6.5, 6.5])
