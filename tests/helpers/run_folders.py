"""Commands that run a small experiment in an empty folder, and what they leave there."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from specfleet.experiments.cli.main import app

FILE = """
name: x
serve:
  model: llama-3.1-8b-instruct
  gpu: h100-sxm
  max_model_len: 4096
  num_gpu_blocks_override: 20000
  speculative_config: {method: eagle3, model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, num_speculative_tokens: 3}
acceptance: {by_position: [0.7, 0.5, 0.35], concentration: 18}
workload: {input_len: 300, output_len: 20, max_concurrency: 8, num_prompts: 20}
sweep: {axes: {serve.max_num_seqs: [16, 64]}}
"""


def specfleet(*words: str) -> Result:
    """Runs a command; whatever happens is said without a traceback."""
    done = CliRunner().invoke(app, list(words))
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
    return done


def run(*words: str) -> Result:
    """Runs x.yaml, or another file, without figures."""
    file = [] if words and words[0].endswith(".yaml") else ["x.yaml"]
    return specfleet("run", *file, *words, "-q", "--no-plots", "--jobs", "1")


def refused(done: Result, said: str, code: int = 2) -> None:
    """Checks that a command ended in one sentence with this in it."""
    assert done.exit_code == code, done.output
    assert said in done.stderr, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def in_an_empty_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Works in a folder with the experiment x.yaml; returns it."""
    monkeypatch.chdir(folder)
    Path("x.yaml").write_text(FILE)
    return folder
