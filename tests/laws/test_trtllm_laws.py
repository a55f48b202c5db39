"""TensorRT-LLM's capacity schedulers: what its documentation says of them holds, and both crowds obey."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sim_toys import ENGINE, ToyCost, World
from test_timeline import HUNT, LAWS, SEEDS, choosing, prove, small_windows_and_blocks
from timeline_worlds import both, differences, policies
from trtllm_worlds import POLICIES, capacity_worlds

from specfleet.experiments.point.trtllm import capacity_rules
from specfleet.sim.config import NO_CLIENT, DeploymentConfig, EngineConfig
from specfleet.sim.errors import Stall
from specfleet.sim.rules import SchedulerRules
from specfleet.sim.speculation.policy import PolicySpec
from specfleet.sim.step import Step

__all__ = ["small_windows_and_blocks"]

RESERVING = ("GUARANTEED_NO_EVICT", "STATIC_BATCH")


def under(policy: str, world: World, **changes: object) -> World:
    """The same under a capacity scheduler."""
    engine = replace(world.engine, **changes)  # type: ignore[arg-type]
    return replace(world, engine=replace(engine, **capacity_rules(policy)))


@LAWS
@given(capacity_worlds(), SEEDS)
def test_capacity_schedulers_on_the_calendar_equal_stepping(world: World, seed: int) -> None:
    prove(world, seed)


@LAWS
@given(capacity_worlds(), policies(), SEEDS)
def test_capacity_schedulers_under_a_policy_equal_stepping(
    world: World, policy: PolicySpec, seed: int
) -> None:
    prove(choosing(world), seed, policy)


def test_nobody_is_thrown_out_where_kv_is_reserved_and_many_are_where_it_is_not() -> None:
    seen = Counter[str]()

    @settings(HUNT, max_examples=150)
    @given(st.sampled_from(POLICIES).flatmap(lambda p: st.tuples(st.just(p), capacity_worlds((p,)))), SEEDS)
    def look(drawn: tuple[str, World], seed: int) -> None:
        policy, world = drawn
        try:
            ours, stepped = both(world, seed)
        except Stall:
            return
        seen[policy] += 1
        seen["on the calendar"] += not ours.stepped_because
        seen[f"{policy} pauses"] += bool(stepped.requests["preemptions"].any())
        used = stepped.iterations["kv_blocks_used"].max(initial=0)
        assert used <= world.engine.usable_blocks
        waits = stepped.iterations["waiting"] > 0
        short = stepped.iterations["running"] < world.engine.max_num_seqs
        seen[f"{policy} waits with seats free"] += bool((waits & short).any())

    look()
    assert not any(seen[f"{policy} pauses"] for policy in RESERVING)
    assert all(seen[f"{policy} waits with seats free"] >= 3 for policy in RESERVING), seen
    assert seen["MAX_UTILIZATION pauses"] >= 3, seen
    assert seen["on the calendar"] > sum(seen[policy] for policy in POLICIES) / 2, seen


@LAWS
@given(capacity_worlds(("STATIC_BATCH",), replicas=1), SEEDS)
def test_a_static_batch_begins_when_the_one_before_it_has_wholly_ended(world: World, seed: int) -> None:
    engine = replace(world.engine, async_scheduling=False)
    alone = replace(world, engine=engine, client=NO_CLIENT, deployment=DeploymentConfig())
    try:
        ours, _ = both(alone, seed)
    except Stall:
        return
    served = ours.requests["status"] == 0
    begun, ended = ours.requests["admitted_s"][served], ours.requests["finished_s"][served]
    for start in np.unique(begun):
        assert not ((begun < start) & (ended > start)).any()


@LAWS
@given(capacity_worlds(("MAX_UTILIZATION",)), SEEDS)
def test_max_utilization_is_vllm_s_rule_where_no_piece_is_rounded(world: World, seed: int) -> None:
    whole = world.engine.block_size == 1 or not world.engine.enable_chunked_prefill
    engine = replace(world.engine, block_size=1) if not whole else world.engine
    world = replace(world, engine=engine)
    try:
        ours, _ = both(world, seed)
    except Stall:
        return
    theirs, _ = both(replace(world, engine=replace(engine, cuts_prompts_at_blocks=False)), seed)
    assert not differences(ours, theirs)


@LAWS
@given(capacity_worlds(), SEEDS)
def test_no_step_has_more_tokens_than_max_num_tokens(world: World, seed: int) -> None:
    try:
        ours, _ = both(world, seed)
    except Stall:
        return
    assert ours.iterations["tokens"].max(initial=0) <= world.engine.max_num_batched_tokens


@settings(max_examples=200)
@given(st.integers(1, 300), st.integers(0, 300), st.integers(0, 6), st.lists(st.integers(1, 200), max_size=6))
def test_every_piece_but_the_last_is_whole_blocks_and_nobody_is_let_in_behind_it(
    budget: int, lacks: int, done: int, prompts: list[int]
) -> None:
    config = replace(ENGINE, block_size=32, cuts_prompts_at_blocks=True)
    step = Step(SchedulerRules.of(config))
    step.begin(budget, 10, 1000, 0)
    begun = step.next_piece(32 * done + lacks, 32 * done, done) if lacks else None
    whole = begun is None or begun.tokens == lacks
    assert whole or (begun is not None and begun.tokens % 32 == 0 and budget - begun.tokens < 32)
    left = step.tokens

    queue = [(place, prompt, 0, 0, 0, 0) for place, prompt in enumerate(prompts)]
    admitted = [(place, tokens) for place, tokens, _, _ in step.admissions(iter(queue))]

    assert whole or not admitted
    cut = [tokens for place, tokens in admitted if tokens < prompts[place]]
    assert len(cut) <= 1 and all(tokens % 32 == 0 for tokens in cut)
    assert not cut or admitted[-1][1] == cut[0]
    assert sum(tokens for _, tokens in admitted) == left - step.tokens <= left


def tiny(policy: str, output: list[int], max_tokens: list[int], blocks: int = 7, **changes: object) -> World:
    """Prompts of 6 tokens at once, blocks of 4, a step a second."""
    engine = replace(ENGINE, block_size=4, num_gpu_blocks=blocks + 1, max_model_len=64)
    n = len(output)
    world = World([6] * n, output, max_tokens=max_tokens, engine=engine, cost=ToyCost(1.0))
    return under(policy, world, **changes)


def test_a_tiny_pool_holds_as_many_as_it_has_room_for_whole_outputs() -> None:
    """6 + 6 tokens are 3 blocks: two of six requests fit in 7, and each pair takes 6 steps."""
    run = tiny("GUARANTEED_NO_EVICT", [6] * 6, [6] * 6).run()
    assert run.requests["finished_s"].tolist() == [6, 6, 12, 12, 18, 18]
    assert set(run.iterations["kv_blocks_used"].tolist()) == {6}


def test_what_is_reserved_is_max_tokens_and_not_what_is_written() -> None:
    """6 + 18 tokens are 6 blocks: one at a time, though each writes two tokens."""
    run = tiny("GUARANTEED_NO_EVICT", [2] * 4, [18] * 4).run()
    assert run.requests["finished_s"].tolist() == [2, 4, 6, 8]
    packed = tiny("MAX_UTILIZATION", [2] * 4, [18] * 4).run()
    assert packed.requests["finished_s"].tolist() == [2, 2, 2, 4]


def test_a_seat_that_empties_is_taken_at_once_but_for_a_static_batch() -> None:
    flying = tiny("GUARANTEED_NO_EVICT", [2, 6, 3, 3], [2, 6, 3, 3], max_num_seqs=2).run()
    assert flying.requests["admitted_s"].tolist() == [0, 0, 2, 5]
    static = tiny("STATIC_BATCH", [2, 6, 3, 3], [2, 6, 3, 3], max_num_seqs=2).run()
    assert static.requests["admitted_s"].tolist() == [0, 0, 6, 6]


def test_max_utilization_pauses_the_last_to_start_and_it_computes_again() -> None:
    run = tiny("MAX_UTILIZATION", [9, 9], [9, 9]).run()
    assert run.requests["preemptions"].tolist() == [0, 1]
    assert run.requests["output_tokens"].tolist() == [9, 9]
    assert run.iterations["tokens"].max() > 12, "its prompt and what it had written, once more"


def test_the_example_of_the_documentation() -> None:
    """A batch of 4, 12 tokens a step, two prompts of 5 and three that no longer fit: two, two, then one.

    "Tuning Max Batch Size and Max Num Tokens" at nvidia.github.io/TensorRT-LLM.
    """
    engine = replace(
        ENGINE, max_num_seqs=4, max_num_batched_tokens=12, enable_chunked_prefill=False, max_model_len=64
    )
    outputs = [2, 5, 5, 5, 5]
    world = World([5, 5, 3, 3, 3], outputs, engine=engine, cost=ToyCost(1.0))
    run = under("GUARANTEED_NO_EVICT", world).run()
    assert run.requests["admitted_s"].tolist() == [0, 0, 1, 1, 2]
    assert run.iterations["tokens"].tolist()[:3] == [10, 8, 6]


def test_without_chunks_a_prompt_must_fit_a_step_and_its_output_need_not() -> None:
    world = World([12, 13, 12], [4, 4, 4], engine=replace(ENGINE, max_num_batched_tokens=12))
    world = under("GUARANTEED_NO_EVICT", world, enable_chunked_prefill=False, max_model_len=64)
    ours, stepped = both(world, 0)
    assert ours.requests["status"].tolist() == stepped.requests["status"].tolist()
    assert (ours.requests["status"] == 0).tolist() == [True, False, True]
    assert any("a prompt of 13 exceed" in reason for reason in ours.refusals)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"static_batching": True}, "goes with reserves_max_tokens"),
        ({"cuts_prompts_at_blocks": True, "long_prefill_token_threshold": 9}, "exclude each other"),
        ({"cuts_prompts_at_blocks": True, "max_num_batched_tokens": 15}, "a piece of a prompt is 16"),
    ],
)
def test_switches_that_no_engine_has_together_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        replace(EngineConfig(4, 64, 9), **changes)


def test_reserves_beside_shared_prefixes_are_stepped_and_the_run_says_so() -> None:
    prompts = [[(1, 16), (10 + i, 4)] for i in range(5)]
    world = World([20] * 5, [4] * 5, prompts=prompts, engine=replace(ENGINE, enable_prefix_caching=True))
    assert "prompts that share prefixes" in under("GUARANTEED_NO_EVICT", world).run().stepped_because
    assert not under("MAX_UTILIZATION", world).run().stepped_because


@given(st.integers(1, 200), st.integers(1, 200), capacity_worlds(RESERVING))
@settings(max_examples=100, deadline=None)
def test_what_is_reserved_suffices_to_the_end(prompt: int, output: int, world: World) -> None:
    rules = SchedulerRules.of(replace(world.engine, max_model_len=4096))
    assume(rules.layout is None)
    last = prompt + output - 1 + rules.num_speculative_tokens * (1 + rules.in_flight)
    assert rules.reserved(prompt + output) >= rules.blocks(last)
    column = np.array([prompt]), np.array([prompt + output])
    both_ways = max(rules.blocks_at_admission(prompt), rules.reserved(prompt + output))
    assert rules.held_at_admission_each(*column).tolist() == [both_ways]
