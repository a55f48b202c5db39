"""Claim 17: a round is one pass of an attention-only target, whatever is rejected."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from claim_runs import outcome

from specfleet.experiments.load.config import load_experiment
from specfleet.experiments.load.sweep import expand
from specfleet.experiments.point.build import requests
from specfleet.experiments.point.built import build
from specfleet.sim.simulation import RunResult, simulate

PRESET = Path(__file__).parents[2] / "experiments/presets/claims/claim-17-one-target-pass-a-round.yaml"


def simulated(*overrides: str) -> RunResult:
    """One request at a time, scheduled synchronously so that no pass is issued in vain."""
    alone = [
        "claim=null",
        "sweep.axes={}",
        "serve.async_scheduling=false",
        "workload.num_prompts=40",
        *overrides,
    ]
    point = expand(load_experiment(PRESET, [*alone, *overrides]))[0].config
    return simulate(build(point).scenario, requests(point, 0), 0)


def test_target_passes_are_rounds_and_one_prefill_a_request() -> None:
    run = simulated()
    assert len(run.iterations["start_s"]) == run.requests["verifications"].sum() + 40


def test_tokens_are_one_and_the_accepted_drafts_of_each_round() -> None:
    run = simulated("acceptance={by_position: [1, 1, 1], concentration: .inf}")
    written = 1 + run.requests["verifications"] + run.requests["accepted_tokens"]
    assert np.array_equal(written, run.requests["output_tokens"])


def test_only_the_last_round_of_a_request_loses_accepted_drafts() -> None:
    run = simulated()
    lost = 1 + run.requests["verifications"] + run.requests["accepted_tokens"] - run.requests["output_tokens"]
    assert lost.min() >= 0 and lost.max() <= 3


def test_a_second_pass_is_paid_only_when_asked_for(tmp_path: Path) -> None:
    found = outcome(PRESET.stem, tmp_path)
    assert found.missed == []
    once, twice = (found.figure("mean_tpot_ms", reroll_on_reject=asked) for asked in (False, True))
    assert twice == pytest.approx(1.5 * once, rel=0.15)
