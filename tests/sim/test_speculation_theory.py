"""Closed forms of chain drafting: identities, then worked numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specfleet.sim.speculation.theory import (
    acceptance_length,
    best_k,
    conditional_from_draft_rate,
    conditional_from_length,
    draft_rate,
    expected_tokens,
    length_from_draft_rate,
    needed_conditional,
    needed_draft_rate,
    round_cost,
    survival,
    wall_time_speedup,
)

ALPHAS = st.floats(0.0, 1.0)
DRAFTS = st.integers(1, 16)
SHARES = st.floats(0.0, 2.0)


@given(ALPHAS, DRAFTS)
def test_expected_tokens_are_one_and_the_survival_of_each_draft(alpha: float, k: int) -> None:
    assert expected_tokens(alpha, k) == pytest.approx(acceptance_length(survival(alpha, k)), abs=1e-6)


@given(ALPHAS, DRAFTS)
def test_both_definitions_describe_the_same_round(alpha: float, k: int) -> None:
    rate = draft_rate(alpha, k)
    assert length_from_draft_rate(rate, k) == pytest.approx(expected_tokens(alpha, k))
    assert rate <= alpha + 1e-9


@given(ALPHAS, DRAFTS)
def test_alpha_comes_back_from_accepted_over_drafted(alpha: float, k: int) -> None:
    assert conditional_from_draft_rate(draft_rate(alpha, k), k) == pytest.approx(alpha, abs=1e-6)


@given(st.floats(1.0, 3.0))
def test_inversion_has_closed_forms_for_one_and_two_drafts(length: float) -> None:
    assert conditional_from_length(min(length, 2.0), 1) == pytest.approx(min(length, 2.0) - 1.0)
    assert conditional_from_length(length, 2) == pytest.approx((math.sqrt(4 * length - 3) - 1) / 2)


@given(DRAFTS, SHARES, SHARES, st.floats(0.5, 4.0))
def test_at_the_needed_acceptance_the_speedup_is_the_one_asked_for(
    k: int, cost_ratio: float, overhead: float, speedup: float
) -> None:
    cost = round_cost(k, cost_ratio, overhead)
    alpha = needed_conditional(cost, k, speedup)
    if alpha is None:
        assert wall_time_speedup(1.0, k, cost_ratio, overhead) < speedup
    elif alpha > 1e-9:
        assert wall_time_speedup(alpha, k, cost_ratio, overhead) == pytest.approx(speedup, rel=1e-6)
        assert needed_draft_rate(cost, k, speedup) == pytest.approx(draft_rate(alpha, k), abs=1e-6)
    else:
        assert wall_time_speedup(0.0, k, cost_ratio, overhead) >= speedup - 1e-6


@given(ALPHAS, SHARES, SHARES)
def test_no_other_k_is_faster_than_the_best(alpha: float, cost_ratio: float, overhead: float) -> None:
    chosen = best_k(alpha, cost_ratio, overhead, most=20)
    speedups = [wall_time_speedup(alpha, k, cost_ratio, overhead) for k in range(21)]
    assert speedups[chosen] == max(speedups)
    assert all(speedup < speedups[chosen] for speedup in speedups[:chosen])
    assert speedups[0] == 1.0


@given(st.floats(0.0, 0.9), st.floats(1e-6, 1.0))
def test_drafting_at_a_cost_above_its_acceptance_never_pays(alpha: float, extra: float) -> None:
    assert best_k(alpha, cost_ratio=alpha + extra) == 0


@given(ALPHAS, st.integers(1, 6), st.integers(0, 2**32))
def test_a_drawn_chain_yields_the_expected_tokens(alpha: float, k: int, seed: int) -> None:
    passed = np.random.default_rng(seed).random((4000, k)) < alpha
    drawn = 1.0 + np.logical_and.accumulate(passed, axis=1).sum(axis=1)
    assert abs(drawn.mean() - expected_tokens(alpha, k)) < 6.0 * (drawn.std() / math.sqrt(4000) + 1e-3)


@pytest.mark.parametrize(("alpha", "k", "tokens"), [(0.8, 4, 3.36), (0.9, 5, 4.69), (0.6, 5, 2.38)])
def test_expected_tokens_in_worked_examples(alpha: float, k: int, tokens: float) -> None:
    assert expected_tokens(alpha, k) == pytest.approx(tokens, abs=0.005)


def test_the_naive_break_even_at_15_percent_overhead_and_five_drafts_is_3_percent() -> None:
    cost = round_cost(5, cost_ratio=0.0, overhead=0.15)
    assert needed_draft_rate(cost, 5) == pytest.approx(0.03)
    assert length_from_draft_rate(0.03, 5) == pytest.approx(1.15)
    conditional = needed_conditional(cost, 5)
    assert conditional is not None and conditional == pytest.approx(0.1305, abs=1e-3)


def test_speedup_by_drafts_at_alpha_90_and_a_drafter_of_4_percent() -> None:
    speedups = [wall_time_speedup(0.9, k, 0.04) for k in range(1, 11)]
    assert speedups == pytest.approx(
        [1.827, 2.509, 3.071, 3.530, 3.905, 4.207, 4.449, 4.641, 4.789, 4.901], abs=1e-3
    )
    assert best_k(0.9, 0.04, most=10) == 10
    assert best_k(0.9, 0.04) == 15


@pytest.mark.parametrize(("k", "rate"), [(1, 0.75), (2, 0.656), (3, 0.578), (5, 0.458), (7, 0.371)])
def test_accepted_over_drafted_falls_with_k_at_one_drafter(k: int, rate: float) -> None:
    assert draft_rate(0.75, k) == pytest.approx(rate, abs=5e-4)


def test_the_same_number_in_both_formulas_disagrees_wildly() -> None:
    assert expected_tokens(0.75, 5) == pytest.approx(3.29, abs=0.005)
    assert length_from_draft_rate(0.75, 5) == pytest.approx(4.75)
    assert draft_rate(0.75, 5) == pytest.approx(0.458, abs=5e-4)


@pytest.mark.parametrize(
    ("k", "alphas"),
    [
        (3, (0.389, 0.509, 0.607, 0.691, 0.765, 0.832, 0.893)),
        (5, (0.509, 0.624, 0.709, 0.777, 0.834, 0.883, 0.927)),
        (8, (0.621, 0.721, 0.791, 0.843, 0.885, 0.920, 0.950)),
    ],
)
def test_the_table_from_accepted_over_drafted_to_alpha(k: int, alphas: tuple[float, ...]) -> None:
    found = [conditional_from_draft_rate(tenths / 10, k) for tenths in range(2, 9)]
    assert found == pytest.approx(list(alphas), abs=6e-4)


@pytest.mark.parametrize(
    ("k", "rate", "alpha"), [(3, 0.603, 0.768), (4, 0.536, 0.765), (6, 0.427, 0.760), (7, 0.387, 0.761)]
)
def test_one_drafter_measured_at_four_k_has_one_alpha(k: int, rate: float, alpha: float) -> None:
    assert conditional_from_draft_rate(rate, k) == pytest.approx(alpha, abs=2e-3)
