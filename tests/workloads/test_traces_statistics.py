"""What `specfleet trace` says of a file beyond its counts, against the oracles of the real ones."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from specfleet.experiments.cli.main import main
from specfleet.experiments.load.config import load
from specfleet.workloads.requests import RequestTable
from specfleet.workloads.traces import files
from specfleet.workloads.traces.files import TraceFile
from specfleet.workloads.traces.formats import read_trace
from specfleet.workloads.traces.report import TraceError
from specfleet.workloads.traces.statistics import _turns, dispersion, rank_correlation, reused_share


def test_poisson_arrivals_have_dispersion_one_and_a_clock_has_none() -> None:
    rng = np.random.default_rng(1)
    assert dispersion(np.cumsum(rng.exponential(0.1, 100_000)), 10.0) == pytest.approx(1.0, abs=0.15)
    assert dispersion(np.arange(1000.0) + 0.5, 10.0) == pytest.approx(0.0, abs=0.01)
    assert dispersion(np.arange(3.0), 10.0) is None


def test_azure_code_is_as_bursty_as_the_whole_trace_was_measured(shared: Path) -> None:
    arrivals = read_trace(shared / "traces/vidur/splitwise_code.csv").report.recorded_s
    assert arrivals is not None
    found = [dispersion(arrivals, window) for window in (1.0, 10.0, 60.0)]
    assert found == [pytest.approx(oracle, rel=0.03) for oracle in (13.2, 71.6, 164)]


def test_what_a_prompt_shares_is_counted_once_and_only_from_its_start() -> None:
    segments = ([0, 2, 4, 6], [-1, -2, -1, -3, -4, -2], [10, 5, 10, 7, 4, 5])
    table = RequestTable.of([15, 17, 9], [1, 1, 1], segments=segments)
    assert reused_share(table) == pytest.approx(10 / 41)
    assert reused_share(RequestTable.of([5], [5])) is None


def test_ranks_are_correlated_with_ties() -> None:
    assert rank_correlation(np.array([1, 2, 3, 3]), np.array([2, 4, 9, 9])) == pytest.approx(1.0)
    assert rank_correlation(np.array([1, 2, 3]), np.array([9, 4, 2])) == pytest.approx(-1.0)
    assert rank_correlation(np.array([1, 1]), np.array([1, 2])) is None


SERVE = {"model": "llama-3.1-8b-instruct", "gpu": "h100-sxm"}


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), min_size=2, max_size=30))
def test_the_rank_correlation_is_scipy_s_ties_among_them(pairs: list[tuple[int, int]]) -> None:
    a, b = (np.array(values, dtype=np.int64) for values in zip(*pairs, strict=True))
    found = rank_correlation(a, b)
    if len(set(a)) == 1 or len(set(b)) == 1:
        assert found is None
    else:
        assert found == pytest.approx(stats.spearmanr(a, b).statistic)


def test_the_printed_yaml_replays_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("log.csv").write_text("ts,a,b,who\n1000,10,2,x\n2500,11,3,x\n")
    with pytest.raises(SystemExit) as ended:
        mapped = "arrival_s=ts,input_tokens=a,output_tokens=b,session=who"
        main(["trace", "log.csv", "--columns", mapped, "--time-unit", "ms"])
    said = capsys.readouterr().out
    assert not ended.value.code and "sessions  1, turns mean 2.0" in said
    block = yaml.safe_load(said.split("To replay it:\n")[1].partition("\nTo imitate it: ")[0])
    Path("x.yaml").write_text(yaml.safe_dump({"serve": SERVE, **block}))
    workload = load(Path("x.yaml")).experiment.workload
    assert workload.trace_format == "columns" and workload.trace_asked["time_unit"] == "ms"
    Path("x.yaml").write_text(yaml.safe_dump({"serve": SERVE, "workload": {"trace": {"file": "log.csv"}}}))
    with pytest.raises(Exception, match="of no format that is known by its keys"):
        load(Path("x.yaml"))


def test_ninety_percent_of_sessions_have_no_more_turns_than_said() -> None:
    """Ten of 1 turn, 80 of 2, ten of 12: the 90th percentile lies a tenth of the way from 2 to 12."""
    turns = np.array([1] * 10 + [2] * 80 + [12] * 10)
    session = np.repeat(np.arange(100), turns)
    trace: Any = SimpleNamespace(report=SimpleNamespace(session=session))
    assert _turns(trace) == ["sessions  100, turns mean 2.9, p90 3, max 12"]


def test_one_json_value_may_be_as_large_as_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.json"
    path.write_text('[{"a": 1},\n {"a": 2}]')
    monkeypatch.setattr(files, "LARGEST_JSON", path.stat().st_size)
    assert [found for _, found in TraceFile(str(path)).objects()] == [{"a": 1}, {"a": 2}]
    monkeypatch.setattr(files, "LARGEST_JSON", path.stat().st_size - 1)
    with pytest.raises(TraceError, match="bytes of one JSON value; write JSONL"):
        [*TraceFile(str(path)).objects()]
