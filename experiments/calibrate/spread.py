"""How much requests differ in acceptance, from the P99 of TPOT over its mean in a user's own results.

The P99 of some hundred requests is that of the slowest few, so P99 / mean scatters from one draw of requests
to the next, and results of one set of prompts scatter together: their requests and their luck are the same.
So all results are simulated at several concentrations with the same draws, and what is compared is one
number, the mean of log(P99 / mean) over the results. Its average and its scatter are smooth in the standard
deviation of acceptance, 1 / sqrt(1 + concentration). The concentration is the one whose average is the
number measured; its interval holds those that would give such a number in 95 of 100 draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from specfleet.experiments.validate.points import MeasuredPoint, scenario
from specfleet.sim.metrics.columns import benchmark
from specfleet.sim.simulation import simulate
from specfleet.sim.statistics.student import student_t
from specfleet.workloads.build import build_requests

F64 = npt.NDArray[np.float64]

CONCENTRATIONS = (2.5, 6.0, 16.0, 60.0, math.inf)
"""Simulated ones; in standard deviations of acceptance about evenly apart."""

MOST_RESULTS = 4
"""Results simulated, those of the most requests: of one set of prompts a further one adds little."""

_REQUESTS = 40_000
"""Simulated in all, about: some seconds of one core."""

_DRAWS = (6, 12)
"""At least, at most: draws of requests and luck at each concentration."""

_FIRST_SEED = 7_000_000
"""Of the draws: none that a user would take for a run of his own."""

_ALIKE = 1000.0
"""A concentration above it counts as all alike."""


@dataclass(frozen=True)
class FittedSpread:
    """A concentration with its 95 % interval, and how many results it rests on; inf is all alike."""

    concentration: float
    low: float
    high: float
    results: int

    def block(self) -> dict[str, object]:
        """Returns the keys of an `acceptance:` block: the interval is what P99 is a band over."""
        ends = [_rounded(self.low), _rounded(self.high)]
        found: dict[str, object] = {"concentration": _rounded(self.concentration)}
        return found | ({"concentration_range": ends} if ends[0] < ends[1] else {})

    def __str__(self) -> str:
        """Says it in words."""
        value, low, high = map(_said, (self.concentration, self.low, self.high))
        return f"{value} (95 %: {low} to {high})"


@dataclass(frozen=True)
class Relation:
    """Mean log(P99 / mean TPOT) of a set of results against the standard deviation of acceptance.

    Args:
        deviations: of the concentrations simulated, shape `(concentrations,)`.
        drawn: by concentration and draw, shape `(concentrations, draws)`.
    """

    deviations: F64
    drawn: F64

    def spread(self, measured: float, results: int) -> FittedSpread:
        """Returns the concentration that a measured mean log(P99 / mean) speaks for.

        Args:
            measured: it; beyond what is simulated it counts as the nearest end.
            results: how many it is the mean of.
        """
        grid = np.linspace(0.0, float(self.deviations.max()), 801)
        draws = self.drawn.shape[1]
        mean = np.polyval(np.polyfit(self.deviations, self.drawn.mean(axis=1), 3), grid)
        mean = np.maximum.accumulate(mean)
        scatter = np.polyval(np.polyfit(self.deviations, self.drawn.std(axis=1, ddof=1), 1), grid)
        scatter = np.maximum(scatter, self.drawn.std(axis=1, ddof=1).min())
        away = np.abs(np.clip(measured, mean[0], mean[-1]) - mean)
        beyond = student_t(0.95, draws - 1) * math.sqrt(1.0 + 1.0 / draws)
        inside = grid[away <= beyond * scatter]
        best = grid[int(np.argmin(away))]
        return FittedSpread(
            concentration=_concentration(best),
            low=_concentration(inside.max()),
            high=_concentration(inside.min()),
            results=results,
        )


def fitted_spread(points: Sequence[MeasuredPoint]) -> FittedSpread | None:
    """Returns the concentration that the results' P99 / mean TPOT speak for; None where none says it.

    Args:
        points: results of one server; those without drafts, or without a P99, say nothing.
    """
    telling = [point for point in points if point.acceptance is not None and _log_ratio(point) is not None]
    telling = sorted(telling, key=lambda point: -point.workload.num_prompts)[:MOST_RESULTS]
    if not telling:
        return None
    measured = [ratio for point in telling if (ratio := _log_ratio(point)) is not None]
    return relation(telling).spread(float(np.mean(measured)), len(telling))


def relation(points: Sequence[MeasuredPoint]) -> Relation:
    """Returns P99 / mean TPOT of results at each concentration, by simulation; they share each draw."""
    requests = sum(point.workload.num_prompts for point in points) * len(CONCENTRATIONS)
    draws = min(max(_REQUESTS // requests, _DRAWS[0]), _DRAWS[1])
    drawn = np.mean([_drawn(point, draws) for point in points], axis=0)
    return Relation(np.array([_deviation(one) for one in CONCENTRATIONS]), drawn)


def _drawn(point: MeasuredPoint, draws: int) -> F64:
    """Log of P99 / mean TPOT, shape `(concentrations, draws)`; a draw is of requests and luck."""
    assert point.acceptance is not None
    built = scenario(point)
    found = np.zeros((len(CONCENTRATIONS), draws))
    for row, concentration in enumerate(CONCENTRATIONS):
        acceptance = {"": replace(point.acceptance, concentration=concentration)}
        at = replace(built, acceptance=acceptance)
        for draw in range(draws):
            seed = _FIRST_SEED + draw
            figures = benchmark(simulate(at, build_requests(point.workload, seed), seed)).numbers()
            found[row, draw] = math.log(figures["p99_tpot_ms"] / figures["mean_tpot_ms"])
    return found


def _log_ratio(point: MeasuredPoint) -> float | None:
    """Log of P99 over mean TPOT of a result, None where it has not both."""
    p99, mean = (point.measured.get(f"tpot_{figure}_ms") for figure in ("p99", "mean"))
    return math.log(p99 / mean) if p99 and mean else None


def _deviation(concentration: float) -> float:
    return 0.0 if math.isinf(concentration) else 1.0 / math.sqrt(1.0 + concentration)


def _concentration(deviation: float) -> float:
    found = float(1.0 / deviation**2 - 1.0) if deviation > 0.0 else math.inf
    return math.inf if found > _ALIKE else found


def _rounded(concentration: float) -> float:
    return concentration if math.isinf(concentration) else round(concentration, 1)


def _said(concentration: float) -> str:
    return "all alike" if math.isinf(concentration) else f"{concentration:.3g}"
