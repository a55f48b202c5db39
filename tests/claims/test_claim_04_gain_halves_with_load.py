"""Claim 4: on a BF16 70B the gain halves with load, and the best K shrinks."""

from __future__ import annotations

from pathlib import Path

from claim_runs import outcome


def test_the_gain_halves_from_1_to_64_users_and_the_best_k_shrinks(tmp_path: Path) -> None:
    assert outcome("claim-04-llama-70b-gain-halves-with-load", tmp_path).missed == []
