"""Claim 2: EAGLE chains of 3 on Llama-3.1-8B, one H100, MT-Bench."""

from __future__ import annotations

from pathlib import Path

import pytest
from claim_runs import Outcome, outcome


def ratio(found: Outcome, batch: int) -> float:
    """Throughput with drafts, scheduled synchronously, over plain, scheduled asynchronously."""
    drafted = found.figure(
        "output_throughput", max_concurrency=batch, async_scheduling=False, num_speculative_tokens=3
    )
    plain = found.figure(
        "output_throughput", max_concurrency=batch, async_scheduling=True, num_speculative_tokens=0
    )
    return drafted / plain


@pytest.fixture(scope="module")
def eagle3(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The EAGLE-3 preset's run."""
    return outcome("claim-02-eagle3-8b-chain-pays-at-all-batches", tmp_path_factory.mktemp("eagle3"))


def test_an_eagle3_chain_has_the_measured_gains_to_12_percent(eagle3: Outcome) -> None:
    assert eagle3.missed == []
    around = [one for one in eagle3.verdicts if one.expectation.measured is not None]
    assert [one.holds for one in around] == [True, True, True, True, True]


def test_one_request_at_a_time_plain_and_an_eagle3_tree_deliver_the_measured_tokens_a_second_to_12_percent(
    tmp_path: Path,
) -> None:
    found = outcome("claim-02-single-stream-eagle3-tree", tmp_path)
    assert found.missed == [] and all(one.holds for one in found.verdicts)


def test_an_eagle2_tree_for_one_request_is_too_fast_as_its_file_marks(tmp_path: Path) -> None:
    found = outcome("claim-02-single-stream-eagle2-tree", tmp_path)
    assert found.missed == []
    assert [one.holds for one in found.verdicts] == [True, False, True]


@pytest.fixture(scope="module")
def eagle1(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The EAGLE-1 preset's run."""
    return outcome("claim-02-eagle1-8b-chain-stops-paying", tmp_path_factory.mktemp("eagle1"))


@pytest.mark.parametrize(("batch", "measured"), [(2, 1.40), (8, 1.23), (56, 0.99)])
def test_an_eagle1_chain_has_the_measured_gain_to_12_percent(
    eagle1: Outcome, batch: int, measured: float
) -> None:
    assert ratio(eagle1, batch) == pytest.approx(measured, rel=0.12)


def test_what_the_eagle1_file_marks_is_what_comes_out(eagle1: Outcome) -> None:
    assert eagle1.missed == []
    marked = [one for one in eagle1.verdicts if one.expectation.not_reproduced is not None]
    assert [one.as_marked for one in marked] == [True] * 4
