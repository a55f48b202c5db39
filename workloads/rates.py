"""Rates that change with time, and the arrivals of a renewal process that follows them.

Gaps are drawn in units of the expected number of requests, and time is what it takes the rate to bring so
many: `t = L^-1(g_1 + ... + g_i)`, with L the integral of the rate. At a constant rate that is `open_loop` but
for vLLM's stretching of the last arrival to n / rate, which has no meaning where the rate changes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from specfleet.workloads.requests import FloatArray

DAY_S = 86_400.0
WAVE_PIECES = 288
"""Straight pieces of a cosine's period: 5 minutes of a day, off by 6e-5 of its swing at most."""


@dataclass(frozen=True)
class RateCurve:
    """Requests/s over time: straight between nodes, with a jump where two nodes share a time.

    Args:
        at_s: times of the nodes from 0 on, never falling, shape `(m,)`.
        per_s: rates there, none negative.
        repeats: what follows the last node is the same again; else it stays at the last rate.

    Raises ValueError for a curve that is empty, falls back in time, or brings no requests in the end.
    """

    at_s: tuple[float, ...]
    per_s: tuple[float, ...]
    repeats: bool = False

    def __post_init__(self) -> None:
        """ValueError for what is no curve."""
        at, rates = np.asarray(self.at_s), np.asarray(self.per_s)
        if len(at) != len(rates) or len(at) < 1 or at[0] != 0.0 or (np.diff(at) < 0).any():
            raise ValueError("a rate needs nodes from 0 s on, none before the one before it")
        if not (np.isfinite(rates).all() and (rates >= 0).all()):
            raise ValueError("rates must be finite and not negative")
        if self.repeats and not self.over_period > 0.0:
            raise ValueError("a rate that repeats needs a time in which it is above 0")
        if not self.repeats and not rates[-1] > 0.0:
            raise ValueError("the last rate must be above 0, or the requests after it never come")

    @cached_property
    def _nodes(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Times, rates, and the expected requests until each node."""
        at, rates = np.asarray(self.at_s, dtype=np.float64), np.asarray(self.per_s, dtype=np.float64)
        pieces = 0.5 * (rates[1:] + rates[:-1]) * np.diff(at)
        return at, rates, np.concatenate([[0.0], np.cumsum(pieces)])

    @property
    def period_s(self) -> float:
        """Seconds to the last node."""
        return self.at_s[-1]

    @property
    def over_period(self) -> float:
        """Expected requests until the last node."""
        return float(self._nodes[2][-1])

    @property
    def mean_per_s(self) -> float:
        """Requests/s on average: over the period, or the last rate of a curve that does not repeat."""
        return self.over_period / self.period_s if self.repeats else self.per_s[-1]

    def scaled(self, factor: float) -> RateCurve:
        """Returns the same shape at `factor` times the rate."""
        return RateCurve(self.at_s, tuple(rate * factor for rate in self.per_s), self.repeats)

    def expected(self, until_s: float) -> float:
        """Returns the expected requests from 0 until a time."""
        at, rates, total = self._nodes
        whole = 0.0
        if self.repeats:
            periods = math.floor(until_s / self.period_s)
            whole, until_s = periods * self.over_period, until_s - periods * self.period_s
        elif until_s >= self.period_s:
            return float(total[-1] + rates[-1] * (until_s - self.period_s))
        piece = max(int(np.searchsorted(at, until_s, side="right")) - 1, 0)
        here = float(np.interp(until_s, at, rates)) if piece + 1 < len(at) else float(rates[-1])
        return whole + float(total[piece]) + 0.5 * (float(rates[piece]) + here) * (until_s - float(at[piece]))

    def when(self, requests: FloatArray) -> FloatArray:
        """Returns the first times by which so many requests are expected, seconds, any shape."""
        at, rates, total = self._nodes
        whole = np.zeros_like(requests)
        rest = requests
        if self.repeats:
            whole = np.maximum(np.ceil(requests / self.over_period) - 1.0, 0.0)
            rest = requests - whole * self.over_period
        piece = np.maximum(np.searchsorted(total, rest, side="left") - 1, 0)
        last = len(at) - 1
        inside = np.minimum(piece, last - 1) if last else piece
        left = rest - total[inside]
        start = rates[inside]
        if last:
            length = at[inside + 1] - at[inside]
            slope = np.divide(rates[inside + 1] - start, length, out=np.zeros_like(left), where=length > 0)
        else:
            slope = np.zeros_like(left)
        slope = np.where(piece >= last, 0.0, slope)
        start = np.where(piece >= last, rates[-1], start)
        left = np.where(piece >= last, rest - total[-1], left)
        begun = np.where(piece >= last, at[-1], at[inside])
        # of start x + slope x^2 / 2 = left the root that stays exact at slope 0
        root = np.sqrt(np.maximum(start * start + 2.0 * slope * left, 0.0))
        gone = np.divide(2.0 * left, start + root, out=np.zeros_like(left), where=(start + root) > 0)
        return np.asarray(whole * self.period_s + begun + gone, dtype=np.float64)


def schedule(rates: Sequence[float], every_s: float, repeats: bool = True) -> RateCurve:
    """Returns a rate that jumps: `every_s` seconds at each of the rates, requests/s."""
    at = [0.0]
    for piece in range(1, len(rates)):
        at += [piece * every_s] * 2
    return RateCurve((*at, len(rates) * every_s), tuple(rate for rate in rates for _ in (0, 1)), repeats)


def wave(peak_to_trough: float, peak_at_s: float, period_s: float = DAY_S) -> RateCurve:
    """Returns a cosine of mean 1: its peak so many times its trough, at a time of each period."""
    swing = (peak_to_trough - 1.0) / (peak_to_trough + 1.0)
    at = np.linspace(0.0, period_s, WAVE_PIECES + 1)
    rates = 1.0 + swing * np.cos(2.0 * np.pi * (at - peak_at_s) / period_s)
    return RateCurve(tuple(at.tolist()), tuple(rates.tolist()), True)


def ramp(first: float, last: float, over_s: float) -> RateCurve:
    """Returns a rate that goes straight from one to another, and stays there."""
    return RateCurve((0.0, over_s), (first, last))


def spike(at_s: float, for_s: float, factor: float) -> RateCurve:
    """Returns a rate of 1 that is `factor` for a while."""
    return RateCurve((0.0, at_s, at_s, at_s + for_s, at_s + for_s), (1.0, 1.0, factor, factor, 1.0))


class RateArrivals:
    """Arrivals of a gamma renewal process under a rate that changes, in portions of any size.

    Args:
        curve: the rate.
        burstiness: gamma shape of the gaps in expected requests; 1 is Poisson, inf evenly spaced.
        rng: draws the gaps.
    """

    def __init__(self, curve: RateCurve, burstiness: float, rng: np.random.Generator) -> None:
        if not burstiness > 0:
            raise ValueError(f"burstiness must be positive (1 = Poisson), got {burstiness}")
        self._curve, self._burstiness, self._rng = curve, burstiness, rng
        self._gone = self._last_s = 0.0

    def take(self, count: int) -> FloatArray:
        """Returns the next arrival times in seconds, never falling, shape `(count,)`."""
        shape = self._burstiness
        gaps = np.ones(count) if math.isinf(shape) else self._rng.standard_gamma(shape, size=count) / shape
        if count:
            gaps[0] += self._gone
        gone = np.cumsum(gaps)
        # the root's rounding may lay neighbours in the wrong order, by parts of a nanosecond
        at_s = np.maximum.accumulate(np.maximum(self._curve.when(gone), self._last_s))
        if count:
            self._gone, self._last_s = float(gone[-1]), float(at_s[-1])
        return np.asarray(at_s, dtype=np.float64)
