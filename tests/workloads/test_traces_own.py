"""What a run of this package wrote is read back as traffic."""

from __future__ import annotations

from pathlib import Path

from specfleet.experiments.load.config import load_experiment
from specfleet.experiments.load.sweep import expand
from specfleet.experiments.run.runner import run_task, tasks
from specfleet.workloads.traces.formats import detected, read_trace

EXPERIMENT = """
name: x
serve: {model: llama-3.1-8b-instruct, gpu: h100-sxm}
workload: {input_len: 100, output_len: 7, request_rate: 5.0, num_prompts: 12}
"""


def test_requests_of_a_run_come_back_at_their_times(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(EXPERIMENT)
    (task,) = tasks(expand(load_experiment(tmp_path / "x.yaml", [])), 1, 0, tmp_path / "out")
    run_task(task)
    path = task.path / "requests.csv"
    requests, report = read_trace(path)
    assert detected(path) == "requests" and report.rows_kept == 12
    assert set(requests.prompt_tokens.tolist()) == {100} and set(requests.output_tokens.tolist()) == {7}
    assert abs(report.span_s - 12 / 5.0) < 0.5 and report.gap_cv is not None
