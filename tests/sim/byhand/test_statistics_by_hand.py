"""Statistics of a handful of values, worked by hand to the last figure."""

from __future__ import annotations

from math import exp, inf, log, nextafter, sqrt

import numpy as np
import pytest

from specfleet.sim.speculation.overlap import _nucleus, _softmax
from specfleet.sim.statistics.batches import BatchSpread, batch_sums, fine_batches, spread
from specfleet.sim.statistics.figures import GROUPS, Ranked, percentile, percentile_estimate
from specfleet.sim.statistics.flow import Flow
from specfleet.sim.statistics.interval import Estimate, Interval
from specfleet.sim.statistics.limits import clearly_more, poisson_bound, share_beyond
from specfleet.sim.statistics.pairs import difference, quotient
from specfleet.sim.statistics.series import Runs, Series
from specfleet.sim.statistics.startup import _crossing, _means, _slows, crossing, start, startup, trend
from specfleet.sim.statistics.student import student_t, two_sided_tail


@pytest.mark.parametrize(
    ("lengths", "each"),
    [([1000], 64), ([1000] * 3, 16), ([10], 4), ([8, 1000], 4), ([2], 1), ([1], 1), ([1000] * 65, 1)],
)
def test_runs_are_cut_into_a_power_of_two_of_batches_of_two_values_at_least(
    lengths: list[int], each: int
) -> None:
    assert fine_batches(lengths) == each


def test_stretches_of_a_column_are_as_equal_as_can_be() -> None:
    assert batch_sums(np.arange(7.0), 3).tolist() == [0 + 1, 2 + 3, 4 + 5 + 6]


def test_a_sum_strays_as_its_batches_do() -> None:
    found = spread(np.array([[1.0, -1.0, 2.0, -2.0]]))
    assert found.standard_error == pytest.approx(sqrt(4 / 3 * 10))
    assert (found.degrees, found.batches, found.lag1, found.skewness, found.separate) == (
        3.0,
        4,
        0.0,
        0.0,
        True,
    )
    lopsided = spread(np.array([[3.0, -1.0, -1.0, -1.0]]))
    assert lopsided.skewness == pytest.approx(2.0)
    assert lopsided.lag1 == pytest.approx(-1 / 3 / 3 + 1 / 4)
    assert lopsided.standard_error == pytest.approx(sqrt(4 / 3 * 12 * (1 + 5 / 36) / (1 - 5 / 36)))


def test_what_correlation_is_left_between_neighbours_widens_it() -> None:
    found = spread(np.array([[2.0, 2.0, -2.0, -2.0]]))
    lag1 = 4 / 3 / 4 + 1 / 4
    assert found.lag1 == pytest.approx(lag1)
    assert found.standard_error == pytest.approx(sqrt(4 / 3 * 16 * (1 + lag1) / (1 - lag1)))


def test_neighbours_are_merged_until_no_correlation_is_seen_and_runs_at_once_where_there_are_five() -> None:
    slow = np.repeat([1.0, -1.0] * 8, 4)[None, :]
    assert spread(slow).batches == 32, "after one merging hardly any is left"
    steps = np.array([[1.0, 1.0, 1.0, 1.0]] * 3 + [[-1.0] * 4] * 3)
    assert spread(steps).batches == 6
    assert spread(steps[[0, 1, 3, 4]]).batches == 8, "four runs are too few for a batch each"
    assert spread(np.array([[0.0]])) == BatchSpread(inf, 1.0, 1, 0.0, 0.0, False)
    assert spread(np.zeros((1, 4))) == BatchSpread(0.0, 3.0, 4, 0.0, 0.0, True)


def test_heavy_tails_leave_fewer_degrees_of_freedom() -> None:
    x = np.zeros((1, 64))
    x[0, 5], x[0, 40] = 8.0, -8.0
    tails = 2 * 8.0**4 / 64 / 2.0**2 - 3.0
    assert spread(x).degrees == pytest.approx(2.0 / (2.0 / 63 + tails / 64))


def test_an_interval_leans_the_way_its_batches_do() -> None:
    even = BatchSpread(2.0, 30.0, 9, 0.0, 0.0, True)
    t = student_t(0.95, 30.0)
    assert even.deviations(0.95) == (2.0 * t, 2.0 * t)
    leaning = BatchSpread(2.0, 30.0, 9, 0.0, 1.8, True)
    lean = 1.8 / (6.0 * 3.0)
    expected = [2.0 * abs(np.cbrt(1 + 6 * lean * (s - lean)) - 1) / (2 * lean) for s in (t, -t)]
    assert leaning.deviations(0.95) == pytest.approx(expected)
    assert leaning.deviations(0.95)[0] < leaning.deviations(0.95)[1]
    assert BatchSpread(inf, 1.0, 1, 0.0, 0.0, False).deviations(0.95) == (inf, inf)


def test_percentiles_are_numpys_and_weights_count_as_written_out() -> None:
    data = np.array([5.0, 1.0, 4.0, 2.0, 2.0])
    for share in (0.0, 0.3, 0.5, 0.99, 1.0):
        assert Ranked(data).at(share) == np.percentile(data, 100 * share)
    weighted = Ranked(Series(np.array([5.0, 1.0, 4.0, 2.0]), np.array([1.0, 1.0, 1.0, 2.0])))
    assert [weighted.at(s) for s in (0.0, 0.3, 0.5, 1.0)] == [
        Ranked(data).at(s) for s in (0.0, 0.3, 0.5, 1.0)
    ]
    assert (Ranked(data).at(-0.1), Ranked(data).at(1.1)) == (-inf, inf)
    for ranked in (Ranked(data), weighted):
        levels = [ranked.above(level) for level in (0.0, 1.0, 2.0, 3.0, 5.0)]
        assert levels == pytest.approx([1.0, 0.8, 0.4, 0.4, 0.0])


def test_of_values_equal_to_a_percentile_a_part_is_beyond_it() -> None:
    ranked = Ranked(np.array([1.0, 2.0, 2.0, 3.0]))
    assert ranked.at(0.5) == 2.0
    assert ranked.beyond(0.5).tolist() == [[-0.5, 0.5]]
    memory, found = ranked.memory(0.5)
    assert found.standard_error == pytest.approx(0.25)
    assert memory == pytest.approx(4 * 0.25**2 / 0.25)
    untied = Ranked(np.array([1.0, 2.0, 3.0, 4.0]))
    assert untied.beyond(0.5).tolist() == [[-1.0, 1.0]]


@pytest.mark.parametrize("share", [0.99, 0.01])
def test_a_percentile_is_bounded_from_so_many_values_beyond_it_on(share: float) -> None:
    def evenly(n: int) -> list[float]:
        return [float((i * 37) % 100) for i in range(n)]

    enough = round(100 * GROUPS)
    assert percentile(np.array(evenly(enough)), 100 * share).short == ""
    assert "fewer than" in percentile(np.array(evenly(enough - 100)), 100 * share).short


def test_bounds_of_a_count_in_closed_form() -> None:
    assert poisson_bound(0.0, 2.0) == poisson_bound(-1.0, 2.0) == 0.0
    assert poisson_bound(9.0, 1.8) == pytest.approx(9.0 * (1.0 - 1.0 / 81.0 + 1.8 / 9.0) ** 3)
    assert poisson_bound(0.25, -3.0) == 0.0


def test_students_tail_in_closed_form() -> None:
    for t in (0.1, 1.0, 3.0, 50.0):
        assert two_sided_tail(t, 1.0) == pytest.approx(1.0 - 2.0 * np.arctan(t) / np.pi, rel=1e-12)
        assert two_sided_tail(t, 2.0) == pytest.approx(1.0 - t / sqrt(2.0 + t * t), rel=1e-12)
        four = 1.0 - t / sqrt(4.0 + t * t) * (1.0 + 2.0 / (4.0 + t * t))
        assert two_sided_tail(t, 4.0) == pytest.approx(four, rel=1e-9)
    for wrong in ((0.0, 3.0), (1.0, 3.0), (0.5, 0.0), (0.5, -1.0)):
        with pytest.raises(ValueError, match="confidence in"):
            student_t(*wrong)


def test_a_series_is_there_when_it_first_crosses_the_level_of_its_second_half() -> None:
    steps = np.concatenate([np.zeros(300), np.ones(700)])
    assert crossing(steps) == pytest.approx(0.31)
    assert start(steps) == pytest.approx(0.35), "coarse stretches of 5 % see the first there at the seventh"
    assert crossing(np.ones(50)) == 0.0
    assert start(np.concatenate([np.zeros(900), np.ones(100)])) == 0.5
    assert _crossing(np.array([3.0, 1.0, 1.0, 1.0]), 0.0) == 0.5
    assert _crossing(np.array([3.0, 2.0, 1.0, 1.0]), 1.0) == 0.5
    assert _crossing(np.array([-3.0, 2.0, 1.0, 1.0]), 0.0) == 0.5


def test_a_straight_line_rises_by_its_slope_from_end_to_end_over_its_level() -> None:
    line = np.arange(160.0) + 100.0
    assert trend(line) == pytest.approx(10.0 * 15 / 179.5)
    assert trend(-line) == pytest.approx(-10.0 * 15 / 179.5)
    assert trend(line[:15]) == 0.0, "one row a batch at least"
    assert trend(np.full(160, 7.0)) == 0.0
    for level, seen in ((2980.0, True), (3020.0, False)):
        centred = np.arange(160.0) - 79.5 + level
        assert bool(trend(centred)) == seen, "150 of the level is just more than 5 %, or less"
    assert trend(line - line.mean()) == 0.0, "no share of a level of 0"
    noisy = np.tile([1.0, 3.0], 80) + np.repeat([0.0, 0.2] * 8, 10)
    assert trend(noisy) == 0.0


def test_what_grows_ever_more_slowly_fills() -> None:
    assert _slows(np.array([10.0] * 10 + [6.9] * 10))
    assert not _slows(np.array([10.0] * 10 + [7.1] * 10))
    assert not _slows(np.array([10.0] * 10 + [10.0] * 10))
    assert not _slows(np.array([10.0, -10.0] * 5 + [1.0, -1.0] * 5))


def test_a_nucleus_is_the_likeliest_words_that_reach_it_normed() -> None:
    p = np.array([[0.2, 0.5, 0.3], [0.1, 0.1, 0.8]])
    assert _nucleus(p, 0.6) == pytest.approx(np.array([[0.0, 0.625, 0.375], [0.0, 0.0, 1.0]]))
    assert _nucleus(p, 1.0) is p
    assert _softmax(np.log(p) + 5.0) == pytest.approx(p)


def test_of_a_rare_percentile_the_rarer_part_of_those_equal_is_beyond() -> None:
    ranked = Ranked(np.array([1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 3.0]))
    assert ranked.at(0.75) == 2.0
    beyond = ranked.beyond(0.75)
    assert beyond.sum() == pytest.approx(0.0)
    # one beyond in the last batch, and one sixth of the six that are equal
    counts, each = np.array([2.0, 2.0, 2.0, 2.0]), 1 / 6
    shares = np.array([1 * each, 2 * each, 2 * each, 1 * each + 1.0])
    assert beyond == pytest.approx((shares - counts * 0.25)[None, :])


def test_a_share_so_far_above_what_may_be_is_more_whatever_the_memory() -> None:
    def seen(value: float, low: float, effective: float = 100.0, short: str = "") -> Interval:
        return Interval(value, low, 1.0, 0.95, 1000.0, effective, 30.0, short)

    assert clearly_more(seen(0.41, 0.0, 1.0, "short"), 0.01), "Markov: 40 times"
    just = 0.4 * (1.0 - 0.95) / 2.0
    assert clearly_more(seen(0.4, 0.0, 1.0, "short"), just)
    assert not clearly_more(seen(0.4, 0.0, 1.0, "short"), nextafter(just, 1.0))
    assert not clearly_more(seen(0.39, 0.0, 1.0, "short"), 0.01)
    assert clearly_more(seen(0.03, 0.011), 0.01) and not clearly_more(seen(0.03, 0.009), 0.01)
    assert clearly_more(seen(0.03, 0.021, short="short"), 0.01), "twice the interval"
    assert not clearly_more(seen(0.03, 0.019, short="short"), 0.01)
    assert not clearly_more(seen(0.03, 0.011, effective=7.9), 0.01), "too few to say"
    assert clearly_more(seen(0.03, 0.011, effective=8.0), 0.01)


def test_what_piles_up_is_the_rise_over_what_is_offered() -> None:
    sent = np.arange(2000.0)
    flow, _ = Flow.of(sent, 2.0 * sent + 1.0)
    found = startup({"ttft": np.ones(2000)}, flow)
    assert found.state == "saturated"
    assert found.offered_per_s == pytest.approx(1.0, rel=0.01)
    assert found.served_per_s == pytest.approx(0.5, rel=0.01)
    low, high = found.growth
    risen = flow.inside[-1] - flow.inside[500]
    assert (low + high) / 2 == pytest.approx(risen / 1499, rel=1e-9) and low < high
    assert low == pytest.approx(0.5, abs=0.02) and high == pytest.approx(0.5, abs=0.02) and low <= high


@pytest.mark.parametrize("percent", [20.0, 50.0, 90.0])
def test_a_percentile_moves_with_its_rank_as_fast_as_the_values_lie_apart(percent: float) -> None:
    data, share = np.array([float(i * 37 % 1000) for i in range(1000)]), percent / 100
    found, ranked = percentile_estimate(data, percent), Ranked(data)
    assert found.value == pytest.approx(999.0 * share)
    assert found.independent == pytest.approx(999.0 * sqrt(share * (1 - share) / 1000), rel=1e-9)
    assert found.influence == pytest.approx(ranked.beyond(share) / 1000 * 999.0)
    assert np.isnan(percentile_estimate(data, 99.99).influence).all(), "beyond what was seen"


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_rare_percentile_is_worth_what_a_less_rare_one_remembers(sign: float) -> None:
    values = np.arange(6400.0) * 37 % 6400 / 6400
    even = percentile(sign * values, 99.0 if sign > 0 else 1.0)
    clumped = values.copy()
    top = np.flatnonzero((values > 0.95) & (values < 0.989))
    clumped[top] = 0.5
    clumped[3000 : 3000 + len(top)] = np.where(clumped[3000 : 3000 + len(top)] > 0.98, 0.995, 0.97)
    slow = percentile(sign * clumped, 99.0 if sign > 0 else 1.0)
    assert even.short == "" and "fewer than" in slow.short


def test_how_early_rises_scatter_is_seen_with_one_degree_less_than_their_number() -> None:
    gap = 10.0 - 6.0
    a = 2.97 * gap / student_t(0.98, 18)
    assert _slows(np.array([10.0 + a, 10.0 - a] * 5 + [6.0] * 10)), "error a / 3"
    a = 3.03 * gap / student_t(0.98, 18)
    assert not _slows(np.array([10.0 + a, 10.0 - a] * 5 + [6.0] * 10))
    a = 2.97 * gap / student_t(0.98, 18)
    assert _slows(np.array([10.0] * 10 + [6.0 + a, 6.0 - a] * 5))


@pytest.mark.parametrize("degrees", [1.0, 2.0, 30.0, 1e4])
def test_students_t_is_where_its_tail_is_what_is_left(degrees: float) -> None:
    for confidence in (0.1, 0.5, 0.95, 0.999):
        t = student_t(confidence, degrees)
        assert two_sided_tail(t, degrees) == pytest.approx(1.0 - confidence, rel=1e-10)
    assert student_t(0.95, inf) == pytest.approx(1.959963984540054, rel=1e-12)
    if degrees == 1.0:
        assert student_t(0.95, 1.0) == pytest.approx(np.tan(0.475 * np.pi), rel=1e-12)


class Asked(Ranked):
    """Notes at which levels its memory is asked for; deeper ones remember more."""

    def __init__(self, data: Runs) -> None:
        super().__init__(data)
        self.asked: list[float] = []

    def memory(self, share: float) -> tuple[float, BatchSpread]:
        self.asked.append(share)
        return 10.0 * share, BatchSpread(0.1, 9.0, 64, 0.0, 0.0, True)


@pytest.mark.parametrize(
    ("allowed", "above", "levels"),
    [
        (0.01, 0, [0.95]),
        (0.01, 1, [0.95, 0.99]),
        (0.01, 4, [0.95, 0.96]),
        (0.01, 6, [0.94]),
        (0.01, 40, [0.6]),
        (0.01, 100, [0.95]),
        (0.04, 10, [0.8, 0.9]),
        (0.2, 30, [0.5, 0.7]),
        (0.2, 60, [0.4]),
    ],
)
def test_groups_beyond_a_limit_are_counted_there_and_where_five_times_as_many_are_as_may_be(
    allowed: float, above: int, levels: list[float]
) -> None:
    ranked = Asked(np.arange(100.0))
    found = share_beyond(ranked, 99.5 - above, allowed)
    assert ranked.asked == pytest.approx(levels)
    worth = 100.0 / (10.0 * max(levels))
    t = student_t(0.95, 9.0)
    assert (found.value, found.effective) == pytest.approx((above / 100, worth))
    assert found.low == pytest.approx(poisson_bound(above / 100 * worth, -t) / worth)
    assert found.high == pytest.approx(min(poisson_bound(above / 100 * worth + 1.0, t) / worth, 1.0))


@pytest.mark.parametrize("allowed", [0.0, -0.1, 0.51])
def test_no_share_or_more_than_half_is_nothing_that_may_be_beyond(allowed: float) -> None:
    share_beyond(np.arange(100.0), 50.0, 0.5)
    with pytest.raises(ValueError, match="values beyond a limit a share"):
        share_beyond(np.arange(100.0), 50.0, allowed)


@pytest.mark.parametrize(("requests", "state"), [(2000, "stationary"), (2001, "still filling")])
def test_a_run_is_still_filling_if_less_than_half_were_served_while_others_came(
    requests: int, state: str
) -> None:
    sent = np.arange(float(requests))
    finished = sent + 1.5
    finished[[999, 1000]] = requests + 9.0
    flow, _ = Flow.of(sent, finished)
    assert flow.whole == 1000, "more than one in a thousand ended late"
    found = startup({"ttft": np.ones(requests)}, flow)
    assert found.state == state
    assert ("only the first 1000 of 2001" in found.why) == (state == "still filling")


def test_stretches_are_means_and_what_is_steady_does_not_depend_on_the_unit() -> None:
    assert _means(np.arange(7.0), 3) == pytest.approx([0.5, 2.5, 5.0])
    assert _means(np.array([3.0, 5.0]), 9).tolist() == [3.0, 5.0]
    noise = np.sin(np.arange(1000.0) ** 2)
    ramp = np.minimum(np.arange(1000.0) / 200.0, 1.0) + 2.0 * noise
    found = start(ramp)
    assert (crossing(ramp), found) == (0.08, 0.25), "a longer stretch has to be near as well"
    for unit in (1e-3, 1e3):
        assert start(unit * ramp) == found and crossing(unit * ramp) == crossing(ramp)
        assert trend(unit * ramp) == pytest.approx(trend(ramp))


@pytest.mark.parametrize(("times", "seen"), [(1.02, True), (0.98, False)])
def test_a_slope_is_seen_beyond_its_error_with_residuals_that_resemble_their_neighbours(
    times: float, seen: bool
) -> None:
    half = np.array([1.0, 1.0, -1.0, -1.0, 1.0, 1.0, -1.0, -1.0])
    residual, x = np.concatenate([half, half[::-1]]), np.arange(16) - 7.5
    lag1 = (8 + 1 - 6) / 16 + 2 / 16
    error = sqrt(16 / 14 / 340 * (1 + lag1) / (1 - lag1))
    slope = times * student_t(0.998, 14) * error
    rise = 15 * slope / 20.0
    assert trend(20.0 + residual + slope * x) == pytest.approx(rise if seen else 0.0)


def test_what_says_nothing_of_its_error_in_one_batch_is_bounded_by_nothing() -> None:
    known = np.array([[1.0, -1.0, 2.0, -2.0]])
    partly = Estimate(5.0, np.array([[1.0, np.nan, 2.0, -3.0]]), 40.0, 0.0, "too few")
    found = partly.interval()
    assert (found.low, found.high, found.effective, found.short) == (-inf, inf, 0.0, "too few")
    whole = Estimate(5.0, known, 40.0, spread(known).standard_error / 2.0).interval()
    below, above = spread(known).deviations(0.95)
    assert (whole.low, whole.high, whole.effective) == pytest.approx((5.0 - below, 5.0 + above, 10.0))


def test_two_figures_are_set_against_each_other_batch_by_batch() -> None:
    a = Estimate(4.0, np.array([[1.0, -1.0, 2.0, -2.0]]), 100.0, 0.3)
    b = Estimate(8.0, np.array([[2.0, -1.0, 1.0, -2.0]]), 70.0, 0.4)
    less = difference(a, b)
    alone = Estimate(4.0, b.influence - a.influence, 70.0, 0.5).interval()
    assert (less.value, less.low, less.high, less.count) == (4.0, alone.low, alone.high, 70.0)
    assert less.effective == pytest.approx(
        70.0 * 0.25 / spread(b.influence - a.influence).standard_error ** 2
    )
    ratio = quotient(a, b)
    logs = Estimate(
        log(2.0), b.influence / 8.0 - a.influence / 4.0, 70.0, sqrt(0.075**2 + 0.05**2)
    ).interval()
    assert (ratio.value, ratio.count) == (2.0, 70.0)
    assert (ratio.low, ratio.high) == pytest.approx((exp(logs.low), exp(logs.high)))
    assert ratio.effective == pytest.approx(logs.effective)
