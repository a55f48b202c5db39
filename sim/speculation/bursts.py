"""Bursts: rounds of one request that resemble the round before.

Two forms. `Burst` moves a request's conditional acceptance up and down on the logit, as an AR(1)
process over its rounds: learned drafters, whose rounds are weakly correlated. `HotCold` switches a
request between copying and not copying, as a two-state chain over its sampling steps: n-gram
look-ups, which come in runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt

from specfleet.sim.speculation.luck import BURST, GOLDEN, I64, bits64, key, keys, mix
from specfleet.sim.speculation.spread import F64, LEVELS, LowAtom, Spread
from specfleet.workloads.normal import normal_quantile

_STATES = 15
_LOGITS = np.linspace(-60.0, 60.0, 6001)


@dataclass(frozen=True, slots=True)
class Burst:
    """A request's logit of conditional acceptance at round t is its own plus x_t, x an AR(1) process.

    Args:
        rho: correlation of x from one round to the next.
        sigma: standard deviation of x; x starts in its stationary law.

    Raises:
        ValueError: naming the fault.
    """

    rho: float
    sigma: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.rho < 1.0:
            raise ValueError(f"burst.rho is {self.rho:g}; it must lie in [0, 1)")
        if not self.sigma > 0.0:
            raise ValueError(f"burst.sigma is {self.sigma:g}; it must be positive")


@dataclass(frozen=True, slots=True)
class HotCold:
    """A request copies (hot: a draft is found, and mostly accepted) or does not (cold).

    The share of hot steps is the request's own: its survival at the first position over
    `accept_hot`. The memory of the chain, stay - enter, is the same for all requests.

    Args:
        stay: P(a step is hot | the step before was).
        enter: P(a step is hot | the step before was cold).
        accept_hot: P(the first draft of a hot step is accepted).
        propose_cold: share of cold steps that find a draft all the same; none of it is accepted.

    Raises:
        ValueError: naming the fault.
    """

    stay: float
    enter: float
    accept_hot: float
    propose_cold: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.enter <= self.stay < 1.0:
            raise ValueError(
                f"hot_cold: stay {self.stay:g} and enter {self.enter:g} must satisfy 0 <= enter <= stay < 1"
            )
        if not 0.0 < self.accept_hot <= 1.0:
            raise ValueError(f"hot_cold.accept_hot is {self.accept_hot:g}; it must lie in (0, 1]")
        if not 0.0 <= self.propose_cold <= 1.0:
            raise ValueError(f"hot_cold.propose_cold is {self.propose_cold:g}; it must lie in [0, 1]")

    @property
    def memory(self) -> float:
        """Returns stay - enter: the correlation of a step's state with that of the step before."""
        return self.stay - self.enter

    def chain(self, first: float) -> tuple[float, float, float]:
        """Returns (share, stay, enter) of a request whose first draft survives with P `first`."""
        share = min(first / self.accept_hot, 1.0)
        return share, share + (1.0 - share) * self.memory, share * (1.0 - self.memory)


class BurstSpread(Spread):
    """A spread whose requests also have good and bad rounds.

    A request's conditional acceptance stays what its level says, on average over its rounds; only the
    drafts of one round move together. So survival beyond the first position rises, and the means are
    solved again with it: what was asked for comes out. x is taken at 15 Gauss-Hermite nodes.

    Args:
        concentration: a + b of the Beta over requests.
        low_atom: requests apart, or None.
        burst: the process within a request.
    """

    def __init__(self, concentration: float, low_atom: LowAtom | None, burst: Burst) -> None:
        super().__init__(concentration, low_atom)
        nodes, weights = np.polynomial.hermite_e.hermegauss(_STATES)
        self._x: F64 = burst.sigma * nodes
        self._weights: F64 = weights / weights.sum()
        self._means: F64 = _expit(_LOGITS[:, None] + self._x) @ self._weights
        self._mean_logits = _logit(self._means)
        self._state_rows = self.states(self._rows)

    def centres(self, conditional: F64) -> F64:
        """Returns the logits b with E[1 / (1 + exp(-b - x))] = conditional."""
        clipped = np.clip(conditional, self._means[0], self._means[-1])
        return np.interp(_logit(clipped), self._mean_logits, _LOGITS)

    def survival_of(self, centres: F64) -> F64:
        """Returns P(first i drafts accepted), averaged over rounds, for logits `(n, K)`."""
        return np.asarray(
            np.multiply.accumulate(_expit(centres[..., None] + self._x), axis=1) @ self._weights
        )

    def states(self, conditional: F64) -> F64:
        """Returns conditional acceptance at each node of x, on a new last axis."""
        return _expit(self.centres(conditional)[..., None] + self._x)

    def survival(self, conditional: F64) -> F64:
        """Returns P(first i drafts accepted) by level, averaged over the rounds of a request."""
        return np.asarray(np.multiply.accumulate(self.states(conditional), axis=1) @ self._weights)

    def _start(self) -> F64:
        return np.broadcast_to(self._weights, (LEVELS, _STATES))

    def _reached(self, weights: F64, alive: F64) -> F64:
        return np.asarray(np.tensordot(self._state_rows, weights[:, None] * alive, 2) / weights.sum())

    def _after(self, alive: F64, conditional: F64) -> F64:
        return alive * self.states(conditional)


def _expit(x: F64) -> F64:
    return np.asarray(1.0 / (1.0 + np.exp(-x)))


def _logit(p: F64) -> F64:
    return np.asarray(np.log(p) - np.log1p(-p))


def deviations(burst: Burst, seed: int, request_id: int, rounds: int) -> F64:
    """Returns x of a request's first `rounds` rounds, shape `(rounds,)`: a function of its own draws."""
    draws = (bits64(key(seed, request_id, BURST), 0, rounds) >> np.uint64(11)).astype(np.float64)
    noise = normal_quantile((draws + 0.5) / (1 << 53))
    noise[1:] *= np.sqrt(1.0 - burst.rho**2)
    return burst.sigma * np.fromiter(
        accumulate(noise.tolist(), lambda x, e: burst.rho * x + e), np.float64, rounds
    )


def deviations_each(burst: Burst, seed: int, request_ids: I64, rounds: int) -> F64:
    """Returns `deviations` of many requests, a column each, shape `(rounds, n)`."""
    counters = np.arange(1, rounds + 1, dtype=np.uint64) * np.uint64(GOLDEN)
    bits = mix(keys(seed, request_ids, BURST) + counters[:, None])
    draws = (bits >> np.uint64(11)).astype(np.float64)
    x = normal_quantile((draws + 0.5) / (1 << 53))
    x[1:] *= np.sqrt(1.0 - burst.rho**2)
    for before, now in pairwise(x):
        now += burst.rho * before
    return burst.sigma * x


def survival_at(centres: F64, x: F64) -> F64:
    """Returns survival by round and position, for logits `(K,)` and deviations `(rounds,)`."""
    return np.multiply.accumulate(_expit(centres + x[:, None]), axis=1)


def two_state(draws: F64, share: float, stay: float, enter: float) -> bytes:
    """Returns the states (1 hot, 0 cold) of a two-state chain, one draw in [0, 1) a step.

    Args:
        draws: shape `(1 + steps,)`; the first one decides the state before the first step.
        share: P(that state is hot).
        stay: P(hot after hot).
        enter: P(hot after cold).
    """
    one = (np.array([value]) for value in (share, stay, enter))
    return states_each(draws, np.array([0]), np.array([len(draws)]), *one)[1:].tobytes()


def states_each(
    draws: F64, starts: I64, counts: I64, share: F64, stay: F64, enter: F64
) -> npt.NDArray[np.bool_]:
    """Returns the states of many chains, one after another, those before their first steps included.

    A draw below both probabilities makes the step hot, one above both cold, whatever stood before. In between
    the step is as the one before it, or, where `stay` is the smaller one, its opposite. So each state is that
    of the last step that was decided alone, turned round once a step since: no loop over the steps.

    Args:
        draws: of all chains, flat.
        starts, counts: first place and draws of each, shape `(n,)`.
        share, stay, enter: as in `two_state`, shape `(n,)`.
    """
    hot = draws < np.repeat(np.minimum(stay, enter), counts)
    alone = hot | (draws >= np.repeat(np.maximum(stay, enter), counts))
    hot[starts], alone[starts] = draws[starts] < share, True
    places = np.arange(len(draws))
    last = np.maximum.accumulate(np.where(alone, places, 0))
    states = hot[last]
    if (stay < enter).any():
        states ^= ((places - last) & np.repeat(stay < enter, counts)).astype(np.bool_)
    return states
