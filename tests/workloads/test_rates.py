"""Rates that change bring as many requests as they say, when they say; presets are as uneven as recorded."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specfleet.workloads.arrivals import open_loop
from specfleet.workloads.profiles import preset, preset_from
from specfleet.workloads.rates import RateArrivals, RateCurve, ramp, schedule, spike, wave
from specfleet.workloads.traces.statistics import WINDOWS_S, dispersion

RATES = st.lists(st.one_of(st.just(0.0), st.floats(1e-3, 1e3)), min_size=2, max_size=8).filter(any)
CURVES = st.one_of(
    st.builds(lambda rates, every: schedule(rates, every), RATES, st.floats(0.1, 1e3)),
    st.builds(wave, st.floats(1.0, 100.0), st.floats(0.0, 1e5), st.floats(1.0, 1e5)),
    st.builds(ramp, st.floats(0.0, 100.0), st.floats(1e-3, 100.0), st.floats(0.1, 1e4)),
    st.builds(spike, st.floats(0.0, 1e4), st.floats(0.1, 1e4), st.floats(0.0, 100.0)),
)


def rng(seed: int = 0) -> np.random.Generator:
    """Draws that depend on a seed."""
    return np.random.default_rng(seed)


@given(CURVES, st.lists(st.floats(0.0, 5.0), min_size=1, max_size=20))
def test_so_many_requests_are_expected_until_the_time_at_which_so_many_are_expected(
    curve: RateCurve, shares: list[float]
) -> None:
    wanted = np.array(shares) * max(curve.over_period, 1e-3)
    for count, at_s in zip(wanted.tolist(), curve.when(wanted).tolist(), strict=True):
        assert curve.expected(at_s) == pytest.approx(count, rel=1e-6, abs=1e-6 * curve.over_period + 1e-9)


@given(CURVES, st.floats(1e-3, 1e3))
def test_twice_the_rate_brings_the_same_request_where_half_as_many_were_expected(
    curve: RateCurve, factor: float
) -> None:
    # no share of a period at which a pause could begin
    counts = np.array([0.1370431, 0.5190773, 0.8310517, 1.7120391]) * max(curve.over_period, 1e-3)
    assert curve.scaled(factor).when(factor * counts) == pytest.approx(curve.when(counts), rel=1e-6, abs=1e-6)


@given(CURVES, st.lists(st.integers(0, 40), min_size=1, max_size=6), st.floats(0.1, 10.0), st.integers(0, 99))
def test_portions_of_any_size_give_the_same_bytes_and_never_fall(
    curve: RateCurve, sizes: list[int], shape: float, seed: int
) -> None:
    whole = RateArrivals(curve, shape, rng(seed)).take(sum(sizes))
    pieces = RateArrivals(curve, shape, rng(seed))
    assert np.concatenate([pieces.take(size) for size in sizes]).tobytes() == whole.tobytes()
    assert (np.diff(whole) >= 0).all()


@given(st.floats(1e-2, 1e3), st.floats(0.1, 10.0), st.integers(0, 99))
def test_at_one_rate_it_is_the_open_loop_but_for_the_stretching_to_n_over_the_rate(
    rate: float, shape: float, seed: int
) -> None:
    steady = RateArrivals(RateCurve((0.0,), (rate,)), shape, rng(seed)).take(50)
    stretched = open_loop(50, rate, shape, rng(seed))
    assert steady / steady[-1] == pytest.approx(stretched / stretched[-1], rel=1e-9)


def test_evenly_spaced_requests_come_when_a_whole_number_is_expected() -> None:
    at_s = RateArrivals(schedule([1.0, 0.0, 2.0], 10.0), math.inf, rng()).take(31)
    assert at_s[:10] == pytest.approx(np.arange(1.0, 11.0))
    assert at_s[10:30] == pytest.approx(20.0 + np.arange(1, 21) / 2)
    assert at_s[30] == pytest.approx(31.0), "then the first stretch again"


def test_nobody_comes_while_the_rate_is_0() -> None:
    at_s = RateArrivals(schedule([5.0, 0.0], 10.0), 1.0, rng()).take(2000)
    assert ((at_s % 20.0) <= 10.0 + 1e-6).all()


def test_a_wave_has_its_peak_where_it_is_said_to_be_and_the_ratio_that_is_given() -> None:
    curve = wave(4.0, 300.0, 1200.0)
    assert curve.mean_per_s == pytest.approx(1.0)
    peak = curve.expected(310.0) - curve.expected(290.0)
    trough = curve.expected(910.0) - curve.expected(890.0)
    assert peak / trough == pytest.approx(4.0, rel=0.01)


def test_a_spike_brings_its_factor_for_its_time() -> None:
    curve = spike(100.0, 50.0, 3.0)
    assert curve.expected(100.0) == pytest.approx(100.0)
    assert curve.expected(150.0) - curve.expected(100.0) == pytest.approx(150.0)
    assert curve.expected(1000.0) - curve.expected(150.0) == pytest.approx(850.0)


@pytest.mark.parametrize(
    ("at", "rates", "repeats", "said"),
    [
        ((), (), False, "nodes"),
        ((1.0,), (1.0,), False, "from 0 s on"),
        ((0.0, 2.0, 1.0), (1.0, 1.0, 1.0), False, "none before the one before it"),
        ((0.0, 1.0), (1.0, -1.0), False, "not negative"),
        ((0.0, 1.0), (1.0, math.inf), False, "finite"),
        ((0.0, 1.0), (0.0, 0.0), True, "above 0"),
        ((0.0, 1.0), (1.0, 0.0), False, "never come"),
    ],
)
def test_what_is_no_rate_is_refused(
    at: tuple[float, ...], rates: tuple[float, ...], repeats: bool, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        RateCurve(at, rates, repeats)


RECORDED = {"azure-conv-2023": (1.39, 3.86, 16.1), "azure-code-2023": (13.2, 71.6, 164.0)}
"""Variance over mean of the arrivals in windows of 1, 10, 60 s, of all rows of the two traces."""


@pytest.mark.parametrize(
    ("name", "within"), [("azure-conv-2023", (0.15, 0.15, 0.15)), ("azure-code-2023", (0.3, 0.6, 0.3))]
)
def test_presets_come_as_unevenly_as_they_were_recorded(name: str, within: tuple[float, ...]) -> None:
    minutes = preset(name).minutes
    assert minutes is not None
    runs = [
        RateArrivals(minutes.curve(), minutes.burstiness, rng(seed)).take(sum(minutes.requests))
        for seed in range(10)
    ]
    for window, real, allowed in zip(WINDOWS_S, RECORDED[name], within, strict=True):
        mean = float(np.mean([dispersion(run, window) for run in runs]))
        assert mean == pytest.approx(real, rel=allowed), f"{window} s"


@pytest.mark.parametrize(
    "minutes", [[1, 2], {"requests": [1.5], "burstiness": 1}, {"requests": [1]}, {"x": 1}]
)
def test_minutes_that_are_none_are_refused(minutes: object) -> None:
    described = {"description": "d", "source": "s", "licence": "l", "rank_correlation": 0, "max_tokens": 9}
    lengths = {"input": {"fixed": 5}, "output": {"fixed": 5}}
    with pytest.raises((ValueError, KeyError)):
        preset_from("x", {**described, **lengths, "minutes": minutes})
