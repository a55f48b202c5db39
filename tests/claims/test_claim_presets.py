"""Every claim has a preset that loads, states its source, and is named as its file."""

from __future__ import annotations

from pathlib import Path

import pytest
from claim_runs import PRESETS

from specfleet.experiments.load.config import load_experiment

FILES = sorted(PRESETS.glob("*.yaml"))


def test_all_seventeen_claims_have_a_preset() -> None:
    assert {int(path.stem.split("-")[1]) for path in FILES} == set(range(1, 18))


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_a_preset_states_its_claim_and_its_sources(path: Path) -> None:
    experiment = load_experiment(path)
    assert experiment.name == path.stem
    assert experiment.claim is not None and experiment.claim.statement and experiment.claim.source
    assert all(expected.said for expected in experiment.claim.expect)
