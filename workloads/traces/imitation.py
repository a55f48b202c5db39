"""A law that imitates recorded traffic: its lengths as quantiles, its arrivals as a rate with bursts.

Recorded arrivals are uneven on every scale, and a gamma law alone is not: what it says of gaps it says of
windows of any length. So the rate is cut into stretches, and within them gaps are gamma. Counts of a stretch
hold chance themselves; taken for rates they would bring it in twice. They are drawn towards their mean until
their variance is that of the rate alone, `var - mean / shape`. Length of the stretches and shape are those of
a grid whose arrivals, drawn anew, are as uneven as recorded: index of dispersion in windows of 1, 10, 60 s.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from specfleet.workloads.rates import RateArrivals, RateCurve, schedule
from specfleet.workloads.requests import FloatArray, IntArray
from specfleet.workloads.traces.report import Trace
from specfleet.workloads.traces.statistics import WINDOWS_S, dispersion, rank_correlation

PERCENTILES = (0.0, 0.1, 0.5, *map(float, range(1, 100)), 99.5, 99.9, 100.0)
"""Percentiles of lengths that are kept, as in the presets."""
STRETCHES_S = (3600.0, 600.0, 300.0, 120.0, 60.0, 30.0, 20.0, 10.0)
"""Lengths of a stretch that are tried, seconds, the coarsest first."""
FEWEST, MOST = 5, 2000
"""Stretches of a schedule."""
SHAPES = (16.0, 8.0, 4.0, 2.0, 1.4, 1.0, 0.7, 0.5, 0.35, 0.25, 0.175, 0.125, 0.09, 0.0625, 0.05)
"""Gamma shapes that are tried."""
GOOD = 0.1
"""Largest error of an index of dispersion, a logarithm, with which the coarsest law is taken."""
SEEDS = 6
"""Draws of a law whose dispersion is averaged."""
MOST_DRAWN = 20_000
"""Arrivals of a draw at most."""


@dataclass(frozen=True)
class Imitation:
    """A law of arrivals and lengths.

    Attributes:
        request_rate: mean, requests/s; None where no times were recorded or all came at once.
        burstiness: gamma shape of the gaps.
        every_s: length of the stretches of the rate, seconds; None where it is the same throughout.
        requests_per_s: rate of each stretch.
        dispersions: window in seconds, recorded index of dispersion, imitated one.
        prompt, output: (percentile, tokens).
        rank_correlation: Spearman's, of prompt and output.
    """

    request_rate: float | None
    burstiness: float
    every_s: float | None
    requests_per_s: tuple[float, ...]
    dispersions: tuple[tuple[float, float, float], ...]
    prompt: tuple[tuple[float, int], ...] = field(repr=False)
    output: tuple[tuple[float, int], ...] = field(repr=False)
    rank_correlation: float

    @property
    def curve(self) -> RateCurve | None:
        """The rate over time."""
        if self.request_rate is None:
            return None
        return _curve(self.requests_per_s, self.every_s, self.request_rate)


def imitate(trace: Trace) -> Imitation:
    """Returns the law that imitates a trace."""
    table, report = trace
    at_s = report.recorded_s
    timed = report.timed and at_s is not None and len(at_s) > 1 and float(at_s[-1]) > float(at_s[0])
    arrivals = _arrivals(np.asarray(at_s) - float(at_s[0])) if timed and at_s is not None else _Law(None, 1.0)
    return Imitation(
        arrivals.request_rate,
        arrivals.burstiness,
        arrivals.every_s,
        arrivals.requests_per_s,
        arrivals.dispersions,
        _quantiles(table.prompt_tokens),
        _quantiles(table.output_tokens),
        round(rank_correlation(table.prompt_tokens, table.output_tokens) or 0.0, 3),
    )


@dataclass(frozen=True)
class _Law:
    """A law of arrivals; fields as `Imitation`, and the largest error of its dispersion."""

    request_rate: float | None
    burstiness: float
    every_s: float | None = None
    requests_per_s: tuple[float, ...] = ()
    dispersions: tuple[tuple[float, float, float], ...] = ()
    error: float = 0.0


def _quantiles(tokens: IntArray) -> tuple[tuple[float, int], ...]:
    found = np.percentile(tokens, PERCENTILES)
    return tuple(zip(PERCENTILES, np.rint(found).astype(int).tolist(), strict=True))


def _curve(rates: tuple[float, ...], every_s: float | None, request_rate: float) -> RateCurve:
    return RateCurve((0.0,), (request_rate,)) if every_s is None else schedule(rates, every_s)


def clock_step_s(at_s: FloatArray) -> float:
    """Returns the shortest time between two different time stamps, seconds: a clock counts no finer."""
    gaps = np.diff(at_s)
    return float(gaps[gaps > 0].min()) if (gaps > 0).any() else 0.0


def _arrivals(at_s: FloatArray) -> _Law:
    """The coarsest law within `GOOD` of what was recorded, or the nearest."""
    rate = float(f"{(len(at_s) - 1) / float(at_s[-1]):.4g}")
    fine = 3.0 * clock_step_s(at_s)
    recorded = {w: d for w in WINDOWS_S if w >= min(fine, 10.0) and (d := dispersion(at_s, w)) is not None}
    if not recorded:
        return _Law(rate, _own_shape(at_s))
    best: _Law | None = None
    for law in _tried(at_s, rate, recorded):
        if best is None or law.error < best.error:
            best = law
        if best.error <= GOOD and law.every_s != best.every_s:
            break
    assert best is not None, "the grid is not empty"
    return best


def _own_shape(at_s: FloatArray) -> float:
    """Gamma shape of gaps by their variation, of a recording too short for windows."""
    gaps = np.diff(at_s)
    return float(np.clip((gaps.mean() / gaps.std()) ** 2 if gaps.std() > 0 else SHAPES[0], SHAPES[-1], 1e6))


def _tried(at_s: FloatArray, rate: float, recorded: dict[float, float]) -> Iterator[_Law]:
    """Laws from the coarsest to the finest, shape after shape."""
    span_s = float(at_s[-1])
    for every_s in (None, *STRETCHES_S):
        if every_s is not None and not FEWEST <= span_s / every_s <= MOST:
            continue
        for shape in SHAPES:
            rates = () if every_s is None else _rates(at_s, every_s, shape)
            if rates is None:
                break  # with more chance in the counts there is no rate left
            yield _scored(_Law(rate, shape, every_s, rates), recorded, min(len(at_s), MOST_DRAWN))


def _rates(at_s: FloatArray, every_s: float, shape: float) -> tuple[float, ...] | None:
    """Requests/s of whole stretches without the chance in their counts; None where that is all there is."""
    whole = int(float(at_s[-1]) // every_s)
    counts = np.bincount((at_s / every_s).astype(np.int64), minlength=whole)[:whole].astype(np.float64)
    variance, mean = float(counts.var()), float(counts.mean())
    own = variance - mean / shape
    if own <= 0.0:
        return None
    rates = np.maximum(mean + np.sqrt(own / variance) * (counts - mean), 0.0) / every_s
    return tuple(float(f"{rate:.4g}") for rate in rates.tolist())


def _scored(law: _Law, recorded: dict[float, float], count: int) -> _Law:
    """The law with the dispersion of what it draws."""
    assert law.request_rate is not None
    curve = _curve(law.requests_per_s, law.every_s, law.request_rate)
    drawn = [
        RateArrivals(curve, law.burstiness, np.random.default_rng(seed)).take(count) for seed in range(SEEDS)
    ]
    found, errors = [], []
    for window, real in recorded.items():
        mine = float(np.mean([dispersion(at_s, window) or 0.0 for at_s in drawn]))
        found.append((window, real, mine))
        errors.append(abs(np.log(max(mine, 1e-9) / max(real, 1e-9))))
    return _Law(
        law.request_rate, law.burstiness, law.every_s, law.requests_per_s, tuple(found), float(max(errors))
    )
