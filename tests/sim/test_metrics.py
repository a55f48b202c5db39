"""What a benchmark prints, against `vllm bench serve`'s own computation from each request's chunks."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim_toys import ENGINE, ToyCost, World, drafting, worlds

from specfleet.sim.config import LoadConfig, Slo
from specfleet.sim.engine import Engine, Flight
from specfleet.sim.metrics.columns import benchmark, by_class, by_replica, engine_load, inter_token_latencies
from specfleet.sim.metrics.samples import Samples
from specfleet.sim.metrics.sums import Counted
from specfleet.sim.recorder import FINISHED
from specfleet.sim.simulation import RunResult
from specfleet.sim.speculation.acceptance import AcceptanceSpec

Chunks = dict[int, list[tuple[float, int]]]
"""By request: when each chunk left the engine, seconds, and its tokens."""
Values = dict[str, float]

SLO = Slo(ttft_s=0.08, tpot_s=0.012, e2el_s=0.5)
PERCENTS = [0.0, 12.5, 50.0, 90.0, 99.0, 100.0]


def logged(world: World, seed: int) -> tuple[RunResult, Chunks]:
    """Runs a world and notes each chunk as it leaves, independently of the recorder."""
    chunks: Chunks = defaultdict(list)
    original = Engine._commit

    def commit(self: Engine, flight: Flight) -> None:
        before = [(sequence, sequence.num_tokens) for sequence in flight.batch.sequences]
        original(self, flight)
        refresh = getattr(getattr(self.scheduler, "crowd", None), "refresh", None)
        if refresh is not None:
            refresh()  # counts of those aboard are columns until somebody asks
        for sequence, tokens in before:
            if sequence.num_tokens > tokens:
                chunks[sequence.id].append((flight.end_s, sequence.num_tokens - tokens))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "_commit", commit)
        return world.run(seed, engine="step"), chunks


def statistics(name: str, values: list[float]) -> Values:
    """vLLM's statistics of one metric, milliseconds."""
    sample = np.array(values or [0.0]) * 1e3
    percents = {f"p{p}_{name}_ms": float(np.percentile(sample, p)) for p in (90, 95, 99)}
    moments = {"mean": np.mean(sample), "median": np.median(sample), "std": np.std(sample)}
    return percents | {f"{key}_{name}_ms": float(value) for key, value in moments.items()}


def by_hand(world: World, result: RunResult, chunks: Chunks) -> Values:
    """`vllm bench serve`'s calculation, request by request and chunk by chunk."""
    served = [i for i in sorted(chunks) if i >= world.load.num_warmups]
    lists: dict[str, list[float]] = {name: [] for name in ("ttft", "tpot", "itl", "e2el", "itl_per_token")}
    good, peak, present = 0, Counter[int](), Counter[int]()
    sent = {i: float(result.requests["sent_s"][i]) for i in served}
    start = min(sent.values(), default=0.0)
    end = start
    for i in served:
        times = [time + world.client.receive_s for time, _ in chunks[i]]
        tokens = [count for _, count in chunks[i]]
        ttft, e2el, output = times[0] - sent[i], times[-1] - sent[i], sum(tokens)
        tpot = (e2el - ttft) / (output - 1) if output > 1 else 0.0
        lists["ttft"].append(ttft)
        lists["e2el"].append(e2el)
        lists["tpot"] += [tpot] * (output > 1)
        for pause, count in zip(np.diff(times), tokens[1:], strict=True):
            lists["itl"].append(float(pause))
            lists["itl_per_token"] += [float(pause) / count] * count
        assert SLO.ttft_s and SLO.tpot_s and SLO.e2el_s
        good += ttft <= SLO.ttft_s and tpot <= SLO.tpot_s and e2el <= SLO.e2el_s
        peak.update(int(time - start) for time in times)
        present.update(range(int(sent[i] - start), int(times[-1] - start) + 1))
        end = max(end, times[-1])
    total_in = sum(world.prompt[i] for i in served)
    total_out = sum(count for i in served for _, count in chunks[i])
    duration = end - start
    rate = 1 / duration if served else 0.0
    values: Values = {
        "duration": duration,
        "completed": len(served),
        "failed": max(len(world.prompt) - world.load.num_warmups, 0) - len(served),
        "total_input_tokens": total_in,
        "total_output_tokens": total_out,
        "request_throughput": len(served) * rate,
        "request_goodput": good * rate,
        "output_throughput": total_out * rate,
        "total_token_throughput": (total_in + total_out) * rate,
        "max_output_tokens_per_s": max(peak.values(), default=0),
        "max_concurrent_requests": max(present.values(), default=0),
    }
    for name, sample in lists.items():
        values |= statistics(name, sample)
    return values


@given(
    st.lists(st.tuples(st.floats(0, 1e3), st.integers(0, 5)), min_size=1, max_size=30),
    st.lists(st.floats(0, 100), min_size=1, max_size=4),
)
def test_weighted_percentiles_are_those_of_the_written_out_sample(
    pairs: list[tuple[float, int]], percents: list[float]
) -> None:
    values, weights = np.array([v for v, _ in pairs]), np.array([w for _, w in pairs])
    if not weights.sum():
        weights[0] = 1
    sample, written_out = Samples(values, weights), np.repeat(values, weights)
    assert len(sample) == len(written_out)
    expected = np.percentile(written_out, percents + PERCENTS)
    assert sample.percentiles(percents + PERCENTS) == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert sample.mean() == pytest.approx(written_out.mean(), rel=1e-9, abs=1e-9)
    assert sample.std() == pytest.approx(written_out.std(), rel=1e-6, abs=1e-6)


def test_an_empty_sample_is_all_zeros() -> None:
    empty = Samples.of([])
    assert (len(empty), empty.mean(), empty.std(), empty.percentiles([50, 99])) == (0, 0.0, 0.0, [0.0, 0.0])


@settings(max_examples=100, deadline=None)
@given(worlds(), st.integers(0, 2**32), st.floats(0.5, 20))
def test_a_benchmark_is_what_vllm_computes_from_the_chunks(world: World, seed: int, slowness: float) -> None:
    cost = ToyCost(step_s=0.0097 * slowness, token_s=0.00031, pass_s=0.0011)
    quiet = replace(world, client=replace(world.client, chunk_s=0.0), cost=cost)
    result, chunks = logged(quiet, seed)
    ours = benchmark(result, SLO).as_dict()
    for name, value in by_hand(quiet, result, chunks).items():
        assert ours[name] == pytest.approx(value, rel=1e-7, abs=1e-7), name


STATISTICS = ("mean", "median", "std", "p90", "p95", "p99")
LATENCIES = ("ttft", "tpot", "itl", "e2el", "itl_per_token")
KEYS = (
    "duration",
    "completed",
    "failed",
    "total_input_tokens",
    "total_output_tokens",
    "request_throughput",
    "request_goodput",
    "output_throughput",
    "total_token_throughput",
    "max_output_tokens_per_s",
    "max_concurrent_requests",
)
SPEC_DECODE = (
    "acceptance_rate",
    "acceptance_length",
    "num_drafts",
    "draft_tokens",
    "accepted_tokens",
    "per_position_acceptance_rates",
)


@settings(max_examples=40, deadline=None)
@given(worlds(), st.integers(0, 2**32))
def test_figures_have_vllms_keys_in_its_order(world: World, seed: int) -> None:
    figures = benchmark(world.run(seed), SLO)
    latencies = [f"{statistic}_{name}_ms" for name in LATENCIES for statistic in STATISTICS]
    drafts = SPEC_DECODE if world.engine.num_speculative_tokens else ()
    found = figures.as_dict()
    assert list(found) == [*KEYS, *(f"spec_decode_{name}" for name in drafts), *latencies]
    assert found["p99_itl_per_token_ms"] == figures.itl_per_token.p99_ms
    assert found["median_ttft_ms"] == figures.ttft.median_ms
    scalar = {key: value for key, value in found.items() if not isinstance(value, list)}
    assert figures.numbers() == scalar
    assert json.loads(json.dumps(found)) == found
    assert figures.acceptance_length == (found.get("spec_decode_acceptance_length") or 1.0)


@settings(max_examples=40, deadline=None)
@given(worlds(), st.integers(0, 2**32))
def test_classes_add_up_to_the_run(world: World, seed: int) -> None:
    result = world.run(seed)
    figures, classes = benchmark(result), by_class(result, ("a", "b"))
    assert list(classes) == ["a", "b"]
    assert sum(found.completed for found in classes.values()) == figures.completed
    assert sum(found.output_tokens for found in classes.values()) == figures.total_output_tokens
    waited_ms = sum(found.completed * found.mean_ttft_ms for found in classes.values())
    assert waited_ms == pytest.approx(figures.completed * figures.ttft.mean_ms)


@settings(max_examples=40, deadline=None)
@given(worlds(), st.integers(0, 2**32))
def test_the_figures_of_speculation_fit_each_other(world: World, seed: int) -> None:
    result = world.run(seed)
    drafts = benchmark(result).spec_decode
    k = world.engine.num_speculative_tokens
    if not k:
        assert drafts is None
        return
    assert drafts is not None
    counted = result.requests["counted"] == 1
    rounds, accepted = drafts.num_drafts, drafts.accepted_tokens
    length, positions = drafts.acceptance_length, list(drafts.per_position_acceptance_rates)
    assert rounds == result.requests["verifications"][counted].sum()
    assert accepted == result.requests["accepted_tokens"][counted].sum()
    assert len(positions) == k and positions == sorted(positions, reverse=True)
    if rounds:
        assert length == pytest.approx(1 + accepted / rounds)
        assert sum(positions) == pytest.approx(length - 1)
        assert drafts.draft_acceptance_rate == pytest.approx(100 * accepted / drafts.draft_tokens)


def test_the_example_of_vllms_documentation() -> None:
    """First token after 100 ms, two chunks of two tokens at 140 and 180 ms: ITL 40 and 40, TPOT 20."""
    always = AcceptanceSpec(conditional_acceptance=1.0)
    cost = ToyCost(step_s=0.04, prefill_s=0.06)
    result = World([10], [5], engine=drafting(1), cost=cost, acceptance=always).run()
    by_chunk, by_token = inter_token_latencies(result)
    assert by_chunk.values.tolist() == pytest.approx([0.04, 0.04])
    assert len(by_token) == 4 and by_token.mean() == pytest.approx(0.02)
    figures = benchmark(result)
    assert figures.ttft.mean_ms == pytest.approx(100)
    assert (figures.itl.mean_ms, figures.itl.p99_ms) == pytest.approx((40, 40))
    assert figures.tpot.mean_ms == pytest.approx(20)
    assert figures.e2el.mean_ms == pytest.approx(180)


def test_goodput_counts_requests_within_all_limits() -> None:
    cost = ToyCost(step_s=0.1)
    result = World([5, 5, 5], [1, 4, 11], cost=cost).run()
    assert Counted.of(result.requests).tpot_s == pytest.approx([0.0, 0.1, 0.1])
    for slo, met in [
        (Slo(), 3),
        (Slo(ttft_s=0.15), 3),
        (Slo(ttft_s=0.05), 0),
        (Slo(tpot_s=0.05), 1),
        (Slo(e2el_s=0.5), 2),
        (Slo(ttft_s=0.15, tpot_s=0.15, e2el_s=0.2), 1),
    ]:
        figures = benchmark(result, slo)
        assert figures.request_goodput == pytest.approx(met / 1.1)
        assert figures.slo_attainment == pytest.approx(met / 3)
    without = benchmark(result)
    assert without.request_goodput is None and without.slo_attainment is None


def test_the_peak_counts_chunks_not_tokens() -> None:
    always = AcceptanceSpec(conditional_acceptance=1.0)
    world = World([5, 5], [21, 21], engine=drafting(4), cost=ToyCost(step_s=0.3), acceptance=always)
    figures = benchmark(world.run())
    assert figures.max_output_tokens_per_s == 6  # two requests, chunks at 0.3, 0.6 and 0.9 s
    assert figures.max_concurrent_requests == 2


def test_warm_ups_are_simulated_and_not_counted() -> None:
    world = World([5] * 6, [4] * 6, load=LoadConfig(max_concurrency=2, num_warmups=2))
    figures, all_counted = benchmark(world.run()), benchmark(replace(world, load=LoadConfig(2)).run())
    assert (figures.completed, figures.total_output_tokens) == (4, 16)
    assert all_counted.completed == 6
    assert all_counted.duration_s == pytest.approx(3 * 4 * 0.02)
    assert figures.duration_s == pytest.approx(2 * 4 * 0.02)


def test_a_run_that_served_nobody_prints_zeros() -> None:
    result = World([500, 500], [5, 5], engine=replace(ENGINE, max_model_len=100)).run()
    figures = benchmark(result, SLO)
    assert (figures.completed, figures.failed) == (0, 2)
    assert {value for name, value in figures.as_dict().items() if name != "failed"} == {0}
    assert engine_load(result) is None


def test_preemption_shows_as_one_long_pause() -> None:
    engine = replace(ENGINE, num_gpu_blocks=5, block_size=4)
    world = World([7, 7], [6, 6], engine=engine, cost=ToyCost(step_s=0.01))
    result, chunks = logged(world, 0)
    pauses = np.diff([time for time, _ in chunks[1]])
    assert result.requests["preemptions"].tolist() == [0, 1]
    assert result.odd_gaps["gap_s"].tolist() == pytest.approx([pauses.max()])
    assert benchmark(result).itl.p99_ms > 20


def test_load_is_averaged_over_replicas_and_time() -> None:
    world = World([5, 5], [10, 10], cost=ToyCost(step_s=0.02), load=LoadConfig(max_concurrency=1))
    load = engine_load(world.run())
    assert load is not None and load.mean_batch == 1.0
    assert load.mean_running == pytest.approx(1.0)
    assert load.gpu_busy == pytest.approx(1.0)
    assert (load.mean_waiting, load.preemptions, load.rejected) == (0, 0, 0)
    assert load.peak_kv_usage == pytest.approx(1 / ENGINE.usable_blocks)


@settings(max_examples=30, deadline=None)
@given(worlds(), st.integers(0, 2**32))
def test_replicas_add_up_to_the_cluster(world: World, seed: int) -> None:
    result = world.run(seed)
    figures, rows = benchmark(result), by_replica(result)
    assert len(rows) == world.deployment.replicas
    assert sum(row.requests for row in rows) == figures.completed
    assert sum(row.output_tokens for row in rows) == figures.total_output_tokens
    assert sum(row.iterations for row in rows) == len(result.iterations["end_s"])
    served = int((result.requests["status"] == FINISHED).sum())
    assert served or not len(result.iterations["end_s"])
    load = engine_load(result)
    if load:
        assert 0 < load.gpu_busy <= 1 + 1e-9
        assert 0 < load.peak_kv_usage <= 1
        assert load.mean_running <= world.engine.max_num_seqs + 1e-9
