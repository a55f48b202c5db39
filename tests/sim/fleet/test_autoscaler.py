"""Replicas that follow the load: closed forms of the law, and what holds of every run."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sim_toys import ENGINE, ToyCost, World, worlds
from test_pools import pool_of, table_of

from specfleet.sim.config import NO_CLIENT, DeploymentConfig, GatewayConfig, LoadConfig
from specfleet.sim.errors import Breach
from specfleet.sim.fleet.scaling import AutoscaleConfig, Law, ScalingLog
from specfleet.sim.laws.everywhere import differences
from specfleet.sim.laws.scaling import check_scaling
from specfleet.sim.recorder import FINISHED, REJECTED, TIMED_OUT
from specfleet.sim.router import ROUTERS
from specfleet.sim.scenario import ReplicaPool, RunResult, Scenario
from specfleet.sim.simulation import simulate
from specfleet.workloads.requests import RequestTable

CONFIG = AutoscaleConfig("concurrency", 4.0, 1, 8, 1, start_s=20.0, window_s=15.0, down_after_s=30.0)
LIMITS = ((0.3, inf, inf),)
SEES = {
    "concurrency": 4.0,
    "queue": 1.0,
    "kv_usage": 0.1,
    "ttft": 0.3,
    "slo_attainment": 0.9,
}
STEP_S = 0.05


def scenario(config: AutoscaleConfig, seats: int = 4) -> Scenario:
    """Replicas that serve so many requests at a time, 50 ms a token."""
    deployment = DeploymentConfig(config.most, "least_outstanding")
    engine = replace(ENGINE, max_num_seqs=seats, num_gpu_blocks=10 * seats)
    pool = ReplicaPool("", engine, ToyCost(STEP_S), tuple(range(config.most)), autoscale=config)
    return Scenario.of_pools([pool], deployment, NO_CLIENT, LoadConfig())


def steady(per_s: float, seconds: float, tokens: int, from_s: float = 0.0) -> list[tuple[float, int]]:
    """Requests that come evenly, with their lengths."""
    return [(from_s + (i + 0.5) / per_s, tokens) for i in range(round(per_s * seconds))]


def table(rows: list[tuple[float, int]]) -> RequestTable:
    """Those requests."""
    at, tokens = zip(*rows, strict=True)
    return RequestTable.of(np.ones(len(rows), dtype=np.int64), np.array(tokens), arrival_s=np.array(at))


def run(config: AutoscaleConfig, rows: list[tuple[float, int]], seats: int = 4) -> RunResult:
    """A run, on the calendar and stepped, laws checked after every turn."""
    return simulate(scenario(config, seats), table(rows), 0, every_turn=True)


def log_of(found: RunResult) -> ScalingLog:
    """What the autoscaler of its only pool did."""
    (part,) = found.parts
    assert part.scaling is not None
    return part.scaling


@pytest.mark.parametrize("per_s", [6.0, 10.0, 30.0])
def test_a_step_of_load_orders_the_replicas_of_littles_law_at_the_next_decision(per_s: float) -> None:
    """Requests take 1 s in an engine that holds all of them, so rate x 1 s are inside."""
    config = replace(CONFIG, most=20, up_most=20)
    at_s, tokens = 45.0, 20  # 20 steps of 50 ms
    found = run(config, steady(2.0, at_s, tokens) + steady(per_s, 40.0, tokens, at_s), seats=64)
    stays = log_of(found).stays
    wished = ceil(per_s * tokens * STEP_S / config.target)
    assert stays["ordered_s"].tolist() == [0.0] + [60.0] * (wished - 1)
    assert stays["up_s"][1:].tolist() == [60.0 + config.start_s] * (wished - 1)
    assert log_of(found).scale_outs == 1 and log_of(found).peak() == wished


def test_replicas_go_once_fewer_were_wished_for_throughout_the_window_and_are_paid_until_they_drained() -> (
    None
):
    config = replace(CONFIG, start=4, least=1)
    found = run(config, steady(2.0, 100.0, 38))
    stays = log_of(found).stays
    # the number at the start is a wish of 0 s; the first decision without it in its window is that of 45 s
    assert stays["draining_s"][1:].tolist() == [45.0] * 3 and np.isnan(stays["gone_s"][0])
    requests = found.requests
    for number in (1, 2, 3):
        last = requests["finished_s"][requests["replica"] == number].max(initial=45.0)
        assert stays["gone_s"][number] == max(last, 45.0)
    end_s = float(requests["finished_s"].max())
    assert log_of(found).paid_s(0.0, end_s) == pytest.approx(end_s + stays["gone_s"][1:].sum())


@pytest.mark.parametrize(
    ("on", "metric", "ordered", "up", "wish"),
    [
        ("concurrency", 40.0, 2, 1, 8),  # 10 replicas, and 8 are the most
        ("concurrency", 12.0, 2, 1, 3),
        ("concurrency", 8.8, 2, 2, 2),  # within the tolerance
        ("concurrency", 8.9, 2, 2, 3),
        ("concurrency", 0.0, 2, 2, 1),
        ("ttft", 12.0, 5, 2, 6),  # three times the target with two replicas up, whatever starts
        ("ttft", 4.2, 5, 2, 5),
        ("slo_attainment", 0.7, 2, 2, 6),  # three times as many misses as are allowed
    ],
)
def test_the_law_is_kubernetes(on: str, metric: float, ordered: int, up: int, wish: int) -> None:
    target = 0.9 if on == "slo_attainment" else 4.0
    assert Law(replace(CONFIG, on=on, target=target)).wish(metric, ordered, up) == wish


def test_no_more_are_added_at_once_than_kubernetes_adds() -> None:
    law = Law(replace(CONFIG, most=100))
    assert law.decide(15.0, 50, 1) == 5 and law.decide(30.0, 50, 5) == 10
    assert Law(replace(CONFIG, most=100, up_most=2)).decide(15.0, 50, 1) == 3


def spiky(on: str) -> list[tuple[float, int]]:
    """Load that triples and falls again, twice."""
    return steady(2.0, 40.0, 20) + [
        row
        for from_s in (40.0, 160.0)
        for row in steady(12.0, 60.0, 20, from_s) + steady(1.0, 60.0, 20, from_s + 60.0)
    ]


@pytest.mark.parametrize("on", sorted(SEES))
def test_replicas_come_and_go_by_everything_that_may_be_looked_at(on: str) -> None:
    found = run(replace(CONFIG, on=on, target=SEES[on], limits=LIMITS), spiky(on))
    assert (found.requests["status"] == FINISHED).all()
    assert log_of(found).scale_outs >= 2
    assert np.isfinite(log_of(found).stays["gone_s"]).any()
    looks = on in ("queue", "kv_usage")
    assert (found.stepped_share == 1.0) == looks
    assert found.stepped_because == (f"autoscaling on {on} looks into engines" if looks else "")


def test_a_fleet_between_equal_bounds_runs_as_one_of_fixed_size() -> None:
    config = replace(CONFIG, least=3, most=3, start=3)
    scaled = run(config, spiky("concurrency"))
    plain = scenario(config)
    fixed = replace(plain, pools=(replace(plain.pools[0], autoscale=None),))
    ran = simulate(fixed, table(spiky("concurrency")), 0)
    assert differences(scaled, ran) == []
    assert log_of(scaled).paid_s(0.0, 10.0) == 30.0 and log_of(scaled).scale_outs == 0


@given(
    worlds(),
    st.integers(0, 2**32),
    st.sampled_from(sorted(SEES)),
    st.floats(0.1, 4.0),
    st.integers(1, 3),
    st.booleans(),
    st.sampled_from([0.05, 0.2, 1.0]),
    st.sampled_from(sorted(name for name, router in ROUTERS.items() if not hasattr(router, "told"))),
)
def test_every_request_ends_once_within_the_bounds_and_busy_time_is_paid(
    world: World,
    seed: int,
    on: str,
    scale: float,
    least: int,
    gateway: bool,
    every: float,
    router: str,
) -> None:
    """`simulate` checks the laws of requests, steps and replicas, and the calendar against stepping."""
    target = min(SEES[on] * scale, 0.95) if on in ("kv_usage", "slo_attainment") else SEES[on] * scale
    config = AutoscaleConfig(
        *(on, target, least, 4, least, 0.7 * every, every, 2.0 * every, 0.1, None, 2.5 * every, LIMITS)
    )
    held = GatewayConfig(2, 3, 0.3, None, 1, 0.1) if gateway else None
    deployment = replace(world.deployment, replicas=4, router=router, gateway=held)
    pool = replace(pool_of(world, "pool", tuple(range(4))), autoscale=config)
    cluster = Scenario.of_pools([pool], deployment, world.client, world.load)
    found = simulate(cluster, table_of(world), seed, every_turn=True)
    status = found.requests["status"]
    assert np.isin(status, (FINISHED, REJECTED, TIMED_OUT)).all()
    steps = found.iterations
    if len(steps["end_s"]):
        busy = float((steps["end_s"] - steps["start_s"]).sum())
        # a step in vain behind the last answer of a replica that has drained is not paid for
        wasted = float((steps["end_s"] - steps["start_s"]).max()) * len(log_of(found).stays["gone_s"])
        assert busy <= log_of(found).paid_s(0.0, float(steps["end_s"].max())) + wasted


def with_log(found: RunResult, log: ScalingLog) -> RunResult:
    """A run whose autoscaler says something else."""
    return replace(found, parts=(replace(found.parts[0], scaling=log),))


def test_a_replica_that_works_while_it_is_not_paid_for_breaks_a_law() -> None:
    found = run(CONFIG, spiky("concurrency"))
    check_scaling(found)
    for name, values in (("up_s", log_of(found).stays["up_s"] + 30.0), ("gone_s", np.zeros(99))):
        stays = log_of(found).stays | {name: values[: len(log_of(found).stays["up_s"])]}
        with pytest.raises(Breach, match=r"not up|gone before"):
            check_scaling(with_log(found, replace(log_of(found), stays=stays)))
    fewer = log_of(found).changes | {"up": log_of(found).changes["up"] * 0.0}
    with pytest.raises(Breach, match="fewer than 1 are up"):
        check_scaling(with_log(found, replace(log_of(found), changes=fewer)))
