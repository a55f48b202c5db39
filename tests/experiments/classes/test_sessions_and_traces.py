"""Classes of sessions, and classes at the own times of a trace, in a file: runs, tables, what is refused."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from specfleet.experiments.load.config import load, load_experiment, resolved
from specfleet.experiments.load.sweep import expand
from specfleet.experiments.page.sections import tasks_table
from specfleet.experiments.point.build import counted_requests, requests, source, turn_classes
from specfleet.experiments.point.built import build
from specfleet.experiments.run.progress import Reporter
from specfleet.experiments.run.results import number
from specfleet.experiments.run.run import Run
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.faults import InputFaults
from specfleet.experiments.words.run import run_text
from specfleet.sim.metrics.tasks import Tasks
from specfleet.sim.simulation import simulate
from specfleet.sim.source import Table

SERVE = {
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "gpu": "h100-sxm",
    "max_model_len": 4096,
    "max_num_seqs": 12,
    "speculative_config": {
        "method": "eagle3",
        "model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",
        "num_speculative_tokens": 3,
    },
}
SESSIONS = {
    "turns": {"uniform": {"low": 1, "high": 5}},
    "think_time_s": {"exponential": 0.3},
    "system_prompt": {"tokens": 90, "pools": 2},
}
AGENTS = {
    "input": {"uniform": {"low": 20, "high": 80}},
    "output": {"uniform": {"low": 4, "high": 20}},
    "sessions": SESSIONS,
    "acceptance": {"conditional_acceptance": 0.7, "concentration": 18},
}
CHAT = {
    "input": {"uniform": {"low": 100, "high": 400}},
    "output": {"uniform": {"low": 4, "high": 30}},
    "acceptance": {"conditional_acceptance": 0.5, "concentration": 18},
}
K = "serve.speculative_config.num_speculative_tokens"
ROWS = [(100 * i + (i * i) % 37, 30 + i % 50, 4 + i % 9) for i in range(40)]


def file(**workload: Any) -> dict[str, Any]:
    """An experiment of agents, whose requests are turns, and of chat."""
    rates = {"agents": {"request_rate": 12.0, **AGENTS}, "chat": {"request_rate": 6.0, **CHAT}}
    return deepcopy({"seed": 1, "serve": SERVE, "workload": {"num_prompts": 60, "mix": rates, **workload}})


def logged(folder: Path, **workload: Any) -> dict[str, Any]:
    """The same with chat as a log."""
    path = folder / "log.csv"
    path.write_text("\n".join(["ts,n_in,n_out", *(f"{ts},{a},{b}" for ts, a, b in ROWS)]))
    columns = {"arrival_s": "ts", "input_tokens": "n_in", "output_tokens": "n_out"}
    data = file(**workload)
    trace = {"file": str(path), "columns": columns, "time_unit": "ms"}
    data["workload"]["mix"]["chat"] = {"trace": trace, "acceptance": CHAT["acceptance"]}
    return data


def point(given: dict[str, Any]) -> Experiment:
    return expand(load_experiment(given))[0].config


SHARES = {"agents": {"share": 0.7, **AGENTS}, "chat": {"share": 0.3, **CHAT}}
THINKING = {
    "agents": {"share": 0.7, **AGENTS},
    "chat": {"share": 0.3, "think_time_s": {"fixed": 0.2}, **CHAT},
}
LOADS: dict[str, dict[str, Any]] = {
    "streams": {},
    "capped streams": {"max_concurrency": 5},
    "shares in a closed loop": {"mix": SHARES, "max_concurrency": 7},
    "shares with pauses": {"mix": THINKING, "max_concurrency": 7, "think_time_s": {"exponential": 0.1}},
    "shares at a rate that changes": {
        "mix": SHARES,
        "request_rate": 15.0,
        "arrivals": {"spike": {"at_s": 2, "for_s": 1, "factor": 4}},
    },
    "sessions of all but one class": {
        "sessions": SESSIONS,
        "mix": {
            "agents": {"request_rate": 12.0, **{k: v for k, v in AGENTS.items() if k != "sessions"}},
            "chat": {"request_rate": 6.0, "sessions": "none", **CHAT},
        },
    },
}


@pytest.mark.parametrize("load_of", LOADS)
def test_the_calendar_gives_what_stepping_gives_where_some_classes_are_sessions(load_of: str) -> None:
    config = point(file(**deepcopy(LOADS[load_of])))
    table = requests(config, 3)
    result = simulate(build(config).scenario, table, 3, every_turn=True)
    assert result.stepped_because == "" and result.stepped_share == 0.0
    assert turn_classes(config.workload) == {"agents": 0}
    agents = table.class_id == 0
    assert table.turn[agents].max() == 4 and not table.turn[~agents].any()
    assert result.requests["cached_tokens"][agents].sum() > 500
    if "chat" in load_of or load_of == "shares with pauses":
        assert (table.think_s[~agents] == 0.2).all()  # type: ignore[index]


def test_a_class_of_sessions_has_its_requests_and_luck_whoever_else_is_there() -> None:
    found = []
    for rate in (0.0, 6.0):
        data = file()
        data["workload"]["mix"]["chat"]["request_rate"] = rate
        config = point(data)
        result = simulate(build(config).scenario, requests(config, 3), 3)
        mine = result.requests["class_id"] == 0
        names = ("turn", "verifications", "accepted_tokens", "prompt_tokens", "output_tokens", "think_s")
        found.append([result.requests[name][mine] for name in names])
    n = min(len(columns[0]) for columns in found)
    assert n > 25
    for alone, among in zip(*found, strict=True):
        assert np.array_equal(alone[:n], among[:n])


def test_a_run_has_tables_tasks_and_a_bill_by_class(tmp_path: Path) -> None:
    data = file(num_prompts=120) | {
        "name": "mixed",
        "replications": 1,
        "slo": {"tpot_ms": 9.0},
        "run": {"bill": True},
        "sweep": {"axes": {K: [0, 3]}},
        "report": {"baseline": {K: 0}, "formats": ["png"]},
    }
    path = tmp_path / "x.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    run = Run(path, (), tmp_path / "out")
    todo = run.prepare(resume=False)
    run.execute(todo, 1, Reporter(len(todo), quiet=True))
    rows = run.summary()
    run.release()
    said = run_text(run, rows)
    plain, drafted = rows
    assert number(plain, "class:agents:tasks") == number(plain, "tasks") > 10
    assert "class:chat:tasks" not in plain and "gpu_s_per_task" not in plain
    assert number(drafted, "speedup:task:agents") == pytest.approx(
        number(plain, "mean_task_model_s") / number(drafted, "mean_task_model_s")
    )
    assert "class   tasks  turns" in said and "agents" in said and "Bill by class" in said
    assert number(drafted, "class:chat:slo_attainment") <= 1.0
    page = str(tasks_table(rows, [K]))
    assert "By task" in page and "agents" in page and "chat" not in page


def test_a_task_is_never_a_request_of_a_class_without_sessions() -> None:
    config = point(file())
    result = simulate(build(config).scenario, requests(config, 3), 3)
    mine = Tasks.of(result.requests, [0])
    turns = np.bincount(result.requests["session_id"])
    agents = np.unique(result.requests["session_id"][result.requests["class_id"] == 0])
    assert sorted(mine.turns.tolist()) == sorted(turns[agents].tolist()) and mine.whole_share == 1.0


def test_a_log_of_a_class_comes_at_its_own_times_beside_streams_and_sessions(tmp_path: Path) -> None:
    config = point(logged(tmp_path, num_prompts=None))
    table = requests(config, 3)
    assert len(table) == pytest.approx(counted_requests(config.workload), abs=5)
    mine = table.class_id == 1
    n = int(mine.sum())
    assert n > 30
    assert table.arrival_s[mine] == pytest.approx([(ts - ROWS[0][0]) / 1e3 for ts, _, _ in ROWS[:n]])
    assert table.prompt_tokens[mine].tolist() == [prompt for _, prompt, _ in ROWS[:n]]
    result = simulate(build(config).scenario, table, 3, every_turn=True)
    assert result.stepped_because == ""
    faster = logged(tmp_path, num_prompts=90)
    faster["workload"]["mix"]["chat"]["speed"] = 2.0
    twice = requests(point(faster), 3)
    assert twice.arrival_s[twice.class_id == 1][:20] == pytest.approx(table.arrival_s[mine][:20] / 2)


def test_a_log_with_a_rate_or_a_share_gives_lengths_alone_and_both_are_said(tmp_path: Path) -> None:
    own, drawn = logged(tmp_path), logged(tmp_path)
    drawn["workload"]["mix"]["chat"]["request_rate"] = 6.0
    path = tmp_path / "x.yaml"
    for data, said in ((own, "come at their own times"), (drawn, "gives lengths, a row drawn for each")):
        path.write_text(yaml.safe_dump(data))
        assert any(said in note for note in load(path).notices)
    table = requests(point(drawn), 3)
    pairs = {(prompt, output) for _, prompt, output in ROWS}
    mine = table.class_id == 1
    found = zip(table.prompt_tokens[mine].tolist(), table.output_tokens[mine].tolist(), strict=True)
    assert set(found) <= pairs
    assert isinstance(source(point(drawn), 3), Table)


@pytest.mark.parametrize("which", ["sessions", "log"])
def test_a_resolved_file_is_the_same_experiment(tmp_path: Path, which: str) -> None:
    data = file() if which == "sessions" else logged(tmp_path, num_prompts=None)
    first = resolved(load_experiment(data))
    path = tmp_path / "again.yaml"
    path.write_text(first)
    assert resolved(load_experiment(path)) == first


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "too long": (
        {"workload.mix.agents.sessions.turns": {"fixed": 60}},
        r"mix\.agents\.sessions: a session of up to 60 turns may reach",
    ),
    "a prefix": (
        {"workload.mix.agents.prefix": {"tokens": 9}},
        r"mix\.agents\.prefix: prefix does not go with sessions",
    ),
    "a pause": (
        {"workload.mix.chat.think_time_s": {"fixed": 1, "exponential": 1}},
        r"mix\.chat\.think_time_s: must be exactly one of",
    ),
    "a law": (
        {"workload.mix.agents.sessions.turns": {"uniform": {"low": 4, "high": 2}}},
        r"mix\.agents\.sessions\.turns\.uniform\.low: low, 4, is above high",
    ),
    "another word": (
        {"workload.mix.agents.sessions": "off"},
        r"mix\.agents\.sessions: must be none, for single requests, or a mapping",
    ),
    "nobody's": (
        {
            "workload.sessions": SESSIONS,
            "workload.mix.agents.sessions": "none",
            "workload.mix.chat.sessions": "none",
        },
        r"workload\.sessions: every class of the mix has sessions: none",
    ),
    "a found load": ({"sweep": {"load": "auto"}}, r"sweep\.load: does not know how much of their prompts"),
    "a speed": ({"workload.mix.chat.speed": 2.0}, r"mix\.chat\.speed: is of a trace that comes at its own"),
}
LOG_FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "a rate of all": (
        {"workload.request_rate": 9.0},
        r"workload\.request_rate: is of all classes, and chat comes at its trace's own times",
    ),
    "a share beside it": (
        {"workload.mix.agents.request_rate": None, "workload.mix.agents.share": 1.0},
        r"mix\.chat: chat comes at its trace's own times, and agents has a share",
    ),
    "a rate that changes": (
        {"workload.arrivals": {"diurnal": {"peak_to_trough": 2}}},
        r"workload\.arrivals: changes the rate of one stream",
    ),
    "no times": (
        {
            "workload.mix.chat.trace.columns": {"input_tokens": "n_in", "output_tokens": "n_out"},
            "workload.mix.chat.trace.time_unit": None,
        },
        r"mix\.chat\.trace: has no arrival times; give the class a share or a request_rate",
    ),
    "a speed of lengths": (
        {"workload.mix.chat.request_rate": 3.0, "workload.mix.chat.speed": 2.0},
        r"mix\.chat\.speed: is of a trace that comes at its own times; remove it, or how much",
    ),
    "a prefix": (
        {"workload.mix.chat.prefix": {"tokens": 9}},
        r"mix\.chat\.prefix: says nothing of chat, which comes as recorded",
    ),
    "turns of its own": (
        {"workload.mix.chat.sessions": SESSIONS},
        r"mix\.chat\.trace: trace does not go with sessions: a trace has its own requests",
    ),
    "a plan": (
        {"slo": {"p99_tpot_ms": 20}, "plan": {}},
        r"mix\.chat\.trace: comes at its own times, and a plan scales the traffic",
    ),
    "a found load": (
        {"sweep": {"load": "auto"}, "workload.mix.agents.sessions": None},
        r"sweep\.load: finds one load for all, and chat comes at its trace's own times",
    ),
}


def refused(tmp_path: Path, data: dict[str, Any], changes: dict[str, Any], said: str) -> None:
    for key, value in deepcopy(changes).items():
        here = data
        *above, last = key.split(".")
        for part in above:
            here = here[part]
        here[last] = value
    path = tmp_path / "x.yaml"
    path.write_text(yaml.safe_dump(data, sort_keys=False))
    with pytest.raises(InputFaults, match=said) as found:
        load(path)
    assert all(fault.line > 0 for fault in found.value.faults)


@pytest.mark.parametrize("name", FAULTS)
def test_what_does_not_go_with_classes_of_sessions_is_a_fault_with_its_line(
    tmp_path: Path, name: str
) -> None:
    refused(tmp_path, file(), *FAULTS[name])


@pytest.mark.parametrize("name", LOG_FAULTS)
def test_what_does_not_go_with_a_log_of_a_class_is_a_fault_with_its_line(tmp_path: Path, name: str) -> None:
    refused(tmp_path, logged(tmp_path), *LOG_FAULTS[name])
