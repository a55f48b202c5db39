"""Every request's latency is split into parts that add up to it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim_toys import SPREAD, SplitCost, World, drafting, worlds

from specfleet.sim.config import ClientConfig, EngineConfig, LoadConfig
from specfleet.sim.metrics.latency import DECODE_PARTS, PARTS, iteration_parts, latency_split
from specfleet.sim.metrics.sums import Counted, step_gaps
from specfleet.sim.recorder import FINISHED
from specfleet.sim.simulation import RunResult, Scenario, simulate
from specfleet.workloads.requests import RequestTable

F64 = npt.NDArray[np.float64]


def end_to_end_s(result: RunResult) -> F64:
    """Seconds from send to last chunk of the finished requests."""
    done = result.requests["status"] == FINISHED
    return np.asarray(result.requests["last_chunk_s"][done] - result.requests["sent_s"][done])


def run(world: World, seed: int = 0) -> RunResult:
    """Runs a world with the split price."""
    return replace(world, cost=SplitCost()).run(seed)  # type: ignore[arg-type]


def test_a_recomputed_prompt_that_gives_the_next_token_at_once_is_part_of_decoding() -> None:
    engine = EngineConfig(
        max_num_seqs=3,
        max_num_batched_tokens=64,
        num_gpu_blocks=8,
        max_model_len=200,
        enable_prefix_caching=False,
        async_scheduling=True,
    )
    output = [1, 1, 3, 1, 4, 11, 6, 1]
    world = World(
        [1, 1, 1, 1, 1, 39, 44, 1],
        output,
        arrival_s=[0.0] * 8,
        engine=engine,
        client=ClientConfig(chunk_s=0.05),
        load=LoadConfig(max_concurrency=2),
    )
    result = run(world)
    preempted = np.flatnonzero(result.requests["preemptions"])
    assert preempted.tolist() == [6] and not len(result.odd_gaps["gap_s"])
    recomputed = int(result.requests["last_iteration"][6])
    assert result.iterations["decode_sequences"][recomputed] == 0
    split = latency_split(result, SplitCost(0.0))
    np.testing.assert_allclose(sum(split.values()), end_to_end_s(result), rtol=0, atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(worlds(), st.integers(0, 99))
def test_the_parts_add_up_to_every_requests_latency(world: World, seed: int) -> None:
    result = run(world, seed)
    split = latency_split(result, SplitCost(0.0))
    assert list(split) == list(PARTS)
    total = sum(split.values(), np.zeros(len(end_to_end_s(result))))
    np.testing.assert_allclose(total, end_to_end_s(result), rtol=0, atol=1e-9)


@settings(max_examples=30, deadline=None)
@given(worlds(), st.integers(0, 99))
def test_no_part_but_luck_is_negative(world: World, seed: int) -> None:
    for name, seconds in latency_split(run(world, seed), SplitCost(0.0)).items():
        assert name == "low_acceptance_s" or (seconds >= -1e-12).all(), name


def closed(k: int, n: int = 40, concurrency: int = 4) -> RunResult:
    """A closed loop that never idles."""
    engine = drafting(k)
    scenario = Scenario(
        engine,
        SplitCost(),
        {"": SPREAD},
        client=ClientConfig(0.0, 0.0, 0.0, 0.0, 0.0),
        load=LoadConfig(max_concurrency=concurrency),
    )
    return simulate(scenario, RequestTable.of([30] * n, [25] * n), 3)


@pytest.mark.parametrize("k", [0, 3])
def test_an_iterations_parts_are_the_time_it_took(k: int) -> None:
    result = closed(k)
    parts = iteration_parts(result, SplitCost(0.0))
    decoding = result.iterations["decode_sequences"] > 0
    took = step_gaps(result.iterations)
    busy = decoding & np.isfinite(took)
    assert busy.sum() > 100
    total = sum(parts.values(), np.zeros(len(decoding)))
    np.testing.assert_allclose(total[busy], took[busy], rtol=0, atol=1e-12)


def test_without_speculation_nothing_is_verified_drafted_or_lucky() -> None:
    split = latency_split(closed(0), SplitCost())
    for name in ("verify_s", "draft_s", "low_acceptance_s", "paused_s"):
        np.testing.assert_allclose(split[name], 0.0, atol=1e-12)


def test_low_acceptance_is_zero_on_average_over_tokens() -> None:
    """Rounds above the expectation of some are rounds below it of others, at equal plain steps."""
    result = closed(3, concurrency=1)
    split = latency_split(result, SplitCost(0.0))
    rounds = result.requests["chunks"] - 1
    assert (split["low_acceptance_s"] > 0).any() and (split["low_acceptance_s"] < 0).any()
    above = rounds > rounds.mean()
    assert (split["low_acceptance_s"][above] > 0).all()


def test_the_decode_parts_make_up_tpot() -> None:
    result = closed(3)
    split = latency_split(result, SplitCost(0.0))
    decode = sum((split[name] for name in DECODE_PARTS), np.zeros(40))
    np.testing.assert_allclose(decode / 24, Counted.of(result.requests).tpot_s, rtol=1e-9)


def test_without_drafts_nothing_is_lost_to_acceptance_however_outputs_differ() -> None:
    world = World([20] * 6, [3, 9, 1, 2, 30, 4], engine=drafting(0))
    split = latency_split(run(world, 0), SplitCost(0.0))
    assert split["low_acceptance_s"] == pytest.approx(np.zeros(6), abs=1e-12)
    assert (split["decode_s"] >= 0.0).all() and split["decode_s"].max() > 0.0


def test_a_preempted_request_pauses_for_as_long_as_it_got_nothing() -> None:
    engine = replace(drafting(0), num_gpu_blocks=9, block_size=4, max_model_len=40, max_num_seqs=4)
    world = World([8, 8, 8], [14, 14, 14], engine=engine, arrival_s=[0.0, 0.0, 0.0])
    result = run(world)
    assert result.requests["preemptions"].sum() > 0
    split = latency_split(result, SplitCost(0.0))
    paused = result.odd_gaps["gap_s"].sum()
    assert split["paused_s"].sum() == pytest.approx(paused) and paused > 0
