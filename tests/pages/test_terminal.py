"""What commands print fits the terminal, whatever is asked."""

from __future__ import annotations

from pathlib import Path

import pytest
from report_runs import FILE, simulated

from specfleet.experiments.cli.main import main

PRESETS = sorted((Path(__file__).parents[2] / "experiments/presets").glob("*.yaml"))


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    """Runs a command and returns the lines of its stdout."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert ended.value.code in (0, None), capsys.readouterr().err
    return capsys.readouterr().out.splitlines()


def too_wide(lines: list[str], columns: int = 80) -> list[str]:
    """Lines that do not fit, but for those that hold a path."""
    return [line for line in lines if len(line) > columns and "/" not in line]


@pytest.mark.parametrize("preset", PRESETS, ids=lambda path: path.stem)
def test_a_check_fits_80_columns(
    preset: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert too_wide(printed(capsys, "check", str(preset))) == []


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_a_run_its_comparison_and_a_step_fit(
    columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = simulated(tmp_path, text=FILE)
    file = str(folder / "experiment.yaml")
    capsys.readouterr()
    monkeypatch.setenv("COLUMNS", str(columns))
    again = ("run", file, "--out", str(tmp_path / "again"), "--no-plots", "-q", "-j", "1", "seed=4")
    lines = printed(capsys, *again)
    assert too_wide(lines, columns) == [] and any(line.startswith("K = 3") for line in lines)
    assert too_wide(printed(capsys, "explain", file, "--k", "3", "--batch", "8"), columns) == []
    assert too_wide(printed(capsys, "compare", str(folder), str(folder)), columns) == []
    assert too_wide(printed(capsys, "theory"), columns) == []


def test_scores_a_fit_and_a_search_fit_80_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = simulated(tmp_path, text=FILE)
    results = [str(path) for path in sorted(folder.glob("points/*,seed=3/bench.json"))]
    assert len(results) == 6
    (tmp_path / "server.yaml").write_text(FILE.partition("slo:")[0])
    server = ("--serve", str(tmp_path / "server.yaml"))
    capsys.readouterr()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    scores = printed(capsys, "validate", *results, *server, "--seeds", "1", "--quiet")
    assert too_wide(scores) == [] and any(line.startswith("tpot_mean_ms") for line in scores)
    fitted = printed(capsys, "calibrate", *results, *server)
    assert too_wide(fitted) == [] and any(line.startswith("scale of kernel time") for line in fitted)
    search = ("--tolerance", "0.2", "--no-plots", "-q", "-j", "1", "sweep.axes.workload.max_concurrency=[8]")
    found = printed(
        capsys, "breakeven", str(tmp_path / "small.yaml"), "--out", str(tmp_path / "search"), *search
    )
    assert too_wide(found) == [] and any("throughput" in line for line in found)


def test_in_a_pipe_nothing_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    lines = printed(capsys, "check", str(next(file for file in PRESETS if file.stem == "policies")))
    assert any(len(line) > 80 for line in lines)
