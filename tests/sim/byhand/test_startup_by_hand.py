"""Where runs become steady, how long they grow, what intervals want: worked by hand."""

from __future__ import annotations

from dataclasses import replace
from math import inf, isfinite

import numpy as np
import pytest

from specfleet.sim.statistics.batches import BatchSpread
from specfleet.sim.statistics.figures import (
    Ranked,
    _batches,
    mean,
    percentile,
    percentile_estimate,
    percentile_of,
)
from specfleet.sim.statistics.flow import Flow
from specfleet.sim.statistics.interval import WORTH, too_short
from specfleet.sim.statistics.limits import far_within
from specfleet.sim.statistics.series import Series
from specfleet.sim.statistics.startup import Startup, startup
from specfleet.sim.statistics.stopping import Observed, Precision, RunLengths, settle


def stepping_at(share: float, n: int = 1000) -> np.ndarray:
    """A series that jumps to its level after a share of its rows."""
    return (np.arange(n) >= share * n).astype(np.float64)


def test_what_was_not_looked_for_is_nothing() -> None:
    found = startup({"ttft": np.ones(50)})
    assert found == Startup(0, 50, "stationary", "", 0.0, 0.0, 0.0, 0.0, (0.0, 0.0))
    assert Startup(0, 50, "stationary") == found


@pytest.mark.parametrize("order", [1, -1])
def test_the_start_up_is_that_of_the_series_that_takes_longest(order: int) -> None:
    each = {"soon": stepping_at(0.1), "late": stepping_at(0.3), "at once": np.ones(1000)}
    found = startup(dict([*each.items()][::order]))
    assert (found.first, found.last) == (350, 1000), "coarse stretches see the level one later"
    assert startup({"soon": each["soon"]}).first < 350
    assert found.kept(np.arange(1000)).tolist() == list(range(350, 1000))


def test_one_row_at_least_is_kept() -> None:
    assert startup({"ttft": np.array([3.0])}).first == 0
    two = startup({"ttft": np.array([0.0, 1.0])})
    assert (two.first, two.last) == (1, 2)


def test_a_stretch_of_time_has_what_came_after_its_beginning_and_up_to_its_end() -> None:
    flow = Flow(np.array([0.0, 1.0, 2.0, 3.0]), np.array([1.0, 2.0, 3.0, 9.0]))
    assert flow.per_second(1.0, 3.0) == (2 / 2.0, 2 / 2.0)
    assert flow.per_second(0.0, 2.0) == (2 / 2.0, 2 / 2.0)
    amounts, gaps = flow.completions(np.array([10.0, 20.0, 30.0, 40.0]), 1.0, 3.0)
    assert (amounts.tolist(), gaps.tolist()) == ([20.0, 30.0], [1.0, 1.0])


@pytest.mark.parametrize(("batches", "short"), [(1, "one batch alone"), (2, ""), (3, "")])
def test_two_batches_bound_something(batches: int, short: str) -> None:
    found = too_short(inf, BatchSpread(1.0, 1.0, batches, 0.0, 0.0, True))
    assert found.startswith(short) and bool(found) == bool(short)


def test_runs_of_which_one_has_lost_its_order_are_a_batch_each() -> None:
    ordered, not_ = Series(np.arange(64.0)), Series(np.arange(64.0), ordered=False)
    assert [_batches(runs) for runs in ([ordered] * 2, [ordered, not_], [not_] * 2)] == [32, 1, 1]


@pytest.mark.parametrize("percent", [99.0, 1.0])
def test_an_interval_that_leaves_what_was_seen_is_not_to_be_trusted(percent: float) -> None:
    class Wide(Ranked):
        """Rare values that remember nothing and scatter by so much."""

        scatter = 0.0

        def memory(self, share: float) -> tuple[float, BatchSpread]:
            return 1.0, BatchSpread(self.scatter, 1e9, 64, 0.0, 0.0, True)

    ranked = Wide(np.arange(10_000.0))
    ranked.scatter = 0.004
    assert percentile_of(ranked, percent).short == ""
    ranked.scatter = 0.006
    found = percentile_of(ranked, percent)
    assert [isfinite(found.low), isfinite(found.high)] == ([True, False] if percent > 50 else [False, True])
    assert found.short == "the interval reaches beyond the smallest or largest value seen"


@pytest.mark.parametrize("percent", [100.0, 0.0, 100.1, -1.0])
def test_the_largest_value_ever_has_no_interval(percent: float) -> None:
    for estimated in (percentile_estimate, percentile):
        assert estimated(np.arange(1000.0), 99.9).value == pytest.approx(998.001)
        with pytest.raises(ValueError, match="above 0 and below 100"):
            estimated(np.arange(1000.0), percent)


def test_runs_grow_by_half_at_least_and_to_four_times_at_most_unless_asked() -> None:
    usual = RunLengths()
    assert (usual.least, usual.most, usual.growth, usual.leap, usual.confirm) == (
        2000,
        200_000,
        1.5,
        4.0,
        1.25,
    )
    RunLengths(growth=4.0)
    with pytest.raises(ValueError, match="growing at every look"):
        RunLengths(growth=4.1)


def test_far_off_is_asked_of_one_percent_alone() -> None:
    data = np.sin(np.arange(4000.0)) + 2.0
    assert far_within(data, 1e6, 0.01)
    for allowed in (0.005, 0.0099, 0.0101, 0.02):
        assert not far_within(data, 1e6, allowed)


def test_a_figure_known_just_as_well_as_was_asked_is_known() -> None:
    data = np.sin(np.arange(4000.0) ** 2) + 2.0
    width = mean(data).relative

    def looked(asked: float) -> bool:
        lengths = RunLengths(4000, 4000)
        return settle(lambda n: Observed({"x": data}), {"x": Precision(mean=asked)}, lengths).in_the_way == ()

    assert looked(width) and not looked(0.999 * width)


def test_what_is_worth_just_as_many_values_as_are_asked_is_enough() -> None:
    spread_ = BatchSpread(1.0, 9.0, 10, 0.0, 0.0, True)
    assert too_short(WORTH, spread_) == ""
    assert "fewer than" in too_short(np.nextafter(WORTH, 0.0), spread_)
    assert "a few times the memory" in too_short(WORTH, replace(spread_, separate=False))


@pytest.mark.parametrize(("requests", "seen"), [(25, False), (26, False), (27, True), (60, True)])
def test_growth_is_looked_for_in_twenty_stretches_of_a_row_at_least(requests: int, seen: bool) -> None:
    """Behind the first quarter of 26 requests 20 are left, of 27 one more."""
    sent = np.arange(float(requests))
    flow, _ = Flow.of(sent, sent + 0.5)
    found = startup({"ttft": np.ones(requests)}, flow)
    assert bool(found.offered_per_s) == seen == (requests - requests // 4 > 20)
