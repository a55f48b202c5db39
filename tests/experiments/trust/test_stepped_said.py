"""A run that is stepped says so: in engine.json, on stderr and on its page."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from specfleet.experiments.cli.main import app
from specfleet.experiments.words.pace import stepped_sentences

FILE = """
name: small
serve:
  model: llama-3.1-8b-instruct
  gpu: h100-sxm
  max_model_len: 4096
  max_num_seqs: 32
workload: {input_len: 300, output_len: 20, request_rate: 30, num_prompts: 20}
"""


def ran(folder: Path, *overrides: str) -> tuple[Path, str]:
    """Runs the file; returns its folder and what stands on stderr."""
    (folder / "small.yaml").write_text(FILE)
    asked = [
        "run",
        "small.yaml",
        *overrides,
        "-q",
        "--no-plots",
        "--jobs",
        "1",
        "--out",
        str(folder / "runs"),
    ]
    asked[1] = str(folder / "small.yaml")
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 0, result.output
    (engine,) = folder.glob("runs/**/engine.json")
    return engine.parents[2], result.stderr


def test_a_stepped_run_says_so_and_why(tmp_path: Path) -> None:
    folder, stderr = ran(tmp_path, "serve.long_prefill_token_threshold=64")
    (engine,) = folder.glob("points/*/engine.json")
    assert json.loads(engine.read_text())["stepped"] == {
        "share": 1.0,
        "because": "long_prefill_token_threshold",
    }
    (sentence,) = stepped_sentences(folder)
    assert sentence.startswith("1 of 1 simulations were stepped in up to 100% of their iterations")
    assert f"note: {sentence}" in stderr.replace("\n", " ")


def test_a_run_on_the_calendar_says_nothing(tmp_path: Path) -> None:
    folder, stderr = ran(tmp_path)
    assert stepped_sentences(folder) == []
    assert "stepped" not in stderr
