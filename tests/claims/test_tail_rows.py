"""P99 TPOT of measured rows: a fixed part of what `tests/fidelity/tail_rows.py` scores whole."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from tail_rows import alike, draft32b, llama70b, predicted, ratio_errors, rows, tail_error

from specfleet.experiments.validate.points import MeasuredPoint

SHARED = Path(__file__).parents[2] / os.environ.get("SPECFLEET_SHARED", "../shared")
LOADS, DRAFTS = (1, 8, 32), (3, 7)
SEEDS = 2


@pytest.fixture(scope="module")
def measured() -> list[MeasuredPoint]:
    """Every usable row; none without the folder, where the tests skip."""
    return list(rows(SHARED)) if SHARED.is_dir() else []


@pytest.fixture
def of_70b(shared: Path, measured: list[MeasuredPoint]) -> list[MeasuredPoint]:
    """Both drafters at two K and three loads."""
    return [point for point in llama70b(measured) if point.max_concurrency in LOADS and point.k in DRAFTS]


def test_with_spread_nine_of_ten_70b_rows_have_the_measured_tail_to_12_percent(
    of_70b: list[MeasuredPoint],
) -> None:
    off = [tail_error(scored) for scored in predicted(of_70b, SEEDS, 1)]
    assert len(off) == 12
    assert np.mean(np.abs(off) <= 0.12) >= 0.9


def test_without_spread_the_70b_tail_is_missed_by_a_sixth_and_at_concurrency_1_by_a_fifth(
    of_70b: list[MeasuredPoint],
) -> None:
    scores = predicted(alike(of_70b), SEEDS, 1)
    off = np.array([tail_error(scored) for scored in scores])
    alone = np.array([scored.point.max_concurrency == 1 for scored in scores])
    assert off.mean() <= -0.15
    assert off[alone].mean() <= -0.20


def test_a_synchronous_draft_model_on_the_32b_under_load_has_the_measured_ratios_to_plain(
    shared: Path, measured: list[MeasuredPoint]
) -> None:
    points = [point for point in draft32b(measured) if point.k in (0, 3)]
    errors = ratio_errors(predicted(points, 1, 1))[3]
    assert all(abs(error) <= 0.10 for error in errors.values())
