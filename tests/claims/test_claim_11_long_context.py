"""Claim 11: a head trained on 2,048 positions, beyond them."""

from __future__ import annotations

from pathlib import Path

from claim_runs import outcome


def test_beyond_its_training_length_a_head_turns_the_gain_into_a_loss(tmp_path: Path) -> None:
    assert outcome("claim-11-long-context-turns-the-gain-into-a-loss", tmp_path).missed == []
