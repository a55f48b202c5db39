"""`report.requests: none` writes the files of a run without what only its requests could tell."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from report_runs import simulated
from typer.testing import CliRunner

from specfleet.experiments.cli.main import app
from specfleet.experiments.load.config import load
from specfleet.experiments.run import runner
from specfleet.experiments.run.processes import Workers
from specfleet.experiments.run.progress import Reporter
from specfleet.experiments.run.results import read_results
from specfleet.experiments.run.run import Run
from specfleet.experiments.schema.faults import InputFaults
from specfleet.sim.errors import SimulationError

FILE = """
name: small
serve:
  model: llama-3.1-8b-instruct
  gpu: h100-sxm
  max_model_len: 4096
  max_num_seqs: 32
  num_gpu_blocks_override: 20000
  speculative_config: {method: eagle3, model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, num_speculative_tokens: 3}
acceptance:
  chat: {by_position: [0.7, 0.5, 0.35], concentration: 18}
  code: {by_position: [0.8, 0.7, 0.6], concentration: 18}
slo: {ttft_ms: 100, tpot_ms: 10}
deployment: {replicas: 2}
workload: {input_len: 300, output_len: 60, request_rate: 30, num_prompts: 400, num_warmups: 40,
  mix: {chat: 0.7, code: 0.3}}
"""
KEPT_ALONE = {"latencies", "queue_times", "tpot_split", "p99_ttft_ms_interval", "p99_tpot_ms_interval"}
KEPT_ALONE |= {"tpot_split_by_class", "ttft_queue_ms", "ttft_prefill_ms", "ttft_client_ms"}


def finished(folder: Path, *overrides: str) -> Path:
    """Runs the file into a folder."""
    return simulated(folder, *overrides, text=FILE)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same run with its requests, and with figures alone."""
    root = tmp_path_factory.mktemp("runs")
    return finished(root / "all"), finished(root / "none", "report.requests=none")


def figures(run: Path) -> Mapping[str, object]:
    """Everything in bench.json and engine.json."""
    (point,) = (run / "points").iterdir()
    return {
        **json.loads((point / "bench.json").read_text()),
        **json.loads((point / "engine.json").read_text()),
    }


def test_figures_are_those_of_the_run_that_keeps_its_requests(runs: tuple[Path, Path]) -> None:
    whole, alone = figures(runs[0]), figures(runs[1])
    assert whole.keys() - alone.keys() == KEPT_ALONE
    assert alone.keys() - whole.keys() == {"held_whole"}
    assert alone["held_whole"] is None
    for name in whole.keys() - KEPT_ALONE - {"replicas"}:
        mine, theirs = alone[name], whole[name]
        if isinstance(mine, float) and isinstance(theirs, float):
            assert math.isclose(mine, theirs, rel_tol=1e-3, abs_tol=1e-6), name
        else:
            assert mine == theirs, name


def test_no_requests_are_written_and_whoever_asks_is_told(runs: tuple[Path, Path]) -> None:
    run = read_results(runs[1])
    assert not list(runs[1].glob("points/*/requests.csv"))
    assert len(run.summary) == 1
    with pytest.raises(FileNotFoundError, match=r"report\.requests: all"):
        run.requests("point")
    said = CliRunner().invoke(app, ["compare", str(runs[1]), str(runs[1])])
    assert said.exit_code != 0
    assert "report.requests: none" in said.output and "Traceback" not in said.output


@pytest.mark.parametrize("command", [["plot"], ["report"]])
def test_figures_are_drawn_without_requests(runs: tuple[Path, Path], command: list[str]) -> None:
    said = CliRunner().invoke(app, [*command, str(runs[1])])
    assert said.exit_code == 0, said.output


def test_a_closed_loop_is_held_in_memory_with_a_notice(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(FILE)
    found = load(tmp_path / "x.yaml", ["report.requests=none", "workload.max_concurrency=8"])
    assert any("workload.max_concurrency" in notice for notice in found.notices)
    with pytest.raises(InputFaults, match="at most 2000000"):
        load(
            tmp_path / "x.yaml",
            ["report.requests=none", "workload.max_concurrency=8", "workload.num_prompts=5000000"],
        )
    load(tmp_path / "x.yaml", ["report.requests=none", "workload.num_prompts=5000000"])


class Pieces(Workers):
    """Work handed out as for several processes, and done in this one."""

    jobs = 3


def fleet_run(folder: Path, workers: int | Workers, *overrides: str) -> Run:
    """Runs the file on a fleet of three shares into a folder."""
    many = ("deployment.replicas=300", "deployment.router=random", "report.requests=none", *overrides)
    run = Run({**yaml.safe_load(FILE)}, many, folder)
    run.execute(run.prepare(resume=False), workers, Reporter(1, quiet=True))
    run.summary()
    run.release()
    return run


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A fleet of three shares, one after the other."""
    return fleet_run(tmp_path_factory.mktemp("fleet") / "alone", 1)


def content(run: Run) -> list[bytes]:
    """The files of a run's only task."""
    return [(run.tasks[0].path / file).read_bytes() for file in ("bench.json", "engine.json")]


def test_a_fleet_in_pieces_has_the_bytes_of_one_in_a_row(alone: Run, tmp_path: Path) -> None:
    spread = fleet_run(tmp_path / "spread", Pieces(1))
    assert [task.shares for task in spread.tasks] == [3]
    assert alone.whole and spread.whole
    assert content(spread) == content(alone)


def test_pieces_that_cannot_forget_are_run_as_a_whole(
    alone: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "simulated", lambda *given: None)
    assert content(fleet_run(tmp_path / "whole", Pieces(1))) == content(alone)


def test_a_piece_that_fails_fails_its_task_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: object) -> None:
        raise SimulationError("not today")

    monkeypatch.setattr(runner, "simulated", broken)
    run = fleet_run(tmp_path / "run", Pieces(1))
    assert run.failures == [(run.tasks[0].id, "SimulationError: not today")]
    assert not run.tasks[0].done
