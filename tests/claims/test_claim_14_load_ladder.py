"""Claim 14: fixed K and K by goodput under rising load."""

from __future__ import annotations

from pathlib import Path

from claim_runs import outcome


def test_a_fixed_k_loses_under_load_and_one_chosen_by_goodput_does_not(tmp_path: Path) -> None:
    assert outcome("claim-14-fixed-k-loses-beyond-the-crossover", tmp_path).missed == []
