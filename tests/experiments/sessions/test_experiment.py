"""Sessions in an experiment: what check, a run and its printout say of them."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest

from specfleet.experiments.load.config import load
from specfleet.experiments.page.write import write_report
from specfleet.experiments.run.check import check
from specfleet.experiments.run.progress import Reporter
from specfleet.experiments.run.results import Row, number
from specfleet.experiments.run.run import Run
from specfleet.experiments.schema.faults import InputFaults
from specfleet.experiments.words.check import check_text
from specfleet.experiments.words.run import run_text

FILE = """\
name: talk
replications: 1
serve:
  model: meta-llama/Llama-3.1-8B-Instruct
  gpu: h100-sxm
  max_model_len: 2048
  max_num_seqs: 16
  speculative_config:
    {model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, method: eagle3, num_speculative_tokens: 3}
acceptance: {conditional_acceptance: 0.7, concentration: 18}
workload:
  input: {fixed: 60}
  output: {uniform: {low: 8, high: 40}}
  num_prompts: 120
  max_concurrency: 8
  sessions: {turns: {fixed: 5}, think_time_s: {exponential: 1.0}, system_prompt: {tokens: 100}}
sweep: {axes: {serve.speculative_config.num_speculative_tokens: [0, 3]}}
report: {baseline: {serve.speculative_config.num_speculative_tokens: 0}, formats: [png]}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """An experiment whose requests are turns."""
    path = tmp_path / "talk.yaml"
    path.write_text(FILE)
    return path


def ran(file: Path, changes: list[str], out: Path) -> tuple[str, list[Row]]:
    """What a run prints, and its rows."""
    run = Run(file, tuple(changes), out)
    todo = run.prepare(resume=False)
    run.execute(todo, 1, Reporter(len(todo), quiet=True))
    rows = run.summary()
    run.release()
    return run_text(run, rows), list(rows)


def test_a_run_tells_what_a_task_takes_with_drafts_and_without(file: Path, tmp_path: Path) -> None:
    said, (plain, drafted) = ran(file, [], tmp_path / "out")
    assert plain["tasks"] == drafted["tasks"] == 24
    with_drafts, without = (number(row, "mean_task_model_s") for row in (drafted, plain))
    assert with_drafts < without < number(plain, "mean_task_s")
    assert drafted["speedup_mean_task_model"] == pytest.approx(without / with_drafts)
    found = number(plain, "task_cached_tokens") / number(plain, "task_input_tokens")
    assert found == pytest.approx(number(plain, "prefix_hit_share"))
    assert "By task, from the first turn of a session to its last answer:" in said
    page = write_report(tmp_path / "out").read_text(encoding="utf-8")
    assert "By task, from the first turn of a session to its last answer" in page
    assert "Time of a task against" in page
    (folder,) = [path for path in (tmp_path / "out").rglob("points/*") if "tokens=3" in path.name]
    rows = list(csv.DictReader((folder / "requests.csv").open()))
    assert [row["turn"] for row in rows[:6]] == ["0", "1", "2", "3", "4", "0"]
    assert [row["session_id"] for row in rows[:6]] == ["0", "0", "0", "0", "0", "1"]
    stepped = json.loads((folder / "engine.json").read_text())["stepped"]
    assert stepped == {"share": 0.0, "because": ""}


def test_check_says_which_sessions_are_stepped_and_a_run_says_the_same(file: Path, tmp_path: Path) -> None:
    assert "will be stepped" not in check_text(check(file, []))
    sglang = ["serve.engine=sglang", "serve.enable_mixed_chunk=true", "workload.num_prompts=40"]
    said = check_text(check(file, sglang))
    assert re.search("will be stepped, .* as long: SGLang's mixed batches", said)
    _, rows = ran(file, sglang, tmp_path / "out")
    (engine, *_) = sorted((tmp_path / "out").rglob("engine.json"))
    assert "mixed" in json.loads(engine.read_text())["stepped"]["because"]
    assert all(number(row, "prefix_hit_share") > 0.5 for row in rows)


def test_check_foresees_where_contexts_no_longer_fit_and_the_run_says_the_same(
    file: Path, tmp_path: Path
) -> None:
    axis, few = "sweep.axes.serve.num_gpu_blocks_override", "workload.num_prompts=60"
    roomy, short = 400, 130
    drop = ["sweep.axes={}", "report.baseline=null", few, "workload.sessions.think_time_s={fixed: 0}"]
    said = check_text(check(file, [*drop, f"{axis}=[{roomy}, {short}]"]))
    why = "a preempted sequence may find its own blocks again"
    assert f"will be stepped at num gpu blocks override = {short}, 2 to 25 times as long: {why}" in said
    ran(file, [*drop, f"{axis}=[{roomy}, {short}]"], tmp_path / "out")
    found = {
        json.loads(path.read_text())["stepped"]["because"]: path
        for path in (tmp_path / "out").rglob("engine.json")
    }
    assert set(found) == {"", why} and f"={short}" in str(found[why])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["workload.sessions.turns={fixed: 40}"], "a session of up to 40 turns may reach 4100 tokens, more"),
        (["workload.sessions.system_prompt.tokens=2000"], "the first turn, 2060 tokens and an output of up"),
        (
            ["workload.sessions.context={trim: {above_tokens: 500, to_tokens: 90}}"],
            "90 leaves nothing beside the system prompt of 100 tokens",
        ),
        (
            ["workload.sessions.context={compact: {above_tokens: 500, to_tokens: 400}}"],
            "400 behind the system prompt is not below above_tokens, 500: nothing is cut",
        ),
        (["workload.sessions.context={}"], "must be exactly one of trim, compact"),
        (["workload.sessions.context=trim"], "must be accumulate, or {trim: ..} or {compact: ..} with"),
        (["workload.prefix={tokens: 9}"], "sessions have system_prompt, with pools in place of groups"),
        (["workload.sessions.think_time_s={uniform: {low: 2, high: 1}}"], "low, 2, is above high, 1; swap"),
        (
            ["workload.sessions.think_time_s={lognormal: {median: 9, sigma: 1, max: 8}}"],
            "median, 9, is above max, 8; raise max",
        ),
        (["workload.sessions.think_time_s={quantiles: [[0, 1], [50, 2]]}"], "[percentile, seconds] pairs"),
        (["workload.sessions.think_time_s={fixed: 1, exponential: 1}"], "not fixed and exponential"),
    ],
)
def test_what_is_wrong_with_sessions_is_said_with_what_to_do(
    file: Path, changes: list[str], said: str
) -> None:
    with pytest.raises(InputFaults) as faults:
        load(file, changes)
    assert said in str(faults.value)


def test_the_preset_of_an_agent_fleet_finds_most_of_its_prompts_and_halves_its_answers(
    tmp_path: Path,
) -> None:
    preset = Path(__file__).parents[3] / "experiments/presets/agents.yaml"
    few = ["workload.num_prompts=150", "workload.num_warmups=0", "replications=1", "report.formats=[png]"]
    axes = "sweep.axes={serve.speculative_config.num_speculative_tokens: [0, 3]}"
    _, (plain, drafted) = ran(preset, [*few, axes, "workload.max_concurrency=6"], tmp_path / "out")
    assert number(plain, "prefix_hit_share") > 0.85
    assert number(drafted, "speedup_mean_task_model") > 1.7 > number(drafted, "speedup_mean_task") > 1.0
    assert number(drafted, "usd_per_task") < number(plain, "usd_per_task")


def test_think_times_without_users_are_noticed(file: Path) -> None:
    idle = ["workload.sessions=null", "workload.think_time_s={fixed: 2}", "workload.max_concurrency=null"]
    notices = load(file, [*idle, "workload.request_rate=5"]).notices
    assert any("no user waits for an answer" in notice for notice in notices)


def test_sessions_without_a_prefix_cache_are_noticed(file: Path) -> None:
    notices = load(file, ["serve.enable_prefix_caching=false"]).notices
    assert any("computes its whole context anew" in notice for notice in notices)


def test_a_number_where_a_distribution_is_asked_for_is_that_number_always(file: Path) -> None:
    plain = FILE.replace("{fixed: 60}", "60").replace("{fixed: 5}", "5").replace("{exponential: 1.0}", "2")
    file.write_text(plain)
    workload = load(file).experiment.workload
    assert workload.input is not None and workload.input.fixed == 60
    assert workload.sessions is not None and workload.sessions.turns.fixed == 5
    assert workload.sessions.think_time_s.fixed == 2.0
    file.write_text(plain.replace("think_time_s: 2", "think_time_s: -2"))
    with pytest.raises(InputFaults, match=r"think_time_s\.fixed: must be at least 0, not -2"):
        load(file)
