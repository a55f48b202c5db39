"""Closed forms of chain drafting.

Four quantities are all called an acceptance figure in the field; here each has its own name:

* `conditional_acceptance` (alpha): P(a draft is accepted | those before it were).
* `draft_acceptance_rate`: accepted / drafted (vLLM's log and Prometheus).
* `acceptance_length`: 1 + accepted / rounds; counts the token that every round yields.
* `by_position`: P(the first i drafts are all accepted), unconditional (vLLM's
  `synthetic_acceptance_rates`).
"""

from __future__ import annotations

from collections.abc import Sequence


def survival(conditional_acceptance: float, k: int, decay: float = 1.0) -> list[float]:
    """Returns `by_position` of length `k` for alpha at the first position, times `decay` at each next."""
    survivors, alive, alpha = [], 1.0, conditional_acceptance
    for _ in range(k):
        alive *= alpha
        survivors.append(alive)
        alpha *= decay
    return survivors


def acceptance_length(by_position: Sequence[float]) -> float:
    """Returns tokens a round: 1 + the sum of the survival probabilities (any dependence)."""
    return 1.0 + sum(by_position)


def expected_tokens(conditional_acceptance: float, k: int) -> float:
    """Returns (1 - a^(k+1)) / (1 - a): tokens a round under independent drafts (Leviathan et al. 2023)."""
    if conditional_acceptance == 1.0:
        return k + 1.0
    return float((1.0 - conditional_acceptance ** (k + 1)) / (1.0 - conditional_acceptance))


def length_from_draft_rate(draft_acceptance_rate: float, k: int) -> float:
    """Returns 1 + K x accepted/drafted: an identity for any acceptance process."""
    return 1.0 + k * draft_acceptance_rate


def conditional_from_length(length: float, k: int) -> float:
    """Returns the alpha whose `expected_tokens` at `k` is `length`, by bisection.

    Raises:
        ValueError: if no alpha in [0, 1] gives it.
    """
    if not 1.0 <= length <= k + 1.0:
        raise ValueError(f"acceptance_length {length:g} is outside [1, {k + 1}] for {k} drafts a round")
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if expected_tokens(middle, k) < length else (low, middle)
    return (low + high) / 2


def minimum_variance(length: float, k: int) -> list[float]:
    """Returns vLLM's schedule for `synthetic_acceptance_length`: whole positions sure, one fractional."""
    spare = length - 1.0
    return [min(max(spare - i, 0.0), 1.0) for i in range(k)]
