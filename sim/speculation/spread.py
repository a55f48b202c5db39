"""Requests differ: how much each accepts, for a given spread.

A request draws one level u, once. At draft position i it accepts with probability
`Beta^-1(u; m_i c, (1 - m_i) c)`, c being the concentration; the positions move together (one u).
u takes 1,024 equally likely values, so that everything about a request is a row of a table.

Counters pool rounds, and a request that accepts little spends more rounds on the same output. So
where a counter is given, the means m_i are solved for the survival pooled over rounds (weight
1/tau(u)), and the mean acceptance length stays where it was measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]

LEVELS = 1024
_U = (np.arange(LEVELS) + 0.5) / LEVELS
_MEANS = np.linspace(0.0, 1.0, 129)


@dataclass(frozen=True, slots=True)
class LowAtom:
    """A share of requests that the drafter never gets right: their conditional acceptance is
    uniform between `low` and `high`, whatever the rest does."""

    weight: float
    low: float
    high: float


def beta_quantiles(mean: float, concentration: float, u: F64) -> F64:
    """Returns the quantiles at `u` of Beta(mean c, (1 - mean) c).

    Integrates the density on the logit scale, where it is smooth and falls off exponentially on
    both sides whatever the parameters. The error against exact quantiles is below 2e-4 for means in
    .05 .. .95 and concentrations in 1 .. 300.
    """
    if mean <= 0.0 or mean >= 1.0 or np.isinf(concentration):
        return np.full(u.shape, min(max(mean, 0.0), 1.0))
    a, b = mean * concentration, (1.0 - mean) * concentration
    centre = np.log(a / b)
    x = np.linspace(centre - 30.0 / min(a, 1.0) - 8.0, centre + 30.0 / min(b, 1.0) + 8.0, 8001)
    log_density = -a * np.logaddexp(0.0, -x) - b * np.logaddexp(0.0, x)
    density = np.exp(log_density - log_density.max())
    mass = np.concatenate(([0.0], np.cumsum((density[1:] + density[:-1]) / 2)))
    logits = np.interp(u * mass[-1], mass, x)
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(logits, -700.0, 700.0))))


@lru_cache(maxsize=16)
def _rows(concentration: float, low_atom: LowAtom | None) -> F64:
    """Returns conditional acceptance by mean and level, kept: whatever is tried has the same spread."""
    u, apart = _U, np.zeros(LEVELS, dtype=bool)
    atom = np.zeros(LEVELS)
    if low_atom is not None:
        apart = low_atom.weight > _U
        atom = low_atom.low + (low_atom.high - low_atom.low) * _U / low_atom.weight
        u = np.clip((_U - low_atom.weight) / (1.0 - low_atom.weight), 0.5 / LEVELS, 1.0)
    rows = np.array([np.where(apart, atom, beta_quantiles(mean, concentration, u)) for mean in _MEANS])
    rows.flags.writeable = False
    return rows


class Spread:
    """The table of conditional acceptance by mean and level for one concentration.

    Args:
        concentration: a + b of the Beta; inf = all requests alike.
        low_atom: requests apart, or None.
    """

    def __init__(self, concentration: float, low_atom: LowAtom | None = None) -> None:
        self._rows = _rows(concentration, low_atom)

    def conditional(self, mean: float) -> F64:
        """Returns the conditional acceptance of each level, shape `(LEVELS,)`, for mean `mean`."""
        place = mean * (len(_MEANS) - 1)
        below = min(int(place), len(_MEANS) - 2)
        share = place - below
        return np.asarray(self._rows[below] * (1.0 - share) + self._rows[below + 1] * share)

    def by_request(self, means: Sequence[float]) -> F64:
        """Returns conditional acceptance by level and position, `(LEVELS, K)`, for means over requests."""
        return np.column_stack([self.conditional(mean) for mean in means])

    def pooled(self, by_position: Sequence[float], lengths: F64 | None = None) -> F64:
        """Returns conditional acceptance by level and position whose survival, pooled over rounds, is given.

        Args:
            by_position: P(first i drafts accepted), non-increasing, K of them.
            lengths: mean output tokens by level, shape `(LEVELS,)`; None where they do not depend on it.

        Raises:
            ValueError: if the requests apart keep it from being reached.
        """
        tokens = np.ones(LEVELS) if lengths is None else lengths
        weights = tokens
        table = np.zeros((LEVELS, len(by_position)))
        for _ in range(60):
            alive = self._start()
            for position, target in enumerate(by_position):
                reached = self._reached(weights, alive)
                _within_reach(by_position, position, float(reached[-1]))
                mean = float(np.interp(target, reached, _MEANS))
                if not mean <= 1.0:  # beyond some hundred drafts survival has no digits left to divide by
                    mean = 0.0
                table[:, position] = self.conditional(mean)
                alive = self._after(alive, table[:, position])
            renewed = tokens / (1.0 + self.survival(table).sum(axis=1))
            settled = np.abs(renewed - weights).max() < 1e-12
            weights = renewed
            if settled:
                break
        return table

    def survival(self, conditional: F64) -> F64:
        """Returns P(first i drafts accepted) by level, for conditional acceptance of the same shape."""
        return np.multiply.accumulate(conditional, axis=1)

    def _start(self) -> F64:
        """Returns the share of rounds alive before the first draft, by level."""
        return np.ones(LEVELS)

    def _reached(self, weights: F64, alive: F64) -> F64:
        """Returns pooled survival after the next draft, for each mean of the table."""
        return np.asarray(self._rows @ (weights * alive) / weights.sum())

    def _after(self, alive: F64, conditional: F64) -> F64:
        """Returns the share alive after a draft with this conditional acceptance by level."""
        return alive * conditional


def _within_reach(by_position: Sequence[float], position: int, most: float) -> None:
    """Raises ValueError where survival at a position is asked to exceed what the requests apart leave."""
    if by_position[position] > most + 1e-9:
        raise ValueError(
            f"by_position {list(by_position)} cannot be reached with this low_atom: position "
            f"{position + 1} is at most {most:.3f}"
        )


def pooled_length(survival: F64, lengths: F64 | None = None) -> float:
    """Returns the acceptance length pooled over rounds: the harmonic mean over requests.

    Args:
        survival: by level and position, shape `(LEVELS, K)`.
        lengths: mean output tokens by level, where they depend on it: the weights of that mean.
    """
    rounds = 1.0 / (1.0 + survival.sum(axis=1))
    if lengths is None:
        return float(1.0 / np.mean(rounds))
    return float(lengths.sum() / (lengths @ rounds))
