"""Closed forms of chain drafting.

Four quantities are all called an acceptance figure in the field; here each has its own name:

* `conditional_acceptance` (alpha): P(a draft is accepted | those before it were).
* `draft_acceptance_rate`: accepted / drafted (vLLM's log and Prometheus).
* `acceptance_length`: 1 + accepted / rounds; counts the token that every round yields.
* `by_position`: P(the first i drafts are all accepted), unconditional (vLLM's
  `synthetic_acceptance_rates`).

Time is counted in plain decoding steps. A round of K drafts takes `round_cost` of them; it gains when
it yields more tokens than that.
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


def draft_rate(conditional_acceptance: float, k: int) -> float:
    """Returns accepted/drafted under independent drafts: below alpha, as a rejection voids those after it."""
    return (expected_tokens(conditional_acceptance, k) - 1.0) / k


def conditional_from_draft_rate(draft_acceptance_rate: float, k: int) -> float:
    """Returns the alpha whose accepted/drafted at `k` is the given one; ValueError outside [0, 1]."""
    return conditional_from_length(length_from_draft_rate(draft_acceptance_rate, k), k)


def round_cost(k: int, cost_ratio: float, overhead: float = 0.0) -> float:
    """Returns plain steps that a round of `k` drafts takes: 1 + K c + o.

    Args:
        k: drafts a round; without drafts there is no overhead.
        cost_ratio: c, one draft pass over one plain step.
        overhead: o, what verifying adds to the plain step, as a share of it.
    """
    return 1.0 + k * cost_ratio + overhead if k else 1.0


def wall_time_speedup(
    conditional_acceptance: float, k: int, cost_ratio: float, overhead: float = 0.0
) -> float:
    """Returns tokens a round over its cost: with o = 0 (1 - a^(K+1)) / ((1 - a)(K c + 1)).

    Leviathan et al. 2023, theorem 3.8. It takes verification as free, which holds at small batch only;
    `overhead` is what it leaves out.
    """
    return expected_tokens(conditional_acceptance, k) / round_cost(k, cost_ratio, overhead)


def best_k(conditional_acceptance: float, cost_ratio: float, overhead: float = 0.0, most: int = 64) -> int:
    """Returns the K of 0 to `most` with the largest speedup, the smallest of equals; 0 is not to draft."""

    def speedup(k: int) -> float:
        return wall_time_speedup(conditional_acceptance, k, cost_ratio, overhead)

    return max(range(most + 1), key=speedup)


def needed_draft_rate(cost: float, k: int, speedup: float = 1.0) -> float:
    """Returns accepted/drafted at which rounds costing `cost` plain steps reach a speedup, by 1 + K r.

    Holds for any acceptance process. Below 0: reached without a single accepted draft; above 1: never.
    """
    return (speedup * cost - 1.0) / k


def needed_conditional(cost: float, k: int, speedup: float = 1.0) -> float | None:
    """Returns the alpha at which rounds costing `cost` plain steps reach a speedup, for independent drafts.

    0 where no draft need be accepted, None where all accepted are not enough.
    """
    length = speedup * cost
    if length <= 1.0:
        return 0.0
    return None if length > k + 1.0 else conditional_from_length(length, k)


def minimum_variance(length: float, k: int) -> list[float]:
    """Returns vLLM's schedule for `synthetic_acceptance_length`: whole positions sure, one fractional."""
    spare = length - 1.0
    return [min(max(spare - i, 0.0), 1.0) for i in range(k)]
