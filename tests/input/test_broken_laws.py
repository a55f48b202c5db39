"""A broken law marks a run as failed: it is said, nothing is kept, and nobody reads it by mistake."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specfleet.experiments.breakeven import cell, question
from specfleet.experiments.cli.main import app
from specfleet.experiments.load.config import load_experiment
from specfleet.experiments.load.rules import memory
from specfleet.experiments.load.sweep import expand
from specfleet.experiments.point.build import requests as requests_of
from specfleet.experiments.point.built import build
from specfleet.experiments.run.files import FolderFault
from specfleet.experiments.run.results import read_results
from specfleet.experiments.schema.faults import InputFaults
from specfleet.sim.errors import Breach
from specfleet.sim.laws import names
from specfleet.sim.simulation import simulate

RUNNER = CliRunner()
EXPERIMENT = """\
name: small
serve:
  model: meta-llama/Llama-3.1-8B-Instruct
  gpu: h100-sxm
  max_model_len: 1024
  speculative_config:
    {{model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, method: eagle3, num_speculative_tokens: 3}}
  engine: {engine}
acceptance: {{conditional_acceptance: 0.7, concentration: 18}}
workload: {{input_len: 90, output_len: 20, num_prompts: 30, {load}}}
report: {{requests: {requests}}}
"""
PLANNED = ("slo={p99_ttft_ms: 500}", "plan={}", "workload.num_prompts=null", "run={at_most: 2000}")
TOO_FAST = "base: vllm-0.33\nname: hurried\nkernel_time_scale: 0.2\nsource: {x: invented}\n"


def written(
    folder: Path, engine: str, requests: str = "all", load: str = "max_concurrency: 6", more: str = ""
) -> str:
    """Writes an experiment; returns its path."""
    (folder / "hurried.yaml").write_text(TOO_FAST)
    path = folder / "small.yaml"
    path.write_text(EXPERIMENT.format(engine=engine, requests=requests, load=load) + more)
    return str(path)


@pytest.fixture
def unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that are too fast get past the rule that refuses them."""
    monkeypatch.setattr(memory, "datasheet_conflicts", lambda serve: ())


@pytest.mark.usefixtures("unasked")
@pytest.mark.parametrize(("requests", "load"), [("all", "max_concurrency: 6"), ("none", "request_rate: 20")])
def test_a_broken_law_marks_the_run_as_failed(
    requests: str, load: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out"
    file = written(tmp_path, "hurried.yaml", requests, load)
    done = RUNNER.invoke(app, ["run", file, "--out", str(out), "--quiet", "--jobs", "1"])
    assert done.exit_code == 1
    assert f"Breach: law broken: {names.DATASHEET}: bytes/s" in done.stderr
    assert " s)" in done.stderr and "on replica 0" in done.stderr
    assert not list(out.rglob("_SUCCESS")) and not list((out / "points").iterdir())
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["whole"] is False and list(manifest["failures"])
    with pytest.raises(FolderFault, match="is not to be used: law broken"):
        read_results(out)
    for command in (["report", str(out)], ["plot", str(out)]):
        refused = RUNNER.invoke(app, command)
        assert refused.exit_code == 2 and "law broken" in refused.stderr


@pytest.mark.parametrize(("requests", "load"), [("all", "max_concurrency: 6"), ("none", "request_rate: 20")])
def test_check_proves_the_laws_after_every_turn_and_changes_no_byte(
    requests: str, load: str, tmp_path: Path
) -> None:
    file = written(tmp_path, "vllm-0.33", requests, load)
    texts = []
    for name, more in (("plain", []), ("checked", ["--check"])):
        out = tmp_path / name
        done = RUNNER.invoke(app, ["run", file, "--out", str(out), "--quiet", "--no-plots", *more])
        assert done.exit_code == 0, done.stderr
        points = sorted(path for path in (out / "points").rglob("*") if path.is_file())
        texts.append({str(path.relative_to(out)): path.read_bytes() for path in points})
    assert texts[0] == texts[1] and len(texts[0]) >= 3


@pytest.mark.parametrize("scale", [0.95, 0.85, 0.75, 0.65, 0.5, 0.3])
@pytest.mark.parametrize("k", [0, 3])
def test_check_refuses_kernels_that_beat_the_datasheet_and_a_run_breaks_no_law_with_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scale: float, k: int
) -> None:
    monkeypatch.chdir(tmp_path)
    file = written(tmp_path, "hurried.yaml")
    (tmp_path / "hurried.yaml").write_text(TOO_FAST.replace("0.2", str(scale)))
    busy = ("workload.input_len=700", "workload.num_prompts=60", "workload.max_concurrency=40")
    changes = (f"serve.speculative_config.num_speculative_tokens={k}", *busy)
    try:
        config = load_experiment(file, changes)
    except InputFaults as faults:
        (fault,) = faults.faults
        least = re.search(
            r"is too small: .* of the time that the datasheet .* use at least (0\.\d\d)", fault.message
        )
        assert fault.key == "serve.engine" and least is not None
        (tmp_path / "hurried.yaml").write_text(TOO_FAST.replace("0.2", least[1]))
        config = load_experiment(file, changes)
    point = expand(config)[0].config
    simulate(build(point).scenario, requests_of(point, 0), 0)


@pytest.mark.usefixtures("unasked")
@pytest.mark.parametrize(
    ("command", "keys"),
    [
        ("breakeven", []),
        ("plan", ["workload.max_concurrency=null", "workload.request_rate=5", *PLANNED]),
    ],
)
def test_a_study_in_which_a_law_breaks_has_no_answer(
    command: str, keys: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out"
    words = [written(tmp_path, "hurried.yaml"), *keys, "--out", str(out), "--quiet", "--jobs", "1"]
    done = RUNNER.invoke(app, [command, *words])
    assert done.exit_code == 1 and done.exception.__class__ is SystemExit
    assert f"Breach: law broken: {names.DATASHEET}: bytes/s" in done.stderr
    assert (
        not done.stdout and {path.name for path in out.iterdir()} & {"plan.json", "breakeven.json"} == set()
    )
    assert json.loads((out / "manifest.json").read_text())["whole"] is False
    refused = RUNNER.invoke(app, ["report", str(out)])
    assert refused.exit_code == 2 and "is not to be used: law broken" in refused.stderr


@pytest.mark.usefixtures("unasked")
def test_one_broken_search_of_many_leaves_no_break_even(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    original, out = cell.search, tmp_path / "out"

    def one_breaks(asked: cell.Cell) -> cell.Found:
        if asked.k and asked.load == 6:
            raise Breach(names.TOKENS, "planted", 3, 1.5)
        return original(asked)

    monkeypatch.setattr(question, "search", one_breaks)
    loads = "sweep={axes: {workload.max_concurrency: [2, 6]}}"
    words = [written(tmp_path, "vllm-0.33"), loads, "--tolerance", "0.2"]
    done = RUNNER.invoke(app, ["breakeven", *words, "--out", str(out), "--quiet", "--jobs", "1"])
    assert done.exit_code == 1 and f"law broken: {names.TOKENS}: planted (request 3, at 1.5" in done.stderr
    assert not (out / "breakeven.json").exists()
    assert json.loads((out / "manifest.json").read_text())["whole"] is False


def test_the_slowest_of_these_scales_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputFaults, match=r"kernel_time_scale: 0\.2 is too small"):
        load_experiment(written(tmp_path, "hurried.yaml"))
