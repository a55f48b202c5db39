"""Claim 3: Qwen3-32B with EAGLE-3 on one H100, InstructCoder."""

from __future__ import annotations

from pathlib import Path

from claim_runs import outcome


def test_gains_by_load_are_as_measured_to_10_percent_and_the_larger_k_crosses_one_earlier(
    tmp_path: Path,
) -> None:
    assert outcome("claim-03-qwen3-32b-larger-k-crosses-earlier", tmp_path).missed == []
