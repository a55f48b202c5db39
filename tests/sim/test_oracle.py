"""The oracle is a bound of throughput: no policy passes it, in no world; of latencies it is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import timeline_worlds
from hypothesis import given, settings
from hypothesis import strategies as st
from sim_toys import ENGINE, SPREAD, ToyCost, World, drafting

import specfleet as sf
from specfleet.hardware import catalog
from specfleet.hardware.placement import Placement
from specfleet.hardware.stepcost import KernelCost, StepShape
from specfleet.sim.config import NO_CLIENT, LoadConfig
from specfleet.sim.metrics.columns import benchmark
from specfleet.sim.simulation import RunResult, Scenario, simulate
from specfleet.sim.speculation.acceptance import AcceptanceSpec
from specfleet.sim.speculation.oracle import BOUNDED, FreeDrafts
from specfleet.sim.speculation.policies import POLICIES
from specfleet.sim.speculation.policy import PolicySpec
from specfleet.workloads.requests import RequestTable

ORACLE = PolicySpec("oracle")
LAWS = settings(deadline=None, max_examples=40)


def policies(k: int) -> st.SearchStrategy[PolicySpec | None]:
    """Every policy that is shipped, acting in small worlds."""
    tops = st.lists(st.integers(0, k), min_size=3, max_size=3)
    fixed: Mapping[str, Mapping[str, object]] = {
        "disable_above_queue": {"queue": 2},
        "slo_budget": {"tpot_s": 0.01, "budget": 12},
        "by_class": {"drafts": {"a": 1}},
    }
    named = sorted(set(POLICIES) - {"oracle", "batch_size", "adaptive_tiers"})
    return st.one_of(
        st.sampled_from([PolicySpec(name, fixed.get(name, {})) for name in named]),
        tops.map(
            lambda ks: PolicySpec("batch_size", {"schedule": ((1, 2, ks[0]), (3, 6, ks[1]), (7, 99, ks[2]))})
        ),
        st.just(PolicySpec("adaptive_tiers", {"tiers": (1, 2, 3), "warmup": 0, "interval": 1})),
        st.none(),
    )


def figures(result: RunResult) -> Mapping[str, float]:
    """What `vllm bench serve` prints of a run."""
    return benchmark(result).numbers()


def held(world: World, seed: int, policy: PolicySpec | None) -> None:
    """Compares a policy with the oracle, on the same requests and the same luck.

    In an open loop the last request meets steps in another phase: at most two steps sooner or later. What a
    client takes for a chunk goes by its place in the step, which has nothing to do with drafts: here nothing.
    """
    world = replace(world, client=NO_CLIENT)
    table, scenario = timeline_worlds.requests(world), world.scenario(world.classes or {})
    oracle = simulate(replace(scenario, policy=ORACLE), table, seed)
    bound, tried = figures(oracle), figures(simulate(replace(scenario, policy=policy), table, seed))
    if any(world.arrival_s or ()):
        steps = oracle.iterations["end_s"] - oracle.iterations["start_s"]
        assert tried["duration"] >= bound["duration"] - 2 * float(steps.max(initial=0.0)), policy
        return
    for name in BOUNDED:
        assert tried[name] <= bound[name] * (1 + 1e-9), (name, policy)


@st.composite
def cases(draw: st.DrawFn) -> tuple[World, PolicySpec | None]:
    """A world with drafts, tight or ample, and a policy.

    Prompts come in pieces and, asynchronously, ends are certain: how whole prompts fit a step's budget, and
    whether a step behind an unforeseen end is wasted, has nothing to do with drafts.
    """
    kind = draw(st.sampled_from(["any", "crowded", "tight"]))
    drawn = timeline_worlds.worlds(("open", "closed", "closed"), 1, kind == "tight", kind == "crowded")
    world = draw(drawn.filter(lambda world: world.engine.speculative is not None))
    world = replace(world, engine=replace(world.engine, enable_chunked_prefill=True))
    if world.engine.async_scheduling:
        world = replace(world, max_tokens=list(world.output))
    return world, draw(policies(world.engine.num_speculative_tokens))


@LAWS
@given(cases(), st.integers(0, 99))
def test_no_policy_has_more_throughput_than_the_oracle(
    case: tuple[World, PolicySpec | None], seed: int
) -> None:
    world, policy = case
    held(world, seed, policy)


@LAWS
@given(st.integers(0, 99), st.sampled_from([0.0, 0.3, 0.8]), st.booleans(), st.sampled_from([1, 4]))
def test_the_oracle_loses_no_draft_and_leaves_no_luck(
    seed: int, conditional: float, asynchronous: bool, users: int
) -> None:
    """With luck by round its tokens a step are 1 + luck, zeros included."""
    k, n = 3, 40
    engine = replace(drafting(k, "eagle3", ENGINE), async_scheduling=asynchronous)
    luck = AcceptanceSpec(conditional_acceptance=conditional, concentration=9.0)
    scenario = Scenario(engine, ToyCost(), {"": luck}, load=LoadConfig(users), policy=ORACLE)
    table = RequestTable.of([20] * n, [60] * n)
    requests = simulate(scenario, table, seed).requests
    drafted = simulate(replace(scenario, policy=None), table, seed).requests
    ended = 1 if asynchronous else 0  # a placeholder for a round that nobody waits for
    assert (requests["draft_tokens"] - requests["accepted_tokens"] <= k * ended).all()
    # the rounds of always K, so many as the output takes
    assert (abs(requests["chunks"] - drafted["chunks"]) <= 1).all()


@LAWS
@given(
    st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=40), min_size=1, max_size=4), st.integers(0, 9)
)
def test_where_luck_belongs_to_output_positions_no_policy_needs_fewer_rounds(
    luck: list[list[int]], seed: int
) -> None:
    """There a longer draft may lead to a worse place: the oracle looks one round further."""
    acceptance = AcceptanceSpec(replay=tuple(bytes(row) for row in luck))
    engine = drafting(4, "eagle3", ENGINE)
    scenario = Scenario(
        engine, ToyCost(), {"": acceptance}, load=LoadConfig(max_concurrency=3), policy=ORACLE
    )
    table = RequestTable.of([20] * 6, [30] * 6)
    least = simulate(scenario, table, seed).requests["chunks"]
    for name in ("goodput", "bandit", "acceptance_gate"):
        tried = simulate(replace(scenario, policy=PolicySpec(name)), table, seed).requests["chunks"]
        assert (least <= tried).all()
    for k in range(5):
        fixed = PolicySpec("batch_size", {"schedule": ((1, 99, k),)})
        assert (least <= simulate(replace(scenario, policy=fixed), table, seed).requests["chunks"]).all()


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("spare", [0, 7])
@pytest.mark.parametrize("k", [1, 3, 8])
def test_no_draft_goes_beyond_the_end(k: int, spare: int, asynchronous: bool) -> None:
    """Where every draft is accepted each step writes 1 + K tokens, and the last one what is left."""
    engine = replace(drafting(k, "eagle3", ENGINE), async_scheduling=asynchronous)
    lucky = AcceptanceSpec(conditional_acceptance=1.0)
    scenario = Scenario(engine, ToyCost(), {"": lucky}, load=LoadConfig(3), policy=ORACLE)
    outputs = np.array([1, 2, 3, 5, 9, 10, 11, 30])
    table = RequestTable.of([20] * 8, outputs, max_tokens=outputs + spare)
    requests = simulate(scenario, table, 0).requests
    steps = -(-(outputs - 1) // (1 + k))
    assert (requests["chunks"] == 1 + steps).all()
    assert (requests["draft_tokens"] == outputs - 1 - steps).all()
    assert (requests["accepted_tokens"] == outputs - 1 - steps).all()


PLACES = {
    "8b, a head": ("llama-3.1-8b", "h100-sxm", "eagle3-llama-3.1-8b", 1),
    "70b, a model": ("llama-3.3-70b", "h100-pcie", "llama-3.2-1b", 2),
    "32b on an L40S": ("qwen3-32b", "l40s", "eagle3-qwen3-32b", 4),
}
COSTS = {
    name: KernelCost(
        Placement.of(
            catalog.model(model),
            catalog.accelerator(gpu),
            catalog.engine_profile("vllm-2026-01"),
            drafter=catalog.drafter(drafter),
            tensor_parallel_size=tp,
            num_speculative_tokens=5,
            max_num_seqs=256,
            max_num_batched_tokens=2048,
        )
    )
    for name, (model, gpu, drafter, tp) in PLACES.items()
}


@pytest.mark.parametrize("name", COSTS)
@settings(deadline=None, max_examples=100)
@given(st.integers(1, 250), st.integers(0, 5), st.integers(0, 500), st.integers(0, 4000))
def test_a_step_without_its_drafts_never_costs_more(
    name: str, rows: int, k: int, chunk: int, context: int
) -> None:
    cost = COSTS[name]
    prompts = int(chunk > 0)
    tokens, logits = rows * (1 + k) + chunk, rows * (1 + k) + prompts
    pairs = chunk * (chunk + 1) // 2
    kv = rows * (context + 1 + k)
    shape = StepShape(tokens, rows, prompts, logits, rows * k, kv, kv, pairs, k)
    assert FreeDrafts(cost).seconds(shape) <= cost.seconds(shape)


def test_free_drafts_are_priced_alike_by_step_and_by_column() -> None:
    cost = FreeDrafts(COSTS["8b, a head"])
    shape = StepShape(64 * 4, 64, 0, 64 * 4, 64 * 3, 64 * 500, 64 * 500, 0, 3)
    columns = {key: np.array([value]) for key, value in shape._asdict().items()}
    total = 0.0
    for term in cost.terms(columns).values():
        total = total + float(term[0])
    assert cost.seconds(shape) == total
    assert "free" in cost.summary()


def test_of_single_latencies_the_oracle_is_no_bound() -> None:
    """More prompts come in, and stand in the way of those who decode: others may wait less with a policy."""
    engine = replace(drafting(4, "eagle3", ENGINE), max_num_batched_tokens=64)
    load = LoadConfig(max_concurrency=8)
    scenario = Scenario(engine, ToyCost(token_s=1e-3), {"": SPREAD}, load=load, policy=ORACLE)
    table = RequestTable.of([60] * 200, [20] * 200)
    oracle = figures(simulate(scenario, table, 1))
    none = PolicySpec("batch_size", {"schedule": ((1, 99, 0),)})
    plain = figures(simulate(replace(scenario, policy=none), table, 1))
    assert oracle["output_throughput"] > plain["output_throughput"]
    assert oracle["p99_ttft_ms"] > plain["p99_ttft_ms"] or oracle["p99_itl_ms"] > plain["p99_itl_ms"]


def test_goodput_no_longer_passes_it_on_an_8b_with_64_users_who_differ(tmp_path: Path) -> None:
    """Seen: 4,993 tok/s of the oracle that still paid for its drafts, 5,233 of goodput."""
    path = tmp_path / "x.yaml"
    path.write_text(
        "serve: {model: llama-3.1-8b, gpu: h100-sxm, speculative_config: "
        "{model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, num_speculative_tokens: 5}}\n"
        "acceptance: {conditional_acceptance: 0.45, concentration: 4}\n"
        "workload: {input_len: 300, output_len: 150, max_concurrency: 64, num_prompts: 200}\n"
        "sweep: {axes: {serve.draft_policy: [{oracle: {}}, {goodput: {}}, {bandit: {}}, {early_stop: {}}]}}\n"
    )
    bound, *others = sf.load(path).run().summary.to_dict("records")
    assert all(other[name] < bound[name] for other in others for name in BOUNDED)
