"""Clusters of several pools: as one where they are alike, each by its own laws where they are not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from sim_toys import ENGINE, SPREAD, ToyCost, World, drafting, worlds

from specfleet.sim.config import NO_CLIENT, DeploymentConfig, LoadConfig, RoutingConfig
from specfleet.sim.fleet.groups import members_of
from specfleet.sim.laws.everywhere import differences
from specfleet.sim.recorder import FINISHED, REJECTED
from specfleet.sim.scenario import ReplicaPool, RunResult, Scenario
from specfleet.sim.simulation import simulate
from specfleet.workloads.requests import RequestTable


def table_of(world: World) -> RequestTable:
    """The requests of a world, of class `a` and `b` in turn."""
    n = len(world.prompt)
    return RequestTable.of(
        world.prompt,
        world.output,
        max_tokens=world.max_tokens,
        arrival_s=world.arrival_s,
        class_id=[row % 2 for row in range(n)],
        class_names=("a", "b"),
        segments=world.segments,
    )


def pool_of(world: World, name: str, members: tuple[int, ...], speed: float = 1.0) -> ReplicaPool:
    """A pool of a world's engines, whose steps take `speed` times as long."""
    cost = replace(world.cost, step_s=world.cost.step_s * speed)
    acceptance = {"": world.acceptance} if world.acceptance else {}
    return ReplicaPool(name, world.engine, cost, members, acceptance)


def simulated(scenario: Scenario, table: RequestTable, seed: int = 0) -> RunResult:
    """A run whose laws were checked after every turn, stepped as well where the calendar took it."""
    return simulate(scenario, table, seed, every_turn=True)


@given(worlds(), st.integers(0, 2**32), st.integers(0, 2))
def test_a_pool_cut_in_two_runs_as_it_did_whole(world: World, seed: int, cut: int) -> None:
    replicas = 3
    whole = replace(world, deployment=replace(world.deployment, replicas=replicas))
    table = table_of(whole)
    one = simulate(whole.scenario({"": world.acceptance} if world.acceptance else {}), table, seed)
    numbers = np.roll(np.arange(replicas), cut).tolist()
    mine, others = tuple(sorted(numbers[:1])), tuple(sorted(numbers[1:]))
    pools = [pool_of(world, "pool", mine), pool_of(world, "pool", others)]
    several = simulated(Scenario.of_pools(pools, whole.deployment, world.client, world.load), table, seed)
    assert set(several.requests.pop("pool").tolist()) <= {-1, 0}
    same = replace(several, stepped_because=one.stepped_because)
    assert differences(same, one) == []


@given(worlds(), worlds(), st.integers(0, 2**32), st.booleans(), st.sampled_from([1.0, 0.5, 3.0]))
def test_every_request_ends_in_one_pool_and_laws_hold_of_each(
    world: World, other: World, seed: int, by_class: bool, speed: float
) -> None:
    table = table_of(world)
    members = members_of([2, 1, 1])
    pools = [
        pool_of(world, "fast", members[0]),
        pool_of(world, "fast", members[1], speed),
        pool_of(other, "plain", members[2]),
    ]
    routing = RoutingConfig({"a": "fast", "b": "plain"} if by_class else {})
    deployment = DeploymentConfig(4, world.deployment.router, routing=routing)
    run = simulated(Scenario.of_pools(pools, deployment, world.client, world.load), table, seed)
    assert set(run.requests["status"].tolist()) <= {FINISHED, REJECTED}
    assert sum(len(part.requests["status"]) for part in run.parts) + sum(run.refusals.values()) == len(table)
    if by_class:
        served = run.requests["status"] == FINISHED
        assert ((run.requests["replica"] == 3) == (table.class_id == 1))[served].all()


def test_a_request_goes_past_a_pool_that_would_refuse_it() -> None:
    short = replace(ENGINE, max_model_len=100)
    pools = [
        ReplicaPool("short", short, ToyCost(), (0,)),
        ReplicaPool("long", drafting(2), ToyCost(), (1,), {"": SPREAD}),
    ]
    table = RequestTable.of([50, 300, 50, 300, 200_000], [10] * 5, arrival_s=[0.0] * 5)
    run = simulated(Scenario.of_pools(pools, DeploymentConfig(2, "round_robin"), NO_CLIENT), table)
    assert run.requests["replica"][[1, 3]].tolist() == [1, 1]
    assert run.requests["status"].tolist() == [FINISHED] * 4 + [REJECTED]
    assert sum(run.refusals.values()) == 1
    assert 0 in run.requests["replica"][[0, 2]].tolist()


def test_blind_routers_and_least_outstanding_leave_every_pool_on_the_calendar() -> None:
    table = RequestTable.of([64] * 40, [20] * 40, arrival_s=(np.arange(40) * 0.03).tolist())
    pools = [
        ReplicaPool("fast", drafting(3), ToyCost(), (0, 1), {"": SPREAD}),
        ReplicaPool("plain", ENGINE, ToyCost(), (2,)),
    ]
    for router in ("round_robin", "random", "least_outstanding"):
        for load in (LoadConfig(), LoadConfig(max_concurrency=8)):
            run = simulate(Scenario.of_pools(pools, DeploymentConfig(3, router), NO_CLIENT, load), table, 0)
            assert run.stepped_share == 0.0 and run.stepped_because == ""
            assert run.parts[0].rounds_by_accepted != () and len(run.parts) == 2
