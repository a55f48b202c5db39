"""What a cap on requests in flight hides from TTFT: the wait at the client, by its own figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specfleet.experiments.load.config import load_experiment
from specfleet.experiments.load.sweep import expand
from specfleet.experiments.point.build import requests
from specfleet.experiments.point.built import build
from specfleet.experiments.run.runner import run_task, tasks
from specfleet.experiments.words.names import label
from specfleet.sim.metrics.client_queue import client_queue
from specfleet.sim.metrics.sums import Counted
from specfleet.sim.metrics.tasks import due_s
from specfleet.sim.simulation import simulate

SERVE = {"model": "meta-llama/Llama-3.1-8B-Instruct", "gpu": "h100-sxm", "max_model_len": 2048}
SESSIONS = {"turns": {"fixed": 3}, "think_time_s": {"fixed": 0.2}}


def figures(**load: Any) -> tuple[dict[str, float], Any, Any]:
    """The figures of the client's queue, the requests and the table of a run."""
    workload = {"input_len": 64, "output_len": 12, "num_prompts": 40, **load}
    config = expand(load_experiment({"seed": 2, "serve": SERVE, "workload": workload}))[0].config
    table, scenario = requests(config, 2), build(config).scenario
    result = simulate(scenario, table, 2)
    found = client_queue(scenario, table, Counted.of(result.requests), due_s(result, table))
    return found, result.requests, table


@pytest.mark.parametrize("load_of", [{}, {"sessions": SESSIONS}])
def test_requests_that_come_at_a_rate_wait_at_the_client_for_its_cap(load_of: dict[str, Any]) -> None:
    found, run, table = figures(request_rate=40.0, max_concurrency=2, **load_of)
    due = np.array(table.arrival_s)
    later = np.flatnonzero(table.turn > 0)
    due[later] = run["last_chunk_s"][later - 1] + 1.5e-3 + (0.2 if len(later) else 0.0)
    waited = 1e3 * (run["sent_s"] - due)
    assert found["mean_client_queue_time_ms"] == pytest.approx(waited.mean()) and waited.mean() > 100
    assert found["p99_client_queue_time_ms"] == pytest.approx(np.percentile(waited, 99))
    whole = 1e3 * (run["last_chunk_s"] - due)
    assert found["mean_e2el_including_client_queue_ms"] == pytest.approx(whole.mean())


def test_a_cap_that_is_never_reached_makes_nobody_wait_but_for_the_sends_before() -> None:
    found, _, _ = figures(request_rate=5.0, max_concurrency=40)
    assert 0.0 <= found["mean_client_queue_time_ms"] < 0.5


@pytest.mark.parametrize("load_of", [{"request_rate": 40.0}, {"max_concurrency": 2}])
def test_without_a_cap_or_without_arrivals_there_is_no_such_queue(load_of: dict[str, Any]) -> None:
    found, _, _ = figures(**load_of)
    assert found == {}


def test_a_run_writes_the_figures_and_their_names_are_words(tmp_path: Path) -> None:
    workload = {
        "input_len": 64,
        "output_len": 12,
        "num_prompts": 40,
        "request_rate": 40.0,
        "max_concurrency": 2,
    }
    experiment = load_experiment({"seed": 2, "serve": SERVE, "workload": workload})
    (task,) = tasks(expand(experiment), 1, 2, tmp_path)
    run_task(task)
    engine = json.loads((task.path / "engine.json").read_text())
    times = json.loads((task.path / "bench.json").read_text())["queue_times"]
    assert engine["mean_client_queue_time_ms"] == pytest.approx(1e3 * np.mean(times))
    assert label("p99_client_queue_time_ms") == "P99 wait at the client's cap (ms)"
