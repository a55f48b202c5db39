"""A trace whose turns wait for answers, in a file: the run, its tasks, what is said, and what is refused."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from specfleet.experiments.load.config import load, load_experiment
from specfleet.experiments.load.sweep import expand
from specfleet.experiments.point.build import requests
from specfleet.experiments.point.built import build
from specfleet.experiments.run.columnfiles import write_requests
from specfleet.experiments.run.runner import run_task, tasks
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.faults import InputFaults
from specfleet.sim.simulation import simulate
from specfleet.workloads.traces.formats import read_trace

SERVE = {"model": "meta-llama/Llama-3.1-8B-Instruct", "gpu": "h100-sxm", "max_model_len": 4096}
COLUMNS = {"arrival_s": "t", "input_tokens": "i", "output_tokens": "o", "session": "s", "end_s": "e"}
DRAFTER = {
    "method": "eagle3",
    "model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",
    "num_speculative_tokens": 3,
}


def logged(folder: Path, **workload: Any) -> dict[str, Any]:
    """An experiment that replays a log of twelve sessions of up to four turns."""
    rows = [
        (0.4 * session + 2.0 * turn, 60 + 45 * turn, 12 + turn, session)
        for session in range(12)
        for turn in range(1 + session % 4)
    ]
    lines = [f"{t:.1f},{i},{o},{s},{t + 0.5:.1f}" for t, i, o, s in sorted(rows)]
    (folder / "log.csv").write_text("\n".join(["t,i,o,s,e", *lines]))
    trace = {"file": str(folder / "log.csv"), "columns": COLUMNS, "time_unit": "s", "turns": "after_answer"}
    trace["context"] = "accumulate"
    acceptance = {"conditional_acceptance": 0.7, "concentration": 18}
    serve = {**SERVE, "speculative_config": DRAFTER}
    return deepcopy(
        {"seed": 1, "serve": serve, "acceptance": acceptance, "workload": {"trace": trace, **workload}}
    )


def point(given: dict[str, Any]) -> Experiment:
    return expand(load_experiment(given))[0].config


@pytest.mark.parametrize("load_of", [{}, {"max_concurrency": 2}, {"request_rate": 9.0}, {"speed": 4.0}])
def test_the_calendar_gives_what_stepping_gives_where_recorded_turns_wait(
    tmp_path: Path, load_of: dict[str, Any]
) -> None:
    config = point(logged(tmp_path, **load_of))
    table = requests(config, 3)
    result = simulate(build(config).scenario, table, 3, every_turn=True)
    assert result.stepped_because == "" and result.requests["cached_tokens"].sum() > 200
    assert (table.turn == 0).sum() == 12 and table.think_s is not None
    assert table.think_s[table.turn > 0] == pytest.approx(1.5)
    sent, over = result.requests["sent_s"], result.requests["last_chunk_s"]
    later = np.flatnonzero(table.turn > 0)
    assert (sent[later] >= over[later - 1] + 1.5 - 1e-9).all()
    if "request_rate" in load_of:
        assert table.arrival_s[-1] == pytest.approx(len(table) / 9.0)


def test_a_run_of_recorded_turns_has_tasks_and_check_says_what_waits(tmp_path: Path) -> None:
    data = logged(tmp_path) | {"name": "log", "replications": 1}
    path = tmp_path / "x.yaml"
    path.write_text(yaml.safe_dump(data))
    loaded = load(path)
    assert any("30 requests as turns of 12 sessions, each sent after its answer" in n for n in loaded.notices)
    (task,) = tasks(expand(loaded.experiment), 1, 0, tmp_path / "out")
    run_task(task)
    assert '"tasks": 12' in (task.path / "engine.json").read_text()


def test_the_requests_of_a_run_replay_as_the_sessions_that_they_were(tmp_path: Path) -> None:
    config = point(logged(tmp_path))
    table = requests(config, 3)
    result = simulate(build(config).scenario, table, 3)
    write_requests(tmp_path / "requests.csv", columns=result.requests)
    again = read_trace(tmp_path / "requests.csv", turns="after_answer", context="accumulate").requests
    for name in ("session_id", "turn", "prompt_tokens", "output_tokens", "segment_stream"):
        assert getattr(again, name).tolist() == getattr(table, name).tolist()
    assert again.think_s == pytest.approx(table.think_s)
    assert again.arrival_s == pytest.approx(table.arrival_s, abs=0.05)


def test_a_class_may_be_a_log_whose_turns_wait(tmp_path: Path) -> None:
    data = logged(tmp_path)
    trace = data["workload"].pop("trace")
    chat = {"request_rate": 5.0, "input_len": 90, "output_len": 9}
    data["workload"]["mix"] = {"log": {"trace": trace}, "chat": chat}
    config = point(data)
    table = requests(config, 3)
    mine = table.class_id == 0
    assert mine.sum() == 30 and (table.turn[mine] > 0).sum() == 18 and not table.turn[~mine].any()
    result = simulate(build(config).scenario, table, 3, every_turn=True)
    assert result.stepped_because == ""
    data["workload"]["mix"]["log"]["share"] = 0.5
    data["workload"]["mix"]["chat"] = {"share": 0.5, "input_len": 90, "output_len": 9}
    with pytest.raises(InputFaults, match=r"is of a trace with its own times; remove it, or how much there"):
        load_experiment(data)


def test_turns_that_are_too_long_are_dropped_from_their_sessions(tmp_path: Path) -> None:
    data = logged(tmp_path, on_too_long="drop")
    data["serve"]["max_model_len"] = 130
    table = requests(point(data), 3)
    assert (table.prompt_tokens + table.output_tokens).max() <= 130 and table.turn.max() == 1
    assert (table.turn == 0).sum() == 12


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "a plan": (
        {"slo": {"p99_tpot_ms": 20}, "plan": {}},
        r"turns: makes requests wait for answers, and a plan deals them out one by one",
    ),
    "a found load": ({"sweep": {"load": "auto"}}, r"sweep\.load: does not know how much of their prompts"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_does_not_go_with_turns_that_wait_is_refused(tmp_path: Path, name: str) -> None:
    more, said = FAULTS[name]
    with pytest.raises(InputFaults, match=said):
        load_experiment(logged(tmp_path) | more)


def test_a_log_without_pauses_asks_for_them(tmp_path: Path) -> None:
    data = logged(tmp_path)
    del data["workload"]["trace"]["columns"]["end_s"]
    with pytest.raises(InputFaults, match=r"18 of 18 turns behind another without a pause"):
        load_experiment(data)
    data["workload"]["trace"]["pause_s"] = 0.75
    table = requests(point(data), 3)
    assert table.think_s is not None and set(table.think_s.tolist()) == {0.0, 0.75}
