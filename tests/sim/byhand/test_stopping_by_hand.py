"""How long runs have to be, look by look, at lengths that can be said beforehand."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isinf

import numpy as np
import pytest

from specfleet.sim.statistics.interval import Interval
from specfleet.sim.statistics.stopping import (
    PERCENTS,
    Looked,
    Observed,
    Precision,
    RunLengths,
    go_on,
    settle,
    times_as_long,
    turned,
)

LENGTHS = RunLengths(least=100, most=5000, growth=1.5, leap=4.0, confirm=1.25)


def looks(told: list[Looked], lengths: RunLengths = LENGTHS) -> tuple[list[int], tuple[bool, int, int]]:
    """The lengths that are asked for where each look tells the next of these, and how it ends."""
    asked: list[int] = []

    def look(n: int) -> Looked:
        asked.append(n)
        return told[len(asked) - 1]

    return asked, go_on(look, lengths)


def longer(times: float, hopeless: bool = False, decided: Mapping[str, object] | None = None) -> Looked:
    return Looked(times, hopeless, decided or {})


MET = longer(0.0)


@pytest.mark.parametrize(
    ("told", "asked", "end"),
    [
        ([MET, MET], [100, 125], (True, 125, 2)),
        ([longer(1.0), MET, MET], [100, 150, 188], (True, 188, 3)),
        ([longer(2.0), MET, longer(1.0), MET, MET], [100, 200, 250, 375, 469], (True, 469, 5)),
        ([longer(9.0), longer(9.0), longer(9.0), MET], [100, 400, 1600, 5000], (True, 5000, 4)),
        ([longer(9.0)] * 4, [100, 400, 1600, 5000], (False, 5000, 4)),
        ([longer(3.0), longer(1.0, hopeless=True)], [100, 300], (False, 300, 2)),
        ([longer(0.0, hopeless=True)], [100], (True, 100, 1)),
        (
            [
                longer(0.0, decided={"x": 1}),
                longer(0.0, decided={"x": 2}),
                longer(0.0, decided={"x": 2}),
                MET,
            ],
            [100, 125, 188, 235],
            (True, 235, 4),
        ),
    ],
)
def test_each_run_is_as_much_longer_as_asked_for_and_a_settled_one_is_confirmed(
    told: list[Looked], asked: list[int], end: tuple[bool, int, int]
) -> None:
    assert looks(told) == (asked, end)


def test_only_what_was_decided_before_can_turn() -> None:
    assert turned({"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 3, "d": 4}) == ["b"]
    assert turned({}, {"a": 1}) == []


def test_times_as_long_are_half_widths_over_the_distance_squared_and_a_tenth() -> None:
    def seen(value: float, half: float) -> Interval:
        return Interval(value, value - half, value + half, 0.95, 100.0, 100.0, 30.0, "")

    assert times_as_long(seen(10.0, 3.0), 9.0) == pytest.approx(9.9)
    assert times_as_long(seen(10.0, 3.0), 11.5) == pytest.approx(4.4)
    assert times_as_long(seen(10.0, 3.0), 20.0) == 1.0
    assert isinf(times_as_long(seen(10.0, 3.0), 10.0)) and isinf(times_as_long(seen(10.0, inf), 9.0))
    assert times_as_long(seen(10.0, 1e9), 9.0) == pytest.approx(1.1e12)


@pytest.mark.parametrize("wrong", [(0, 9, 2.0, 3.0, 1.2), (9, 8, 2.0, 3.0, 1.2), (9, 9, 1.0, 3.0, 1.2)])
def test_lengths_grow(wrong: tuple[int, int, float, float, float]) -> None:
    RunLengths(9, 9, 3.0, 3.0, 1.01)
    for numbers in (wrong, (9, 9, 3.1, 3.0, 1.2), (9, 9, 2.0, 3.0, 1.0)):
        with pytest.raises(ValueError, match="growing at every look"):
            RunLengths(*numbers)


def test_figures_are_asked_for_by_name_and_what_is_unmet_says_how_well_it_is_known() -> None:
    assert Precision().asked() == {"mean": 0.02, "p99": 0.05}
    assert Precision(mean=None, p50=0.1, p99=None).asked() == {"p50": 0.1}
    assert PERCENTS == {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0}
    asked: list[int] = []

    def observe(n: int) -> Observed:
        asked.append(n)
        return Observed({"x": np.arange(float(n)) * 37 % n + 1.0}, None)

    lengths = RunLengths(least=1000, most=2000)
    found = settle(observe, {"x": Precision(mean=0.5, p90=0.5, p99=None)}, lengths)
    assert asked == [1000, 1250] and found.settled and found.in_the_way == ()
    assert set(found.intervals["x"]) == {"mean", "p90"}
    assert found.intervals["x"]["mean"].value == pytest.approx(625.5)
    assert found.intervals["x"]["p90"].value == pytest.approx(1 + 0.9 * 1249)
    del asked[:]
    never = settle(observe, {"x": Precision(mean=1e-9, p99=None)}, lengths)
    assert asked == [1000, 2000] and not never.settled
    assert never.in_the_way[0].startswith("mean of x: known within ")
    assert never.in_the_way[0].endswith(", asked for within 0.0%")
