"""Values on a boundary: where a rule of one more or one less is not noticed otherwise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sim_toys import ENGINE, ToyCost, World, drafting

import specfleet as sf
from specfleet.sim.config import NO_CLIENT, ClientConfig, DeploymentConfig, LoadConfig
from specfleet.sim.metrics.columns import engine_load
from specfleet.sim.recorder import FINISHED, REJECTED
from specfleet.sim.rules import SchedulerRules, leaves_drafts_unused, reaches_max_tokens
from specfleet.sim.speculation.acceptance import AcceptanceSpec

NEVER = AcceptanceSpec(conditional_acceptance=0.0)


@pytest.mark.parametrize("engine", ["auto", "step"])
@pytest.mark.parametrize("limit", [13, 24, 37, 90])
def test_the_drafter_is_off_where_the_next_drafts_pass_its_positions_and_not_before(
    limit: int, engine: str
) -> None:
    k = 3
    world = World(
        [10], [40], engine=drafting(k, drafter_max_model_len=limit), acceptance=NEVER, client=NO_CLIENT
    )
    result = world.run(engine=engine)
    rows = result.iterations
    held = np.where(rows["decode_sequences"] > 0, rows["kv_tokens"], rows["tokens"])
    assert result.steps_without_drafter == int((held + k > limit).sum())
    assert limit == 90 or (held + k == limit).any(), "a step ends exactly at the limit"
    assert ((rows["draft_passes"] == 0) == (held + k > limit)).all()


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("method", ["eagle3", "draft_model"])
def test_a_step_must_hold_one_row_and_the_slots_of_a_second(method: str, parallel: bool) -> None:
    base = drafting(4, method, parallel_drafting=parallel)
    slots = SchedulerRules.of(base).draft_slots
    least = 1 + 4 + 2 * slots
    for budget, status in ((least, FINISHED), (least - 1, REJECTED)):
        engine = replace(base, max_num_batched_tokens=budget, max_num_seqs=1)
        assert World([3], [2], engine=engine, acceptance=NEVER).run().requests["status"][0] == status


@pytest.mark.parametrize("replicas", [1, 2])
def test_who_waits_is_counted_over_the_time_of_every_replica(replicas: int) -> None:
    engine, n = replace(ENGINE, max_num_seqs=1), 3 * replicas
    world = World(
        [1] * n,
        [1] * n,
        engine=engine,
        cost=ToyCost(2.0),
        client=NO_CLIENT,
        deployment=DeploymentConfig(replicas, "round_robin"),
    )
    load = engine_load(world.run())
    assert load is not None
    # each replica: 2 s with two waiting, 2 s with one, 2 s with none
    assert (load.mean_waiting, load.mean_running, load.gpu_busy) == pytest.approx((1.0, 1.0, 1.0))


@pytest.mark.parametrize(("low", "high", "good"), [(0.2, 0.3, True), (0.3, 0.3, True), (0.3, 0.2, False)])
def test_a_low_atom_may_be_a_single_value_and_no_less(low: float, high: float, good: bool) -> None:
    experiment = {
        "serve": {
            "model": "meta-llama/Llama-3.1-8B-Instruct",
            "gpu": "h100-sxm",
            "speculative_config": {
                "model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",
                "method": "eagle3",
                "num_speculative_tokens": 3,
            },
        },
        "acceptance": {
            "conditional_acceptance": 0.7,
            "concentration": 18,
            "low_atom": {"weight": 0.1, "low": low, "high": high},
        },
        "workload": {"input_len": 50, "output_len": 9, "num_prompts": 4, "max_concurrency": 2},
    }
    if good:
        assert sf.load(experiment).points
        return
    with pytest.raises(sf.UserError, match="swap them"):
        sf.load(experiment)


def test_what_is_in_flight_counts_towards_the_end() -> None:
    assert [reaches_max_tokens(5, flying, 7) for flying in (1, 2, 3)] == [False, True, True]
    assert [leaves_drafts_unused(5, flying, 7) for flying in (0, 1, 2)] == [False, True, True]


@pytest.mark.parametrize("engine", ["auto", "step"])
@pytest.mark.parametrize("concurrency", [None, 3])
def test_a_chunk_that_finds_the_first_of_its_request_waiting_is_handed_over_with_it(
    engine: str, concurrency: int | None
) -> None:
    world = World(
        [1, 1, 1],
        [9, 1, 2],
        cost=ToyCost(1.0),
        client=ClientConfig(0.0, 0.5, 0.0, 0.0, 2.0),
        load=LoadConfig(max_concurrency=concurrency),
        engine=ENGINE,
    )
    rows = world.run(engine=engine).requests
    # step 1 ends at 1 s with three chunks, 2 s each; the last of the third comes second in step 2
    assert rows["first_chunk_s"].tolist() == [3.5, 5.5, 7.5]
    assert rows["last_chunk_s"].tolist() == [11.5, 5.5, 7.5]


@pytest.mark.parametrize("engine", ["auto", "step"])
def test_who_is_thrown_out_in_mid_prompt_may_find_what_others_have_computed_of_it(engine: str) -> None:
    world = World(
        [10, 30, 30],
        [15, 2, 2],
        arrival_s=[0.0, 0.0, 0.0],
        prompts=[[(-1, 10)], [(-2, 30)], [(-2, 30)]],
        engine=replace(
            ENGINE,
            block_size=1,
            num_gpu_blocks=53,
            long_prefill_token_threshold=3,
            long_prefill_token_threshold_adaptive=False,
            enable_prefix_caching=True,
            scheduler_reserve_full_isl=False,
            async_scheduling=False,
        ),
        client=NO_CLIENT,
    )
    result = world.run(engine=engine)
    rows = result.requests
    assert rows["preemptions"].tolist() == [0, 0, 1]
    assert rows["cached_tokens"].tolist() == [0, 0, 3]
    needed = 67 + int(rows["chunks"].sum()) - 3
    assert int(result.iterations["tokens"].sum()) < needed, "the second has computed it for the third"
