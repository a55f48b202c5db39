"""How much requests differ, from what each of them accepted: the concentration by maximum likelihood."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from specfleet.sim.speculation.spread import Spread

Counts = npt.NDArray[np.int64]

LEAST, MOST = 0.5, 1000.0
"""Concentrations looked at; a best one at `MOST` counts as all alike."""


def successes_and_failures(histogram: Sequence[int]) -> tuple[list[int], list[int]]:
    """Returns rounds that accept draft i, and rounds that stop just before it, for i = 1 .. K.

    Args:
        histogram: rounds by the drafts accepted in them, 0 .. K.
    """
    accepted = [sum(histogram[i:]) for i in range(1, len(histogram))]
    return accepted, list(histogram[:-1])


def log_likelihood(
    concentration: float, by_position: Sequence[float], accepted: Counts, stopped: Counts
) -> float:
    """Returns the log likelihood of what requests accepted, under one concentration.

    A request's level is unknown, so its likelihood is averaged over levels; positions share the level.
    The means are those whose survival, pooled over rounds, is `by_position`.

    Args:
        concentration: a + b of the Beta over requests.
        by_position: P(first i drafts accepted), pooled over all requests, K of them.
        accepted: rounds that accept draft i, shape `(requests, K)`.
        stopped: rounds that reach draft i and reject it, shape `(requests, K)`.
    """
    table = np.clip(Spread(concentration).pooled(by_position), 1e-9, 1.0 - 1e-9)
    by_level = accepted @ np.log(table).T + stopped @ np.log1p(-table).T
    best = by_level.max(axis=1)
    return float((best + np.log(np.exp(by_level - best[:, None]).mean(axis=1))).sum())


def concentration(by_position: Sequence[float], accepted: Counts, stopped: Counts) -> float:
    """Returns the concentration of the largest likelihood; inf where requests look alike.

    A golden-section search on its logarithm, to about 2 %. Arguments as `log_likelihood`.

    Raises:
        ValueError: for fewer than two requests, which do not show how requests differ.
    """
    if len(accepted) < 2:
        raise ValueError("the spread between requests needs at least two requests")

    def at(log_c: float) -> float:
        return log_likelihood(math.exp(log_c), by_position, accepted, stopped)

    low, high = math.log(LEAST), math.log(MOST)
    ratio = (math.sqrt(5.0) - 1.0) / 2.0
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    of_left, of_right = at(left), at(right)
    while high - low > 0.04:
        if of_left < of_right:
            low, left, of_left = left, right, of_right
            right = low + ratio * (high - low)
            of_right = at(right)
        else:
            high, right, of_right = right, left, of_left
            left = high - ratio * (high - low)
            of_left = at(left)
    found = (low + high) / 2
    return math.inf if math.log(MOST) - found < 0.05 else math.exp(found)
