"""Two runs that met the same requests and the same luck: differences and ratios of their figures.

What moved both figures alike falls away batch by batch, and with it most of the noise: the errors are
subtracted before they are squared. Runs are paired by request where each request has a row in both, by
stretch of time where rows are iterations, and by replication where there are several runs.
"""

from __future__ import annotations

from math import exp, inf, log

from specfleet.sim.statistics.figures import mean_estimate, percentile_estimate, ratio_estimate
from specfleet.sim.statistics.interval import CONFIDENCE, Estimate, Interval
from specfleet.sim.statistics.series import Runs


def difference(a: Estimate, b: Estimate, confidence: float = CONFIDENCE) -> Interval:
    """Returns b - a with its interval.

    Raises:
        ValueError: if the two were not cut into the same batches.
    """
    _check(a, b)
    independent = (a.independent**2 + b.independent**2) ** 0.5
    joint = Estimate(b.value - a.value, b.influence - a.influence, min(a.count, b.count), independent)
    return _trusted(joint.interval(confidence), a, b)


def quotient(a: Estimate, b: Estimate, confidence: float = CONFIDENCE) -> Interval:
    """Returns b / a with its interval, which is one of logarithms: the same whichever is on top.

    Raises:
        ValueError: if a figure is not above 0, or the two were not cut into the same batches.
    """
    _check(a, b)
    if a.value <= 0.0 or b.value <= 0.0:
        raise ValueError(f"a ratio of {b.value} to {a.value}: both must be above 0")
    influence = b.influence / b.value - a.influence / a.value
    independent = ((a.independent / a.value) ** 2 + (b.independent / b.value) ** 2) ** 0.5
    logs = Estimate(log(b.value / a.value), influence, min(a.count, b.count), independent)
    found = _trusted(logs.interval(confidence), a, b)
    return Interval(
        b.value / a.value,
        exp(found.low),
        exp(found.high) if found.high < 700.0 else inf,
        confidence,
        found.count,
        found.effective,
        found.degrees,
        found.short,
    )


def _check(a: Estimate, b: Estimate) -> None:
    if a.influence.shape != b.influence.shape:
        raise ValueError(
            f"cut into {a.influence.shape} and {b.influence.shape} runs and batches: "
            "a pair needs as many runs, and as many requests in each"
        )


def _trusted(joint: Interval, a: Estimate, b: Estimate) -> Interval:
    """Returns the interval of a pair, not to be trusted where either of the two has too little."""
    short = a.short or b.short or joint.short
    if short == joint.short:
        return joint
    return Interval(
        joint.value,
        joint.low,
        joint.high,
        joint.confidence,
        joint.count,
        joint.effective,
        joint.degrees,
        short,
    )


def ratio_of_means(a: Runs, b: Runs, confidence: float = CONFIDENCE) -> Interval:
    """Returns mean(b) / mean(a), paired."""
    return quotient(mean_estimate(a), mean_estimate(b), confidence)


def difference_of_means(a: Runs, b: Runs, confidence: float = CONFIDENCE) -> Interval:
    """Returns mean(b) - mean(a), paired."""
    return difference(mean_estimate(a), mean_estimate(b), confidence)


def ratio_of_percentiles(a: Runs, b: Runs, percent: float, confidence: float = CONFIDENCE) -> Interval:
    """Returns the ratio of the same percentile of b and of a, paired."""
    return quotient(percentile_estimate(a, percent), percentile_estimate(b, percent), confidence)


def difference_of_percentiles(a: Runs, b: Runs, percent: float, confidence: float = CONFIDENCE) -> Interval:
    """Returns the same percentile of b less that of a, paired."""
    return difference(percentile_estimate(a, percent), percentile_estimate(b, percent), confidence)


def ratio_of_rates(a: tuple[Runs, Runs], b: tuple[Runs, Runs], confidence: float = CONFIDENCE) -> Interval:
    """Returns the ratio of two ratios of means, such as throughputs: (above, below) of b over those of a."""
    return quotient(ratio_estimate(*a), ratio_estimate(*b), confidence)
