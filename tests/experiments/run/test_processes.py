"""Work in processes: the same for any number of them, an end in words when one is killed or interrupted."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import typer

from specfleet.experiments.cli.base import plain_errors
from specfleet.experiments.run.processes import WorkerLost, Workers

ROOT = Path(__file__).parents[3]

TWO_SIZES = """
name: two-sizes
serve: {model: meta-llama/Llama-3.1-8B-Instruct, gpu: h100-sxm}
workload: {input_len: 100, output_len: 20, max_concurrency: 16}
sweep: {axes: {workload.num_prompts: [20, 3000000]}}
"""


def _inverse(number: int) -> float:
    """Fails for 0."""
    return 1 / number


def _inverse_unless_killed(number: int) -> float:
    """Takes its own process down for 0."""
    if not number:
        os.kill(os.getpid(), signal.SIGKILL)
    return 1 / number


@pytest.mark.parametrize("jobs", [1, 2, 5])
def test_results_come_in_the_order_asked_for_whatever_the_number_of_processes(jobs: int) -> None:
    with Workers(jobs) as workers:
        assert list(workers.in_order(math.factorial, [9, 2, 7, 0])) == [362880, 2, 5040, 1]
        assert dict(workers.as_finished(math.factorial, [3, 4])) == {0: 6, 1: 24}


@pytest.mark.parametrize("jobs", [1, 2])
def test_one_failed_item_leaves_the_others(jobs: int) -> None:
    with Workers(jobs) as workers:
        found = dict(workers.as_finished(_inverse, [1, 0, 2]))
    assert (found[0], found[2]) == (1.0, 0.5)
    assert isinstance(found[1], ZeroDivisionError)


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_is_raised_where_results_are_taken_in_order(jobs: int) -> None:
    with pytest.raises(ZeroDivisionError), Workers(jobs) as workers:
        list(workers.in_order(_inverse, [1, 0, 2]))


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_is_worked_on_is_told_by_position(jobs: int) -> None:
    told: list[Sequence[int]] = []
    with Workers(jobs) as workers:
        assert len(dict(workers.as_finished(_inverse, [1, 2, 4], told.append))) == 3
    assert told and all(set(at) <= {0, 1, 2} and len(at) <= jobs for at in told)


def test_a_killed_worker_is_a_value_and_the_next_work_gets_new_workers() -> None:
    with Workers(2) as workers:
        found = dict(workers.as_finished(_inverse_unless_killed, [0, 1, 2, 4]))
        assert sorted(found) == [0, 1, 2, 3]
        assert isinstance(found[0], WorkerLost)
        assert all(isinstance(found[at], WorkerLost) or found[at] == 1 / 2 ** (at - 1) for at in (1, 2, 3))
        assert list(workers.in_order(_inverse, [1, 2])) == [1.0, 0.5]


def test_a_killed_worker_ends_a_command_in_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended, plain_errors(), Workers(2) as workers:
        list(workers.in_order(_inverse_unless_killed, [1, 0]))
    assert ended.value.exit_code == 1
    said = capsys.readouterr().err
    assert "a worker process was killed" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGKILL"])
def test_whatever_ends_a_command_keeps_what_is_whole_and_ends_the_workers(tmp_path: Path, name: str) -> None:
    (tmp_path / "two.yaml").write_text(TWO_SIZES)
    command = [sys.executable, "-m", "specfleet", "run", "two.yaml", "--jobs", "2", "--no-plots", "-q"]
    running = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    points = tmp_path / "results" / "two-sizes" / "1" / "points"
    try:
        while running.poll() is None and not list(points.glob("num*/_SUCCESS")):
            time.sleep(0.05)
        to = os.killpg if name in ("SIGINT", "SIGHUP") else os.kill  # as a terminal, a scheduler
        to(running.pid, getattr(signal, name))
        _, said = running.communicate(timeout=60)  # ends when no worker holds the pipes any more
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
    if name == "SIGKILL":
        assert running.returncode == -signal.SIGKILL
    else:
        assert running.returncode == 130
        assert "interrupted: 1 of 2 simulations are whole; go on with --resume" in said
    assert [path.parent.name for path in points.glob("num*/_SUCCESS")] == ["num_prompts=20,seed=0"]
