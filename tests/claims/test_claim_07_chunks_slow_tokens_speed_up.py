"""Claim 7: with K the pause between chunks grows while the time a token falls."""

from __future__ import annotations

from pathlib import Path

from claim_runs import outcome


def test_median_itl_rises_while_median_tpot_falls(tmp_path: Path) -> None:
    assert outcome("claim-07-chunks-slow-down-while-tokens-speed-up", tmp_path).missed == []
