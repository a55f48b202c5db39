"""Claim 10: n-gram look-up loses on open chat and is at its best on code edits."""

from __future__ import annotations

from pathlib import Path

import pytest
from claim_runs import Outcome, outcome

PROFILE = "ngram-llama-3.1-8b-"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The run over code edits, chat and mathematics."""
    return outcome("claim-10-ngram-wins-on-code-edits", tmp_path_factory.mktemp("ngram"))


def tokens(found: Outcome, data: str, k: int) -> float:
    """Tokens of a sampling step, found match or not."""
    where = {"acceptance": {"profile": PROFILE + data}, "num_speculative_tokens": k}
    return found.figure("tokens_per_step", **where)


def test_on_open_chat_at_32_users_it_costs_throughput(tmp_path: Path) -> None:
    assert outcome("claim-10-ngram-loses-on-chat", tmp_path).missed == []


@pytest.mark.parametrize(("data", "measured"), [("code-edit", 2.30), ("chat", 1.45), ("gsm8k", 1.18)])
def test_tokens_a_step_at_k_5_are_those_of_the_traces(found: Outcome, data: str, measured: float) -> None:
    assert tokens(found, data, 5) == pytest.approx(measured, rel=0.06)


def test_code_edits_gain_most(found: Outcome) -> None:
    assert found.missed == []
    assert tokens(found, "code-edit", 8) > tokens(found, "code-edit", 5) > tokens(found, "chat", 5)
