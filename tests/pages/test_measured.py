"""`specfleet compare RUN --measured FILE...`: a server's own results over a run's curves."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from report_runs import FILE, simulated

from specfleet.experiments.cli.main import main
from specfleet.experiments.figures.data import read
from specfleet.experiments.figures.measured import MeasuredResult, line_of, measured, predicted
from specfleet.experiments.figures.style import styled
from specfleet.experiments.run.results import number
from specfleet.experiments.validate.measured import read_measured

LOAD = "workload.max_concurrency"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run: concurrency 1, 8, 32 with K = 0 and 3."""
    return simulated(tmp_path_factory.mktemp("measured"), text=FILE)


def bench(run: Path, at: int, k: int) -> Path:
    """The result that one simulation would have printed."""
    (found,) = run.glob(f"points/*max_concurrency={at},num_speculative_tokens={k},seed=3/bench.json")
    return found


def test_a_result_of_our_own_lies_on_its_line(run: Path, tmp_path: Path) -> None:
    shown = read(run)
    for at, k in ((1, 0), (32, 3)):
        (result,) = read_measured(bench(run, at, k))
        # A simulated plain result counts no drafts, like a real one; K is not guessed.
        assert (result.load(LOAD), result.drafts) == (at, k or None)
        result = replace(result, drafts=k)
        line = line_of(shown, result)
        assert line is not None and line.label.startswith(f"K = {k}")
        found = predicted(line, LOAD, at, "output_throughput")
        assert found is not None and found[1]
        assert found[0] == pytest.approx(result.figures["output_throughput"], rel=0.1)


def test_between_two_loads_the_prediction_lies_between_and_beyond_them_there_is_none(run: Path) -> None:
    line = read(run).lines[1]
    ends = [number(row, "mean_tpot_ms") for row in line.rows[:2]]
    found = predicted(line, LOAD, 3.0, "mean_tpot_ms")
    assert found is not None and not found[1] and min(ends) < found[0] < max(ends)
    assert predicted(line, LOAD, 64.0, "mean_tpot_ms") is None


def test_results_are_drawn_at_their_load_and_value(run: Path) -> None:
    result = MeasuredResult("mine", {"mean_tpot_ms": 9.5}, 16.0, None, 3)
    with styled():
        figure = measured(read(run), [result])
    assert figure is not None
    drawn = [np.asarray(line.get_xydata()) for line in figure.axes[0].lines if line.get_markersize() == 9]
    assert [points.tolist() for points in drawn if len(points)] == [[[16.0, 9.5]]]


def test_the_command_prints_a_table_a_file_and_draws_the_figure(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.json"
    result = json.loads(bench(run, 8, 3).read_text()) | {"max_concurrency": 500}
    other.write_text(json.dumps(result))
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(run), "--measured", str(bench(run, 8, 3)), str(other)])
    said = capsys.readouterr().out
    assert ended.value.code == 0
    assert "bench.json: concurrency 8, K = 3" in said and "other.json: concurrency 500, K = 3" in said
    assert said.count("outside what was run") == 6
    assert (run / "plots/measured.png").is_file() and str(run / "plots/measured.png") in said


def test_a_result_that_does_not_say_its_drafts_stands_beside_every_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(run), "--measured", str(bench(run, 8, 0))])
    said = capsys.readouterr().out
    assert ended.value.code == 0
    assert "bench.json: concurrency 8, drafts not stated, beside K = 0" in said
    assert "drafts not stated, beside K = 3" in said
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(run), "--measured", str(bench(run, 8, 0)), str(bench(run, 8, 3))])
    said = capsys.readouterr().out
    assert "bench.json: concurrency 8, K = 0\n" in said and "taken as a server that does not draft" in said


def test_what_cannot_be_compared_is_said(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for file in files:
        file.write_text("{}")
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(run), "--measured", *map(str, files)])
    said = capsys.readouterr().err
    assert ended.value.code == 2 and all(f"{file}: " in said for file in files) and "Traceback" not in said
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(run)])
    assert ended.value.code == 2 and "two runs" in capsys.readouterr().err
