"""Plain decoding with outputs of equal length runs in waves, and a file that makes it so is told."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

import specfleet as sf
from specfleet.experiments.cli.main import app
from specfleet.experiments.load.config import load
from specfleet.experiments.load.rules.in_step import IN_STEP

SERVE = {
    "engine": "vllm-0.33",
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "gpu": "h100-sxm",
    "max_model_len": 8192,
    "speculative_config": {
        "method": "eagle3",
        "model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",
        "num_speculative_tokens": 3,
    },
}
ACCEPTANCE = {"by_position": [0.7, 0.5, 0.36], "concentration": 18}
K = "serve.speculative_config.num_speculative_tokens"
EQUAL: Mapping[str, object] = {
    "input_len": 500,
    "output_len": 200,
    "max_concurrency": 128,
    "num_prompts": 640,
}
SPREAD = {"output_len": None, "output": {"uniform": {"low": 40, "high": 360}}}


def file(workload: Mapping[str, object], ks: tuple[int, ...] = (0, 3)) -> dict[str, object]:
    """An experiment over K."""
    asked = {key: value for key, value in {**EQUAL, **workload}.items() if value is not None}
    return {"serve": SERVE, "acceptance": ACCEPTANCE, "workload": asked, "sweep": {"axes": {K: list(ks)}}}


@pytest.mark.parametrize(
    "workload",
    [
        {},
        {"max_concurrency": None},
        {"input_len": None, "input": {"uniform": {"low": 100, "high": 900}}},
        {"output_len": None, "output": {"uniform": {"low": 250, "high": 400}}, "output_cap": 200},
    ],
    ids=["a cap", "all at once", "prompts differ", "cut to one length"],
)
def test_equal_outputs_of_plain_decoding_in_a_closed_loop_are_said(workload: Mapping[str, object]) -> None:
    assert load(file(workload)).notices.count(IN_STEP) == 1


@pytest.mark.parametrize(
    ("workload", "ks"),
    [(SPREAD, (0, 3)), ({"request_rate": 8}, (0, 3)), ({"max_concurrency": 1}, (0, 3)), ({}, (1, 3))],
    ids=["spread", "open loop", "one user", "all draft"],
)
def test_what_does_not_move_in_step_is_not_said_to(
    workload: Mapping[str, object], ks: tuple[int, ...]
) -> None:
    assert IN_STEP not in load(file(workload, ks)).notices


def test_waves_are_what_makes_its_ttft_and_drafts_undo_them() -> None:
    # 402 ms against 75 at K = 0, 139 against 137 at K = 3, with 2,560 requests
    ttft = {}
    for name, workload in (("equal", {}), ("spread", SPREAD)):
        summary = sf.load(file(workload), replications=1).run().summary.set_index(K)
        ttft[name] = summary["mean_ttft_ms"]
    assert ttft["equal"][0] > 2.0 * ttft["spread"][0]
    assert ttft["equal"][3] < 1.3 * ttft["spread"][3]


def test_check_says_it_and_the_starter_has_nothing_to_be_told(tmp_path: Path) -> None:
    runner, mine = CliRunner(), tmp_path / "mine.yaml"
    assert runner.invoke(app, ["init", str(mine)]).exit_code == 0
    assert "in step" not in runner.invoke(app, ["check", str(mine)]).stdout
    equal = [
        "workload.input=null",
        "workload.output=null",
        "workload.input_len=500",
        "workload.output_len=200",
    ]
    assert "requests move in step" in runner.invoke(app, ["check", str(mine), *equal]).stdout
