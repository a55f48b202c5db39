"""Claim 9: heads that draft all tokens in one pass, against EAGLE-3."""

from __future__ import annotations

from pathlib import Path

from claim_runs import outcome


def test_parallel_drafting_gains_most_at_one_user_and_at_a_larger_k(tmp_path: Path) -> None:
    assert outcome("claim-09-parallel-drafting-wants-larger-k", tmp_path).missed == []
