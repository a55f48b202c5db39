"""Runs compared on common random numbers, and what drives the tail."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from report_runs import simulated
from scipy.signal import lfilter

from specfleet.experiments.run.compare import (
    METRICS,
    Difference,
    NotComparable,
    _apart,
    compare,
    differences,
    over_ends,
)
from specfleet.experiments.words.compare import compare_text
from specfleet.experiments.words.tail import driver, read_split, tail_sentence

FILE = """
name: small
seed: 3
serve:
  model: llama-3.1-8b-instruct
  gpu: h100-sxm
  max_model_len: 4096
  max_num_seqs: 64
  num_gpu_blocks_override: 20000
  speculative_config: {method: eagle3, model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, num_speculative_tokens: 3}
acceptance: {by_position: [0.7, 0.5, 0.35], concentration: 18}
workload: {input_len: 300, output_len: 60, max_concurrency: 8, num_prompts: 60}
"""


def finished(folder: Path, *overrides: str) -> Path:
    """Runs the file into a folder."""
    return simulated(folder, *overrides, text=FILE)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A plain and a drafting run of the same requests."""
    root = tmp_path_factory.mktemp("runs")
    plain = finished(root / "a", "serve.speculative_config.num_speculative_tokens=0")
    return plain, finished(root / "b")


def test_a_run_does_not_differ_from_itself(runs: tuple[Path, Path]) -> None:
    for found in compare(runs[0], runs[0]):
        assert found.difference == found.low == found.high == 0.0 and not found.settled
        assert found.identical


def _correlated(seed: int, n: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Two runs whose true difference is 0, and whose neighbours are alike, as those of a queue are."""
    rng = np.random.default_rng(seed)
    drift = lfilter([1.0], [1.0, -0.95], rng.normal(size=n))
    index = pd.MultiIndex.from_product([[0], range(n)], names=["seed", "request_id"])
    sides = (rng.normal(100.0, 1.0, n), rng.normal(100.0, 1.0, n) + drift)
    plain, other = (pd.DataFrame(dict.fromkeys(METRICS, side), index=index) for side in sides)
    return plain, other


def test_requests_of_a_run_that_are_alike_do_not_count_as_independent() -> None:
    means = [differences(*_correlated(seed, 4000), "point")[0] for seed in range(40)]
    settled = sum(found.settled for found in means)
    assert settled <= 6, "5 % of intervals may miss a difference of 0; of resampled pairs half do"


def test_one_pair_settles_nothing_and_says_so() -> None:
    plain, other = _correlated(0, 1)
    found = differences(plain, other, "point")
    assert not any(each.settled or each.identical for each in found)
    assert {each.interval for each in found} == {"too little seen"}


def test_a_clear_gain_is_settled_and_signed(runs: tuple[Path, Path]) -> None:
    found = {d.name: d for d in compare(*runs)}
    gain = found["mean_tpot_ms"]
    assert gain.settled and gain.low <= gain.difference <= gain.high < 0.0
    assert gain.pairs == 60
    back = {d.name: d for d in compare(*reversed(runs))}["mean_tpot_ms"]
    assert back.difference == pytest.approx(-gain.difference)


def difference(low: float, high: float) -> Difference:
    """A difference in P99 with this interval."""
    return Difference("point", "p99_tpot_ms", 10.0, 10.0 + (low + high) / 2.0, low, high, 100)


@pytest.mark.parametrize(
    ("end", "settled", "by_spread"),
    [((0.5, 1.5), True, False), ((-1.5, -0.5), False, True), ((-0.2, 0.4), False, True)],
)
def test_a_verdict_on_p99_holds_over_the_range_of_spreads_or_is_open_for_it(
    end: tuple[float, float], settled: bool, by_spread: bool
) -> None:
    found = over_ends(difference(0.2, 0.8), [difference(*end)])
    assert (found.settled, found.by_spread) == (settled, by_spread)
    assert found.band is not None and found.band[0] <= found.difference <= found.band[1]
    neither = over_ends(difference(-0.2, 0.8), [difference(-0.5, 0.5)])
    assert not neither.settled and not neither.by_spread


def test_without_a_spread_p99_is_compared_over_its_range_and_the_mean_is_not(tmp_path: Path) -> None:
    unknown = "acceptance={by_position: [0.7, 0.5, 0.35]}"
    plain = finished(tmp_path / "a", unknown, "serve.speculative_config.num_speculative_tokens=0")
    found = {d.name: d for d in compare(plain, finished(tmp_path / "b", unknown))}
    assert found["p99_tpot_ms"].band is not None and found["mean_tpot_ms"].band is None
    same = finished(tmp_path / "c", unknown, "acceptance.concentration=.inf")
    alike = {d.name: d for d in compare(plain, same)}
    ends = sorted([found["p99_tpot_ms"].difference, alike["p99_tpot_ms"].difference])
    assert found["p99_tpot_ms"].band == pytest.approx(tuple(ends))
    assert "acceptance.concentration" in compare_text(plain, tmp_path / "b" / "out")


def test_runs_that_went_on_are_compared_where_both_did(runs: tuple[Path, Path], tmp_path: Path) -> None:
    longer = finished(tmp_path / "d", "workload.num_prompts=null", "run.at_most=1000")
    found = {d.name: d for d in compare(runs[0], longer)}
    assert found["mean_tpot_ms"].pairs < 60, "warm-ups of the longer run are not counted there"


def test_runs_of_other_requests_are_not_compared(runs: tuple[Path, Path], tmp_path: Path) -> None:
    other = finished(tmp_path / "c", "workload.input_len=200")
    with pytest.raises(NotComparable, match="other lengths"):
        compare(runs[0], other)
    seeds = finished(tmp_path / "d", "seed=9")
    with pytest.raises(NotComparable, match="share no request"):
        compare(runs[0], seeds)


def test_identical_runs_are_called_identical(runs: tuple[Path, Path]) -> None:
    text = compare_text(runs[0], runs[0])
    assert str(runs[0]) in text and "not settled" not in text
    assert text.endswith("Identical: every request took the same time in both runs (60 pairs of requests).")


def test_the_table_names_both_runs_and_marks_what_is_not_settled(runs: tuple[Path, Path]) -> None:
    text = compare_text(*runs)
    unsettled = sum(not found.settled and not found.identical for found in compare(*runs))
    assert all(str(run) in text for run in runs) and text.count("not settled") == unsettled
    assert "dentical" not in text and len(text.splitlines()) == 3 + 2 + 6


def test_a_split_adds_up_and_its_driver_is_its_largest_growth(runs: tuple[Path, Path]) -> None:
    split = read_split(runs[1], "point")
    assert split is not None
    for quantile in split.values():
        parts = sum(ms for part, ms in quantile.items() if part != "tpot_ms")
        assert parts == pytest.approx(quantile["tpot_ms"], rel=1e-6)
    part, share = driver(split)
    assert split["p99"][part] - split["p50"][part] == max(
        split["p99"][p] - split["p50"][p] for p in split["p50"] if p != "tpot_ms"
    )
    assert share > 0 and "ms a token" in tail_sentence("K = 3", split)


def test_a_p99_far_above_another_is_settled_although_nothing_bounds_it_from_above() -> None:
    rng = np.random.default_rng(0)
    narrow, wide = 200.0 + rng.exponential(5.0, 4000), 300.0 + rng.exponential(50.0, 4000)
    low, high = _apart([narrow], [wide])
    truth = 300.0 - 200.0 + (50.0 - 5.0) * math.log(100.0)
    assert 0.0 < low < truth < high
    assert _apart([wide], [narrow]) == (-high, -low)
    one = Difference("p", "p99_ttft_ms", 1.0, 2.0, 0.5, math.inf, 9)
    assert (one.interval, one.settled) == ("+0.50 or more", True)
    assert Difference("p", "p99_ttft_ms", 2.0, 1.0, -math.inf, -0.5, 9).interval == "-0.50 or less"
