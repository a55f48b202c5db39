"""Routers, old views and the gateway: closed forms, and that every request ends exactly once."""

from __future__ import annotations

from dataclasses import replace
from math import factorial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sim_toys import ENGINE, ToyCost, World, worlds
from test_pools import pool_of, table_of

from specfleet.sim.config import (
    NO_CLIENT,
    ClientConfig,
    DeploymentConfig,
    GatewayConfig,
    LoadConfig,
    RoutingConfig,
)
from specfleet.sim.fleet.groups import members_of
from specfleet.sim.fleet.views import Gauge
from specfleet.sim.recorder import FINISHED, REJECTED, TIMED_OUT
from specfleet.sim.router import ROUTERS, PowerOfTwo, Prefixes
from specfleet.sim.scenario import ReplicaPool, RunResult, Scenario
from specfleet.sim.simulation import simulate
from specfleet.workloads.requests import RequestTable

ONE_SEAT = replace(ENGINE, max_num_seqs=1)
STEPS = 50
"""Mean steps of a service: exponential to within 1 / (2 x 50) of a step's rounding."""


def queue(servers: int, load: float, n: int, router: str, seed: int, **more: object) -> RunResult:
    """Simulates n requests with exponential services of mean 1 s before so many servers at `load` each."""
    rng = np.random.default_rng(seed)
    arrivals = np.cumsum(rng.exponential(1.0 / (load * servers), n))
    output = np.maximum(np.ceil(rng.exponential(STEPS, n)), 1).astype(np.int64)
    step_s = 1.0 / float(output.mean())
    deployment = DeploymentConfig(servers, router, **more)  # type: ignore[arg-type]
    pool = ReplicaPool("all", ONE_SEAT, ToyCost(step_s), tuple(range(servers)))
    scenario = Scenario.of_pools([pool], deployment, NO_CLIENT, LoadConfig())
    table = RequestTable.of(np.ones(n, dtype=np.int64), output, arrival_s=arrivals)
    return simulate(scenario, table, seed)


def sojourn(run: RunResult) -> float:
    """Mean seconds from sending to the end, without the tenth of requests that came first."""
    requests = run.requests
    assert (requests["status"] == FINISHED).all()
    late = slice(len(requests["sent_s"]) // 10, None)
    return float((requests["finished_s"] - requests["sent_s"])[late].mean())


def erlang_c(servers: int, load: float) -> float:
    """Mean sojourn in M/M/c with mean service 1."""
    offered = servers * load
    head = sum(offered**k / factorial(k) for k in range(servers))
    tail = offered**servers / factorial(servers) / (1.0 - load)
    return 1.0 + tail / (head + tail) / (servers * (1.0 - load))


def shortest_queue(load: float, most: int = 40) -> float:
    """Mean sojourn when each goes to the shorter of two M/M/1 queues: the stationary law of the pair of queue
    lengths, by iteration of its transition rates; Little's law."""
    lengths = np.zeros((most, most))
    lengths[0, 0] = 1.0
    i, j = np.indices((most, most))
    to_first = np.where(i < j, 1.0, np.where(i == j, 0.5, 0.0)) * 2.0 * load
    to_second = 2.0 * load - to_first
    rate = 2.0 * load + 2.0
    for _ in range(5_000):
        up_i, up_j = lengths * to_first / rate, lengths * to_second / rate
        new = np.zeros_like(lengths)
        new[1:, :] += up_i[:-1, :]
        new[-1, :] += up_i[-1, :]
        new[:, 1:] += up_j[:, :-1]
        new[:, -1] += up_j[:, -1]
        new[:-1, :] += lengths[1:, :] / rate
        new[0, :] += lengths[0, :] / rate
        new[:, :-1] += lengths[:, 1:] / rate
        new[:, 0] += lengths[:, 0] / rate
        lengths = new
    return float(((i + j) * lengths).sum() / (2.0 * load))


def test_a_gateway_with_one_request_a_replica_is_the_m_m_c_queue() -> None:
    gateway = GatewayConfig(max_outstanding=1)
    run = queue(4, 0.7, 15_000, "least_outstanding", 1, gateway=gateway)
    assert sojourn(run) == pytest.approx(erlang_c(4, 0.7), rel=0.03)


def test_least_outstanding_joins_the_shortest_queue() -> None:
    run = queue(2, 0.7, 20_000, "least_outstanding", 1)
    assert run.stepped_share == 0.0
    assert sojourn(run) == pytest.approx(shortest_queue(0.7), rel=0.03)


def test_random_routing_gives_queues_apart() -> None:
    run = queue(5, 0.5, 20_000, "random", 1)
    assert sojourn(run) == pytest.approx(2.0, rel=0.03)


def test_power_of_two_meets_its_limit_of_many_servers() -> None:
    load = 0.8
    limit = sum(load ** (2.0**i - 2.0) for i in range(1, 12))
    run = queue(100, load, 20_000, "power_of_two", 1)
    assert run.stepped_share == 0.0
    assert sojourn(run) == pytest.approx(limit, rel=0.03)


def test_old_views_send_everybody_to_where_nobody_was() -> None:
    fresh = sojourn(queue(10, 0.8, 3_000, "least_outstanding", 1))
    old = sojourn(queue(10, 0.8, 3_000, "least_outstanding", 1, refresh_s=10.0))
    chance = sojourn(queue(10, 0.8, 3_000, "random", 1))
    assert fresh < 0.5 * chance < chance < old, "Mitzenmacher 2000: how useful is old information"


@given(
    st.lists(st.tuples(st.sampled_from([1, -1, 3]), st.floats(0.0, 3.0)), max_size=30),
    st.sampled_from([0.0, 0.5, 2.0]),
)
def test_a_gauge_is_seen_as_it_was_at_the_last_refresh(
    changes: list[tuple[int, float]], refresh_s: float
) -> None:
    gauge, now, history = Gauge(refresh_s), 0.0, [(-1.0, 0)]
    for change, after in changes:
        now += after
        gauge.add(change, now)
        history.append((now, history[-1][1] + change))
        for look in (now, now + 0.3):
            due = look // refresh_s * refresh_s if refresh_s else np.inf
            seen = [
                value for at, value in history if at < due or at // (refresh_s or 1) < due // (refresh_s or 1)
            ]
            assert gauge.seen(look) == (seen[-1] if refresh_s else history[-1][1])


@given(st.integers(0, 2**40), st.integers(0, 2**32), st.integers(1, 9))
def test_power_of_two_draws_two_and_takes_the_less_loaded(request: int, seed: int, replicas: int) -> None:
    router = PowerOfTwo(seed)
    counts = [1] * replicas
    first = router.choose(request, counts)
    counts[first] = 2
    second = router.choose(request, counts)
    assert second != first or replicas == 1
    assert {first, second} == {router.choose(request, [9] * replicas), second}


def test_prefixes_match_as_far_as_prompts_are_alike() -> None:
    size = Prefixes.BLOCK
    prompts = [[(1, 2 * size), (2, size)], [(1, 2 * size), (3, size)], [(4, 3 * size)]]
    offset = [0, 2, 4, 5]
    segments = offset, [s for p in prompts for s, _ in p], [n for p in prompts for _, n in p]
    table = RequestTable.of([3 * size] * 3, [1] * 3, arrival_s=[0.0] * 3, segments=segments)
    known = Prefixes()
    known.told(table)
    known.note(0, known.blocks(0))
    assert [known.matched(0, known.blocks(row)) for row in range(3)] == [3, 2, 0]
    assert known.matched(1, known.blocks(0)) == 0


@given(
    worlds(),
    worlds(),
    st.integers(0, 2**32),
    st.sampled_from(sorted(ROUTERS)),
    st.sampled_from([0.0, 0.05]),
    st.sampled_from(["all", "class", "spill"]),
    st.none()
    | st.builds(
        GatewayConfig,
        max_outstanding=st.sampled_from([None, 1, 2]),
        queue=st.sampled_from([None, 0, 1, 3]),
        timeout_s=st.sampled_from([None, 0.01, 0.3]),
        admit_ttft_s=st.sampled_from([None, 0.05]),
        retries=st.integers(0, 2),
        backoff_s=st.sampled_from([0.0, 0.1]),
    ),
)
def test_every_request_ends_exactly_once_whatever_the_router(
    world: World,
    other: World,
    seed: int,
    router: str,
    refresh_s: float,
    split: str,
    gateway: GatewayConfig | None,
) -> None:
    table = table_of(world)
    members = members_of([2, 1])
    pools = [pool_of(world, "fast", members[0]), pool_of(other, "plain", members[1])]
    by_class = {} if split == "all" else {"a": "fast", "b": "plain"}
    spill = {"fast": (1.0, "plain")} if split == "spill" else {}
    deployment = DeploymentConfig(
        3, router, routing=RoutingConfig(by_class, spill), refresh_s=refresh_s, gateway=gateway
    )
    run = simulate(
        Scenario.of_pools(pools, deployment, world.client, world.load), table, seed, every_turn=True
    )
    status = run.requests["status"]
    ended = {name: int((status == value).sum()) for name, value in (("done", FINISHED), ("late", TIMED_OUT))}
    refused = int((status == REJECTED).sum())
    assert ended["done"] + ended["late"] + refused == len(table)
    assert ended["late"] + refused == sum(run.refusals.values())
    if gateway is None or gateway.timeout_s is None or gateway.max_outstanding is None:
        assert not ended["late"]


def test_who_is_turned_away_comes_again_and_may_be_served() -> None:
    table = RequestTable.of([10] * 3, [10] * 3, arrival_s=[0.0] * 3)
    pool = ReplicaPool("all", ENGINE, ToyCost(0.1), (0,))
    found = {}
    for retries in (0, 1):
        gateway = GatewayConfig(max_outstanding=1, queue=1, retries=retries, backoff_s=1.5)
        deployment = DeploymentConfig(1, gateway=gateway)
        run = simulate(Scenario.of_pools([pool], deployment, ClientConfig(0, 0, 0, 0, 0)), table, 0)
        found[retries] = run
    assert found[0].requests["status"].tolist() == [FINISHED, FINISHED, REJECTED]
    assert dict(found[0].refusals) == {"the gateway's queue was full": 1}
    assert found[1].requests["status"].tolist() == [FINISHED] * 3
    assert found[1].requests["turned_away"].tolist() == [0, 0, 1]
    assert found[1].requests["sent_s"][2] == 0.0 and found[1].requests["arrived_s"][2] >= 1.5


def test_a_loaded_pool_sends_its_requests_past_itself() -> None:
    table = RequestTable.of([10] * 9, [50] * 9, arrival_s=(0.001 * np.arange(9)).tolist())
    pools = [ReplicaPool("fast", ENGINE, ToyCost(), (0,)), ReplicaPool("plain", ENGINE, ToyCost(), (1,))]
    routing = RoutingConfig({"": "fast"}, {"fast": (4.0, "plain")})
    run = simulate(Scenario.of_pools(pools, DeploymentConfig(2, routing=routing), NO_CLIENT), table, 0)
    assert run.requests["pool"].tolist() == [0] * 4 + [1] * 5
