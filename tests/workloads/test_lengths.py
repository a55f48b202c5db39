"""Length laws: inverse CDFs within their limits, and the joint draw of two lengths."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import ndtr, ndtri

from specfleet.workloads.laws import length_law
from specfleet.workloads.lengths import (
    Capped,
    Empirical,
    Fixed,
    LengthDistribution,
    LogNormal,
    Scaled,
    Shifted,
    Uniform,
    correlated_uniforms,
)
from specfleet.workloads.normal import normal_cdf, normal_quantile

limits = st.tuples(st.integers(1, 300), st.integers(0, 3000)).map(lambda pair: (pair[0], sum(pair)))
tables = st.lists(st.floats(0, 5000), min_size=2, max_size=9).map(
    lambda values: Empirical(
        tuple(np.linspace(0, 100, len(values)).tolist()), tuple(sorted([*values[1:], values[0] + 1]))
    )
)
plain_laws = st.one_of(
    st.integers(1, 5000).map(Fixed),
    limits.map(lambda ends: Uniform(*ends)),
    st.builds(
        lambda mu, sigma, ends, tails: LogNormal(mu, sigma, ends[0], ends[1], tails),
        st.floats(-3, 12),
        st.floats(0.01, 4),
        limits,
        st.sampled_from(["clamp", "redraw"]),
    ),
    tables,
)
laws = st.recursive(
    plain_laws,
    lambda inner: st.one_of(
        st.builds(Scaled, inner, st.floats(0.01, 10)),
        st.builds(Shifted, inner, st.integers(-500, 500)),
        st.builds(Capped, inner, st.integers(1, 2000)),
    ),
    max_leaves=3,
)


@settings(max_examples=150, deadline=None)
@given(laws, st.lists(st.floats(0, 1), min_size=1, max_size=40))
def test_every_law_gives_whole_rising_tokens_from_one_to_its_maximum(
    law: LengthDistribution, probabilities: list[float]
) -> None:
    tokens = law.quantile(np.sort(np.array([0.0, *probabilities, 1.0])))
    assert tokens.dtype == np.int64
    assert tokens[0] >= 1 and tokens[-1] <= law.maximum
    assert (np.diff(tokens) >= 0).all()


@settings(max_examples=40, deadline=None)
@given(laws)
def test_the_mean_is_the_mean_of_the_draws(law: LengthDistribution) -> None:
    u = (np.arange(20_000) + 0.5) / 20_000
    assert law.mean == pytest.approx(float(law.quantile(u).mean()), rel=5e-3, abs=0.02)


def test_a_uniform_law_gives_each_value_equally_often() -> None:
    tokens = Uniform(3, 7).quantile((np.arange(1000) + 0.5) / 1000)
    assert np.bincount(tokens).tolist() == [0, 0, 0, 200, 200, 200, 200, 200]
    assert Uniform(3, 7).quantile(np.array([1.0])).tolist() == [7]


@pytest.mark.parametrize(("ratio", "low", "high"), [(0.0, 1024, 1024), (0.2, 819, 1229), (0.9999, 1, 2048)])
def test_the_range_ratio_is_that_of_vllm(ratio: float, low: int, high: int) -> None:
    assert Uniform.around(1024, ratio) == Uniform(low, high)


def test_an_empirical_law_is_linear_between_its_percentiles() -> None:
    law = Empirical((0, 50, 100), (10, 20, 60))
    assert law.quantile(np.array([0, 0.25, 0.5, 0.75, 1.0])).tolist() == [10, 15, 20, 40, 60]
    assert law.maximum == 60 and law.mean == pytest.approx(27.5, abs=0.01)


def test_wrappers_scale_shift_and_cap() -> None:
    u, law = np.array([0.0, 0.5, 1.0]), Empirical((0, 100), (10, 30))
    assert Scaled(law, 1.5).quantile(u).tolist() == [15, 30, 45]
    assert Shifted(law, -15).quantile(u).tolist() == [1, 5, 15]
    assert Capped(law, 20).quantile(u).tolist() == [10, 20, 20]
    assert [Scaled(law, 1.5).maximum, Shifted(law, -15).maximum, Capped(law, 20).maximum] == [45, 15, 20]


def test_a_lognormal_matches_scipy_inside_its_limits() -> None:
    u = np.linspace(0.001, 0.999, 999)
    law = LogNormal(5.0, 0.5, 1, 100_000)
    exact = stats.lognorm.ppf(u, 0.5, scale=math.exp(5.0))
    assert np.abs(law.quantile(u) - exact).max() <= 0.5 + 1e-9


def test_clamped_tails_pile_up_and_redrawn_tails_do_not() -> None:
    u = (np.arange(10_000) + 0.5) / 10_000
    clamped = LogNormal(5.0, 1.0, 20, 300).quantile(u)
    redrawn = LogNormal(5.0, 1.0, 20, 300, "redraw").quantile(u)
    assert (clamped == 300).mean() == pytest.approx(1 - ndtr(math.log(300) - 5), abs=0.01)
    assert (redrawn == 300).mean() < 0.002
    assert redrawn.min() == 20 and redrawn.max() == 300


@settings(max_examples=30, deadline=None)
@given(st.floats(30, 400), st.floats(0.2, 1.4), st.sampled_from(["clamp", "redraw"]))
def test_a_lognormal_fitted_to_a_mean_has_that_mean(mean: float, sigma: float, tails: str) -> None:
    law = LogNormal.from_mean(mean, sigma, 4, 1024, "redraw" if tails == "redraw" else "clamp")
    assert law.mean == pytest.approx(mean, rel=0.005)


def test_a_lognormal_from_mean_and_median_has_both() -> None:
    law = LogNormal.from_mean_p50(300, 200, 1, 1_000_000)
    assert law.mean == pytest.approx(300, rel=0.002)
    assert law.quantile(np.array([0.5])).tolist() == [200]


@pytest.mark.parametrize(
    ("described", "law"),
    [
        (128, Fixed(128)),
        ({"fixed": 128}, Fixed(128)),
        ({"uniform": {"min": 1, "max": 9}}, Uniform(1, 9)),
        ({"uniform": {"tokens": 100, "range_ratio": 0.1}}, Uniform(90, 111)),
        ({"lognormal": {"mu": 5, "sigma": 1, "min": 1, "max": 99}}, LogNormal(5.0, 1.0, 1, 99)),
        (
            {"lognormal": {"mean_tokens": 9, "sigma": 1, "min": 1, "max": 99, "tails": "redraw"}},
            LogNormal.from_mean(9, 1.0, 1, 99, "redraw"),
        ),
        (
            {"lognormal": {"mean_tokens": 9, "p50_tokens": 5, "min": 1, "max": 99}},
            LogNormal.from_mean_p50(9, 5, 1, 99),
        ),
        ({"quantiles": {100: 9, 0: 1}}, Empirical((0.0, 100.0), (1.0, 9.0))),
        ({"fixed": 10, "cap": 9, "scale": 2, "shift": -3}, Capped(Shifted(Scaled(Fixed(10), 2), -3), 9)),
    ],
)
def test_a_law_is_read_from_plain_yaml(described: object, law: LengthDistribution) -> None:
    assert length_law(described) == law


@pytest.mark.parametrize(
    ("described", "message"),
    [
        ("long", "a whole number or a mapping"),
        (True, "a whole number or a mapping"),
        (0, "fixed lengths need 1 <= min"),
        ({}, "exactly one of fixed, uniform, lognormal, quantiles"),
        ({"fixed": 1, "uniform": {}}, "exactly one of"),
        ({"log_normal": {}}, "'log_normal' is not a key of a length; did you mean 'lognormal'"),
        ({"fixed": 1.5}, "fixed must be a whole number of tokens"),
        ({"fixed": "7"}, "fixed must be a number, got '7'"),
        ({"uniform": 3}, "uniform takes a mapping"),
        ({"uniform": {"min": 1}}, "uniform needs min and max, got min"),
        ({"uniform": {"min": 9, "max": 1}}, "1 <= min <= max, got min 9 and max 1"),
        ({"uniform": {"tokens": 9, "range_ratio": 1}}, r"must be in \[0, 1\)"),
        ({"lognormal": {"mu": 5, "sigma": 1}}, "needs min and max"),
        ({"lognormal": {"mu": 5, "min": 1, "max": 9}}, "needs mu and sigma .* got mu"),
        ({"lognormal": {"mu": 5, "sigma": 0, "min": 1, "max": 9}}, "sigma > 0"),
        ({"lognormal": {"mu": 5, "sigma": 1, "min": 1, "max": 9, "tails": "cut"}}, "'clamp' or 'redraw'"),
        ({"lognormal": {"mean_tokens": 99, "sigma": 1, "min": 1, "max": 9}}, "no lognormal of sigma"),
        ({"lognormal": {"mean_tokens": 5, "p50_tokens": 9, "min": 1, "max": 9}}, "0 < p50 < mean"),
        ({"quantiles": {0: 1}}, "two or more pairs"),
        ({"quantiles": {0: 1, 99: 3}}, "rise from 0 to 100"),
        ({"quantiles": {0: 5, 50: 4, 100: 9}}, "must not fall"),
        ({"fixed": 1, "scale": 0}, "factor must be positive"),
        ({"fixed": 1, "cap": 0}, "capped lengths need"),
    ],
)
def test_a_wrong_law_is_refused_in_plain_words(described: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        length_law(described)


def test_the_normal_quantile_and_cdf_match_scipy() -> None:
    u = np.concatenate([np.linspace(0.0005, 0.9995, 4001), [1e-300, 1e-20, 1e-7, 1 - 1e-12]])
    np.testing.assert_allclose(normal_quantile(u), ndtri(u), rtol=1e-13, atol=1e-15)
    assert normal_quantile(np.array([0.0, 1.0])).tolist() == [-math.inf, math.inf]
    z = np.linspace(-9, 9, 601)
    np.testing.assert_allclose(normal_cdf(z), ndtr(z), rtol=1e-12)


@pytest.mark.parametrize("rank", [-1.0, -0.52, -0.2, 0.0, 0.07, 0.5, 0.9, 1.0])
def test_the_copula_reaches_the_stated_rank_correlation_and_stays_uniform(rank: float) -> None:
    rng = np.random.default_rng(7)
    u, v = rng.random(20_000), rng.random(20_000)
    w = correlated_uniforms(u, v, rank)
    assert stats.spearmanr(u, w).statistic == pytest.approx(rank, abs=0.03)
    assert stats.kstest(w, "uniform").pvalue > 1e-3


def test_no_correlation_leaves_the_draws_untouched() -> None:
    u, v = np.array([0.1, 0.9]), np.array([0.4, 0.5])
    assert correlated_uniforms(u, v, 0.0) is v


def test_a_rank_correlation_above_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\[-1, 1\]"):
        correlated_uniforms(np.array([0.5]), np.array([0.5]), 1.1)
