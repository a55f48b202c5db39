"""Student's t without scipy: quantiles for any positive degrees of freedom."""

from __future__ import annotations

from functools import lru_cache
from math import exp, inf, lgamma, log, pi, sqrt
from statistics import NormalDist

_TINY = 1e-300
_STEPS = 500
"""Terms of a continued fraction, and of a search: far more than either takes."""


def two_sided_tail(t: float, degrees: float) -> float:
    """Returns the chance that Student's t lies farther from 0 than `t`.

    It is the regularised incomplete beta function I_x(degrees / 2, 1/2) at x = degrees / (degrees + t^2)
    (Abramowitz and Stegun 26.5.27), by its continued fraction (26.5.8, Lentz's method).
    """
    x = degrees / (degrees + t * t)
    a, b = degrees / 2.0, 0.5
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log(max(1.0 - x, _TINY)))
    if x < (a + 1.0) / (a + b + 2.0):
        return front * _fraction(x, a, b) / a
    return 1.0 - front * _fraction(1.0 - x, b, a) / b


def _fraction(x: float, a: float, b: float) -> float:
    c, d = 1.0, 1.0 / _apart(1.0 - (a + b) * x / (a + 1.0))
    value = d
    for m in range(1, _STEPS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1.0 / _apart(1.0 + term * d)
            c = _apart(1.0 + term / c)
            value *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return value


def _apart(x: float) -> float:
    return x if abs(x) > _TINY else _TINY


@lru_cache(maxsize=4096)
def student_t(confidence: float, degrees: float) -> float:
    """Returns t such that Student's t lies within +- t with the given chance.

    Args:
        confidence: such as 0.95; above 0 and below 1.
        degrees: of freedom, above 0; inf gives the normal law.

    Raises:
        ValueError: if either is out of its range.
    """
    if not 0.0 < confidence < 1.0 or not degrees > 0.0:
        raise ValueError(f"confidence in (0, 1) and degrees above 0, not {confidence} and {degrees}")
    low = NormalDist().inv_cdf(0.5 + confidence / 2.0)
    if degrees == inf:
        return low
    alpha = 1.0 - confidence
    scale = exp(lgamma((degrees + 1.0) / 2.0) - lgamma(degrees / 2.0)) / sqrt(degrees * pi)
    high = 2.0 * low
    while two_sided_tail(high, degrees) > alpha:
        low, high = high, 2.0 * high
    t = (low + high) / 2.0
    for _ in range(_STEPS):  # Newton's step, or halving where it would leave the bracket
        gap = two_sided_tail(t, degrees) - alpha
        low, high = (t, high) if gap > 0.0 else (low, t)
        slope = 2.0 * scale * (1.0 + t * t / degrees) ** (-(degrees + 1.0) / 2.0)
        step = t + gap / slope if slope > 0.0 else inf
        step = step if low < step < high else (low + high) / 2.0
        if abs(step - t) <= 1e-13 * t:
            break
        t = step
    return t
