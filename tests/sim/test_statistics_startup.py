"""Where a run is steady, and when more is offered than served."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from queues import Wandering, queue_flow, serve

from specfleet.sim.statistics.figures import mean
from specfleet.sim.statistics.flow import Flow
from specfleet.sim.statistics.series import F64
from specfleet.sim.statistics.startup import LATEST, crossing, start, startup, trend

LAWS = settings(max_examples=60, deadline=None)
seeds = st.integers(0, 2**32 - 1)


@st.composite
def flows(draw: st.DrawFn) -> Flow:
    """Requests that stay for random times, some sent at once."""
    rng = np.random.default_rng(draw(seeds))
    n = draw(st.integers(1, 300))
    sent = np.sort(np.round(rng.uniform(0.0, 50.0, n), draw(st.integers(0, 3))))
    return Flow(sent, sent + rng.exponential(draw(st.sampled_from([0.1, 5.0, 100.0])), n))


@LAWS
@given(flows())
def test_the_number_in_the_system_is_who_came_before_and_has_not_left(flow: Flow) -> None:
    for i in range(len(flow.sent_s)):
        assert flow.inside[i] == i - (flow.finished_s <= flow.sent_s[i]).sum()


@LAWS
@given(flows())
def test_hardly_anybody_who_counts_was_served_while_the_system_emptied(flow: Flow) -> None:
    late = flow.finished_s[: flow.whole] > flow.sent_s[-1]
    assert late.sum() <= 1e-3 * flow.whole
    found = startup({}, flow)
    assert 0 <= found.first < found.last <= len(flow.sent_s)
    assert (found.from_s, found.to_s) == (flow.sent_s[found.first], flow.sent_s[found.last - 1])


@LAWS
@given(flows(), seeds, st.floats(0.0, 20.0), st.floats(1.0, 30.0))
def test_throughput_between_two_times_is_what_ended_there_over_the_seconds(
    flow: Flow, seed: int, from_s: float, seconds: float
) -> None:
    tokens = np.random.default_rng(seed).integers(1, 100, len(flow.sent_s)).astype(np.float64)
    to_s = from_s + seconds
    amounts, gaps = flow.completions(tokens, from_s, to_s)
    ended = (flow.finished_s > from_s) & (flow.finished_s <= to_s)
    assert amounts.sum() == tokens[ended].sum()
    assert (gaps >= 0.0).all()
    if ended.any():
        assert gaps.sum() == pytest.approx(flow.finished_s[ended].max() - from_s, abs=1e-9)
    assert flow.per_second(from_s, to_s)[1] == pytest.approx(ended.sum() / (to_s - from_s))


@LAWS
@given(seeds, st.sampled_from([0.25, 8.0, 1024.0]), st.integers(1, 3_000))
def test_the_cut_is_the_same_in_other_units_and_turned_over(seed: int, power: float, n: int) -> None:
    column = np.round(Wandering(np.random.default_rng(seed), 0.8)(n) * 1024.0)
    for find in (crossing, start):
        assert 0.0 <= find(column) <= 1.0
        assert find(-column) == find(column)
        assert find(power * column) == find(column)


@pytest.mark.parametrize(("amount", "rows"), [(-5.0, 300), (5.0, 1_000), (-1.0, 300)])
def test_a_known_start_up_is_cut_away_and_little_else(amount: float, rows: int) -> None:
    n = 20_000
    fading = amount * np.exp(-np.arange(n) / rows)
    left, cut = [], []
    for seed in range(30):
        column = Wandering(np.random.default_rng(seed), 0.5)(n) + fading
        found = startup({"x": column})
        assert found.state == "stationary"
        left.append(fading[found.first :].mean())
        cut.append(found.first)
    error = mean(column).half_width
    assert np.abs(left).mean() < 0.3 * error, "what is left of it is small beside what chance does"
    assert np.mean(cut) < 8 * rows + 0.05 * n


def test_a_steady_series_keeps_nearly_all() -> None:
    cuts = [start(np.random.default_rng(seed).exponential(size=5_000)) for seed in range(100)]
    assert np.mean(cuts) < 0.06


def test_the_cut_does_not_make_what_is_left_look_calmer() -> None:
    """The fault of MSER: means of M/M/1 queues come out low."""
    runs = [queue_flow(np.random.default_rng(seed), 0.7, 10_000)[1] for seed in range(200)]
    kept = np.array([startup({"wait": run}).kept(run).mean() for run in runs])
    error = kept.std(ddof=1) / np.sqrt(len(kept))
    assert abs(kept.mean() - 0.7 / 0.3) < 3.5 * error


def test_a_series_still_on_its_way_is_still_filling() -> None:
    rng = np.random.default_rng(1)
    rising = 1.0 - np.exp(-np.arange(4_000) / 3_000.0) + 0.02 * rng.normal(size=4_000)
    found = startup({"x": rising})
    assert found.state == "still filling"
    assert "x" in found.why
    assert found.first <= LATEST * 4_000


@pytest.mark.parametrize("slope", [0.3, -0.3])
def test_a_slope_is_seen_with_its_sign(slope: float) -> None:
    rng = np.random.default_rng(1)
    column = 1.0 + slope * np.linspace(0.0, 1.0, 5_000) + 0.1 * rng.normal(size=5_000)
    assert trend(column) == pytest.approx(slope / column.mean(), rel=0.1)
    assert trend(column - slope * np.linspace(0.0, 1.0, 5_000)) == 0.0


def states(load: float, n: int, trials: int) -> list[str]:
    """What is said of so many M/M/1 queues."""
    found: list[str] = []
    for seed in range(trials):
        flow, waits = queue_flow(np.random.default_rng([seed, n]), load, n)
        found.append(startup({"wait": waits}, flow).state)
    return found


@pytest.mark.parametrize("n", [1_000, 10_000, 50_000])
def test_a_queue_below_its_capacity_is_never_called_saturated(n: int) -> None:
    assert "saturated" not in states(0.9, n, 200)


def test_a_queue_above_its_capacity_is_called_saturated() -> None:
    assert states(1.05, 100_000, 200).count("saturated") >= 199
    assert states(2.0, 1_000, 50).count("saturated") >= 49
    assert "stationary" not in states(1.2, 10_000, 50)


def loop(users: int | None, rate: float, n: int = 2_000) -> tuple[str, F64]:
    """What is said of a simulated engine that serves 21 requests/s at most."""
    seen = serve(3, n, users, rate)
    found = startup({"ttft": seen.ttft_s, "tpot": seen.tpot_s}, seen.flow)
    return found.state, np.array([found.offered_per_s, found.served_per_s])


def test_a_simulated_engine_is_steady_below_and_saturated_above_its_capacity() -> None:
    state, flow = loop(24, 0.0)
    assert state == "stationary"
    assert flow[0] == pytest.approx(flow[1], rel=0.02)
    assert loop(None, 15.0)[0] == "stationary"
    state, flow = loop(None, 40.0)
    assert state == "saturated"
    assert flow[0] == pytest.approx(40.0, rel=0.1)
    assert 17.0 < flow[1] < 25.0


def test_a_run_that_ends_before_anybody_is_served_is_still_filling() -> None:
    sent = np.linspace(0.0, 10.0, 200)
    found = startup({}, Flow(sent, sent + 100.0))
    assert found.state == "still filling"
    assert "0 of 200 requests" in found.why


def test_a_fleet_that_fills_slowly_is_not_called_saturated() -> None:
    """Every request stays 60 s: what ends lags behind what comes, and catches up."""
    sent = np.arange(1_500) / 10.0
    stays = np.random.default_rng(1).exponential(60.0, len(sent))
    assert startup({}, Flow(sent, sent + stays)).state == "still filling"
    long = np.arange(30_000) / 10.0
    stays = np.random.default_rng(1).exponential(60.0, len(long))
    assert startup({}, Flow(long, long + stays)).state == "stationary"


def test_columns_that_do_not_match_are_refused() -> None:
    sent = np.arange(10.0)
    with pytest.raises(ValueError, match="one length"):
        startup({"x": np.ones(5)}, Flow(sent, sent + 1.0))
    with pytest.raises(ValueError, match="one length"):
        startup({})
    with pytest.raises(ValueError, match="order"):
        Flow(sent[::-1].copy(), sent)
    with pytest.raises(ValueError, match="each request"):
        Flow(sent, sent[:5])
    flow, order = Flow.of(sent[::-1].copy(), sent[::-1] + 1.0)
    assert flow.sent_s.tolist() == sent.tolist()
    assert order.tolist() == list(range(9, -1, -1))
