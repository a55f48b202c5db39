"""Intervals of correlated values: their laws, and how often they hold the truth."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from queues import PROCESSES, Process, Wandering, serve
from scipy import stats

from specfleet.sim.statistics.batches import batch_sums, fine_batches, spread
from specfleet.sim.statistics.figures import (
    mean,
    mean_estimate,
    percentile,
    percentile_estimate,
    percentiles,
    ratio,
    ratio_estimate,
)
from specfleet.sim.statistics.interval import Interval
from specfleet.sim.statistics.series import F64, Series
from specfleet.sim.statistics.startup import startup
from specfleet.sim.statistics.student import student_t, two_sided_tail

LAWS = settings(max_examples=80, deadline=None)
seeds = st.integers(0, 2**32 - 1)


@st.composite
def runs(draw: st.DrawFn) -> list[F64]:
    """One to five runs of correlated, lopsided values, some of them equal."""
    rng = np.random.default_rng(draw(seeds))
    correlation = draw(st.sampled_from([0.0, 0.5, 0.95]))
    digits = draw(st.sampled_from([1, 12]))
    lengths = draw(st.lists(st.integers(2, 400), min_size=1, max_size=5))
    normal = [Wandering(rng, correlation)(n) - 10.0 for n in lengths]
    return [np.asarray(np.round(np.exp(0.5 * each), digits), dtype=np.float64) for each in normal]


def close(a: Interval, b: Interval, tolerance: float = 1e-9) -> bool:
    """Whether two intervals have the same ends and value."""
    ends = [(a.low, b.low), (a.value, b.value), (a.high, b.high)]
    return all(x == y or abs(x - y) <= tolerance * max(1.0, abs(x)) for x, y in ends)


@LAWS
@given(runs(), st.floats(0.5, 99.5))
def test_the_value_is_numpys_and_lies_inside(data: list[F64], percent: float) -> None:
    every = np.concatenate(data)
    assert mean(data).value == pytest.approx(every.mean(), rel=1e-12)
    found = percentile(data, percent)
    assert found.value == pytest.approx(np.percentile(every, percent), rel=1e-12)
    for interval in (mean(data), found):
        assert interval.low <= interval.value <= interval.high


@LAWS
@given(runs(), st.floats(0.1, 10.0), st.floats(-5.0, 5.0))
def test_other_units_give_the_same_interval_in_other_units(
    data: list[F64], scale: float, shift: float
) -> None:
    moved = [scale * run + shift for run in data]
    for before, after in (
        (mean(data), mean(moved)),
        (percentile(data, 90.0), percentile(moved, 90.0)),
    ):
        ends = (scale * before.low + shift, scale * before.high + shift)
        assert (after.low, after.high) == pytest.approx(ends, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("scale", [2.0**-480, 2.0**480])
def test_the_unit_may_be_tiny_or_huge(scale: float) -> None:
    values = np.random.default_rng(1).exponential(size=500)
    before, after = mean(values), mean(scale * values)
    assert (after.low, after.high) == pytest.approx((scale * before.low, scale * before.high), rel=1e-9)


@LAWS
@given(runs())
def test_values_turned_over_give_the_interval_turned_over(data: list[F64]) -> None:
    turned = [-run for run in data]
    ours, theirs = mean(data), mean(turned)
    assert (theirs.low, theirs.high) == pytest.approx((-ours.high, -ours.low), rel=1e-9)


@LAWS
@given(runs(), seeds)
def test_runs_in_another_order_give_the_same_interval(data: list[F64], seed: int) -> None:
    order = np.random.default_rng(seed).permutation(len(data))
    other = [data[i] for i in order]
    assert close(mean(data), mean(other), 1e-7)
    assert close(percentile(data, 80.0), percentile(other, 80.0), 1e-7)


@LAWS
@given(runs(), st.integers(2, 5))
def test_to_weigh_every_value_alike_tells_nothing_new(data: list[F64], times: int) -> None:
    heavy = [Series(run, np.full(len(run), float(times))) for run in data]
    assert close(mean(data), mean(heavy), 1e-7)
    light, weighty = spread(mean_estimate(data).influence), spread(mean_estimate(heavy).influence)
    assert weighty.standard_error == pytest.approx(light.standard_error, rel=1e-7, abs=1e-12)


@LAWS
@given(runs(), seeds, st.floats(1.0, 99.0))
def test_weighted_values_count_as_if_written_out(data: list[F64], seed: int, percent: float) -> None:
    rng = np.random.default_rng(seed)
    weights = [rng.integers(0, 4, len(run)).astype(np.float64) for run in data]
    for each in weights:
        each[0] += 1.0
    heavy = [Series(run, each) for run, each in zip(data, weights, strict=True)]
    pairs = zip(data, weights, strict=True)
    written = np.concatenate([np.repeat(run, each.astype(int)) for run, each in pairs])
    assert mean(heavy).value == pytest.approx(written.mean(), rel=1e-12)
    assert percentile(heavy, percent).value == pytest.approx(np.percentile(written, percent), rel=1e-12)
    assert mean(heavy).count == len(written)


@LAWS
@given(runs(), seeds)
def test_a_ratio_of_means_is_a_mean_weighed_by_what_lies_below(data: list[F64], seed: int) -> None:
    rng = np.random.default_rng(seed)
    below = [rng.uniform(0.5, 2.0, len(run)) for run in data]
    above = [run * each for run, each in zip(data, below, strict=True)]
    weighed = [Series(run, each) for run, each in zip(data, below, strict=True)]
    assert close(ratio(above, below), ratio_estimate(above, below).interval())
    theirs = mean_estimate(weighed)
    assert ratio_estimate(above, below).value == pytest.approx(theirs.value, rel=1e-12)
    assert ratio_estimate(above, below).influence == pytest.approx(theirs.influence, abs=1e-12)


@LAWS
@given(runs())
def test_more_confidence_is_a_wider_interval_around_the_narrower(data: list[F64]) -> None:
    for find in (mean, lambda x, confidence: percentile(x, 75.0, confidence)):
        a, b, c = (find(data, confidence=level) for level in (0.8, 0.95, 0.99))
        assert c.low <= b.low <= a.low <= a.high <= b.high <= c.high


@LAWS
@given(runs())
def test_what_the_batches_add_to_the_error_sums_to_nothing(data: list[F64]) -> None:
    scale = float(np.abs(np.concatenate(data)).max()) + 1.0
    for estimate in (mean_estimate(data), percentile_estimate(data, 50.0)):
        if np.isfinite(estimate.influence).all():
            assert abs(estimate.influence.sum()) < 1e-9 * scale
        else:
            assert estimate.short
            assert estimate.interval().high == np.inf


@LAWS
@given(st.floats(-1e6, 1e6), st.lists(st.integers(1, 200), min_size=1, max_size=3))
def test_values_all_alike_are_known_exactly(value: float, lengths: list[int]) -> None:
    data = [np.full(n, value) for n in lengths]
    assume(sum(lengths) > 2 * len(lengths) or len(lengths) > 1)
    found = percentile(data, 99.0)
    assert found.value == value
    if np.isfinite([found.low, found.high]).all():
        assert (found.low, found.high) == (value, value)


@LAWS
@given(seeds, st.integers(1, 5_000), st.integers(0, 6))
def test_batches_hold_every_value_once(seed: int, n: int, power: int) -> None:
    batches = 1 << power
    assume(batches <= n)
    column = np.random.default_rng(seed).integers(0, 100, n).astype(np.float64)
    assert batch_sums(column, batches).sum() == column.sum()


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=100))
def test_fine_batches_are_a_power_of_two_and_never_empty(lengths: list[int]) -> None:
    each = fine_batches(lengths)
    assert each & (each - 1) == 0
    assert each <= min(lengths)
    assert len(lengths) * each <= max(64, len(lengths))


@settings(max_examples=200, deadline=None)
@given(st.floats(0.5, 0.999), st.floats(0.5, 1e5))
def test_students_t_is_scipys(confidence: float, degrees: float) -> None:
    theirs = stats.t.ppf(0.5 + confidence / 2.0, degrees)
    assert student_t(confidence, degrees) == pytest.approx(theirs, rel=1e-9)
    assert two_sided_tail(theirs, degrees) == pytest.approx(1.0 - confidence, rel=1e-9)


def test_students_t_of_one_and_two_degrees_in_closed_form() -> None:
    assert student_t(0.95, 1.0) == pytest.approx(np.tan(np.pi * 0.475), rel=1e-12)
    assert student_t(0.95, 2.0) == pytest.approx(0.95 * np.sqrt(2.0 / (1.0 - 0.95**2)), rel=1e-12)
    assert student_t(0.95, np.inf) == pytest.approx(1.959963984540054, rel=1e-12)
    with pytest.raises(ValueError, match="degrees above 0"):
        student_t(0.95, 0.0)


def test_classical_replications_are_students_interval() -> None:
    rng = np.random.default_rng(3)
    data = [rng.normal(10.0, 1.0, 1) for _ in range(6)]
    values = np.concatenate(data)
    found = spread(mean_estimate(data).influence)
    assert found.standard_error == pytest.approx(values.std(ddof=1) / np.sqrt(6.0), rel=1e-12)


def test_runs_that_are_not_like_each_other_are_one_batch_each() -> None:
    """As when every replication has a workload of its own: what lies between runs is what counts."""
    rng = np.random.default_rng(4)
    levels = rng.normal(10.0, 1.0, 6)
    data = [level + 0.1 * rng.normal(size=2_000) for level in levels]
    found = spread(mean_estimate(data).influence)
    assert found.batches == 6
    means = np.array([run.mean() for run in data])
    assert found.standard_error == pytest.approx(means.std(ddof=1) / np.sqrt(6.0), rel=1e-9)
    assert not mean(data[:3]).enough


def test_correlated_values_are_worth_fewer_independent_ones() -> None:
    values = Wandering(np.random.default_rng(1), 0.9)(200_000)
    apart = np.random.default_rng(2).permutation(values)
    assert mean(apart).effective == pytest.approx(200_000, rel=0.5)
    assert mean(values).effective == pytest.approx(200_000 / 19.0, rel=0.5)  # (1 - 0.9) / (1 + 0.9)


def test_a_run_shorter_than_its_own_memory_is_not_trusted() -> None:
    slow = np.cumsum(np.random.default_rng(1).normal(size=2_000))
    assert "memory" in mean(slow).short
    assert not percentile(slow, 99.0).enough


def test_p99_of_few_values_is_not_trusted_and_says_why() -> None:
    found = percentile(np.random.default_rng(1).exponential(size=500), 99.0)
    assert "values beyond it" in found.short
    assert percentile(np.random.default_rng(1).exponential(size=5_000), 99.0).enough


def test_pauses_by_token_are_a_value_a_token() -> None:
    pauses, chunks = np.array([0.03, 0.06]), np.array([[0, 2, 1], [0, 0, 3]])
    series = Series.by_token(pauses, chunks)
    written = [0.03] * 2 + [0.015] * 2 + [0.03] * 6
    assert series.count == len(written)
    assert mean(series).value == pytest.approx(np.mean(written))
    assert percentile(series, 40.0).value == pytest.approx(np.percentile(written, 40.0))


def test_histograms_of_several_runs_bound_what_replications_do() -> None:
    data = [np.random.default_rng(seed).integers(1, 300, 2_000).astype(np.float64) for seed in range(12)]
    bins = np.arange(1.0, 300.0)
    kept = [Series.of_counts(bins, np.bincount(run.astype(int), minlength=300)[1:]) for run in data]
    assert percentile(kept, 90.0).value == percentile(data, 90.0).value
    found = mean(kept)
    means = np.array([run.mean() for run in data])
    assert found.value == pytest.approx(means.mean())
    error = spread(mean_estimate(kept).influence).standard_error
    assert error == pytest.approx(means.std(ddof=1) / np.sqrt(12.0))
    assert "another is needed" in mean(kept[:1]).short


def test_a_series_in_order_of_time_is_sorted_by_it() -> None:
    series = Series.in_order(np.array([2.0, 1.0]), np.array([20.0, 10.0]), np.array([3, 4]))
    assert series.values.tolist() == [10.0, 20.0]
    assert series.weights is not None
    assert series.weights.tolist() == [4.0, 3.0]


@pytest.mark.parametrize("data", [[], [np.empty(0)], np.empty(0)])
def test_nothing_seen_is_refused(data: list[F64]) -> None:
    with pytest.raises(ValueError, match="at least one"):
        mean(data)


TRIALS, LENGTH = 100, 40_000
LEAST = int(stats.binom.ppf(1e-4, TRIALS, 0.92))
"""Fewer of so many intervals hold the truth once in 10,000 tests if 92 % of all do."""


def rate_of(found: list[Interval], truth: float) -> int:
    """How many hold the truth."""
    return sum(each.holds(truth) for each in found)


@pytest.mark.parametrize("process", PROCESSES, ids=lambda p: p.name)
@pytest.mark.parametrize("replications", [1, 5])
def test_the_truth_lies_inside_about_as_often_as_said(process: Process, replications: int) -> None:
    rng = np.random.default_rng(20)
    means, tails = [], []
    for _ in range(TRIALS):
        data = [process.start(rng)(LENGTH // replications) for _ in range(replications)]
        means.append(mean(data))
        tails.append(percentile(data, 99.0))
    assert rate_of(means, process.mean) >= LEAST
    assert rate_of(tails, process.p99) >= LEAST
    for found in (means, tails):
        if sum(each.enough for each in found) > TRIALS // 2:  # no wider than need be, either
            ideal = 1.96 * np.std([each.value for each in found])
            assert np.median([each.half_width for each in found]) < 1.7 * ideal


def test_intervals_of_a_simulated_engine_hold_what_a_run_100_times_as_long_shows() -> None:
    def tpot(seed: int, n: int) -> F64:
        seen = serve(seed, n, users=24)
        return startup({"tpot": seen.tpot_s}, seen.flow).kept(seen.tpot_s)

    truth = tpot(1_000, 200_000)
    trials = 60
    found = [tpot(seed, 2_000) for seed in range(trials)]
    least = int(stats.binom.ppf(1e-4, trials, 0.92))
    assert rate_of([mean(each) for each in found], float(truth.mean())) >= least
    p90 = float(np.percentile(truth, 90.0))
    assert rate_of([percentiles(each, [90.0])[0] for each in found], p90) >= least
