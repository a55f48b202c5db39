"""Whether a limit is kept, told by the share of values beyond it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from queues import PROCESSES, Process, bursty
from scipy import stats

from specfleet.sim.statistics.figures import Ranked, percentile
from specfleet.sim.statistics.limits import far_within, limit_kept, poisson_bound, share_beyond
from specfleet.sim.statistics.series import F64, Series

LAWS = settings(max_examples=80, deadline=None)
seeds = st.integers(0, 2**32 - 1)


def values(seed: int, n: int) -> F64:
    """Independent values, rounded so that some are equal."""
    return np.asarray(np.round(np.random.default_rng(seed).exponential(size=n), 2))


@LAWS
@given(seeds, st.integers(2, 5_000), st.floats(0.0, 8.0))
def test_the_share_is_counted_and_lies_in_its_interval(seed: int, n: int, limit: float) -> None:
    data = values(seed, n)
    found = share_beyond(data, limit, 0.01)
    assert found.value == pytest.approx((data > limit).mean(), abs=1e-12)
    assert 0.0 <= found.low <= found.value + 1e-12
    assert found.value <= found.high + 1e-12 <= 1.0 + 1e-12


@LAWS
@given(seeds, st.integers(2, 2_000), st.floats(0.0, 8.0))
def test_weighted_values_count_as_if_written_out(seed: int, n: int, limit: float) -> None:
    data = values(seed, n)
    weights = np.random.default_rng([seed, 1]).integers(0, 4, n).astype(np.float64)
    weights[0] += 1.0
    written = np.repeat(data, weights.astype(int))
    found = share_beyond(Series(data, weights), limit, 0.01)
    assert found.value == pytest.approx((written > limit).mean(), abs=1e-12)


@LAWS
@given(seeds, st.lists(st.floats(0.0, 8.0), min_size=2, max_size=5))
def test_a_higher_limit_is_not_missed_where_a_lower_one_is_met(seed: int, limits: list[float]) -> None:
    ranked = Ranked(values(seed, 2_000))
    said = [limit_kept(ranked, 99.0, limit) for limit in sorted(limits)]
    assert "missed" not in said[said.index("met") :] if "met" in said else True


@given(st.floats(0.0, 1_000.0), st.floats(1.6, 2.6))
def test_bounds_of_a_count_are_those_of_poissons_law(count: float, t: float) -> None:
    """The exact ones are Garwood's, quantiles of gamma laws."""
    tail = stats.norm.sf(t)
    assert poisson_bound(count + 1.0, t) == pytest.approx(stats.gamma.ppf(1.0 - tail, count + 1.0), rel=0.02)
    if count >= 2.0:
        assert poisson_bound(count, -t) == pytest.approx(stats.gamma.ppf(tail, count), abs=0.06)


def test_a_limit_far_from_anything_seen_is_settled_where_p99_is_not_yet_known() -> None:
    data = PROCESSES[4].start(np.random.default_rng(1))(8_000)
    assert limit_kept(data, 99.0, 20.0) == "met"
    assert limit_kept(data, 99.0, 10.0) == "missed"
    assert limit_kept(data[:20], 99.0, 20.0) == "not settled"


@pytest.mark.parametrize("percent", [50.0, 90.0, 99.9])
def test_other_percentiles_have_limits_too(percent: float) -> None:
    data = np.random.default_rng(1).exponential(size=60_000)
    true = -np.log(1.0 - percent / 100.0)
    assert limit_kept(data, percent, 1.4 * true) == "met"
    assert limit_kept(data, percent, 0.7 * true) == "missed"


def test_a_limit_that_nobody_need_keep_is_refused() -> None:
    with pytest.raises(ValueError, match="may be allowed"):
        limit_kept(np.ones(10), 40.0, 1.0)


TRIALS, LENGTH = 100, 20_000
MOST = int(stats.binom.ppf(1.0 - 1e-4, TRIALS, 0.05))
"""More of so many answers are wrong once in 10,000 tests if 5 % of all are."""


@pytest.mark.parametrize("process", PROCESSES, ids=lambda p: p.name)
def test_a_limit_at_the_true_p99_is_seldom_said_to_be_met_or_missed(process: Process) -> None:
    rng = np.random.default_rng(2)
    said = [limit_kept(process.start(rng)(LENGTH), 99.0, process.p99) for _ in range(TRIALS)]
    assert said.count("met") <= MOST
    assert said.count("missed") <= MOST


def test_limits_clearly_off_are_told_from_the_true_p99() -> None:
    process = PROCESSES[5]
    rng = np.random.default_rng(3)
    said = [
        (limit_kept(ranked, 99.0, 1.3 * process.p99), limit_kept(ranked, 99.0, 0.75 * process.p99))
        for ranked in (Ranked(process.start(rng)(LENGTH)) for _ in range(40))
    ]
    assert sum(pair == ("met", "missed") for pair in said) >= 36


@pytest.mark.parametrize("process", PROCESSES, ids=lambda process: process.name)
def test_a_limit_at_the_true_p99_is_never_taken_to_be_far_off(process: Process) -> None:
    for trial in range(20):
        data = process.start(np.random.default_rng(trial))(20_000)
        assert not far_within(data, process.p99, 0.01)


@pytest.mark.parametrize("sigma", [0.2, 0.5, 1.0])
def test_a_limit_far_beyond_p99_mostly_takes_few_values(sigma: float) -> None:
    limit = 4.0 * float(np.exp(2.33 * sigma))
    draws = [np.random.default_rng(seed).lognormal(sigma=sigma, size=4_000) for seed in range(40)]
    assert sum(far_within(data, limit, 0.01) for data in draws) >= 30
    assert not any(far_within(data, limit, 0.02) for data in draws)


def test_a_share_so_large_that_chance_cannot_give_it_is_missed_however_correlated() -> None:
    """Half of a run lies beyond, in one stretch: worth two values, and 1 % is allowed."""
    data = np.concatenate([np.full(1_000, 2.0), np.full(1_000, 9.0)]) + values(0, 2_000) / 100.0
    assert limit_kept(data, 99.0, 5.0) == "missed"
    assert limit_kept(np.concatenate([data[:1_000], data[1_000:1_200]]), 99.0, 5.0) == "not settled"


def test_the_groups_of_a_share_far_above_what_may_be_are_counted_at_the_limit() -> None:
    """A sixth of independent values is beyond, but the largest of them come in a single stretch."""
    data = values(3, 8_000)
    data[:400] += 50.0
    beyond = share_beyond(data, 2.0, 0.01)
    assert beyond.effective > 3.0 * Ranked(data).count / Ranked(data).memory(0.95)[0]
    assert limit_kept(data, 99.0, 2.0) == "missed"


def test_a_limit_far_beyond_all_that_was_seen_takes_no_p90() -> None:
    data = np.repeat(10.0 + np.random.default_rng(5).standard_normal(80), 50)
    assert not percentile(data, 90.0).enough
    assert far_within(data, 40.0, 0.01)
    assert not far_within(data, float(data.max()) + 1.0, 0.01)


def test_rare_bursts_are_taken_for_nothing_by_one_short_run_and_not_by_five_of_25_000() -> None:
    limit = float(np.quantile(bursty(np.random.default_rng(99), 400_000), 0.98))
    wrong = {"one": 0, "five": 0}
    for seed in range(20):
        draws = [bursty(np.random.default_rng([seed, i]), 25_000) for i in range(5)]
        wrong["one"] += far_within(draws[0][:2_500], limit, 0.01)
        wrong["five"] += far_within([Series(each) for each in draws], limit, 0.01)
    assert wrong["one"] >= 10 and wrong["five"] <= 1
