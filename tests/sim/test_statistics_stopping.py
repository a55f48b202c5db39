"""Going on until an answer is settled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from queues import Waits, Wandering, mm1_mean, mm1_percentile, queue_flow
from scipy import stats

from specfleet.sim.statistics.figures import mean_estimate
from specfleet.sim.statistics.interval import Interval
from specfleet.sim.statistics.pairs import quotient
from specfleet.sim.statistics.series import F64, runs_of
from specfleet.sim.statistics.startup import startup
from specfleet.sim.statistics.stopping import (
    Observed,
    Precision,
    RunLengths,
    growing,
    replicated,
    settle,
    settle_side,
)

LAWS = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 2**32 - 1)


def portions(seed: int, correlation: float = 0.5) -> Callable[[int], Mapping[str, F64]]:
    """One run of correlated values, handed out bit by bit."""
    run = Wandering(np.random.default_rng(seed), correlation)
    return lambda n: {"x": run(n)}


@st.composite
def lengths(draw: st.DrawFn) -> RunLengths:
    """Short runs that may grow."""
    least = draw(st.integers(1, 500))
    return RunLengths(
        least,
        least * draw(st.integers(1, 30)),
        draw(st.floats(1.2, 3.0)),
        draw(st.floats(3.0, 6.0)),
        draw(st.floats(1.1, 2.0)),
    )


@LAWS
@given(seeds, lengths(), st.floats(0.001, 0.2), st.booleans())
def test_settled_means_met_and_what_is_not_met_is_said(
    seed: int, allowed: RunLengths, width: float, many: bool
) -> None:
    asked: list[int] = []
    run = (replicated if many else growing)(portions(seed))

    def observe(n: int) -> Observed:
        asked.append(n)
        return run(n)

    found = settle(observe, {"x": Precision(mean=width, p99=None, p90=2.0 * width)}, allowed)
    assert asked[0] == allowed.least
    assert asked == sorted(set(asked)), "every look sees more"
    assert found.used == asked[-1] <= allowed.most
    assert found.looks == len(asked)
    assert found.settled == (not found.in_the_way)
    assert set(found.intervals["x"]) == {"mean", "p90"}
    met = [found.intervals["x"]["mean"].relative <= width, found.intervals["x"]["p90"].relative <= 2 * width]
    enough = all(each.enough for each in found.intervals["x"].values())
    assert found.startup is not None
    assert found.settled == (all(met) and enough and found.startup.state == "stationary")
    assert found.settled or found.used == allowed.most


@LAWS
@given(seeds, lengths())
def test_an_answer_is_met_twice_before_it_counts(seed: int, allowed: RunLengths) -> None:
    looked: list[bool] = []
    run = growing(portions(seed))

    def observe(n: int) -> Observed:
        seen = run(n)
        interval = mean_estimate(seen.metrics["x"]).interval()
        steady = seen.startup is None or seen.startup.state == "stationary"
        looked.append(interval.enough and interval.relative <= 0.01 and steady)
        return seen

    found = settle(observe, {"x": Precision(mean=0.01, p99=None)}, allowed)
    if found.settled and found.used < allowed.most:
        assert looked[-2:] == [True, True]
    assert not any(a and b for a, b in pairwise(looked[:-1])), "and no longer"


@LAWS
@given(seeds, st.lists(st.integers(1, 400), min_size=1, max_size=5))
def test_a_run_in_portions_is_the_run_in_one_piece(seed: int, portion_lengths: list[int]) -> None:
    ends = np.cumsum(portion_lengths).tolist()
    bits = growing(portions(seed))
    for end in ends:
        seen = bits(end)
    whole = growing(portions(seed))(ends[-1])
    (a,), (b,) = runs_of(seen.metrics["x"]), runs_of(whole.metrics["x"])
    assert a.values == pytest.approx(b.values, rel=1e-12)


def test_replications_are_all_as_long_as_the_first() -> None:
    asked: list[int] = []

    def more(n: int) -> Mapping[str, F64]:
        asked.append(n)
        return {"x": np.random.default_rng(len(asked)).normal(10.0, 1.0, n)}

    found = settle(replicated(more), {"x": Precision(mean=0.002, p99=None)}, RunLengths(500, 50_000))
    assert found.settled
    assert set(asked) == {500}
    assert found.used <= 500 * len(asked) < found.used + 500


def test_more_is_asked_for_where_more_is_needed() -> None:
    used = [
        settle(growing(portions(1, c)), {"x": Precision(mean=0.003, p99=None)}, RunLengths(1_000, 10**7)).used
        for c in (0.0, 0.9)
    ]
    assert used[1] > 5 * used[0]


def test_a_saturated_run_ends_the_search_at_once() -> None:
    lengths_tried: list[int] = []

    def observe(n: int) -> Observed:
        lengths_tried.append(n)
        flow, waits = queue_flow(np.random.default_rng(1), 2.0, n)
        found = startup({"wait": waits}, flow)
        return Observed({"wait": found.kept(waits)}, found)

    found = settle(observe, {"wait": Precision()}, RunLengths(2_000, 10**6))
    assert lengths_tried == [2_000]
    assert not found.settled
    assert "saturated" in found.in_the_way[0]
    assert "served" in found.in_the_way[0]


def test_what_stands_in_the_way_names_metric_and_figure() -> None:
    found = settle(growing(portions(1, 0.99)), {"x": Precision(mean=0.001)}, RunLengths(500, 1_000))
    assert not found.settled
    assert any(text.startswith("mean of x") for text in found.in_the_way)
    assert any(text.startswith("p99 of x") for text in found.in_the_way)


@pytest.mark.parametrize("bad", [{"least": 0}, {"least": 9, "most": 8}, {"growth": 1.0}, {"confirm": 1.0}])
def test_lengths_that_cannot_grow_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="growing"):
        RunLengths(**bad)


TRIALS = 80
LEAST = int(stats.binom.ppf(1e-4, TRIALS, 0.92))
"""Fewer of so many intervals hold the truth once in 10,000 tests if 92 % of all do."""


@pytest.mark.parametrize("many", [False, True])
def test_to_stop_when_it_is_settled_does_not_spoil_the_intervals(many: bool) -> None:
    held = np.zeros(2)
    rng = np.random.default_rng(5)
    for _ in range(TRIALS):
        run = Waits(rng, 0.7)
        observe = (
            replicated(lambda n: {"x": Waits(rng, 0.7)(n)})
            if many
            else growing(lambda n, run=run: {"x": run(n)})  # type: ignore[misc]
        )
        found = settle(observe, {"x": Precision(mean=0.1, p99=0.15)}, RunLengths(5_000, 10**6))
        assert found.settled
        intervals = found.intervals["x"]
        held += (
            intervals["mean"].holds(mm1_mean(0.7)),
            intervals["p99"].holds(mm1_percentile(0.7, 99.0)),
        )
    assert (held >= LEAST).all(), held


def gain_of(truth: float, seed: int) -> Callable[[int], Interval]:
    """A gain that is known, seen through noise."""

    def observe(n: int) -> Interval:
        before = Waits(np.random.default_rng(seed), 0.7)(n)
        noise = np.random.default_rng([seed, 1]).lognormal(-0.02, 0.2, n)
        return quotient(mean_estimate(before * noise), mean_estimate(before * truth))

    return observe


def test_what_is_clear_of_the_boundary_is_settled_and_what_lies_on_it_is_not() -> None:
    allowed = RunLengths(2_000, 20_000)
    sides = {t: [settle_side(gain_of(t, s), 1.02, allowed).side for s in range(20)] for t in (0.9, 1.02, 1.2)}
    assert sides[0.9] == [-1] * 20
    assert sides[1.2] == [1] * 20
    assert sides[1.02].count(0) >= 10


def test_a_side_is_looked_for_while_it_is_not_settled_and_no_longer() -> None:
    found = settle_side(gain_of(1.2, 1), 1.02, RunLengths(2_000, 100_000))
    assert (found.side, found.used, found.looks) == (1, 2_500, 2)
    assert found.figure.low > 1.02
    assert settle_side(gain_of(1.02, 1), 1.02, RunLengths(2_000, 8_000)).used == 8_000


def test_an_answer_that_turns_round_does_not_count_as_confirmed() -> None:
    sure = Interval(1.5, 1.4, 1.6, 0.95, 1e4, 1e3, 30.0)
    turned = replace(sure, value=0.5, low=0.4, high=0.6)
    seen = iter([sure, turned, turned, turned])
    found = settle_side(lambda n: next(seen), 1.0, RunLengths(1_000, 100_000))
    assert found.side == -1
    assert found.looks == 4
