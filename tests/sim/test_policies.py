"""Policies that choose K: none exceeds it, none sees the future, and each does what it says."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim_toys import ENGINE, SPREAD, ToyCost, drafting

from specfleet.sim.config import LoadConfig
from specfleet.sim.engine import Request
from specfleet.sim.sequence import Batch
from specfleet.sim.simulation import RunResult, Scenario, simulate
from specfleet.sim.speculation.acceptance import AcceptanceSpec
from specfleet.sim.speculation.policies import POLICIES, BatchSizeSchedule, make_policy
from specfleet.sim.speculation.policies_learning import AcceptanceGate, AdaptiveTiers, SurvivalEstimate
from specfleet.sim.speculation.policy import PolicySpec, Seen
from specfleet.sim.speculation.processes import process
from specfleet.workloads.requests import RequestTable

K = 4
PARAMETERS: Mapping[str, Mapping[str, object]] = {
    "batch_size": {"schedule": ((1, 3, 4), (4, 8, 1), (20, 99, 0))},
    "disable_above_queue": {"queue": 2},
    "slo_budget": {"tpot_s": 0.01, "budget": 12},
    "by_class": {"drafts": {"chat": 0, "code": 2}},
}
COST = ToyCost(step_s=0.005, token_s=1e-4, pass_s=5e-4)


def run(
    policy: PolicySpec | None,
    *,
    concurrency: int = 8,
    asynchronous: bool = False,
    acceptance: AcceptanceSpec = SPREAD,
    n: int = 48,
    seed: int = 1,
) -> RunResult:
    """A closed loop of `n` requests of 20 + 40 tokens."""
    engine = replace(drafting(K, "eagle3", ENGINE), async_scheduling=asynchronous)
    load = LoadConfig(max_concurrency=concurrency)
    scenario = Scenario(engine, COST, {"": acceptance}, load=load, policy=policy)
    return simulate(scenario, RequestTable.of([20] * n, [40] * n), seed)


def spec(name: str) -> PolicySpec:
    """A policy with parameters that make it act here."""
    return PolicySpec(name, PARAMETERS.get(name, {}))


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("name", sorted(POLICIES))
def test_no_policy_drafts_more_than_k_and_every_request_is_served(name: str, asynchronous: bool) -> None:
    result = run(spec(name), asynchronous=asynchronous)
    rows = result.iterations
    assert (rows["draft_tokens"] <= K * rows["decode_sequences"]).all()
    assert (result.requests["output_tokens"] == 40).all()
    assert (result.requests["accepted_tokens"] <= result.requests["draft_tokens"]).all()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_static_policy_is_no_policy(asynchronous: bool) -> None:
    plain = run(None, asynchronous=asynchronous)
    for policy in (
        PolicySpec("static"),
        PolicySpec("batch_size", {"schedule": ((1, 999, K),)}),
        PolicySpec("temperature_gate", {"limit": 2.0}),
        PolicySpec("by_class", {"drafts": {"chat": 0, "default": K}}),
    ):
        same = run(policy, asynchronous=asynchronous)
        for name, column in plain.requests.items():
            np.testing.assert_array_equal(column, same.requests[name], err_msg=name)


def test_drafts_by_class_are_those_of_the_class_for_life() -> None:
    n, names = 60, ("chat", "code", "rest")
    table = RequestTable.of([20] * n, [40] * n, class_id=np.arange(n) % 3, class_names=names)
    drafts = PolicySpec("by_class", {"drafts": {"chat": 0, "code": 2}})
    engine = drafting(K, "eagle3", ENGINE)
    found = simulate(Scenario(engine, COST, {"": SPREAD}, load=LoadConfig(8), policy=drafts), table, 1)
    assert not found.stepped_because
    drafted = [found.requests["draft_tokens"][table.class_id == place] for place in range(3)]
    rounds = [found.requests["verifications"][table.class_id == place] for place in range(3)]
    assert not drafted[0].any() and not rounds[0].any()
    assert (drafted[1] <= 2 * rounds[1]).all() and drafted[1].sum() > 1.9 * rounds[1].sum()
    assert drafted[2].sum() > 3.5 * rounds[2].sum() > 0


def test_k_zero_keeps_the_drafter_in_step_with_one_pass() -> None:
    rows = run(PolicySpec("batch_size", {"schedule": ((1, 999, 0),)})).iterations
    assert (rows["draft_tokens"] == 0).all()
    assert set(rows["draft_passes"].tolist()) == {1}


def test_drafter_passes_follow_the_deepest_request() -> None:
    rows = run(spec("early_stop")).iterations
    assert rows["draft_passes"].max() <= K
    assert len(set(rows["draft_passes"].tolist())) > 1


@pytest.mark.parametrize(("batch", "k"), [(1, 4), (3, 4), (5, 1), (12, 1), (30, 0), (500, 0)])
def test_a_batch_size_schedule_is_a_step_function_whose_gaps_inherit(batch: int, k: int) -> None:
    policy = BatchSizeSchedule(4, ((4, 8, 1), (1, 3, 4), (20, 99, 0)))
    decided = Batch()
    for number in range(batch):
        decided.place(Request(number, 10, 10), 1, 0)
    assert policy.plan(decided, 0, 0.0) == k


@pytest.mark.parametrize("name", sorted(set(POLICIES) - {"oracle"}))
@settings(max_examples=10, deadline=None)
@given(luck=st.lists(st.binary(min_size=50, max_size=50), min_size=2, max_size=2))
def test_no_policy_but_the_oracle_sees_what_will_be_accepted(name: str, luck: Sequence[bytes]) -> None:
    """Two worlds alike but for the future give the same plan."""
    plans = []
    for future in luck:
        policy = make_policy(spec(name), K, COST)
        batch = Batch()
        for number in range(6):
            request = Request(
                number, 10, 50, stop_at=20 + future[number], accepted=future, confidence=(0.5,) * K
            )
            batch.place(request, 1 + K, K)
            batch.samples.append(True)
        plans.append(None if policy is None else policy.plan(batch, 3, 1.0))
    assert plans[0] == plans[1]


def test_a_drafter_that_speaks_of_fewer_positions_than_k_has_none_of_the_budget_behind_them() -> None:
    batch = Batch()
    batch.place(Request(0, 10, 50, confidence=(0.9, 0.8)), 1, 0)
    batch.place(Request(1, 10, 50, confidence=(0.5,) * K), 1, 0)
    policy = make_policy(PolicySpec("slo_budget", {"tpot_s": 9.0, "budget": 5}), K, COST)
    assert policy is not None and policy.plan(batch, 0, 0.0) == [2, 3]


def test_goodput_is_not_materially_worse_than_the_best_static_k() -> None:
    def seconds(policy: PolicySpec) -> float:
        return float(run(policy, concurrency=32, n=320).iterations["end_s"].max())

    best = min(seconds(PolicySpec("batch_size", {"schedule": ((1, 999, k),)})) for k in range(K + 1))
    assert seconds(spec("goodput")) < 1.05 * best


def test_measured_survival_converges_to_the_true_one() -> None:
    truth = (0.8, 0.5, 0.3, 0.1)
    rng = np.random.default_rng(5)
    estimate = SurvivalEstimate(K, weight=0.002)
    batch = Batch()
    for number in range(64):
        batch.place(Request(number, 10, 10), 1 + K, K)
    for _ in range(400):
        sampled = 1 + (rng.random((64, 1)) < np.array(truth)).sum(axis=1)
        estimate.learn(Seen.of(batch, sampled.tolist(), 0.01))
    survival = np.cumprod(estimate.conditional)
    assert survival == pytest.approx(truth, abs=0.03)


def test_tiers_move_one_at_a_time_and_stay_inside_k() -> None:
    policy = AdaptiveTiers(K, tiers=(1, 3, 7), warmup=0, interval=1)
    batch = Batch()
    batch.place(Request(0, 10, 10), 1 + K, K)
    seen = []
    for accepted in [4] * 8 + [0] * 40:
        policy.observe(batch, [1 + accepted], 0.01)
        seen.append(policy.plan(batch, 0, 0.0))
    assert seen[7] == 3 and seen[-1] == 1
    assert {*seen} <= {1, 3}


def test_the_gate_closes_on_a_bad_stream_alone_and_opens_again() -> None:
    policy = AcceptanceGate(K, window=4, threshold=0.5, cooldown=3)
    batch = Batch()
    for number in range(2):
        batch.place(Request(number, 10, 99), 1 + K, K)
    for _ in range(4):
        policy.observe(batch, [1, 1 + K], 0.01)
    assert [policy.plan(batch, 0, 0.0) for _ in range(4)] == [[0, K], [0, K], [0, K], [K, K]]


def share_drafted(by_position: tuple[float, ...]) -> float:
    """Share of steps in which the gate as shipped drafts for requests of such a process."""
    k, drawn = len(by_position), 0
    spec = AcceptanceSpec(by_position=by_position, concentration=18)
    for number in range(40):
        policy = AcceptanceGate(k)
        batch = Batch()
        batch.place(Request(number, 10, 999), 1 + k, k)
        for accepted in process(spec, k, 1).accepted(number, 10, 100):
            drafts = policy.plan(batch, 0, 0.0) == [k]
            drawn += drafts
            if drafts:
                policy.observe(batch, [1 + accepted], 0.01)
    return drawn / 4000


def test_the_gate_as_shipped_stays_open_for_chat_and_closes_on_what_accepts_next_to_nothing() -> None:
    assert share_drafted((0.68, 0.46, 0.31, 0.21, 0.15)) > 0.85
    assert share_drafted((0.15, 0.02, 0.0, 0.0, 0.0)) < 0.4


def test_hot_requests_are_not_drafted_for() -> None:
    policy = make_policy(PolicySpec("temperature_gate", {"limit": 0.8}), K, COST)
    assert policy is not None
    batch = Batch()
    for number, temperature in enumerate((0.0, 1.5)):
        batch.place(Request(number, 10, 10, temperature=temperature), 1, 0)
    assert policy.plan(batch, 0, 0.0) == [K, 0]


def adaptive(cost: ToyCost, *confidence: tuple[float, ...]) -> list[int]:
    """Drafts that adaptive verification takes of requests whose drafter expects such survival."""
    policy = make_policy(PolicySpec("adaptive_verification"), K, cost)
    batch = Batch()
    for number, each in enumerate(confidence):
        batch.place(Request(number, 10, 50, confidence=each), 1 + K, K)
    assert policy is not None
    found = policy.plan(batch, 0, 0.0)
    assert isinstance(found, list)
    return found


def test_adaptive_verification_takes_every_draft_that_has_a_chance_where_tokens_are_free() -> None:
    cost = ToyCost(step_s=0.01, token_s=0.0)
    assert adaptive(cost, (0.9, 0.5, 0.2, 0.1), (0.3, 0.1)) == [4, 2]


@given(
    st.lists(st.lists(st.sampled_from([0.0, 0.2, 0.4, 0.8]), min_size=K, max_size=K), min_size=1, max_size=8),
    st.floats(1e-4, 1e-2),
)
def test_adaptive_verification_takes_the_first_slots_of_a_ranking_and_of_equal_ones_the_earlier_positions(
    survival: list[list[float]], token_s: float
) -> None:
    cost = ToyCost(step_s=1e-2, token_s=token_s)
    rows = [tuple(sorted(row, reverse=True)) for row in survival]
    slots = [(-rows[i][at], at, i) for at in range(K) for i in range(len(rows))]
    taken = adaptive(cost, *rows)
    first = sorted(slots)[: sum(taken)]
    assert taken == [sum(i == row for _, _, i in first) for row in range(len(rows))]


def test_adaptive_verification_takes_none_where_a_token_costs_more_than_it_brings() -> None:
    assert adaptive(ToyCost(step_s=0.0, token_s=1e-3), (0.9, 0.5), (0.9, 0.5)) == [0, 0]


@given(
    st.lists(st.lists(st.floats(0.0, 1.0), min_size=K, max_size=K), min_size=1, max_size=4),
    st.floats(1e-4, 1e-2),
)
def test_adaptive_verification_is_the_best_of_all_ways_to_take_first_drafts(
    chances: list[list[float]], step_s: float
) -> None:
    """Held against every combination of depths: tokens a second of none is above those of the one taken."""
    survival = [tuple(np.cumprod(each).tolist()) for each in chances]
    cost = ToyCost(step_s=step_s, token_s=1e-3)

    def rate(depths: Sequence[int]) -> float:
        gained = sum(sum(each[:depth]) for each, depth in zip(survival, depths, strict=True))
        rows = len(depths)
        return (rows + gained) / (step_s + 1e-3 * (rows + sum(depths)))

    best = max(map(rate, itertools.product(range(K + 1), repeat=len(survival))))
    assert rate(adaptive(cost, *survival)) == pytest.approx(best, rel=1e-9)


def test_an_slo_budget_serves_those_behind_first() -> None:
    policy = make_policy(PolicySpec("slo_budget", {"tpot_s": 0.01, "budget": K}), K, COST)
    assert policy is not None
    batch = Batch()
    late, early = Request(0, 10, 99, confidence=(0.1,) * K), Request(1, 10, 99, confidence=(0.9,) * K)
    for request in (late, early):
        batch.place(request, 1, 0)
    policy.plan(batch, 0, 0.0)
    late.num_tokens, early.num_tokens = 11, 110
    assert policy.plan(batch, 0, 0.5) == [K, 0]


@given(st.integers(0, 30), st.integers(1, K), st.integers(0, 6), st.data())
def test_an_slo_budget_hands_out_position_by_position(
    budget: int, k: int, now: int, data: st.DataObject
) -> None:
    n = data.draw(st.integers(0, 9))
    written = data.draw(st.lists(st.integers(0, 5), min_size=n, max_size=n))
    levels = st.lists(st.sampled_from([0.1, 0.5, 0.9]), min_size=k, max_size=k)
    confidence = data.draw(st.lists(levels, min_size=n, max_size=n))
    policy = make_policy(PolicySpec("slo_budget", {"k": k, "tpot_s": 1.0, "budget": budget}), K, COST)
    assert policy is not None
    batch = Batch()
    for row, (tokens, survival) in enumerate(zip(written, confidence, strict=True)):
        request = Request(row, 10, 99, confidence=tuple(survival))
        request.num_tokens += tokens
        batch.place(request, 1, 0)
    policy.plan(batch, 0, 0.0)
    left, wanted = budget, [0] * n
    for row in range(n):
        if now > written[row]:
            wanted[row] = min(k, left)
            left -= wanted[row]
    for position in range(k):
        asks = [row for row in range(n) if wanted[row] == position]
        for row in sorted(asks, key=lambda row: (confidence[row][position], row))[max(len(asks) - left, 0) :]:
            wanted[row] += 1
            left -= 1
    assert policy.plan(batch, 0, float(now)) == wanted
