"""Laws of pauses in seconds: what a user thinks, what a tool takes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from specfleet.workloads.normal import normal_quantile
from specfleet.workloads.requests import FloatArray


class PauseLaw(Protocol):
    """A law of seconds >= 0, by its inverse distribution function."""

    def quantile(self, u: FloatArray) -> FloatArray:
        """Seconds at the probabilities `u` in [0, 1); same shape, never falling in u."""
        ...


@dataclass(frozen=True)
class FixedPause:
    """Always `seconds`."""

    seconds: float

    def quantile(self, u: FloatArray) -> FloatArray:
        """`seconds`, whatever `u`."""
        return np.full(np.shape(u), self.seconds)


@dataclass(frozen=True)
class UniformPause:
    """From `low` to `high` seconds, equally likely."""

    low: float
    high: float

    def quantile(self, u: FloatArray) -> FloatArray:
        """low + u (high - low)."""
        return np.asarray(self.low + np.asarray(u) * (self.high - self.low))


@dataclass(frozen=True)
class ExponentialPause:
    """Exponential with a mean in seconds: without memory."""

    mean: float

    def quantile(self, u: FloatArray) -> FloatArray:
        """-mean log(1 - u)."""
        return np.asarray(-self.mean * np.log1p(-np.asarray(u)))


@dataclass(frozen=True)
class LogNormalPause:
    """Lognormal: `median` seconds, `sigma` of the natural logarithm, cut at `max` seconds."""

    median: float
    sigma: float
    max: float

    def quantile(self, u: FloatArray) -> FloatArray:
        """median exp(sigma z(u)), at most `max`."""
        within = np.minimum(self.sigma * normal_quantile(np.asarray(u)), math.log(self.max / self.median))
        return np.asarray(self.median * np.exp(within))


@dataclass(frozen=True)
class EmpiricalPause:
    """A measured law by percentiles, linear in between; `percentiles` rise from 0 to 100."""

    percentiles: tuple[float, ...]
    values: tuple[float, ...]

    def quantile(self, u: FloatArray) -> FloatArray:
        """The table read at 100 u."""
        return np.asarray(np.interp(np.asarray(u) * 100.0, self.percentiles, self.values))
