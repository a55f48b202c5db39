"""Which experts tokens go to: how many are distinct, and what the busiest rank of a group is given."""

from __future__ import annotations

from math import sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LARGEST_NORMAL = {
    1: 0.0, 2: 0.56419, 4: 1.02938, 8: 1.42360, 16: 1.76599, 32: 2.06967, 64: 2.34373, 128: 2.59460,
    256: 2.82686,
}  # fmt: skip
"""Expected largest of n independent standard normal values (order statistics, five digits)."""


class Load(NamedTuple):
    """What a rank computes for some tokens: distinct experts that it reads, and (token, expert) pairs."""

    distinct: Array
    visits: Array


def distinct_experts(tokens: Array, num_experts: int, per_token: int) -> Array:
    """Expected distinct experts that `tokens` tokens use in one layer, `N (1 - (1 - k/N)^t)`.

    Routing is uniform and independent; the tokens may be fractional, which is how correlated tokens are
    counted. Source: MoESD, arXiv 2505.19645, and others.
    """
    return num_experts * (1.0 - (1.0 - per_token / num_experts) ** tokens)


def effective_tokens(rows: Array, drafts: int, correlation: float) -> Array:
    """Independent tokens in `rows` rows of sequences with 1 + `drafts` tokens: `B (1 + (1 - c) K)`."""
    return rows * ((1.0 + (1.0 - correlation) * drafts) / (1.0 + drafts))


def largest_normal(count: int) -> float:
    """Expected largest of `count` standard normal values; between the tabled counts in their logarithm."""
    known = sorted(LARGEST_NORMAL)
    return float(np.interp(np.log2(count), np.log2(known), [LARGEST_NORMAL[n] for n in known]))


def busiest_rank(
    tokens: Array, num_experts: int, per_token: int, ranks: int, rows: Array | None = None
) -> Load:
    """What the busiest of `ranks` equal shares of the experts is given, under uniform routing.

    A share's mean is a `ranks`-th of the whole; the largest share lies `e s` above it, e the expected largest
    of `ranks` normal values and s the spread of an expert's own part in a share: with N experts, k a token,
    `s^2 = N/R (p - q)` for distinct experts (p and q the chance that t tokens leave one, and two given,
    experts unread: `(1 - k/N)^t`, `((N-k)(N-k-1) / (N(N-1)))^t`) and `t k (N-k) / (R (N-1))` for visits.
    Neither is above what there is. Exact in the mean and the variance; the largest is that of a normal law,
    2 to 5 % off for a token or two (`tests/hardware/test_routing.py` draws it).

    Args:
        tokens: independent tokens of all ranks together, any shape, may be fractional.
        num_experts: experts of a layer, the same number on each rank.
        per_token: experts that a token goes to.
        ranks: shares.
        rows: tokens that are computed, where correlation makes them more than `tokens`.
    """
    computed = tokens if rows is None else rows
    if ranks == 1:
        return Load(distinct_experts(tokens, num_experts, per_token), computed * per_token)
    n, k, share = num_experts, per_token, num_experts / ranks
    above = largest_normal(ranks)
    unread = (1.0 - k / n) ** tokens
    pair_unread = ((n - k) * max(n - k - 1, 0) / (n * (n - 1.0))) ** tokens
    spread = np.sqrt(np.maximum(share * (unread - pair_unread), 0.0))
    most = np.minimum(share, tokens * min(k, share))
    distinct = np.minimum(share * (1.0 - unread) + above * spread, most)
    part = sqrt(k * (n - k) / (ranks * (n - 1.0)))
    visits = computed * k / ranks + above * part * np.sqrt(computed)
    return Load(distinct, np.minimum(visits, computed * min(k, share)))
