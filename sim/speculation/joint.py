"""Acceptance and output length drawn jointly: a Gaussian copula between a request's level and its length.

A request's level u is a function of its own draw and of the rank of its own output length:
`Phi^-1(u) = r z(rank) + sqrt(1 - r^2) z(own draw)`. Both parts are standard normal, so u stays
uniform. Requests of equal length share an interval of ranks and take a place in it by a draw of
their own; without it all would sit at its middle, and u would not be uniform.

`r = 2 sin(pi s / 6)` for a Spearman correlation s.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from specfleet.sim.speculation.luck import LEVEL, TIE, bits_once
from specfleet.sim.speculation.spread import F64, LEVELS
from specfleet.workloads.normal import normal_cdf, normal_quantile

Rank = tuple[float, float]
"""Share of requests with shorter output, and with output no longer."""

_NORMAL = NormalDist()
_NODES = 41


def normal_correlation(rank_correlation: float) -> float:
    """Returns the correlation of two normals whose ranks correlate as given (Pearson 1907)."""
    return 2.0 * math.sin(math.pi * rank_correlation / 6.0)


def output_ranks(output_tokens: npt.NDArray[np.int64]) -> F64:
    """Returns each request's `Rank` among its class, shape `(n, 2)`."""
    ordered = np.sort(output_tokens)
    shorter = np.searchsorted(ordered, output_tokens, side="left")
    no_longer = np.searchsorted(ordered, output_tokens, side="right")
    return np.column_stack([shorter, no_longer]) / max(len(ordered), 1)


def joint_level(seed: int, request_id: int, correlation: float, rank: Rank) -> int:
    """Returns a request's level from its own draws and the rank of its own output.

    Args:
        seed: of the run's luck.
        request_id: of the request.
        correlation: of the two normals.
        rank: of its output among its class.
    """
    own, tie = ((bits_once(seed, request_id, purpose) + 0.5) / (1 << 64) for purpose in (LEVEL, TIE))
    low, high = rank
    place = min(max(low + tie * (high - low), 1e-12), 1.0 - 1e-12)
    own = min(max(own, 1e-16), 1.0 - 1e-16)
    z = correlation * _NORMAL.inv_cdf(place) + math.sqrt(1.0 - correlation**2) * _NORMAL.inv_cdf(own)
    return min(int(_NORMAL.cdf(z) * LEVELS), LEVELS - 1)


def lengths_by_level(output_tokens: npt.NDArray[np.int64], correlation: float) -> F64:
    """Returns the mean output tokens of the requests at each level, shape `(LEVELS,)`.

    E[Q(Phi(r z_u + sqrt(1 - r^2) e))], Q the quantiles of the outputs, e standard normal at 41
    Gauss-Hermite nodes.
    """
    ordered = np.sort(output_tokens).astype(np.float64)
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    z = normal_quantile((np.arange(LEVELS) + 0.5) / LEVELS)
    ranks = normal_cdf(correlation * z[:, None] + math.sqrt(1.0 - correlation**2) * nodes)
    places = np.minimum((ranks * len(ordered)).astype(np.int64), len(ordered) - 1)
    return np.asarray(ordered[places] @ (weights / weights.sum()))
