"""Prefill and decode on replicas of their own: closed forms, laws in random worlds, vLLM on remote KV."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest
from handover_toys import Split
from hypothesis import given, settings
from hypothesis import strategies as st
from sim_toys import ENGINE, SPREAD, SplitCost, ToyCost, World, drafting, worlds

from specfleet.sim.config import DeploymentConfig, LoadConfig
from specfleet.sim.disaggregation.config import AFTER, CHUNKS, LAYERS, HandoverConfig
from specfleet.sim.errors import Breach
from specfleet.sim.laws.everywhere import differences
from specfleet.sim.laws.handover import check_handover
from specfleet.sim.metrics.latency import HANDOVER_PARTS, PARTS, latency_split
from specfleet.sim.recorder import FINISHED, REJECTED
from specfleet.sim.router import ROUTERS
from specfleet.sim.scenario import RunResult
from specfleet.sim.simulation import simulate

HANDOVERS = st.builds(
    HandoverConfig,
    overlap=st.sampled_from([AFTER, CHUNKS, LAYERS]),
    router=st.sampled_from(sorted(ROUTERS)),
    proxy_s=st.sampled_from([0.0, 0.01]),
    setup_s=st.sampled_from([0.0, 0.003]),
    block_bytes=st.integers(1, 100),
    token_bytes=st.sampled_from([0, 3]),
    layers=st.sampled_from([1, 4]),
)


def split_of(
    world: World, handover: HandoverConfig, bytes_per_s: float, prefills: int, decodes: int
) -> Split:
    """A world's requests before replicas with roles."""
    engine = world.engine
    if handover.overlap != AFTER:
        engine = replace(engine, policy="fcfs")
    return Split(
        [*world.prompt],
        [*world.output],
        [*(world.arrival_s or ())],
        prefills,
        decodes,
        handover,
        bytes_per_s,
        engine,
        cost=world.cost,
        acceptance=world.acceptance,
        client=world.client,
        load=world.load,
        router=world.deployment.router,
    )


@settings(deadline=None, max_examples=40)
@given(
    worlds(),
    HANDOVERS,
    st.sampled_from([300.0, 3e4, inf]),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(0, 99),
)
def test_every_request_is_computed_handed_over_and_decoded_once(
    world: World, handover: HandoverConfig, bytes_per_s: float, prefills: int, decodes: int, seed: int
) -> None:
    split = split_of(world, handover, bytes_per_s, prefills, decodes)
    run = split.run(seed)
    requests, status = run.requests, run.requests["status"]
    assert np.isin(status, (FINISHED, REJECTED)).all()
    done = status == FINISHED
    assert (requests["output_tokens"][done] == split.table.output_tokens[done]).all()
    assert (requests["prefill_replica"][done] < prefills).all()
    assert (requests["replica"][done] >= prefills).all()
    first, other = run.parts
    assert first.requests["output_tokens"].tolist() == [1] * int(done.sum())
    assert set(first.requests["request_id"]) == set(other.requests["request_id"])
    assert differences(run, split.run(seed)) == []


def times(run: RunResult, row: int = 0) -> dict[str, float]:
    """The times of a request, seconds."""
    return {name: float(column[row]) for name, column in run.requests.items() if name.endswith("_s")}


def single(handover: HandoverConfig, bytes_per_s: float, prompt: int = 100, **more: Any) -> dict[str, float]:
    """The times of one request alone: steps of 0.1 s, five output tokens, steps of 50 prompt tokens."""
    engine = replace(ENGINE, max_num_batched_tokens=50)
    return times(
        Split([prompt], [5], None, 1, 1, handover, bytes_per_s, engine, cost=ToyCost(0.1), **more).run()
    )


def test_a_single_request_waits_for_its_prompt_its_transfer_and_one_step() -> None:
    """Two steps of prompt; 7 blocks of 100 bytes at 1,000 bytes/s; one step to the first token."""
    found = single(HandoverConfig(block_bytes=100, proxy_s=0.03, setup_s=0.02), 1000.0)
    assert found["prefilled_s"] == pytest.approx(0.2)
    assert found["opened_s"] == found["handed_s"] == pytest.approx(0.23)
    assert found["moved_s"] == pytest.approx(0.23 + 0.02 + 0.7)
    assert found["first_token_s"] == pytest.approx(0.95 + 0.1)
    assert found["finished_s"] == pytest.approx(0.95 + 0.5)


def test_chunks_are_sent_while_the_next_is_computed() -> None:
    """3 blocks of the first 50 tokens from 0.1 s on, the other 4 at 0.2 s: 0.4 s if the first are through."""
    fast = single(HandoverConfig(CHUNKS, block_bytes=100), 3000.0)
    assert fast["moved_s"] == pytest.approx(0.2 + 400 / 3000)
    slow = single(HandoverConfig(CHUNKS, block_bytes=100), 1000.0)
    assert slow["moved_s"] == pytest.approx(0.1 + 0.7)


@pytest.mark.parametrize("bytes_per_s", [100.0, 1000.0, 3500.0, 7000.0, 1e6])
def test_layers_are_sent_while_the_next_are_computed(bytes_per_s: float) -> None:
    """A prompt of one step: the first of 10 layers is there at a tenth of it, the last at its end."""
    found = single(HandoverConfig(LAYERS, block_bytes=100, layers=10), bytes_per_s, prompt=48)
    assert found["moved_s"] == pytest.approx(max(0.01 + 300 / bytes_per_s, 0.1 + 30 / bytes_per_s))


@settings(deadline=None, max_examples=20)
@given(worlds(st.sampled_from(["open"])), st.sampled_from([AFTER, CHUNKS, LAYERS]), st.integers(1, 3))
def test_over_an_endless_link_one_replica_is_two_in_series(
    world: World, overlap: str, bytes_each: int
) -> None:
    """The prefill replica does what it would do with requests of one token, and the other has their KV as
    soon as it has blocks for it, which it gives in a turn of its own."""
    ample = replace(world.engine, num_gpu_blocks=1000, max_num_seqs=64, policy="fcfs")
    handover = HandoverConfig(overlap, block_bytes=bytes_each, layers=4)
    split = split_of(replace(world, engine=ample), handover, inf, 1, 1)
    run, lone = (
        split.run(),
        replace(
            world,
            engine=ample,
            output=[1] * len(world.prompt),
            max_tokens=None,
            acceptance=None,
            deployment=DeploymentConfig(),
        ).run(engine="step"),
    )
    requests = run.requests
    if world.load.max_concurrency is None:
        assert requests["prefilled_s"].tolist() == lone.requests["finished_s"].tolist()
    both = np.maximum(requests["prefilled_s"], requests["opened_s"])
    assert requests["moved_s"].tolist() == both.tolist()
    assert run.parts[1].requests["cached_tokens"].tolist() == [prompt - 1 for prompt in world.prompt]


def test_n_prompts_that_end_together_share_the_link() -> None:
    run = Split(
        [16] * 4, [3] * 4, None, 1, 2, HandoverConfig(block_bytes=100), 1000.0, cost=ToyCost(0.1)
    ).run()
    assert run.requests["moved_s"] == pytest.approx([0.1 + 4 * 0.1] * 4)


def test_a_prompt_waits_while_kv_that_nobody_has_taken_fills_the_pool() -> None:
    """Each prompt takes 6 of 7 blocks, 6 s to send: the second begins when the first is gone."""
    engine = replace(ENGINE, num_gpu_blocks=8)
    run = Split(
        [96, 96],
        [3, 3],
        None,
        1,
        1,
        HandoverConfig(block_bytes=100),
        100.0,
        engine=replace(ENGINE, num_gpu_blocks=100),
        prefill_engine=engine,
        cost=ToyCost(0.1),
    ).run()
    assert run.requests["prefilled_s"] == pytest.approx([0.1, 6.2])
    assert run.requests["admitted_s"] == pytest.approx([0.0, 6.1])
    still = run.standing
    mine = still["replica"] == 0
    assert (still["end_s"] - still["start_s"])[mine] == pytest.approx([6.0])
    assert still["waiting"][mine].tolist() == [1]


def test_a_decode_replica_lets_in_whom_it_has_blocks_for() -> None:
    """The second prompt's blocks are free when the first request has ended."""
    run = Split(
        [96, 96],
        [3, 3],
        None,
        1,
        1,
        HandoverConfig(block_bytes=100),
        inf,
        engine=replace(ENGINE, num_gpu_blocks=9),
        prefill_engine=ENGINE,
        cost=ToyCost(0.1),
    ).run()
    assert run.requests["moved_s"] == pytest.approx([0.1, 0.4])
    assert run.requests["finished_s"] == pytest.approx([0.4, 0.7])


def test_who_waits_for_kv_does_not_hold_up_those_behind_it() -> None:
    """A long prompt on a slow link; a short one behind it in the same queue is decoded before."""
    run = Split(
        [960, 16], [3, 3], [0.0, 0.01], 2, 1, HandoverConfig(block_bytes=100), 1000.0, cost=ToyCost(0.1)
    ).run()
    assert run.requests["handed_s"][0] < run.requests["handed_s"][1]
    assert run.requests["finished_s"][1] < run.requests["moved_s"][0]


def test_the_luck_of_a_request_is_that_of_an_aggregated_fleet() -> None:
    """Same drafts accepted, round by round: the rounds of the decode replicas are all rounds."""
    prompt, output = [40] * 6, [30] * 6
    engine = drafting(3)
    split = Split(prompt, output, engine=engine, acceptance=SPREAD).run(5)
    whole = World(prompt, output, arrival_s=[0.0] * 6, engine=engine, acceptance=SPREAD).run(5)
    for name in ("verifications", "accepted_tokens", "chunks"):
        assert split.requests[name].tolist() == whole.requests[name].tolist()


@pytest.mark.parametrize("overlap", [AFTER, CHUNKS, LAYERS])
def test_the_parts_of_a_latency_add_up(overlap: str) -> None:
    handover = HandoverConfig(overlap, block_bytes=100, layers=4, proxy_s=0.01)
    engine = drafting(3, engine=replace(ENGINE, max_num_seqs=4, max_num_batched_tokens=64))
    run = Split(
        [90, 20, 150, 40] * 3,
        [12] * 12,
        None,
        2,
        1,
        handover,
        5000.0,
        engine,
        cost=SplitCost(),
        acceptance=SPREAD,
    ).run()
    split, decoded = latency_split(run.parts[1], SplitCost(0.0)), run.parts[1].requests
    whole = decoded["last_chunk_s"] - decoded["sent_s"]
    assert sum(split.values(), np.zeros(len(whole))) == pytest.approx(whole, abs=1e-9)
    assert set(split) == {*PARTS, *HANDOVER_PARTS}
    assert all((seconds > -1e-12).all() for name, seconds in split.items() if name != "low_acceptance_s")


def test_a_closed_loop_keeps_its_users() -> None:
    run = Split([20] * 12, [4] * 12, load=LoadConfig(3), bytes_per_s=1e4).run()
    assert (run.requests["status"] == FINISHED).all()
    assert len(np.unique(run.requests["sent_s"])) > 3


PLANTED = {
    "kv_blocks": (1, "blocks were sent"),
    "kv_bytes": (1, "bytes were sent"),
    "moved_s": (-1.0, "comes after moved_s"),
    "opened_s": (1.0, "opened_s"),
    "decode_admitted_s": (-1.0, "comes after decode_admitted_s"),
    "prefilled_s": (9.0, "prefilled_s"),
    "status": (1, "times in prefill pools"),
}


@pytest.mark.parametrize("column", PLANTED)
def test_a_fault_in_what_was_handed_over_is_found(column: str) -> None:
    split = Split([40, 90], [5, 5], None, 1, 1, HandoverConfig(block_bytes=100, proxy_s=0.01), 5000.0)
    run, (more, said) = split.run(), PLANTED[column]
    check_handover(run, split.table)
    wrong = run.requests[column].copy()
    wrong[1] += more
    with pytest.raises(Breach, match=said):
        check_handover(replace(run, requests={**run.requests, column: wrong}), split.table)


def test_a_link_that_is_faster_than_it_is_is_found() -> None:
    split = Split([40, 90], [5, 5], None, 1, 1, HandoverConfig(block_bytes=100), 5000.0)
    run = split.run()
    pools = tuple(replace(pool, bytes_per_s=4000.0) for pool in run.scenario.pools)
    with pytest.raises(Breach, match="bytes went over a link of 4000 bytes/s"):
        check_handover(replace(run, scenario=replace(run.scenario, pools=pools)), split.table)


def test_pools_may_stand_in_any_order() -> None:
    split = Split([40, 90, 20], [5, 5, 9], None, 2, 1, HandoverConfig(block_bytes=100), 5000.0)
    scenario = split.scenario
    first, other = scenario.pools
    turned = replace(scenario, pools=(replace(other, members=(0,)), replace(first, members=(1, 2))))
    run, again = split.run(), simulate(turned, split.table, 0)
    for name in ("moved_s", "finished_s", "admitted_s"):
        assert run.requests[name].tolist() == again.requests[name].tolist()
    assert again.requests["replica"].tolist() == [0] * 3
