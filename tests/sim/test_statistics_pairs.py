"""Two runs on common random numbers: differences, ratios, and the verdict on them."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from queues import Waits, mm1_mean, mm1_percentile, serve
from scipy import stats

from specfleet.sim.statistics.figures import mean_estimate, percentile_estimate
from specfleet.sim.statistics.interval import Interval
from specfleet.sim.statistics.pairs import (
    difference,
    difference_of_means,
    difference_of_percentiles,
    quotient,
    ratio_of_means,
    ratio_of_percentiles,
    ratio_of_rates,
)
from specfleet.sim.statistics.series import F64
from specfleet.sim.statistics.startup import startup
from specfleet.sim.statistics.verdict import verdict

LAWS = settings(max_examples=80, deadline=None)
seeds = st.integers(0, 2**32 - 1)


@st.composite
def twins(draw: st.DrawFn) -> tuple[list[F64], list[F64]]:
    """The same requests in two runs, above 0, some of them moved."""
    rng = np.random.default_rng(draw(seeds))
    lengths = draw(st.lists(st.integers(4, 300), min_size=1, max_size=4))
    a = [rng.lognormal(0.0, 1.0, n) for n in lengths]
    return a, [run * rng.lognormal(0.1, draw(st.sampled_from([0.01, 0.5])), len(run)) for run in a]


@LAWS
@given(twins())
def test_a_run_against_itself_differs_by_nothing_exactly(pair: tuple[list[F64], list[F64]]) -> None:
    a, _ = pair
    same = difference_of_means(a, a)
    assert (same.low, same.value, same.high) == (0.0, 0.0, 0.0)
    ratio = ratio_of_means(a, a)
    assert (ratio.low, ratio.value, ratio.high) == (1.0, 1.0, 1.0)


@LAWS
@given(twins())
def test_the_other_way_round_the_interval_is_the_other_way_round(pair: tuple[list[F64], list[F64]]) -> None:
    a, b = pair
    one, two = difference_of_means(a, b), difference_of_means(b, a)
    assert (two.low, two.value, two.high) == pytest.approx((-one.high, -one.value, -one.low), rel=1e-9)
    over, under = ratio_of_means(a, b), ratio_of_means(b, a)
    ends = (1.0 / over.high, 1.0 / over.value, 1.0 / over.low)
    assert (under.low, under.value, under.high) == pytest.approx(ends, rel=1e-9)


@LAWS
@given(twins(), st.floats(0.1, 10.0))
def test_a_ratio_does_not_ask_for_the_unit(pair: tuple[list[F64], list[F64]], scale: float) -> None:
    a, b = pair
    before = ratio_of_means(a, b)
    after = ratio_of_means([scale * run for run in a], [scale * run for run in b])
    assert (after.low, after.high) == pytest.approx((before.low, before.high), rel=1e-9)


@LAWS
@given(twins(), st.floats(5.0, 95.0))
def test_the_value_of_a_pair_is_that_of_its_two_figures(
    pair: tuple[list[F64], list[F64]], percent: float
) -> None:
    a, b = (np.concatenate(runs) for runs in pair)
    tails = np.percentile(a, percent), np.percentile(b, percent)
    assert difference_of_means(*pair).value == pytest.approx(b.mean() - a.mean(), abs=1e-9)
    assert ratio_of_percentiles(*pair, percent).value == pytest.approx(tails[1] / tails[0], rel=1e-9)
    found = difference_of_percentiles(*pair, percent)
    assert found.value == pytest.approx(tails[1] - tails[0], abs=1e-9)
    assert found.low <= found.value <= found.high


def test_pairs_that_do_not_match_and_ratios_to_nothing_are_refused() -> None:
    a, b = mean_estimate(np.ones(500)), mean_estimate([np.ones(500)] * 3)
    with pytest.raises(ValueError, match="as many runs"):
        difference(a, b)
    with pytest.raises(ValueError, match="above 0"):
        quotient(a, mean_estimate(-np.ones(500)))
    with pytest.raises(ValueError, match="same rows"):
        ratio_of_rates((np.ones(9), np.ones(8)), (np.ones(9), np.ones(9)))


def test_a_tail_that_was_hardly_seen_bounds_no_ratio() -> None:
    rng = np.random.default_rng(1)
    a = rng.exponential(size=60)
    found = ratio_of_percentiles(a, 1.1 * a, 99.0)
    assert (found.low, found.high) == (0.0, inf)
    assert not found.enough
    assert verdict(found) == "not settled"


TRIALS, LOAD, FASTER, LENGTH = 100, 0.7, 0.95, 40_000
LEAST = int(stats.binom.ppf(1e-4, TRIALS, 0.92))


def waits(trial: int, faster: float = 1.0, seed: int = 0) -> F64:
    """Waits in a queue whose customers and their work are told by `trial` and `seed`."""
    return Waits(np.random.default_rng([trial, seed]), LOAD, faster=faster)(LENGTH)


@pytest.mark.parametrize("figure", ["mean", "p99"])
def test_the_true_ratio_lies_inside_and_pairing_makes_it_narrow(figure: str) -> None:
    def ratio(a: F64, b: F64) -> Interval:
        return ratio_of_means(a, b) if figure == "mean" else ratio_of_percentiles(a, b, 99.0)

    def exact(faster: float) -> float:
        return mm1_mean(LOAD, faster) if figure == "mean" else mm1_percentile(LOAD, 99.0, faster)

    together = [ratio(waits(t), waits(t, FASTER)) for t in range(TRIALS)]
    apart = [ratio(waits(t), waits(t, FASTER, seed=1)) for t in range(TRIALS)]
    truth = exact(FASTER) / exact(1.0)
    assert sum(each.holds(truth) for each in together) >= LEAST
    widths = [np.median([each.high - each.low for each in found]) for found in (apart, together)]
    assert widths[0] > 4.0 * widths[1]


def test_replications_pair_run_by_run() -> None:
    pairs = [([waits(t)], [waits(t, FASTER)]) for t in range(8)]
    a, b = ([run for each in pairs for run in each[side]] for side in (0, 1))
    truth = mm1_mean(LOAD, FASTER) / mm1_mean(LOAD)
    found = ratio_of_means(a, b)
    assert found.holds(truth)
    assert found.half_width < ratio_of_means(a[:1], b[:1]).half_width


def test_pairs_tell_what_a_dearer_token_does_to_a_simulated_engine_more_closely() -> None:
    def tpot(seed: int, token_s: float) -> F64:
        seen = serve(seed, 3_000, users=24, token_s=token_s)
        found = startup({"tpot": seen.tpot_s}, seen.flow)
        return seen.tpot_s[found.first : 2_900]

    plain, dearer, other = tpot(1, 1e-4), tpot(1, 1.02e-4), tpot(2, 1.02e-4)
    n = min(len(plain), len(dearer), len(other))
    together = ratio_of_means(plain[-n:], dearer[-n:])
    apart = ratio_of_means(plain[-n:], other[-n:])
    assert together.low > 1.0
    assert apart.half_width > 5.0 * together.half_width


SURE = Interval(1.5, 1.4, 1.6, 0.95, 1e4, 1e3, 30.0)


@given(st.floats(0.5, 2.0), st.floats(0.0, 0.5), st.floats(0.0, 0.5), st.floats(0.0, 0.1))
def test_a_verdict_needs_the_whole_interval_on_one_side(
    value: float, below: float, above: float, least_gain: float
) -> None:
    gain = replace(SURE, value=value, low=value - below, high=value + above)
    said = verdict(gain, least_gain)
    inside = [gain.low, gain.value, gain.high]
    assert (said == "pays") == all(x > 1.0 + least_gain for x in inside)
    assert (said == "does not") == all(x < 1.0 + least_gain for x in inside)
    assert verdict(replace(gain, short="too little was seen"), least_gain) == "not settled"


def test_percentile_estimates_of_one_batch_each_still_pair() -> None:
    rng = np.random.default_rng(3)
    a = [rng.exponential(size=50) for _ in range(70)]
    b = [1.2 * run for run in a]
    joint = quotient(percentile_estimate(a, 90.0), percentile_estimate(b, 90.0))
    assert joint.value == pytest.approx(1.2)
    assert joint.half_width < 0.02
