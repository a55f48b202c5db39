"""The steady part of a run: neither its start nor its end, and nothing of it lost."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from queues import ENGINE
from sim_toys import SPREAD, ToyCost, World, drafting, worlds

from specfleet.sim.config import DeploymentConfig, LoadConfig
from specfleet.sim.metrics.columns import inter_token_latencies
from specfleet.sim.metrics.steady import Steady, paired, steady
from specfleet.sim.metrics.sums import Counted
from specfleet.sim.recorder import FINISHED
from specfleet.sim.scenario import RunResult
from specfleet.sim.statistics.figures import ratio

LAWS = settings(max_examples=60, deadline=None)


def served(seen: Steady, result: RunResult) -> dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """The request columns of those that count."""
    return {name: column[seen.request_id] for name, column in result.requests.items()}


@LAWS
@given(worlds(), st.integers(0, 2**32))
def test_what_counts_was_measured_served_and_sent_between_the_two_times(world: World, seed: int) -> None:
    result = world.run(seed)
    measured = (result.requests["status"] == FINISHED) & (result.requests["counted"] == 1)
    if not measured.any():
        with pytest.raises(ValueError, match="nothing is steady"):
            steady(result)
        return
    seen = steady(result)
    rows = served(seen, result)
    assert (rows["status"] == FINISHED).all()
    assert (rows["counted"] == 1).all() or len(seen.request_id) == 1
    assert (np.diff(rows["sent_s"]) >= 0.0).all()
    assert (rows["sent_s"][0], rows["sent_s"][-1]) == (seen.startup.from_s, seen.startup.to_s)
    assert seen.ttft_s == pytest.approx(rows["first_chunk_s"] - rows["sent_s"])
    assert seen.e2el_s == pytest.approx(rows["last_chunk_s"] - rows["sent_s"])
    assert (seen.between_s >= 0.0).all()


@LAWS
@given(worlds(), st.integers(0, 2**32))
def test_pauses_of_the_steady_part_are_among_those_of_the_run(world: World, seed: int) -> None:
    result = world.run(seed)
    if not ((result.requests["status"] == FINISHED) & (result.requests["counted"] == 1)).any():
        return
    seen = steady(result)
    for name, whole in zip(("itl", "itl_per_token"), inter_token_latencies(result), strict=True):
        part = seen.pauses[name]
        assert part.count <= len(whole)
        everything = np.concatenate([np.empty(0), *(values[each > 0] for values, each in whole.pieces())])
        assert part.weights is not None
        assert np.isin(np.round(part.values[part.weights > 0], 8), np.round(everything, 8)).all()


def loop(n: int, rate: float | None, token_s: float = 1e-4, k: int = 0) -> World:
    """Requests in front of two replicas; a closed loop of 40 users without a rate."""
    rng = np.random.default_rng(n)
    output = np.clip(rng.lognormal(3.2, 0.6, n), 2, 300).astype(int).tolist()
    arrivals = None if rate is None else np.cumsum(rng.exponential(1.0 / rate, n)).tolist()
    return World(
        [100] * n,
        output,
        arrival_s=arrivals,
        engine=drafting(k, engine=ENGINE),
        cost=ToyCost(0.02, 0.0, token_s),
        acceptance=SPREAD if k else None,
        load=LoadConfig(max_concurrency=None if rate else 40),
        deployment=DeploymentConfig(2),
    )


def test_a_throughput_below_saturation_is_what_is_offered_whatever_is_faster() -> None:
    """Measured to the last answer it would rise with any speed-up: the last stragglers end sooner."""
    plain, drafted = (loop(3_000, 20.0, k=k).run(1) for k in (0, 3))
    steadily, to_the_end = [], []
    for result in (plain, drafted):
        seen = steady(result)
        assert seen.startup.state == "stationary"
        tokens = ratio(seen.ended_tokens, seen.between_s)
        steadily.append(tokens.value)
        counted = Counted.of(result.requests)
        to_the_end.append(counted.output_tokens.sum() / (counted.last_s.max() - counted.sent_s.min()))
    assert steadily[1] / steadily[0] == pytest.approx(1.0, abs=0.01)
    assert to_the_end[1] > to_the_end[0]


def test_the_throughput_of_a_closed_loop_is_what_its_users_get() -> None:
    """Little's law: users = answers per second x time of one."""
    seen = steady(loop(4_000, None).run(1))
    answers = ratio(np.ones(len(seen.between_s)), seen.between_s)
    e2el = seen.e2el_s.mean()
    assert answers.value * e2el == pytest.approx(40.0, rel=0.02)


def test_warm_ups_never_count() -> None:
    world = loop(400, None)
    warm = replace(world, load=LoadConfig(max_concurrency=40, num_warmups=300))
    seen = steady(warm.run(1))
    assert seen.request_id.min() >= 300
    assert seen.startup.from_s == warm.run(1).requests["sent_s"][seen.request_id[0]]


def test_chunks_of_several_replicas_come_in_order_of_time_and_all_of_them() -> None:
    result = loop(600, None, k=3).run(1)
    seen = steady(result)
    ended = result.iterations["end_s"]
    inside = (ended > seen.startup.from_s) & (ended <= seen.startup.to_s)
    chunks = result.iterations["gaps_by_tokens"][inside]
    assert seen.pauses["itl"].count == chunks.sum() + 0.0
    tokens = (chunks * np.arange(chunks.shape[1])).sum()
    assert seen.pauses["itl_per_token"].count == tokens


def test_pairs_are_the_requests_that_count_in_both_runs() -> None:
    a, b = (steady(loop(1_000, 20.0, k=k).run(1)) for k in (0, 3))
    both = np.isin(a.request_id, b.request_id)
    found = paired(a, b)
    assert found["ttft"][0].tolist() == a.ttft_s[both].tolist()
    assert found["ttft"][1].tolist() == b.ttft_s[np.isin(b.request_id, a.request_id)].tolist()
    assert len(found["tpot"][0]) == len(found["tpot"][1]) == a.several[both].sum()
    apart = replace(b, request_id=b.request_id + 10_000)
    with pytest.raises(ValueError, match="share no request"):
        paired(a, apart)


def test_what_was_not_seen_is_no_metric() -> None:
    one = World([10] * 8, [1] * 8).run(1)
    assert set(steady(one).metrics()) == {"ttft", "e2el"}
    assert set(steady(loop(400, None).run(1)).metrics()) == {"ttft", "tpot", "e2el", "itl", "itl_per_token"}
