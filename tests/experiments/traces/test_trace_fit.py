"""`specfleet trace` shows a log, `trace fit` writes a file that imitates it and holds it against a replay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from specfleet.experiments.cli.main import app
from specfleet.experiments.load.config import load_experiment
from specfleet.experiments.load.sweep import expand
from specfleet.experiments.point.build import requests

COLUMNS = ["--columns", "arrival_s=t,input_tokens=n,output_tokens=m", "--time-unit", "s"]


def called(folder: Path, *arguments: str) -> str:
    """What the command prints."""
    result = CliRunner().invoke(app, ["trace", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log of 400 requests, ten a second."""
    rng = np.random.default_rng(0)
    at_s = np.cumsum(rng.exponential(0.1, 400))
    prompts, outputs = rng.integers(50, 900, 400), rng.integers(2, 60, 400)
    rows = (f"{t:.6f},{n},{m}" for t, n, m in zip(at_s, prompts, outputs, strict=True))
    file = tmp_path / "log.csv"
    file.write_text("t,n,m\n" + "\n".join(rows) + "\n")
    return file


def test_a_file_alone_is_shown_and_so_is_show_and_the_file(tmp_path: Path, log: Path) -> None:
    assert called(tmp_path, str(log), *COLUMNS) == called(tmp_path, "show", str(log), *COLUMNS)


def test_figures_are_drawn_of_a_log_and_of_its_fit(tmp_path: Path, log: Path) -> None:
    shown, fitted = tmp_path / "a.svg", tmp_path / "b.svg"
    called(tmp_path, str(log), *COLUMNS, "--figure", str(shown))
    out = str(tmp_path / "fit.yaml")
    called(tmp_path, "fit", str(log), *COLUMNS, "--out", out, "--figure", str(fitted))
    assert 5_000 < shown.stat().st_size < fitted.stat().st_size


def test_a_fit_is_an_experiment_whose_traffic_is_that_of_the_log(tmp_path: Path, log: Path) -> None:
    out = tmp_path / "fit.yaml"
    said = called(tmp_path, "fit", str(log), *COLUMNS, "--out", str(out))
    table = requests(expand(load_experiment(out, ["workload.num_prompts=4000"]))[0].config, 0)
    recorded_s = np.loadtxt(log, delimiter=",", skiprows=1)[:, 0]
    rate = (len(recorded_s) - 1) / (recorded_s[-1] - recorded_s[0])
    assert (len(table) - 1) / float(table.arrival_s[-1]) == pytest.approx(rate, rel=0.01)
    assert float(table.prompt_tokens.mean()) == pytest.approx(475, rel=0.05)
    assert float(table.output_tokens.mean()) == pytest.approx(30.5, rel=0.07)
    head = [line for line in out.read_text().splitlines() if line.startswith("#")]
    for line in said.partition("\nwritten")[0].splitlines():
        assert f"# {line}".rstrip() in head, "how well it fits stands in the file"


def test_replay_and_fit_are_served_alike_within_a_quarter(tmp_path: Path, log: Path) -> None:
    said = called(tmp_path, "fit", str(log), *COLUMNS, "--out", str(tmp_path / "fit.yaml"))
    rows = [line.split() for line in said.splitlines() if " replay " in line or "fit, mean" in line]
    assert len(rows) == 4
    for replay, fit in zip(rows[::2], rows[1::2], strict=True):
        found = [float(cell.replace(",", "")) for cell in fit[-4:]]
        assert found == pytest.approx([float(cell.replace(",", "")) for cell in replay[-4:]], rel=0.25)


def test_a_fit_takes_over_what_serves_the_experiment_it_is_held_against(tmp_path: Path, log: Path) -> None:
    base = tmp_path / "mine.yaml"
    base.write_text(
        "serve: {model: meta-llama/Llama-3.1-8B-Instruct, gpu: h200, max_num_seqs: 64}\n"
        "workload: {input_len: 9, output_len: 9, max_concurrency: 2}\n"
        "sweep: {axes: {workload.max_concurrency: [1, 2]}}\n"
    )
    out = tmp_path / "fit.yaml"
    said = called(tmp_path, "fit", str(log), *COLUMNS, "--out", str(out), "--on", str(base))
    assert "on h200" in said
    written = yaml.safe_load(out.read_text())
    assert written["serve"]["max_num_seqs"] == 64
    assert "sweep" not in written


def test_a_log_without_times_gets_lengths_alone_and_says_what_is_left_to_say(tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("n,m\n" + "".join(f"{100 + i},{5 + i % 4}\n" for i in range(50)))
    columns = ["--columns", "input_tokens=n,output_tokens=m"]
    out = tmp_path / "fit.yaml"
    said = called(tmp_path, "fit", str(log), *columns, "--out", str(out))
    assert "No times were recorded" in said
    assert "request_rate" not in yaml.safe_load(out.read_text())["workload"]


def test_what_cannot_be_imitated_is_said(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    row = '{{"timestamp": {0}, "input_length": 1024, "output_length": 9, "hash_ids": [1, {1}]}}\n'
    log.write_text("".join(row.format(1000 * i, 10 + i) for i in range(60)))
    said = called(tmp_path, "fit", str(log), "--out", str(tmp_path / "fit.yaml"))
    assert "Not imitated: 49% of prompt tokens that came before" in said


@pytest.mark.parametrize(
    "arguments", [["fit"], ["fit", "absent.csv"], ["absent.csv"], ["--format", "azur", "x.csv"]]
)
def test_a_mistake_is_a_sentence_and_exit_2(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, ["trace", *arguments])
    assert result.exit_code == 2
    assert "Traceback" not in result.output
