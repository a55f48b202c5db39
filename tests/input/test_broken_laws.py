"""A broken law marks a run as failed: it is said, nothing is kept, and nobody reads it by mistake."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specfleet.experiments.cli.main import app
from specfleet.experiments.run.files import FolderFault
from specfleet.experiments.run.results import read_results
from specfleet.sim.laws import names

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
TOO_FAST = "base: vllm-0.33\nname: hurried\nkernel_time_scale: 0.2\nsource: {x: invented}\n"


def written(
    folder: Path, engine: str, requests: str = "all", load: str = "max_concurrency: 6", more: str = ""
) -> str:
    """Writes an experiment; returns its path."""
    (folder / "hurried.yaml").write_text(TOO_FAST)
    path = folder / "small.yaml"
    path.write_text(EXPERIMENT.format(engine=engine, requests=requests, load=load) + more)
    return str(path)


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
