"""Claim 12: drafts that are their model's best word, under sampling."""

from __future__ import annotations

from pathlib import Path

from claim_runs import outcome


def test_sampling_at_temperature_1_costs_a_best_word_draft_a_quarter_of_its_length(tmp_path: Path) -> None:
    assert outcome("claim-12-temperature-costs-acceptance", tmp_path).missed == []
