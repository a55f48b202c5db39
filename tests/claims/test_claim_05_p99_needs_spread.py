"""Claim 5: the tail of Llama-3.3-70B with EAGLE-3 comes from requests that differ."""

from __future__ import annotations

from pathlib import Path

from claim_runs import outcome

PRESET = "claim-05-p99-tail-of-requests-that-differ"


def test_with_spread_the_tail_at_concurrency_1_and_the_sign_at_64_are_as_measured(tmp_path: Path) -> None:
    assert outcome(PRESET, tmp_path).missed == []


def test_with_all_requests_alike_the_tail_at_concurrency_1_and_the_sign_at_64_are_missed(
    tmp_path: Path,
) -> None:
    found = outcome(PRESET, tmp_path, "acceptance.concentration=.inf")
    tail, sign, *means = found.verdicts
    assert not tail.holds and not sign.holds
    assert all(verdict.holds for verdict in means)
