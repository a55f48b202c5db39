"""What one simulation of a plan showed, and what may be concluded from several."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from specfleet.experiments.words.values import rounded
from specfleet.sim.statistics.figures import Ranked, mean, percentile
from specfleet.sim.statistics.interval import CONFIDENCE, Interval
from specfleet.sim.statistics.limits import Kept, clearly_more, far_bound, far_within, share_beyond
from specfleet.sim.statistics.pairs import ratio_of_means, ratio_of_percentiles
from specfleet.sim.statistics.series import Series
from specfleet.sim.statistics.stopping import UNSTEADY, times_as_long

F64 = npt.NDArray[np.float64]

RATIO = "ratio:"
"""Prefix of a measured value over its limit that no series shows: refused requests, offered over served."""

ATTAINMENT = "attainment"
ALL = 0.001
"""Share of requests beyond their limits up to which all of them count as within: all is never seen."""


class OfLimit(Protocol):
    """Something that has come to a share of a limit."""

    @property
    def ratio(self) -> float:
        """Of the limit."""

    @property
    def limit(self) -> str:
        """Its name."""


def of_limit(found: OfLimit) -> str:
    """Returns how near a limit something came, such as `0.74 of p99_tpot_ms`.

    With an attainment it is the worst of a request's latencies over their limits, at the request that counts.
    """
    return f"{found.ratio:.2f} of {'its limits' if found.limit == ATTAINMENT else found.limit}"


@dataclass(frozen=True)
class Allowed:
    """One limit of an SLO.

    Attributes:
        share: of the values that must be within.
        series: of which latency.
        limit: in its unit, milliseconds; of `attainment` 1.
    """

    share: float
    series: str
    limit: float

    @property
    def beyond(self) -> float:
        """Share of values that may lie beyond it."""
        return max(1.0 - self.share, ALL)


class TrialFigures(Mapping[str, float]):
    """What one simulation showed.

    Args:
        figures: by name: `vllm bench serve`'s, load, what binds, and `ratio:NAME`.
        series: latency -> milliseconds in the order of sending, a row a request of the steady part; a TPOT of
            0 is none. `attainment`: the worst of a request's latencies over their limits. `itl`: pauses.
        limits: of the SLO, by name.
        state: `stationary`, `still filling` or `saturated`.
        why: figures behind the state.
        first: rows before the steady part.
        weights: of the series whose values count more than once.
    """

    def __init__(
        self,
        figures: Mapping[str, float],
        series: Mapping[str, F64] | None = None,
        limits: Mapping[str, Allowed] | None = None,
        state: str = "stationary",
        why: str = "",
        first: int = 0,
        weights: Mapping[str, F64] | None = None,
    ) -> None:
        self._figures = dict(figures)
        self.series = {name: _rounded(values) for name, values in (series or {}).items()}
        self.limits = dict(limits or {})
        self.state, self.why, self.first = state, why, first
        self.weights = {name: _rounded(values) for name, values in (weights or {}).items()}

    def __getitem__(self, key: str) -> float:
        return self._figures[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._figures)

    def __len__(self) -> int:
        return len(self._figures)

    def of(self, name: str) -> Series:
        """Returns a latency's values in order of time; those of requests that have none are left out."""
        values = self.series[name]
        return Series(values[values > 0.0] if name == "tpot" else values, self.weights.get(name))

    def plain(self) -> dict[str, object]:
        """Returns it as plain values."""
        return {
            "figures": self._figures,
            "series": {name: _packed(values) for name, values in self.series.items()},
            "weights": {name: _packed(values) for name, values in self.weights.items()},
            "limits": {name: [a.share, a.series, a.limit] for name, a in self.limits.items()},
            "state": [self.state, self.why, self.first],
        }

    def to_json(self) -> str:
        """Returns it as text."""
        return json.dumps(self.plain()) + "\n"

    @classmethod
    def of_plain(cls, read: Mapping[str, Any]) -> TrialFigures:
        """Returns what `plain` made."""
        state, why, first = read["state"]
        return cls(
            read["figures"],
            {name: _unpacked(text) for name, text in read["series"].items()},
            {name: Allowed(*values) for name, values in read["limits"].items()},
            state,
            why,
            int(first),
            {name: _unpacked(text) for name, text in read["weights"].items()},
        )

    @classmethod
    def from_json(cls, text: str) -> TrialFigures:
        """Returns what `to_json` wrote."""
        return cls.of_plain(json.loads(text))


def _rounded(values: F64) -> F64:
    """As it is kept: seven digits."""
    return np.asarray(values, dtype=np.float32).astype(np.float64)


def _packed(values: F64) -> str:
    return base64.b64encode(values.astype("<f4").tobytes()).decode()


def _unpacked(text: str) -> F64:
    return np.frombuffer(base64.b64decode(text), dtype="<f4").astype(np.float64)


@dataclass(frozen=True)
class Judged:
    """Whether simulations meet the SLO.

    Attributes:
        verdict: `met`, `missed` or `not settled`.
        ratio: the largest measured value over its limit.
        limit: that limit.
        longer: how many times as long the runs would have to be to settle it, roughly; 0 where it is settled.
        why: what is in the way where it is not settled.
        low, high: 95 % interval of `ratio`; NaN where what was seen does not bound it.
        taken: limits of which P90 and the median, far below, are all that is known to be kept.
        by_spread: whether it is not settled because it depends on how much requests differ.
    """

    verdict: Kept
    ratio: float
    limit: str
    longer: float = 0.0
    why: str = ""
    low: float = math.nan
    high: float = math.nan
    taken: tuple[str, ...] = ()
    by_spread: bool = False


FILLING = 2.0
"""Times as long as a run that still fills, in the hope that it is full then."""


def judge(runs: Sequence[TrialFigures], take: bool = True, confidence: float = CONFIDENCE) -> Judged:
    """Judges the steady parts of several runs together.

    `missed` may be said of runs that still fill, as the worst is to come; `met` may not. A run that is
    offered more than it serves misses any limit sooner or later.

    Args:
        runs: of the same question.
        take: a limit far above P90 as kept (`far_within`), though no values near it were seen.
        confidence: with which it must be clear.
    """
    ratio, limit = worst(runs)
    found = Judged("missed", ratio, limit)
    if _more_than(runs, "saturated", 0.5) or ratio == math.inf or limit not in runs[0].limits:
        return found
    found = _bounded(found, runs)
    missed, longer, why, taken = False, 0.0, "", []
    for name, allowed in runs[0].limits.items():
        data = [run.of(allowed.series) for run in runs]
        if not all(len(run) for run in data):
            longer, why = max(longer, 1.0), f"nothing is known of {name}"
            continue
        beyond = _beyond(data, allowed, confidence)
        missed |= clearly_more(beyond, allowed.beyond)
        if beyond.enough and beyond.high < allowed.beyond:
            continue
        if take and far_within(data, allowed.limit, allowed.beyond, confidence):
            taken.append(name)
        else:
            longer = max(longer, times_as_long(beyond, allowed.beyond))
            why = why or f"{_per_cent(beyond)} of the requests are beyond {name}"
    if missed:
        return replace(found, verdict="missed")
    unsteady = next((run for run in runs if run.state != "stationary"), None)
    if unsteady is not None and sum(run.state != "stationary" for run in runs) > UNSTEADY * len(runs):
        return replace(
            found, verdict="not settled", longer=max(longer, FILLING), why=f"still filling ({unsteady.why})"
        )
    if longer:
        return replace(found, verdict="not settled", longer=longer, why=why)
    return replace(found, verdict="met", taken=tuple(taken))


def _per_cent(share: Interval) -> str:
    return f"{rounded(100 * max(share.low, 0.0), 2)} to {rounded(100 * share.high, 2)} %"


def _more_than(runs: Sequence[TrialFigures], state: str, share: float) -> bool:
    return sum(run.state == state for run in runs) > share * len(runs)


def _beyond(data: Sequence[Series], allowed: Allowed, confidence: float) -> Interval:
    """Returns the share of values beyond a limit."""
    if allowed.beyond > 0.5:
        over = [Series((run.values > allowed.limit).astype(np.float64), run.weights) for run in data]
        return mean(over, confidence)
    return share_beyond(data, allowed.limit, allowed.beyond, confidence)


def _bounded(found: Judged, runs: Sequence[TrialFigures]) -> Judged:
    """The same with the interval of its ratio, where what was seen bounds it."""
    allowed = runs[0].limits[found.limit]
    data = [run.of(allowed.series) for run in runs]
    if not all(len(run) for run in data) or not 0.0 < allowed.share < 1.0:
        return found
    at = percentile(data, 100.0 * allowed.share)
    if not at.enough:
        return found
    return replace(found, low=at.low / allowed.limit, high=at.high / allowed.limit)


def worst(runs: Sequence[TrialFigures]) -> tuple[float, str]:
    """Returns the largest ratio to a limit and the limit's name.

    A quantile is taken over the requests of all runs together: what the users of several replicas see.
    """
    found: dict[str, float] = {}
    for name, allowed in runs[0].limits.items():
        found[name] = _quantile([run.of(allowed.series) for run in runs], allowed, name) / allowed.limit
    for key in dict.fromkeys(key for run in runs for key in run if key.startswith(RATIO)):
        found[key.removeprefix(RATIO)] = float(np.mean([run.get(key, 0.0) for run in runs]))
    name = max(found, key=lambda key: found[key])
    return found[name], name


def _quantile(data: Sequence[Series], allowed: Allowed, name: str) -> float:
    pooled = np.concatenate([run.values for run in data])
    if not len(pooled):
        return 0.0
    if any(run.weights is not None for run in data):
        return Ranked([run for run in data if len(run)]).at(allowed.share)
    return float(np.quantile(pooled, allowed.share, method="higher" if name == ATTAINMENT else "linear"))


def figure(runs: Sequence[TrialFigures], key: str) -> Interval | None:
    """Returns a latency such as `p99_tpot_ms` of the steady parts with its interval; None without a value."""
    statistic, series, _ = key.split("_")
    data = [run.of(series) for run in runs if series in run.series]
    if not data or not all(len(run) for run in data):
        return None
    return mean(data) if statistic == "mean" else percentile(data, _percent(statistic))


def _percent(statistic: str) -> float:
    return 50.0 if statistic == "median" else float(statistic[1:])


def ratio(runs: Sequence[TrialFigures], others: Sequence[TrialFigures], key: str) -> Interval | None:
    """Returns a latency of the others over that of some runs, paired by request; None without a value.

    Both met the same requests, seed by seed.
    """
    statistic, series, _ = key.split("_")
    pairs = _pairs(runs, others, series)
    if pairs is None:
        return None
    if statistic == "mean":
        return ratio_of_means(*pairs)
    return ratio_of_percentiles(*pairs, _percent(statistic))


def roomier(runs: Sequence[TrialFigures], others: Sequence[TrialFigures]) -> bool:
    """Whether runs clearly have more room to the SLO than others, which met the same requests.

    Where both come closest to the same limit, paired by request. Else, and where too little was seen to bound
    the quantile, by intervals that do not touch, with `far_bound` for the upper end of a P99.
    """
    (mine, at), (theirs, limit) = worst(runs), worst(others)
    allowed = runs[0].limits.get(limit)
    if theirs <= mine or allowed is None:
        return False
    if at == limit and allowed.series != "itl" and allowed.share < 1.0:
        pairs = _pairs(runs, others, allowed.series)
        found = None if pairs is None else ratio_of_percentiles(*pairs, 100.0 * allowed.share)
        if found is not None and found.enough and found.low > 1.0:
            return True
    highest = max(_reach(runs, each)[1] for each in runs[0].limits.values())
    return highest < _reach(others, allowed)[0]


def _reach(runs: Sequence[TrialFigures], allowed: Allowed) -> tuple[float, float]:
    """Returns from where to where a quantile may lie, as shares of its limit."""
    data = [run.of(allowed.series) for run in runs]
    if not all(len(run) for run in data) or allowed.share >= 1.0:
        return 0.0, math.inf
    found = percentile(data, 100.0 * allowed.share)
    high = found.high if found.enough else far_bound(data) if allowed.share <= 0.99 else math.inf
    return found.low / allowed.limit, high / allowed.limit


def _pairs(
    runs: Sequence[TrialFigures], others: Sequence[TrialFigures], series: str
) -> tuple[list[F64], list[F64]] | None:
    """Returns what both showed of the same requests; None where that is nothing."""
    pairs = [_aligned(mine, theirs, series) for mine, theirs in zip(runs, others, strict=True)]
    if not all(len(mine) and (mine > 0.0).all() and (theirs > 0.0).all() for mine, theirs in pairs):
        return None
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def _aligned(a: TrialFigures, b: TrialFigures, series: str) -> tuple[F64, F64]:
    """Returns the rows of the requests that are in the steady parts of both."""
    first = max(a.first, b.first)
    last = min(each.first + len(each.series[series]) for each in (a, b))
    mine, theirs = (each.series[series][first - each.first : max(last - each.first, 0)] for each in (a, b))
    kept = (mine > 0.0) & (theirs > 0.0) if series == "tpot" else np.ones(len(mine), dtype=np.bool_)
    return mine[kept], theirs[kept]
