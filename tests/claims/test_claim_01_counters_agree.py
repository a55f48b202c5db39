"""Claim 1: the counters of any acceptance agree with each other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from claim_runs import outcome

from specfleet.experiments.load.config import load_experiment
from specfleet.experiments.load.sweep import expand
from specfleet.experiments.point.build import requests
from specfleet.experiments.point.built import build
from specfleet.sim.metrics.columns import benchmark
from specfleet.sim.simulation import simulate

PRESET = Path(__file__).parents[2] / "experiments/presets/claims/claim-01-counters-agree.yaml"
PROCESSES = {
    "constant": "{conditional_acceptance: 0.75, concentration: .inf}",
    "spread": "{conditional_acceptance: 0.6, concentration: 8}",
    "positions": "{by_position: [0.8, 0.8, 0.3, 0.1, 0.0], concentration: 18}",
    "low atom": "{by_position: [0.6, 0.4, 0.3, 0.2, 0.1], low_atom: {weight: 0.1, low: 0.1, high: 0.4}}",
    "bursts": "{conditional_acceptance: 0.7, burst: {rho: 0.5, sigma: 1.0}}",
    "length": "{acceptance_length: 3.0, measured_at_k: 5}",
}


@pytest.mark.parametrize("process", PROCESSES.values(), ids=PROCESSES.keys())
def test_acceptance_length_is_one_plus_the_sum_of_the_positions_for_any_acceptance(process: str) -> None:
    point = expand(load_experiment(PRESET, [f"acceptance={process}", "workload.num_prompts=60"]))[0].config
    drafts = benchmark(simulate(build(point).scenario, requests(point, 0), 0)).spec_decode
    assert drafts is not None
    length, rate = drafts.acceptance_length, drafts.draft_acceptance_rate / 100
    positions = np.array(drafts.per_position_acceptance_rates)
    assert length == pytest.approx(1 + 5 * rate, rel=1e-12)
    assert length == pytest.approx(1 + positions.sum(), rel=1e-12)
    assert np.all(np.diff(positions) <= 0)


def test_constant_acceptance_of_three_quarters_is_a_length_of_3_29_and_46_percent_of_the_drafts(
    tmp_path: Path,
) -> None:
    assert outcome(PRESET.stem, tmp_path).missed == []
