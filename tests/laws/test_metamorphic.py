"""What a change of the question must do to the answer, on the same requests and the same luck."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim_toys import ENGINE, SPREAD, ToyCost, World, drafting, worlds

from specfleet.hardware import catalog
from specfleet.hardware.placement import Placement
from specfleet.hardware.stepcost import KernelCost
from specfleet.sim.config import NO_CLIENT, EngineConfig, LoadConfig
from specfleet.sim.scenario import RunResult, Scenario
from specfleet.sim.simulation import simulate
from specfleet.sim.speculation.acceptance import AcceptanceSpec
from specfleet.sim.statistics.pairs import ratio_of_means
from specfleet.sim.statistics.series import Series
from specfleet.workloads.requests import RequestTable

F64 = npt.NDArray[np.float64]
N = 400


def table(seed: int, users: int | None, fewer: int = 0) -> RequestTable:
    """Requests of all lengths, of a closed loop or one after another; `fewer` output tokens of each."""
    rng = np.random.default_rng([seed, 5])
    prompt = np.clip(rng.lognormal(5.5, 0.8, N), 2, 2000).astype(np.int64)
    output = np.clip(rng.lognormal(3.6, 0.6, N), 8, 300).astype(np.int64)
    arrival = np.zeros(N) if users else np.cumsum(rng.exponential(0.03, N))
    return RequestTable.of(prompt, output - fewer, arrival_s=arrival)


def priced(**gpu: float) -> KernelCost:
    """Prices of an 8B model with an EAGLE-3 head on an H100 with other rates."""
    return KernelCost(
        Placement.of(
            catalog.model("llama-3.1-8b"),
            catalog.accelerator({"base": "h100-sxm", **gpu}),
            catalog.engine_profile("vllm-0.33"),
            drafter=catalog.drafter("eagle3-llama3.1-instruct-8b"),
            num_speculative_tokens=4,
        )
    )


COST, WIDER = priced(), priced(hbm_bytes_per_s=1.3 * 3.35e12)
LOADS = st.sampled_from([None, 1, 8, 64])
SEEDS = st.integers(0, 2**20)
FEW = settings(max_examples=12, deadline=None)


def e2el_s(result: RunResult) -> Series:
    """End-to-end seconds of every request."""
    return Series(np.asarray(result.requests["last_chunk_s"] - result.requests["sent_s"], dtype=np.float64))


def alpha(value: float) -> AcceptanceSpec:
    """One conditional acceptance, with requests that differ."""
    return AcceptanceSpec(conditional_acceptance=value, concentration=10.0)


def served(
    seed: int, users: int | None, cost: KernelCost = COST, accepts: float = 0.6, fewer: int = 0
) -> Series:
    """Runs K = 4 and returns end-to-end seconds."""
    scenario = Scenario(drafting(4), cost, {"": alpha(accepts)}, load=LoadConfig(users))
    return e2el_s(simulate(scenario, table(seed, users, fewer), seed))


def never_slower(before: Series, after: Series) -> None:
    """Fails where a change has made requests slower by more than chance may."""
    found = ratio_of_means([before], [after])
    assert found.value <= 1.0 or found.low <= 1.0, f"{found.value:.4f} [{found.low:.4f}, {found.high:.4f}]"
    assert found.value < 1.02


@FEW
@given(SEEDS, LOADS)
def test_more_bandwidth_never_hurts(seed: int, users: int | None) -> None:
    never_slower(served(seed, users), served(seed, users, WIDER))


@FEW
@given(SEEDS, LOADS, st.integers(1, 6))
def test_fewer_tokens_never_hurt(seed: int, users: int | None, fewer: int) -> None:
    never_slower(served(seed, users), served(seed, users, fewer=fewer))


@FEW
@given(SEEDS, LOADS, st.floats(0.02, 0.35))
def test_higher_acceptance_at_the_same_k_never_hurts(seed: int, users: int | None, more: float) -> None:
    never_slower(served(seed, users), served(seed, users, accepts=0.6 + more))


@settings(max_examples=40, deadline=None)
@given(worlds(), SEEDS, st.sampled_from([2.0, 0.25, 1024.0]))
def test_another_unit_of_time_changes_every_time_and_nothing_else(
    world: World, seed: int, unit: float
) -> None:
    cost, client = world.cost, world.client
    times = {name: getattr(cost, name) * unit for name in ("step_s", "prefill_s", "token_s", "pass_s")}
    delays = {name: value * unit for name, value in asdict(client).items()}
    scaled = replace(
        world,
        arrival_s=[due * unit for due in world.arrival_s or ()],
        cost=ToyCost(**times),
        client=replace(client, **delays),
    )
    ours, theirs = world.run(seed), scaled.run(seed)
    for mine, other in ((ours.requests, theirs.requests), (ours.iterations, theirs.iterations)):
        for name, values in mine.items():
            expected = values * unit if name.endswith("_s") else values
            np.testing.assert_array_equal(other[name], expected, err_msg=name)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 30), st.booleans(), SEEDS)
def test_who_is_called_what_is_nobody_s_business(n: int, lag: bool, seed: int) -> None:
    """Requests that come together, a seat for each, and one luck for all: their ids are permuted."""
    rng = np.random.default_rng(seed)
    prompt, output, order = rng.integers(1, 60, n), rng.integers(1, 30, n), rng.permutation(n)
    world = World(
        prompt.tolist(),
        output.tolist(),
        engine=replace(drafting(3), async_scheduling=lag),
        acceptance=AcceptanceSpec(conditional_acceptance=1.0),
        client=NO_CLIENT,
    )
    mixed = replace(world, prompt=prompt[order].tolist(), output=output[order].tolist())
    ours, theirs = world.run().requests, mixed.run().requests
    for name in ("finished_s", "first_token_s", "chunks", "accepted_tokens", "draft_tokens"):
        assert ours[name][order].tolist() == theirs[name].tolist(), name


@settings(max_examples=40, deadline=None)
@given(worlds(), SEEDS)
def test_no_drafts_are_no_speculation(world: World, seed: int) -> None:
    none = replace(world, engine=replace(world.engine, speculative=None), acceptance=None)
    zero = replace(world, engine=drafting(0, engine=world.engine), acceptance=SPREAD)
    ours, theirs = none.run(seed), zero.run(seed)
    for mine, other in ((ours.requests, theirs.requests), (ours.iterations, theirs.iterations)):
        assert {name: values.tobytes() for name, values in mine.items()} == {
            name: values.tobytes() for name, values in other.items()
        }


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 7), st.lists(st.integers(1, 80), min_size=1, max_size=12), st.booleans())
def test_an_acceptance_of_1_gives_k_and_1_tokens_a_verification(k: int, output: list[int], lag: bool) -> None:
    engine = replace(drafting(k), async_scheduling=lag)
    always = AcceptanceSpec(conditional_acceptance=1.0)
    rows = World([9] * len(output), output, engine=engine, acceptance=always).run().requests
    rounds = -(-(np.array(output) - 1) // (k + 1))
    assert rows["verifications"].tolist() == rounds.tolist()
    assert rows["accepted_tokens"].tolist() == (k * rounds).tolist()


def single(max_num_seqs: int = 1) -> EngineConfig:
    """An engine that serves so many at a time."""
    return replace(ENGINE, max_num_seqs=max_num_seqs, max_num_batched_tokens=100_000)


def ones(n: int, arrival_s: F64 | None = None) -> RequestTable:
    """Requests that one step of one token answers."""
    return RequestTable.of([1] * n, [1] * n, arrival_s=arrival_s)


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_a_single_server_waits_as_m_d_1(load: float) -> None:
    n, rng = 60_000, np.random.default_rng(3)
    arrival = np.cumsum(rng.exponential(1.0 / load, n))
    scenario = Scenario(single(), ToyCost(1.0), client=NO_CLIENT)
    rows = simulate(scenario, ones(n, arrival), 0).requests
    waits = rows["admitted_s"] - rows["arrived_s"]
    assert waits.mean() == pytest.approx(load / (2.0 * (1.0 - load)), rel=0.05)


@pytest.mark.parametrize("users", [1, 3, 8])
def test_users_who_think_queue_as_machines_for_repair(users: int) -> None:
    """Machine repair with one repairman and fixed times: from two users on he is never idle after the start,
    so a round takes users x service, thinking included; with one user it takes service and thinking."""
    think = 0.4
    client = replace(NO_CLIENT, turn_s=think)
    n = 50 * users
    scenario = Scenario(single(), ToyCost(1.0), client=client, load=LoadConfig(users))
    rows = simulate(scenario, ones(n), 0).requests
    between = np.diff(np.sort(rows["finished_s"]))[5 * users :]
    expected = 1.0 + think if users == 1 else 1.0
    assert between == pytest.approx(np.full(len(between), expected))
    responses = (rows["finished_s"] - rows["sent_s"])[np.argsort(rows["finished_s"])][-10:]
    assert responses == pytest.approx(np.full(10, users * expected - think))
