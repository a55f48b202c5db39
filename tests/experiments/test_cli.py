"""The commands: what they print, and how they end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from specfleet import hardware
from specfleet.experiments.cli.main import app
from specfleet.experiments.load.starter import json_schema

RUNNER = CliRunner()
CATALOGUE = Path(hardware.__file__).parent / "catalog" / "engines" / "sglang.yaml"
LOG = (
    "INFO SpecDecoding metrics: Mean acceptance length: 2.50, Accepted throughput: 1.00 tokens/s, Drafted "
    "throughput: 2.00 tokens/s, Accepted: 150 tokens, Drafted: 300 tokens, Per-position acceptance{}rate: "
    "0.700, 0.500, 0.300, Avg Draft acceptance{}rate: 50.0%"
).format(" ", " ")


def test_the_starter_can_be_checked_as_it_is_and_is_never_written_over(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    assert RUNNER.invoke(app, ["init", str(path)]).exit_code == 0
    text = path.read_text()
    assert str(path) in text and "FILE" not in text
    checked = RUNNER.invoke(app, ["check", str(path)])
    assert checked.exit_code == 0 and "GPU KV cache size" in checked.stdout
    again = RUNNER.invoke(app, ["init", str(path)])
    assert again.exit_code == 2 and path.read_text() == text


def test_the_schema_names_every_block_and_explains_its_keys() -> None:
    printed = json.loads(RUNNER.invoke(app, ["schema"]).stdout)
    assert printed == json.loads(json.dumps(json_schema()))
    assert {"serve", "acceptance", "workload", "sweep", "slo", "plan"} <= printed["properties"].keys()
    serve = printed["$defs"]["Serve"]["properties"]
    assert all("description" in serve[key] for key in ("gpu", "draft_tree", "max_num_seqs"))
    assert printed["additionalProperties"] is False


def test_a_servers_log_becomes_an_acceptance_block(tmp_path: Path) -> None:
    log, out = tmp_path / "log.txt", tmp_path / "mine.yaml"
    log.write_text(LOG)
    done = RUNNER.invoke(app, ["calibrate", "--acceptance", str(log), "--out", str(out)])
    assert done.exit_code == 0
    assert "by_position" in (tmp_path / "mine.acceptance.yaml").read_text()
    assert "concentration stays an assumption" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["calibrate"], "nothing to calibrate on"),
        (["calibrate", "x.json"], "--serve is missing"),
        (["calibrate", "--acceptance", "{catalogue}"], "is neither JSON nor a log"),
        (["check", "no-such.yaml"], "no-such.yaml"),
        (["validate", "--mode", "guess"], "--mode"),
        (["theory", "--alpha", "2"], "must lie in [0, 1]"),
    ],
)
def test_a_mistake_ends_with_a_sentence_and_status_2(arguments: list[str], said: str) -> None:
    done = RUNNER.invoke(app, [word.format(catalogue=CATALOGUE) for word in arguments])
    assert done.exit_code == 2, done.output
    assert said in done.output and "Traceback" not in done.output


def test_help_lists_every_command() -> None:
    text = RUNNER.invoke(app, ["--help"]).stdout
    commands = (
        "run check explain plot compare catalog trace init schema validate calibrate measure theory breakeven"
    )
    assert all(command in text for command in commands.split())


def test_a_cost_model_that_is_not_installed_is_named_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.yaml"
    RUNNER.invoke(app, ["init", str(path)])
    monkeypatch.setattr("specfleet.experiments.load.rules.conflicts.find_spec", lambda name: None)
    for command in ("check", "explain", "run"):
        done = RUNNER.invoke(app, [command, str(path), "serve.cost_model=aiconfigurator"])
        assert done.exit_code == 2 and "specfleet[measured]" in done.output
