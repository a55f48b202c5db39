"""The page of two runs: differences with intervals, both sides, and what was changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from report_runs import simulated

from specfleet.experiments.page.compare import comparison_sentence, write_comparison
from specfleet.experiments.run.compare import Difference, NotComparable, compare

ONE = ("sweep.axes={}", "report={}", "claim=null")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A plain and a drafting run of the same requests."""
    root = tmp_path_factory.mktemp("pair")
    plain = simulated(root / "a", *ONE, "serve.speculative_config.num_speculative_tokens=0")
    return plain, simulated(root / "b", *ONE)


def difference(a: float, b: float, half: float, name: str = "mean_tpot_ms", point: str = "p") -> Difference:
    """A difference with a symmetric interval."""
    return Difference(point, name, a, b, b - a - half, b - a + half, 100)


def test_the_page_has_each_difference_with_its_interval_and_the_setting_that_differs(
    runs: tuple[Path, Path], tmp_path: Path
) -> None:
    path = write_comparison(*runs, tmp_path / "deep" / "page.html")
    page = path.read_text(encoding="utf-8")
    for found in compare(*runs):
        assert found.interval in page
    assert "serve.speculative_config.num_speculative_tokens" in page
    assert "lower than A&#x27;s" in page and "<script>alert" not in page
    assert path.stat().st_size < 3_000_000


def test_a_run_beside_itself_differs_in_nothing(runs: tuple[Path, Path], tmp_path: Path) -> None:
    page = write_comparison(runs[0], runs[0], tmp_path / "page.html").read_text(encoding="utf-8")
    assert "None: the same experiment twice." in page


def test_nothing_is_written_for_runs_that_cannot_be_compared(runs: tuple[Path, Path], tmp_path: Path) -> None:
    other = simulated(tmp_path / "c", *ONE, "workload.input_len=200", "replications=1")
    with pytest.raises(NotComparable):
        write_comparison(runs[0], other, tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_the_sentence_is_settled_only_where_the_interval_excludes_zero() -> None:
    names = {"p": "the one point"}
    clear = [difference(10.0, 8.0, 0.5), difference(20.0, 19.0, 3.0, "p99_tpot_ms")]
    said = comparison_sentence(clear, names)
    assert "mean TPOT is 20.0 % lower than A's" in said and "P99 TPOT is not settled" in said


def test_over_many_points_the_sentence_counts_them() -> None:
    names = {"p": "p", "q": "q"}
    found = [
        difference(10.0, b, 0.5, name, point)
        for name in ("mean_tpot_ms", "p99_tpot_ms")
        for point, b in (("p", 8.0), ("q", 12.0 if name.startswith("p99") else 9.0))
    ]
    said = comparison_sentence(found, names)
    assert said.startswith("Over 2 points, B's mean TPOT is lower at every point (from -20.0 to -10.0 %)")
    assert "P99 TPOT is lower at 1, higher at 1" in said
