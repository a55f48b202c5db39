"""`validate --free`: the errors without matching and with other spreads stand beside the matched ones."""

from __future__ import annotations

import math

import pytest

from specfleet.experiments.run.progress import Reporter
from specfleet.experiments.validate.free import DEFAULT, FITTED
from specfleet.experiments.validate.points import Readout
from specfleet.experiments.validate.report import validation_text
from specfleet.experiments.validate.runs import predict
from specfleet.experiments.validate.score import block
from specfleet.experiments.validate.validation import Validation, read_points, validate


@pytest.fixture(scope="module")
def readout() -> Readout:
    """Four short rows: two that draft with requests that differ, one whose are alike, and a plain one."""
    short = [p for p in read_points((), None, False).points if (p.max_concurrency or 99) <= 4]
    spreads = {18.0: 2, math.inf: 1}
    chosen = [p for p in short if p.acceptance is None][:1]
    for point in short:
        spread = point.acceptance.concentration if point.acceptance is not None else 0.0
        if spreads.get(spread, 0):
            spreads[spread] -= 1
            chosen.append(point)
    assert len(chosen) == 4, "the shipped table has changed"
    return Readout(chosen)


def scored(readout: Readout, *, free: bool) -> Validation:
    """One seed, one process."""
    return validate(
        readout, seeds=1, jobs=1, mode="given", method=None, reporter=Reporter(4, True), free=free
    )


@pytest.fixture(scope="module")
def found(readout: Readout) -> Validation:
    """The rows with all variants."""
    return scored(readout, free=True)


def test_the_first_variant_is_what_is_scored_of_the_rows_that_draft(found: Validation) -> None:
    first = found.variants[0]
    assert (first.sample, first.spread) == ("matched", FITTED)
    assert first.errors == block(one for one in found.scored if one.point.acceptance is not None)


def test_each_row_is_given_the_default_and_what_the_other_rows_have(found: Validation) -> None:
    counts = {(one.sample, one.spread): one.errors["tpot_p99_ms"]["n"] for one in found.variants}
    default = f"the default, {DEFAULT:g}"
    assert counts == {
        (sample, spread): 3
        for sample in ("matched", "free")
        for spread in (FITTED, default, "that of other rows")
    }


def test_with_requests_all_alike_the_spread_of_others_is_far_more_wrong(found: Validation) -> None:
    p99 = {(one.sample, one.spread): one.errors["tpot_p99_ms"]["mean_abs_pct"] for one in found.variants}
    for sample in ("matched", "free"):
        assert p99[sample, "that of other rows"] > 1.5 * p99[sample, FITTED]


def test_a_free_draw_is_another_sample_of_the_same_row(readout: Readout) -> None:
    drafting = next(point for point in readout.points if point.acceptance is not None)
    matched, free = predict(drafting, 1, None), predict(drafting, 1, None, free=True)
    assert matched.predicted["acceptance_length"] == pytest.approx(
        drafting.measured["acceptance_length"], rel=5e-3
    )
    assert free.predicted != matched.predicted
    assert free.predicted == pytest.approx(matched.predicted, rel=0.6)


def test_the_table_stands_beside_the_matched_scores_only_where_it_is_asked_for(
    found: Validation, readout: Readout
) -> None:
    said = validation_text(found)
    assert len([line for line in said.splitlines() if line.startswith(("matched ", "free "))]) == 6
    assert len(found.json()["variants"]) == 6  # type: ignore[arg-type]
    plain = scored(readout, free=False)
    assert plain.json()["variants"] == [] and "drafting rows" not in validation_text(plain)
    assert [one.predicted for one in plain.scored] == [one.predicted for one in found.scored]


def test_what_is_all_alike_is_a_table_without_other_rows(readout: Readout) -> None:
    one = Readout([point for point in readout.points if point.acceptance is not None][:1])
    assert {v.spread for v in scored(one, free=True).variants} <= {FITTED, f"the default, {DEFAULT:g}"}
