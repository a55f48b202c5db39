"""Claim 6: the KV pool of a BF16 70B on two 80 GB cards, plain and with drafters."""

from __future__ import annotations

from pathlib import Path

from claim_runs import outcome


def test_pools_are_as_logged_to_5_percent(tmp_path: Path) -> None:
    assert outcome("claim-06-llama-70b-drafters-halve-the-kv-pool", tmp_path).missed == []
