"""Every configuration that the product prints or writes is read back by it, and by vLLM."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specfleet.experiments.cli.main import app
from specfleet.experiments.load.config import load_experiment, resolved

RUNNER = CliRunner()
EAGLE = {"model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "method": "eagle3", "num_speculative_tokens": 3}
HEAD = """\
serve: {model: meta-llama/Llama-3.1-8B-Instruct, gpu: h100-sxm, max_num_seqs: 16, max_model_len: 1024}
workload: {input_len: 60, output_len: 12, num_prompts: 16, max_concurrency: 4}
acceptance: {conditional_acceptance: 0.7, concentration: 18}
"""
PLAN = """\
serve: {model: meta-llama/Llama-3.1-8B-Instruct, gpu: h100-sxm, max_num_seqs: 16, max_model_len: 1024}
workload: {input_len: 60, output_len: 12, request_rate: 4, num_prompts: 100}
slo: {p50_ttft_ms: 2000}
acceptance: {conditional_acceptance: 0.7, concentration: 18}
plan: {candidates: {drafting: [{speculative_config: DRAFTING}]}}
"""
LISTS = {
    "by batch": (EAGLE | {"num_speculative_tokens_per_batch_size": [[1, 4, 3], [5, 64, 1]]}, True),
    "synthetic": (
        EAGLE | {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.7, 0.5, 0.3]},
        False,
    ),
}


def ended(*arguments: str) -> str:
    """The output of a command that must end well."""
    done = RUNNER.invoke(app, arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("name", list(LISTS))
def test_lists_in_the_speculative_config_reach_every_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    fields, accepts = LISTS[name]
    path, plan = tmp_path / "x.yaml", tmp_path / "plan.yaml"
    texts = []
    for written in (
        f"'{json.dumps(fields)}'",
        json.dumps(fields),
    ):  # a JSON text, as vLLM takes it, and a mapping
        text = HEAD.replace("gpu: h100-sxm", f"gpu: h100-sxm, speculative_config: {written}")
        path.write_text(text if accepts else text.replace("acceptance:", "#"))
        plan.write_text(PLAN.replace("DRAFTING", written))
        texts.append([resolved(load_experiment(file)) for file in (path, plan)])
    assert texts[0] == texts[1]
    quick = ("--no-plots", "--quiet", "--jobs", "1")
    for command in (("check",), ("explain", "--batch", "4"), ("run", *quick), ("breakeven", *quick)):
        ended(*command, str(path))
    ended("check", str(plan))
    ended("plan", *quick, str(plan))


def test_what_breakeven_has_ready_is_taken_whatever_the_files_own_k(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "x.yaml"
    own = json.dumps(EAGLE | {"num_speculative_tokens": 1})
    path.write_text(HEAD.replace("gpu: h100-sxm", f"gpu: h100-sxm, speculative_config: {own}"))
    axes = "sweep={axes: {serve.speculative_config.num_speculative_tokens: [1, 3]}}"
    said = ended("breakeven", "--no-plots", "--quiet", "--jobs", "1", str(path), axes)
    ready = re.findall(r'^  ("num_speculative_tokens": .*\]\])   by ', said, re.MULTILINE)
    assert ready
    for fields in ready:
        pasted = json.loads("{" + fields + "}")
        config = load_experiment(path, [f"serve.speculative_config={json.dumps(EAGLE | pasted)}"])
        assert config.serve.speculative_config is not None
        rows = config.serve.speculative_config.num_speculative_tokens_per_batch_size or ()
        assert [list(row) for row in rows] == pasted["num_speculative_tokens_per_batch_size"]


def test_the_speculative_configs_of_a_plan_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    plan, path = tmp_path / "plan.yaml", tmp_path / "x.yaml"
    plan.write_text(PLAN.replace("DRAFTING", json.dumps(EAGLE)))
    path.write_text(HEAD)
    ended("plan", "--no-plots", "--quiet", "--jobs", "1", "--out", "found", str(plan))
    printed = re.findall(r"--speculative-config '(\{.*?\})'", (tmp_path / "found" / "rollout.md").read_text())
    assert printed
    for text in printed:
        quoted = json.dumps(text)
        assert load_experiment(path, [f"serve.speculative_config={quoted}"]).serve.speculative_config


def test_the_acceptance_that_calibrate_writes_is_taken(tmp_path: Path) -> None:
    log, path = tmp_path / "log.txt", tmp_path / "x.yaml"
    log.write_text(
        "SpecDecoding metrics: Mean acceptance length: 2.20, Accepted: 120 tokens, Drafted: 300 tokens, "
        "Per-position acceptance{}rate: 0.8, 0.4, 0.2\n".format(" ")
    )
    ended("calibrate", "--acceptance", str(log), "--out", str(tmp_path / "mine.yaml"))
    block = (tmp_path / "mine.acceptance.yaml").read_text()
    head = HEAD.split("acceptance:")[0].replace(
        "gpu: h100-sxm", f"gpu: h100-sxm, speculative_config: {json.dumps(EAGLE)}"
    )
    path.write_text(head + block)
    found = load_experiment(path).acceptance
    assert found is not None and not isinstance(found, dict)
    assert found.by_position == (0.8, 0.4, 0.2)
