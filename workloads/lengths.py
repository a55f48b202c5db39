"""Laws of prompt and output lengths, and the joint draw of the two.

Each law maps uniforms to token counts by its inverse CDF, so that the same uniform gives comparable lengths
under two laws (common random numbers) and two lengths can be tied by a copula.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Protocol

import numpy as np

from specfleet.workloads.normal import normal_cdf, normal_quantile
from specfleet.workloads.requests import FloatArray, IntArray

MEAN_GRID = 1 << 16


class LengthDistribution(Protocol):
    """A law of token counts >= 1."""

    @property
    def maximum(self) -> int:
        """Largest length the law can give, in tokens."""
        ...

    @property
    def mean(self) -> float:
        """Mean length in tokens, after clamps and rounding."""
        ...

    def quantile(self, u: FloatArray) -> IntArray:
        """Lengths in tokens at the probabilities `u` in [0, 1]; same shape, never falling in u."""
        ...


class _GridMean(ABC):
    """`mean` by averaging the inverse CDF over equal steps of probability: right for any law."""

    @property
    def mean(self) -> float:
        """Mean length in tokens, from 65,536 equally likely quantiles."""
        return _grid_mean(self)

    @abstractmethod
    def quantile(self, u: FloatArray) -> IntArray:
        """Lengths in tokens at the probabilities `u`."""


@lru_cache(maxsize=256)
def _grid_mean(law: _GridMean) -> float:
    """The mean of a law, kept: every point of a grid asks for that of the same few."""
    return float(law.quantile(_midpoints(MEAN_GRID)).mean())


def _midpoints(n: int) -> FloatArray:
    """The n midpoints of equal steps over [0, 1]."""
    return np.asarray((np.arange(n) + 0.5) / n, dtype=np.float64)


def _whole(tokens: FloatArray) -> IntArray:
    """Rounded to whole tokens, at least 1."""
    return np.maximum(np.rint(tokens), 1.0).astype(np.int64)


def _check_range(low: int, high: int, law: str) -> None:
    """ValueError unless 1 <= low <= high."""
    if not 1 <= low <= high:
        raise ValueError(f"{law} lengths need 1 <= min <= max, got min {low} and max {high}")


@dataclass(frozen=True)
class Fixed:
    """Every length is `tokens` (vLLM's `--random-input-len` with range ratio 0)."""

    tokens: int

    def __post_init__(self) -> None:
        """ValueError for a length below 1."""
        _check_range(self.tokens, self.tokens, "fixed")

    @property
    def maximum(self) -> int:
        """The length itself."""
        return self.tokens

    @property
    def mean(self) -> float:
        """The length itself."""
        return float(self.tokens)

    def quantile(self, u: FloatArray) -> IntArray:
        """`tokens`, whatever `u`."""
        return np.full(np.shape(u), self.tokens, dtype=np.int64)


@dataclass(frozen=True)
class Uniform:
    """Whole numbers from `min` to `max`, both included, equally likely."""

    min: int
    max: int

    def __post_init__(self) -> None:
        """ValueError unless 1 <= min <= max."""
        _check_range(self.min, self.max, "uniform")

    @classmethod
    def around(cls, tokens: int, range_ratio: float) -> Uniform:
        """vLLM's `--random-range-ratio`: floor(tokens (1 - r)) to ceil(tokens (1 + r)), r in [0, 1).

        Older vLLM and SGLang use the same name for [tokens r, tokens]; that meaning is not offered.
        The lower end is at least 1. Raises ValueError for r outside [0, 1).
        """
        if not 0 <= range_ratio < 1:
            raise ValueError(f"the range ratio must be in [0, 1), got {range_ratio}; 0 means fixed lengths")
        low = max(1, math.floor(tokens * (1 - range_ratio)))
        return cls(low, math.ceil(tokens * (1 + range_ratio)))

    @property
    def maximum(self) -> int:
        """The upper end."""
        return self.max

    @property
    def mean(self) -> float:
        """Midpoint of the two ends."""
        return (self.min + self.max) / 2

    def quantile(self, u: FloatArray) -> IntArray:
        """min + floor(u x number of values), the last value at u = 1."""
        steps = np.floor(np.asarray(u) * (self.max - self.min + 1)).astype(np.int64)
        return np.minimum(self.min + steps, self.max)


@dataclass(frozen=True)
class LogNormal(_GridMean):
    """exp(Normal(mu, sigma)) rounded to whole tokens within [min, max].

    `mu` and `sigma` are the mean and standard deviation of the *logarithm*. `tails` says what happens outside
    the limits: "clamp" moves a length to the nearest limit (an atom there), "redraw" drops it and draws again
    (what a data set filter does). Both limits are mandatory: an unclamped lognormal overshoots the capped
    tails of real traffic two to four times.
    """

    mu: float
    sigma: float
    min: int
    max: int
    tails: Literal["clamp", "redraw"] = "clamp"

    def __post_init__(self) -> None:
        """ValueError for limits out of order, a sigma that is not positive and finite, or unknown tails."""
        _check_range(self.min, self.max, "lognormal")
        if not (math.isfinite(self.mu) and 0 < self.sigma < math.inf):
            raise ValueError(
                f"lognormal needs a finite mu and sigma > 0, got mu {self.mu}, sigma {self.sigma}"
            )
        if self.tails not in ("clamp", "redraw"):
            raise ValueError(f"lognormal tails are 'clamp' or 'redraw', got {self.tails!r}")

    @classmethod
    def from_mean_p50(cls, mean_tokens: float, p50_tokens: float, min: int, max: int) -> LogNormal:
        """The clamped lognormal with this median, and this mean before clamping.

        mu = ln p50, sigma = sqrt(2 ln(mean / p50)). ValueError unless 0 < p50 < mean.
        """
        if not 0 < p50_tokens < mean_tokens:
            raise ValueError(f"a lognormal needs 0 < p50 < mean, got p50 {p50_tokens} and mean {mean_tokens}")
        return cls(math.log(p50_tokens), math.sqrt(2 * math.log(mean_tokens / p50_tokens)), min, max)

    @classmethod
    def from_mean(
        cls,
        mean_tokens: float,
        sigma: float,
        min: int,
        max: int,
        tails: Literal["clamp", "redraw"] = "clamp",
    ) -> LogNormal:
        """The lognormal of this sigma whose mean *within the limits* is `mean_tokens` (mu by bisection).

        ValueError when no mu reaches it: the mean must lie well inside (min, max).
        """
        u = _midpoints(4096)
        low, high = math.log(min) - 8 * sigma, math.log(max) + 8 * sigma
        for _ in range(60):
            mu = (low + high) / 2
            mean = cls(mu, sigma, min, max, tails).quantile(u).mean()
            low, high = (mu, high) if mean < mean_tokens else (low, mu)
        law = cls(high, sigma, min, max, tails)
        if abs(law.quantile(u).mean() - mean_tokens) > 0.01 * mean_tokens:
            raise ValueError(
                f"no lognormal of sigma {sigma} within {min}..{max} has mean {mean_tokens}; widen the limits"
            )
        return law

    @property
    def maximum(self) -> int:
        """The upper limit."""
        return self.max

    def quantile(self, u: FloatArray) -> IntArray:
        """exp(mu + sigma z(u)), rounded, within the limits."""
        u = np.asarray(u, dtype=np.float64)
        if self.tails == "redraw":
            ends = (np.log(np.array([self.min - 0.5, self.max + 0.5])) - self.mu) / self.sigma
            first, last = normal_cdf(ends)
            u = first + u * (last - first)
        log_tokens = self.mu + self.sigma * normal_quantile(u)
        within = np.clip(log_tokens, math.log(self.min), math.log(self.max))
        return np.clip(_whole(np.exp(within)), self.min, self.max)


@dataclass(frozen=True)
class Empirical(_GridMean):
    """A measured law given by percentiles, linear in between (linear inverse CDF), rounded to whole tokens.

    `percentiles` rise strictly from 0 to 100, `values` (tokens) never fall and end at 1 or more.
    """

    percentiles: tuple[float, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        """ValueError for a table that is not an inverse CDF."""
        nodes, values = np.asarray(self.percentiles), np.asarray(self.values)
        if len(nodes) != len(values) or len(nodes) < 2:
            raise ValueError(f"a quantile table needs two or more pairs, got {len(nodes)} and {len(values)}")
        if nodes[0] != 0 or nodes[-1] != 100 or not (np.diff(nodes) > 0).all():
            raise ValueError("the percentiles of a quantile table must rise from 0 to 100")
        if not (values[0] >= 0 and values[-1] >= 1 and (np.diff(values) >= 0).all()):
            raise ValueError("the tokens of a quantile table must not fall, and must end at 1 or more")

    @property
    def maximum(self) -> int:
        """The value at percentile 100."""
        return int(_whole(np.asarray(self.values[-1:]))[0])

    def quantile(self, u: FloatArray) -> IntArray:
        """The table read at 100 u, rounded to whole tokens, at least 1."""
        return _whole(np.asarray(np.interp(np.asarray(u) * 100.0, self.percentiles, self.values)))


@dataclass(frozen=True)
class Scaled(_GridMean):
    """Lengths of `base` times `factor`, rounded, at least 1 (stretch a preset to a known mean)."""

    base: LengthDistribution
    factor: float

    def __post_init__(self) -> None:
        """ValueError for a factor that is not positive and finite."""
        if not 0 < self.factor < math.inf:
            raise ValueError(f"the length factor must be positive, got {self.factor}")

    @property
    def maximum(self) -> int:
        """Largest scaled length."""
        return max(1, round(self.base.maximum * self.factor))

    def quantile(self, u: FloatArray) -> IntArray:
        """Scaled lengths of the base law."""
        return _whole(self.base.quantile(u).astype(np.float64) * self.factor)


@dataclass(frozen=True)
class Shifted(_GridMean):
    """Lengths of `base` plus `tokens`, at least 1 (another chat template, a system prompt)."""

    base: LengthDistribution
    tokens: int

    @property
    def maximum(self) -> int:
        """Largest shifted length."""
        return max(1, self.base.maximum + self.tokens)

    def quantile(self, u: FloatArray) -> IntArray:
        """Shifted lengths of the base law."""
        return np.maximum(self.base.quantile(u) + self.tokens, 1)


@dataclass(frozen=True)
class Capped(_GridMean):
    """Lengths of `base`, cut at `cap` tokens."""

    base: LengthDistribution
    cap: int

    def __post_init__(self) -> None:
        """ValueError for a cap below 1."""
        _check_range(self.cap, self.cap, "capped")

    @property
    def maximum(self) -> int:
        """The cap, or the base law's maximum if that is lower."""
        return min(self.base.maximum, self.cap)

    def quantile(self, u: FloatArray) -> IntArray:
        """Lengths of the base law, at most the cap."""
        return np.minimum(self.base.quantile(u), self.cap)


@dataclass(frozen=True, eq=False)
class Recorded:
    """Lengths of the rows of a trace; a prompt's and an output's law hold the same rows in the same order.

    Args:
        tokens: of each row.
    """

    tokens: IntArray

    @property
    def maximum(self) -> int:
        """The longest that was recorded."""
        return int(self.tokens.max())

    @property
    def mean(self) -> float:
        """The mean of the rows."""
        return float(self.tokens.mean())

    def rows(self, u: FloatArray) -> IntArray:
        """The row that each uniform picks: every one is as likely as another."""
        return np.minimum(np.floor(np.asarray(u) * len(self.tokens)), len(self.tokens) - 1).astype(np.int64)

    def quantile(self, u: FloatArray) -> IntArray:
        """The rows' lengths in rising order, at the probabilities `u`."""
        return np.asarray(np.sort(self.tokens)[self.rows(u)])


@dataclass(frozen=True, eq=False)
class Mixed:
    """Lengths of several kinds of requests together.

    Args:
        laws: (weight, law, tokens put in front of each) of each kind.
    """

    laws: tuple[tuple[float, LengthDistribution, int], ...]

    @property
    def maximum(self) -> int:
        """The longest of any kind."""
        return max(law.maximum + more for _, law, more in self.laws)

    @property
    def mean(self) -> float:
        """The weighted mean of the kinds."""
        total = sum(weight for weight, _, _ in self.laws)
        return sum(weight * (law.mean + more) for weight, law, more in self.laws) / total

    def quantile(self, u: FloatArray) -> IntArray:
        """Lengths at the probabilities `u`, from 4,096 equally likely ones of each kind."""
        grid = _midpoints(4096)
        tokens = np.concatenate([law.quantile(grid) + more for _, law, more in self.laws])
        weights = np.repeat([weight for weight, _, _ in self.laws], len(grid))
        order = np.argsort(tokens, kind="stable")
        below = np.cumsum(weights[order]) / weights.sum()
        places = np.searchsorted(below, np.asarray(u), side="left")
        return np.asarray(tokens[order][np.minimum(places, len(order) - 1)], dtype=np.int64)


def correlated_uniforms(u: FloatArray, v: FloatArray, rank_correlation: float) -> FloatArray:
    """Uniforms w with Spearman correlation `rank_correlation` to `u`, from independent uniforms `v`.

    Gaussian copula: Pearson correlation of the normals = 2 sin(pi r / 6) for Spearman r (Kruskal 1958).
    r = 0 returns `v` itself. Raises ValueError for r outside [-1, 1].
    """
    if not -1 <= rank_correlation <= 1:
        raise ValueError(f"the rank correlation must be in [-1, 1], got {rank_correlation}")
    if rank_correlation == 0:
        return v
    rho = 2 * math.sin(math.pi * rank_correlation / 6)
    return normal_cdf(rho * normal_quantile(u) + math.sqrt(max(0.0, 1 - rho * rho)) * normal_quantile(v))
