"""Claim 15: adaptive and static K over easy and hard stretches."""

from __future__ import annotations

from pathlib import Path

from claim_runs import outcome


def test_adaptive_k_beats_the_best_static_k_by_single_digit_percent(tmp_path: Path) -> None:
    assert outcome("claim-15-adaptive-beats-static-a-little", tmp_path).missed == []
