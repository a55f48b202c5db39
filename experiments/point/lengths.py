"""From a block of lengths to its law."""

from __future__ import annotations

from specfleet.experiments.schema.blocks.lengths import Lengths
from specfleet.workloads.lengths import Empirical, Fixed, LengthDistribution, LogNormal, Uniform


def law(lengths: Lengths) -> LengthDistribution:
    """Returns the distribution that an `input:` or `output:` block describes."""
    if lengths.fixed is not None:
        return Fixed(lengths.fixed)
    if lengths.uniform is not None:
        return Uniform(lengths.uniform.low, lengths.uniform.high)
    if lengths.lognormal is not None:
        given = lengths.lognormal
        return LogNormal(given.mu, given.sigma, given.min, given.max)
    assert lengths.quantiles is not None, "the rules ask for exactly one distribution"
    return Empirical(tuple(p for p, _ in lengths.quantiles), tuple(v for _, v in lengths.quantiles))
