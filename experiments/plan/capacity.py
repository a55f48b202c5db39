"""How much a plan's winner can take: largest rate and concurrency at the SLO, and what stops it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from specfleet.experiments.plan.asking import Laboratory
from specfleet.experiments.plan.candidates import Candidate
from specfleet.experiments.plan.seen import TrialFigures, figure, worst
from specfleet.experiments.plan.traffic import Traffic
from specfleet.experiments.point.build import counted_requests
from specfleet.experiments.run.results import half_width_95

RATE_STEP = 1.03
"""Width to which the largest rate is bracketed, a ratio."""

LEAST = 0.125
"""Times the planned load below which nobody looks."""

ROUGH = 1.09
"""The same in simulations that are too short for it: near its largest rate an engine fills slowly."""

REACH = (1.0, 8.0)
"""Times the planned load at which the search for the largest begins, and beyond which it does not look."""


@dataclass(frozen=True)
class Capacity:
    """The largest load of one replica at the SLO.

    Attributes:
        rate: requests/s at which the SLO is crossed, all seeds together.
        rate_ci95: half width of the 95 % interval of where it is crossed on one seed; NaN with one.
        more: whether it is larger still: nobody looked further.
        concurrency: most requests in flight of a closed loop.
        limit: the latency limit that is reached.
        resource: what it comes from.
        at_rate: figures at the largest rate looked at that met the SLO, a run a seed.
    """

    rate: float
    rate_ci95: float
    more: bool
    concurrency: int
    limit: str
    resource: str
    at_rate: tuple[TrialFigures, ...]


class LoadCurve:
    """Ratios to the SLO of one replica over its load, on common random numbers.

    Args:
        laboratory: runs trials.
        traffic: of the whole deployment.
        candidate: the engine.
        replicas: that share the traffic.
        seeds: of the replications.
        prompts: of each simulation; None: as many as the file says.
        reach: times the load of the traffic: where to begin, and how far to look.
    """

    def __init__(
        self,
        laboratory: Laboratory,
        traffic: Traffic,
        candidate: Candidate,
        replicas: int,
        seeds: Sequence[int],
        prompts: int | None = None,
        reach: tuple[float, float] = REACH,
    ) -> None:
        self._start, self._furthest = reach
        self._laboratory, self._traffic = laboratory, traffic
        self._candidate, self._replicas, self._seeds = candidate, replicas, seeds
        self._prompts = prompts
        self.points: dict[float, list[TrialFigures]] = {}

    def ratio(self, factor: float) -> float:
        """Returns the ratio to the SLO at `factor` times the planned load."""
        if factor not in self.points:
            traffic = self._traffic.scaled(factor)
            config, replicas = self._candidate.config, self._replicas
            trials = [traffic.trial(config, replicas, seed, self._prompts) for seed in self._seeds]
            self.points[factor] = self._laboratory.run(trials)
        return worst(self.points[factor])[0]

    def bracket(self, width: float = RATE_STEP) -> tuple[float, float]:
        """Returns the last factor that met the SLO and the first that did not, at most `width` apart.

        Infinite where the furthest still meets it; (0, the least) where no load does.
        """
        low, high = 0.0, math.inf
        factor = self._start
        while low == 0.0 or high == math.inf:
            if self.ratio(factor) <= 1.0:
                low = factor
            else:
                high = factor
            if low >= self._furthest or high <= LEAST:
                return low, high
            if low == 0.0:
                factor = high / 1.25
            elif high == math.inf:
                factor = min(low * 1.25, self._furthest)
        return self._narrowed(low, high, width)

    def around(self, factor: float) -> tuple[float, float]:
        """The same from a factor near which it is; (0, one) or (one, inf) at the ends."""
        low, high, step = 0.0, math.inf, RATE_STEP
        at = factor / step
        while (low == 0.0 or high == math.inf) and LEAST <= at <= self._furthest:
            if self.ratio(at) <= 1.0:
                low, at = at, at * step
            else:
                high, at = at, at / step
            step *= step
        return (low, high) if low == 0.0 or high == math.inf else self._narrowed(low, high, RATE_STEP)

    def _narrowed(self, low: float, high: float, width: float) -> tuple[float, float]:
        while high / low > width * (1.0 + 1e-9):
            middle = math.sqrt(low * high)
            if self.ratio(middle) <= 1.0:
                low = middle
            else:
                high = middle
        return low, high

    def crossings(self) -> list[float]:
        """Returns for each seed the factor at which its own ratio passes 1."""
        return [self.crossing([number]) for number in range(len(self._seeds))]

    def crossing(self, numbers: Iterable[int]) -> float:
        """Returns the factor at which some seeds together pass a ratio of 1, linear between those looked at.

        The outermost factor where they never do.
        """
        chosen, factors = tuple(numbers), sorted(self.points)
        ratios = [worst([self.points[factor][number] for number in chosen])[0] for factor in factors]
        above = next((i for i, ratio in enumerate(ratios) if ratio > 1.0), None)
        if above is None or above == 0:
            return factors[-1 if above is None else 0]
        low, high = ratios[above - 1], ratios[above]
        share = (1.0 - low) / (high - low)
        return factors[above - 1] + share * (factors[above] - factors[above - 1])


def largest(
    laboratory: Laboratory,
    traffic: Traffic,
    candidate: Candidate,
    replicas: int,
    seeds: Sequence[int],
    prompts: int | None,
    longer: int | None,
    reach: tuple[float, float] = REACH,
) -> tuple[LoadCurve, float, float]:
    """Returns a load curve, the last factor on it that met the SLO and the first that did not.

    Args:
        laboratory, traffic, candidate, replicas, seeds, reach: as `LoadCurve`.
        prompts: requests of the simulations that look where it is; None: as many as the file says.
        longer: of those that find it; None where these are all there are.
    """
    rough = LoadCurve(laboratory, traffic, candidate, replicas, seeds, prompts, reach)
    if prompts is None or longer is None or longer <= prompts:
        return rough, *rough.bracket()
    rough.bracket(ROUGH)
    curve = LoadCurve(laboratory, traffic, candidate, replicas, seeds, longer, reach)
    return curve, *curve.around(rough.crossing(range(len(seeds))))


def capacity(
    laboratory: Laboratory,
    traffic: Traffic,
    candidate: Candidate,
    replicas: int,
    seeds: Sequence[int],
    prompts: int | None = None,
    longer: int | None = None,
    reach: tuple[float, float] = REACH,
) -> Capacity:
    """Finds the largest rate on common random numbers (`largest`), then the largest closed loop."""
    curve, low, high = largest(laboratory, traffic, candidate, replicas, seeds, prompts, longer, reach)
    single = traffic.rate / replicas
    crossings = [single * factor for factor in curve.crossings()]
    pooled = single * curve.crossing(range(len(seeds)))
    beyond = curve.points[high if high in curve.points else low]
    at_rate = curve.points.get(low, beyond)
    _, limit = worst(beyond)
    start = max(round(float(np.mean([run["in_flight"] for run in at_rate]))), 1)
    return Capacity(
        rate=pooled,
        rate_ci95=half_width_95(crossings),
        concurrency=_concurrency(laboratory, traffic, candidate, start, seeds[0], prompts),
        more=high == math.inf,
        limit=limit,
        resource=resource(beyond, limit),
        at_rate=tuple(at_rate),
    )


def _concurrency(
    laboratory: Laboratory,
    traffic: Traffic,
    candidate: Candidate,
    start: int,
    seed: int,
    prompts: int | None,
) -> int:
    """Returns the largest closed loop that meets the SLO, to 4 %; 0 where not even one request does."""
    asked = prompts or counted_requests(candidate.config.workload)
    most = 2 * (candidate.config.serve.max_num_seqs or 256)

    def meets(concurrency: int) -> bool:
        trial = traffic.closed(candidate.config, concurrency, seed, max(asked // 2, 5 * concurrency))
        return worst(laboratory.run([trial]))[0] <= 1.0

    low, high = 0, most + 1
    at = min(start, most)
    while high - low > max(1, low // 25):
        if meets(at):
            low = at
        else:
            high = at
        reach = min(low + max(low // 3, 1), most) if high > most else (low + high) // 2
        if low >= most or reach <= low:
            break
        at = reach
    return low


RULES = (
    ("KV cache", "at_kv_cache", 0.10),
    ("max_num_seqs", "at_max_num_seqs", 0.10),
    ("token budget", "at_token_budget", 0.30),
    ("CUDA graph cap", "past_graphs", 0.50),
    ("prefill compute", "prefill_share", 0.50),
)
"""What stops an engine: the first whose share of the busy time (the last: of the P99 request's TPOT) is above
the threshold; else decode compute."""


def resource(runs: Sequence[TrialFigures], limit: str) -> str:
    """Returns what the limit that is reached comes from."""
    means = {key: float(np.mean([run.get(key, 0.0) for run in runs])) for _, key, _ in RULES}
    for name, key, threshold in RULES:
        if means[key] > threshold:
            return name
    return "prefill compute" if "ttft" in limit else "decode compute"


def mean(runs: Sequence[Mapping[str, float]], key: str) -> float:
    """Returns a figure's mean over seeds; NaN where none has it."""
    values = [run[key] for run in runs if key in run]
    return float(np.mean(values)) if values else math.nan


def interval(runs: Sequence[TrialFigures], key: str) -> tuple[float, float, float]:
    """Returns a latency of the steady parts and its 95 % interval; NaN where what was seen does not bound it.

    A figure of which no request has a value is a mean over seeds.
    """
    found = figure(runs, key) if key.split("_")[1] in runs[0].series else None
    if found is not None:
        return (found.value, found.low, found.high) if found.enough else (found.value, math.nan, math.nan)
    value, half = mean(runs, key), half_width_95([run[key] for run in runs if key in run])
    return value, value - half, value + half
