"""Acceptance at a K that was not measured: one law for every draft position and every K.

Text is easy in places and hard in others. Within a stretch of it the i-th draft is accepted, given those
before it, with probability `logistic(b_i + sigma z)`: b_i belongs to drafter and position, z is standard
normal over stretches. A round of K drafts passes an easy stretch in few rounds, so counters, which pool
rounds, weigh a stretch by 1 / (tokens a round in it):

    by_position[i] = E[w_K(z) prod_{j<=i} p_j(z)],   w_K(z) ~ 1 / (1 + sum_{i<=K} prod_{j<=i} p_j(z))

Two things follow that a curve carried on at its last ratio misses. Survivors are easy stretches, which hides
how the drafter itself declines, so the ratio does not last; and every position is accepted less often the
larger K is (Llama-3.3-70B with a 1B draft model: the first draft in 87 % of rounds at K = 3, 83 at K = 7).

What is known before anything is counted is a normal law by family of drafters: ln sigma, b_1, the step from
the first position to the second, and the slope after it, along which each position wanders a little. Counts
narrow it by Bayes' rule, linearised about the most likely values (Gauss-Newton). Intervals are Student's t,
with two degrees of freedom more than the family has drafters, on the logarithm of accepted drafts a round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import numpy.typing as npt

from specfleet.sim.speculation.families import DrafterFamily
from specfleet.sim.statistics.student import student_t, two_sided_tail

F64 = npt.NDArray[np.float64]

CONFIDENCE = 0.9
"""Of every interval."""

_NODES = 33
"""Of a spread between requests, at which it is integrated."""

_WANDERING = 32
"""Positions with a value of their own; deeper ones follow the slope."""

_CLUSTERED = 3.0
"""Rounds of a run resemble each other: the variance of a counted share over that of independent rounds."""

_COUNTED_SD = 0.012
"""Standard deviation of a conditional acceptance's logit from run to run of the same prompts: acceptance
lengths repeat within 0.2 to 0.5 % (shared rows at c = 1, 2, 4)."""

_LENGTH_SD = 0.025
"""Of the logarithm of accepted drafts a round where only a length is known: the published curves of eight
K's come out of order by about 0.1 tokens."""

_REPEATS = 0.005
"""Of the same from one run to the next, which no count removes."""

_STEP = 1e-4


@dataclass(frozen=True)
class CountedAt:
    """What was counted at one K: positions, or the length alone.

    Args:
        k: drafts a round.
        by_position: P(first i drafts accepted), `k` of them; None where they were not counted.
        acceptance_length: tokens a round, where positions were not counted.
        rounds: verifications behind it.
    """

    k: int
    by_position: tuple[float, ...] | None = None
    acceptance_length: float | None = None
    rounds: float = 10_000.0


@dataclass(frozen=True)
class Predicted:
    """A prediction and its 90 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Depth:
    """A drafter on some traffic: what is known of its acceptance at every K.

    Args:
        family: its law.
        likely: the most likely (ln sigma, b_1, step, slope, deviations of positions 3 ..).
        covariance: of them.
    """

    family: DrafterFamily
    likely: F64
    covariance: F64

    def by_position(self, k: int) -> tuple[float, ...]:
        """Returns P(first i drafts accepted) at K = `k`."""
        return tuple(map(float, _pooled(self.likely, k)))

    def length(self, k: int) -> Predicted:
        """Returns the acceptance length at K = `k`, its own token included."""
        value, sd = self._log_accepted(k)
        away = student_t(CONFIDENCE, self.family.degrees) * sd
        return Predicted(*(1.0 + min(math.exp(x), float(k)) for x in (value, value - away, value + away)))

    def positions(self, k: int) -> tuple[Predicted, ...]:
        """Returns `by_position` at K = `k`, each with its interval, taken on the logit."""
        value = _logit(_pooled(self.likely, k))
        slopes = _jacobian(lambda at: _logit(_pooled(at, k)), self.likely)
        sd = np.sqrt(np.einsum("ij,jk,ik->i", slopes, self.covariance, slopes) + _COUNTED_SD**2)
        away = student_t(CONFIDENCE, self.family.degrees) * sd
        ends = (1.0 / (1.0 + np.exp(-x)) for x in (value, value - away, value + away))
        return tuple(Predicted(*map(float, each)) for each in zip(*ends, strict=True))

    def reaches(self, k: int, length: float) -> float:
        """Returns the chance that the acceptance length at K = `k` is at least `length`."""
        if length <= 1.0:
            return 1.0
        value, sd = self._log_accepted(k)
        t = (math.log(length - 1.0) - value) / sd
        tail = two_sided_tail(abs(t), self.family.degrees) / 2.0
        return tail if t > 0.0 else 1.0 - tail

    def deviation(self, k: int) -> float:
        """Returns the standard deviation of the acceptance length at K = `k`, as a share of it."""
        value, sd = self._log_accepted(k)
        accepted = math.exp(value)
        return sd * accepted / (1.0 + accepted)

    def after(self, k: int, rounds: float = 10_000.0) -> Depth:
        """Returns what would be known after counting `rounds` more at K = `k`, whatever comes out."""
        guess = CountedAt(k, self.by_position(k), rounds=rounds)
        slopes = _jacobian(lambda at: _expected([guess], at), self.likely)
        noise = _observed([guess])[1]
        precision = _inverse(self.covariance) + slopes.T @ (slopes / noise[:, None])
        return replace(self, covariance=_inverse(precision))

    def elsewhere(self) -> Depth:
        """Returns what this says of the same drafter on another data set."""
        apart = np.zeros_like(self.covariance)
        apart[:4, :4] = self.family.between_data_sets
        return replace(self, covariance=self.covariance + apart)

    def _log_accepted(self, k: int) -> tuple[float, float]:
        """The logarithm of accepted drafts a round, and its standard deviation."""

        def at(x: F64) -> F64:
            return np.array([math.log(_pooled(x, k).sum())])

        slopes = _jacobian(at, self.likely)[0]
        variance = float(slopes @ self.covariance @ slopes)
        return float(at(self.likely)[0]), math.sqrt(variance + _REPEATS**2)


def known(family: DrafterFamily, seen: Sequence[CountedAt], positions: int = 8) -> Depth:
    """Returns what counts say of a drafter of a family.

    Args:
        family: the law before anything was counted.
        seen: counts at one or more K's of one data set.
        positions: depth of interest.

    Raises:
        ValueError: for a count with neither positions nor a length that its K can have.
    """
    deepest = min(max([positions, *(each.k for each in seen), 3]), _WANDERING)
    prior = np.concatenate((family.means, np.zeros(deepest - 2)))
    precision = np.concatenate((family.deviations, np.full(deepest - 2, family.wander))) ** -2.0
    if not seen:
        return Depth(family, prior, np.diag(1.0 / precision))
    observed, noise = _observed(seen)
    at = prior

    def unlikely(at: F64) -> float:
        off = observed - _expected(seen, at)
        return float((off * off / noise).sum() + (precision * (at - prior) ** 2).sum())

    for _ in range(40):
        off = observed - _expected(seen, at)
        slopes = _jacobian(lambda x: _expected(seen, x), at)
        curvature = np.diag(precision) + slopes.T @ (slopes / noise[:, None])
        step = np.linalg.solve(curvature, precision * (prior - at) + slopes.T @ (off / noise))
        step /= max(1.0, float(np.abs(step).max()))
        while float(np.abs(step).max()) >= 1e-6 and unlikely(at + step) > unlikely(at):
            step = step / 2.0  # a whole one would turn back and forth about what is most likely
        at = at + step
        if float(np.abs(step).max()) < 1e-6:
            break
    slopes = _jacobian(lambda x: _expected(seen, x), at)
    return Depth(family, at, _inverse(np.diag(precision) + slopes.T @ (slopes / noise[:, None])))


def narrows_most(depth: Depth, ks: Sequence[int]) -> int:
    """Returns the K at which counting 10,000 rounds would narrow the lengths at `ks` most.

    The smallest that takes away nine tenths of what the best one does, of K up to the largest asked.
    """

    def left(after: Depth) -> float:
        return sum(after.deviation(k) for k in ks)

    now = left(depth)
    taken = {k: now - left(depth.after(k)) for k in range(1, max(ks) + 1)}
    return next(k for k, gain in taken.items() if gain >= 0.9 * max(taken.values()))


def at_k(depth: Depth, measured: Sequence[float], k: int) -> tuple[float, ...]:
    """Returns `by_position` at K = `k` of a curve measured at K = `len(measured)`.

    What the law leaves unexplained of the measured positions stays: at the measured K it is the curve itself.
    """
    law, there = np.array(depth.by_position(k)), np.array(depth.by_position(len(measured)))
    shared = min(k, len(measured))
    factor = np.ones(k)
    factor[:shared] = np.array(measured[:shared]) / there[:shared]
    factor[shared:] = factor[shared - 1]
    return tuple(map(float, np.minimum.accumulate(np.clip(law * factor, 0.0, 1.0))))


def _inverse(matrix: F64) -> F64:
    return np.asarray(np.linalg.inv(matrix), dtype=np.float64)


def _logits(at: F64, k: int) -> F64:
    """Returns b_1 .. b_k of a point of the law."""
    slope, apart = at[3], at[4:]
    steps = np.full(k, slope)
    steps[0] = at[1]
    if k > 1:
        steps[1] = at[2]
    steps[2 : 2 + len(apart)] += apart[: max(k - 2, 0)]
    return np.cumsum(steps)


@cache
def _normal_nodes() -> tuple[F64, F64]:
    """Returns Gauss-Hermite nodes and shares of a standard normal; made when first asked for."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    return nodes, np.asarray(weights / weights.sum())


def _pooled(at: F64, k: int) -> F64:
    """Returns P(first i drafts accepted), pooled over rounds of K = `k`."""
    spaced, shares = _normal_nodes()
    logits = _logits(at, k) + np.exp(np.clip(at[0], -6.0, 3.0)) * spaced[:, None]
    alive = np.multiply.accumulate(1.0 / (1.0 + np.exp(-np.clip(logits, -40.0, 40.0))), axis=1)
    weights = shares / (1.0 + alive.sum(axis=1))
    return np.asarray(weights @ alive / weights.sum())


def _logit(share: F64) -> F64:
    inside = np.clip(share, 1e-9, 1.0 - 1e-9)
    return np.asarray(np.log(inside) - np.log1p(-inside))


def _conditional(by_position: F64) -> F64:
    return by_position / np.concatenate(([1.0], by_position[:-1]))


def _expected(seen: Sequence[CountedAt], at: F64) -> F64:
    """Returns what is observed of such a drafter: logits of conditional acceptance, or ln of accepted."""
    found = []
    for each in seen:
        pooled = _pooled(at, each.k)
        found.append(
            np.array([math.log(pooled.sum())]) if each.by_position is None else _logit(_conditional(pooled))
        )
    return np.concatenate(found)


def _observed(seen: Sequence[CountedAt]) -> tuple[F64, F64]:
    """Returns what was observed and its variance, in the order of `_expected`."""
    values: list[F64] = []
    noise: list[F64] = []
    for each in seen:
        if each.by_position is not None and len(each.by_position) == each.k:
            alive = np.array(each.by_position)
            reached = np.maximum(each.rounds * np.concatenate(([1.0], alive[:-1])), 1.0)
            share = np.divide(each.rounds * alive, reached)
            share = np.clip(share, 0.5 / reached, 1.0 - 0.5 / reached)
            values.append(_logit(share))
            noise.append(_CLUSTERED / (reached * share * (1.0 - share)) + _COUNTED_SD**2)
        elif each.acceptance_length is not None and 1.0 <= each.acceptance_length <= each.k + 1.0:
            values.append(np.array([math.log(max(each.acceptance_length - 1.0, 1e-3))]))
            noise.append(np.array([_LENGTH_SD**2]))
        else:
            raise ValueError(f"K = {each.k} needs {each.k} positions, or a length up to {each.k + 1}")
    return np.concatenate(values), np.concatenate(noise)


def _jacobian(of: Callable[[F64], F64], at: F64) -> F64:
    """Returns the derivatives of a vector function, a column a parameter."""
    here = of(at)
    moved = [(of(at + _STEP * each) - here) / _STEP for each in np.eye(len(at))]
    return np.asarray(np.column_stack(moved))
