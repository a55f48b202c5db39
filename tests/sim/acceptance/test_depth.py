"""Acceptance at K's that were not measured: laws of any drafter, then the shared curves left out."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from acceptance_depth import curves, fitted, scores
from hypothesis import given, settings
from hypothesis import strategies as st

from specfleet.sim.speculation.depth import CountedAt, Depth, _expected, _logits, _observed, at_k, known
from specfleet.sim.speculation.families import EAGLE, FAMILIES, DrafterFamily
from specfleet.sim.statistics.student import student_t

FAMILY = st.sampled_from(sorted(set(FAMILIES.values()), key=lambda family: family.name))
K = st.integers(1, 12)


@st.composite
def drafters(draw: st.DrawFn) -> Depth:
    """A drafter of some family, each number within two deviations of its mean."""
    family = draw(FAMILY)
    ends = zip(family.means, family.deviations, strict=True)
    a, b, c, d = (mean + sd * draw(st.floats(-2, 2)) for mean, sd in ends)
    return known(replace(family, means=(a, b, c, d)), [])


@given(drafters(), K)
def test_survival_never_rises_with_the_position_nor_with_k(drafter: Depth, k: int) -> None:
    here, deeper = (np.array(drafter.by_position(each)) for each in (k, k + 1))
    assert np.all((here >= 0) & (here <= 1)) and np.all(np.diff(here) <= 0)
    assert np.all(deeper[:k] <= here + 1e-12), "a larger K passes easy stretches in fewer rounds"


@given(st.lists(st.floats(-3, 3), min_size=3, max_size=3), K)
def test_text_that_is_equally_hard_everywhere_gives_a_product_of_positions(
    values: list[float], k: int
) -> None:
    first, step, slope = values
    drafter = known(replace(EAGLE, means=(-6.0, first, step, slope)), [])
    logits = [first, *(first + step + i * slope for i in range(k))]
    product = np.multiply.accumulate([1 / (1 + math.exp(-x)) for x in logits[:k]])
    assert np.allclose(drafter.by_position(k), product, rtol=1e-4)


@given(drafters(), K)
def test_a_curve_is_itself_at_the_k_it_was_measured_at(drafter: Depth, k: int) -> None:
    curve = drafter.by_position(k)
    assert at_k(known(drafter.family, [CountedAt(k, curve)]), curve, k) == pytest.approx(curve)


@settings(max_examples=25)
@given(drafters(), st.integers(1, 6), K)
def test_counting_more_narrows_and_another_data_set_widens(drafter: Depth, counted: int, k: int) -> None:
    told = known(drafter.family, [CountedAt(counted, drafter.by_position(counted), rounds=1000)])
    more = told.after(counted, 5000)
    assert more.deviation(k) <= told.deviation(k) + 1e-9 <= told.elsewhere().deviation(k) + 2e-9
    one, all_ = told.length(k), told.elsewhere().length(k)
    assert 1.0 <= all_.low <= one.low <= one.value <= one.high <= all_.high <= k + 1.0


@given(drafters(), K)
def test_half_the_chance_lies_above_what_is_predicted_and_none_above_every_draft(
    drafter: Depth, k: int
) -> None:
    assert drafter.reaches(k, 1.0) == 1.0
    length = drafter.length(k)
    assert drafter.reaches(k, length.value) == pytest.approx(0.5) or length.value == k + 1.0
    if length.high < k + 1.0:
        assert drafter.reaches(k, length.high) == pytest.approx(0.05, abs=1e-6)


@settings(max_examples=25)
@given(drafters(), st.integers(2, 5))
def test_a_drafter_of_its_family_is_found_again_beyond_what_was_counted(drafter: Depth, counted: int) -> None:
    told = known(drafter.family, [CountedAt(counted, drafter.by_position(counted), rounds=1e7)])
    for k in (1, counted + 1):
        found, true = told.length(k), 1.0 + sum(drafter.by_position(k))
        assert found.value == pytest.approx(true, rel=0.12)


def test_a_count_without_its_positions_is_refused() -> None:
    with pytest.raises(ValueError, match="needs 3 positions"):
        known(EAGLE, [CountedAt(3, (0.7, 0.5))])


SHIPPED = {family.name: family for family in FAMILIES.values()}


@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_the_constants_are_those_of_the_fit_to_the_shared_curves(shared: Path, name: str) -> None:
    [(_, law)] = fitted([curve for curve in curves(shared) if curve.family == name]).items()
    shipped = SHIPPED[name]
    assert law.drafters == shipped.drafters
    for mine, theirs in ((law.means, shipped.means), (law.deviations, shipped.deviations)):
        assert mine == pytest.approx(theirs, abs=6e-4)
    assert law.wander == pytest.approx(shipped.wander, abs=6e-4)


def test_data_sets_of_one_drafter_differ_as_they_do_in_the_shared_curves(shared: Path) -> None:
    for name, law in fitted(curves(shared), SHIPPED).items():
        shipped = np.array(SHIPPED[name].between_data_sets)
        assert np.allclose(law.between_data_sets, shipped, rtol=0, atol=5e-4), name
        assert (shipped == shipped.T).all() and (np.linalg.eigvalsh(shipped) > 0).all(), "a covariance"


@pytest.mark.parametrize("family", SHIPPED.values(), ids=list(SHIPPED))
def test_what_would_be_known_is_what_is_known_once_just_that_was_counted(family: DrafterFamily) -> None:
    drafter = known(family, [])
    first = CountedAt(1, drafter.by_position(1), rounds=1000.0)
    for k, rounds in ((1, 100.0), (3, 5000.0)):
        both = known(family, [first, CountedAt(k, drafter.by_position(k), rounds=rounds)])
        assert known(family, [first]).after(k, rounds).covariance == pytest.approx(both.covariance, rel=1e-4)


@pytest.mark.parametrize("k", [1, 2, 3, 4, 6, 9])
def test_positions_from_the_third_on_leave_the_slope_by_what_is_their_own(k: int) -> None:
    point = np.array([-0.3, 1.5, -0.4, -0.2, 0.05, -0.03, 0.01])
    steps = [1.5, -0.4, -0.2 + 0.05, -0.2 - 0.03, -0.2 + 0.01, *[-0.2] * 4]
    assert _logits(point, k) == pytest.approx(np.cumsum(steps[:k]))


@pytest.mark.parametrize("family", SHIPPED.values(), ids=list(SHIPPED))
@pytest.mark.parametrize("curve", [(0.97, 0.95, 0.93), (0.2, 0.02), (0.9, 0.3)])
def test_no_values_nearby_are_likelier_whatever_was_counted(
    family: DrafterFamily, curve: tuple[float, ...]
) -> None:
    seen = [CountedAt(len(curve), curve, rounds=1e6)]
    told, (observed, noise) = known(family, seen), _observed(seen)
    before = known(family, [])
    precision = 1.0 / np.diag(before.covariance)

    def unlikely(at: np.ndarray) -> float:
        off = observed - _expected(seen, at)
        return float((off**2 / noise).sum() + (precision * (at - before.likely) ** 2).sum())

    least = unlikely(told.likely)
    for step in np.eye(len(told.likely)):
        for far in (0.05, -0.05):
            assert unlikely(told.likely + far * step) > least


def test_draft_models_left_out_are_predicted_better_than_by_carrying_on_the_last_ratio(
    shared: Path,
) -> None:
    given_ = [curve for curve in curves(shared) if curve.family == "draft models"]
    own = [one for one in scores(given_) if one.seen]
    between = [one for one in own if one.k < one.seen]
    assert np.mean([abs(one.error) for one in between]) <= 0.015
    assert np.mean([abs(one.error) for one in own]) < 0.02
    assert np.mean([one.inside for one in own]) >= 0.85


@pytest.mark.parametrize("family", SHIPPED.values(), ids=list(SHIPPED))
def test_a_position_s_interval_is_students_t_on_the_logit(family: DrafterFamily) -> None:
    """Of what is known of the drafter, and of how far counts stray from run to run."""
    told = known(family, [CountedAt(3, (0.7, 0.5, 0.35))])
    t, slopes = student_t(0.9, family.degrees), []
    for step in np.eye(len(told.likely)):
        ends = (replace(told, likely=told.likely + sign * 1e-5 * step).by_position(5) for sign in (1, -1))
        up, down = (np.log(np.array(end) / (1 - np.array(end))) for end in ends)
        slopes.append((up - down) / 2e-5)
    jacobian = np.array(slopes).T
    sd = np.sqrt(np.diag(jacobian @ told.covariance @ jacobian.T) + 0.012**2)
    for at, found in enumerate(told.positions(5)):
        assert found.value == pytest.approx(told.by_position(5)[at])
        middle = math.log(found.value / (1 - found.value))
        for end, sign in ((found.low, -1), (found.high, 1)):
            assert math.log(end / (1 - end)) == pytest.approx(middle + sign * t * sd[at], rel=1e-3)
