"""`specfleet compare A B`: two runs, paired request by request on common random numbers.

Two runs with the same workload and seeds meet the same requests and the same luck, so the difference
of a request's latency between them is due to what was changed. Intervals are those of batches of pairs in
the order of their requests, for those of one run are correlated; where too little was seen to trust one, it
counts twice as wide, and where nothing bounds it without end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from specfleet.experiments.load.sweep import ENDS, SPREAD_END
from specfleet.experiments.run.band import is_tail
from specfleet.experiments.run.folder import folders_of
from specfleet.experiments.run.gains import WIDER
from specfleet.experiments.run.known import AT_MOST
from specfleet.experiments.run.results import Results, read_results
from specfleet.sim.statistics.figures import percentile
from specfleet.sim.statistics.interval import CONFIDENCE
from specfleet.sim.statistics.pairs import difference_of_means, difference_of_percentiles
from specfleet.sim.statistics.series import F64

if TYPE_CHECKING:
    import pandas as pd

TOO_FEW = "too little seen"
METRICS = ("ttft", "tpot", "e2el")
STATISTICS = ("mean", "p99")
ASKED = ("prompt_tokens", "max_tokens")


class NotComparable(ValueError):  # noqa: N818 - reads as the verdict it is
    """The two runs have no point, seed or request in common."""


@dataclass(frozen=True)
class Difference:
    """One figure of one point in both runs.

    Attributes:
        point: what was compared.
        name: such as `p99_tpot_ms`.
        a, b: its value in each run.
        low, high: 95 % interval of b - a; where the spread between requests is not known, over its range.
        pairs: requests compared.
        band: b - a from its least to its most over that range; None where the spread is known.
        by_spread: whether it is that range alone that leaves open which is larger.
    """

    point: str
    name: str
    a: float
    b: float
    low: float
    high: float
    pairs: int
    band: tuple[float, float] | None = None
    by_spread: bool = False

    @property
    def difference(self) -> float:
        """b - a."""
        return self.b - self.a

    @property
    def settled(self) -> bool:
        """Whether the interval excludes no difference."""
        return self.low > 0.0 or self.high < 0.0

    @property
    def interval(self) -> str:
        """The interval in words."""
        if self.bounded:
            return f"{self.low:+,.2f} to {self.high:+,.2f}"
        if math.isfinite(self.low):
            return f"{self.low:+,.2f} or more"
        return f"{self.high:+,.2f} or less" if math.isfinite(self.high) else TOO_FEW

    @property
    def bounded(self) -> bool:
        """Whether the interval has both ends."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    @property
    def identical(self) -> bool:
        """Whether there is no difference at all, however the pairs are drawn."""
        return self.low == self.high == self.difference == 0.0


def pairs_of_points(a: Results, b: Results) -> list[tuple[str, str]]:
    """Returns the points to compare: those of the same name, or the only point of each run.

    Raises:
        NotComparable: if there is nothing to pair.
    """
    ours, theirs = [list(map(str, run.summary["point"])) for run in (a, b)]
    common = [point for point in ours if point in theirs]
    if common:
        return [(point, point) for point in common]
    if len(ours) == len(theirs) == 1:
        return [(ours[0], theirs[0])]
    raise NotComparable(
        f"{a.folder} and {b.folder} have no point in common; run both with the same sweep, or one point each"
    )


def counted(run: Results, point: str) -> pd.DataFrame:
    """Returns a point's counted requests by seed and request, those that were refused among them."""
    frame = run.requests(point)
    return frame[frame["counted"] == 1].set_index(["seed", "request_id"])


def went_on(run: Results, point: str) -> bool:
    """Whether a point had as many requests as it took to settle it: another run's need not be as many."""
    if AT_MOST not in run.summary.columns:
        return False
    return bool(run.summary.loc[run.summary["point"].astype(str) == point, AT_MOST].notna().any())


def check_same_requests(a: pd.DataFrame, b: pd.DataFrame, point: str) -> None:
    """Checks that the seeds that both runs have are of the same requests.

    Raises:
        NotComparable: if there are none, or a request is there in one run only or differs in its lengths.
    """
    seeds = a.index.unique("seed").intersection(b.index.unique("seed"))
    if seeds.empty:
        raise NotComparable(f"{point}: the runs share no request; use the same seeds and workload")
    ours, theirs = (run.loc[seeds.tolist(), list(ASKED)].sort_index() for run in (a, b))
    if not ours.index.equals(theirs.index):
        raise NotComparable(f"{point}: one run has requests that the other has not; compare equal workloads")
    if not ours.equals(theirs):
        raise NotComparable(
            f"{point}: the same request has other lengths in the other run; compare equal workloads"
        )


def latencies(requests: pd.DataFrame) -> pd.DataFrame:
    """Returns ttft, tpot and e2el (ms) of those of `counted` that finished."""
    frame = requests[requests["status"] == 0]
    ttft = frame["first_chunk_ms"] - frame["sent_ms"]
    e2el = frame["last_chunk_ms"] - frame["sent_ms"]
    steps = (frame["output_tokens"] - 1).clip(lower=1)
    kept = frame.assign(ttft=ttft, e2el=e2el, tpot=(e2el - ttft) / steps)
    return kept[list(METRICS)]


def differences(a: pd.DataFrame, b: pd.DataFrame, point: str) -> list[Difference]:
    """Compares the requests that both runs have.

    Raises:
        NotComparable: if they have none.
    """
    joined = a.merge(b, left_index=True, right_index=True, suffixes=("_a", "_b")).sort_index()
    if joined.empty:
        raise NotComparable(f"{point}: no request finished in both runs")
    seeds = joined.index.get_level_values("seed")
    found = []
    for metric in METRICS:
        sides = [joined[f"{metric}_{side}"].to_numpy() for side in "ab"]
        runs = [[side[seeds == seed] for seed in seeds.unique()] for side in sides]
        for statistic in STATISTICS:
            left, right = (_figure(side, statistic) for side in sides)
            low, high = _bounds(right - left, runs[0], runs[1], statistic)
            found.append(Difference(point, f"{statistic}_{metric}_ms", left, right, low, high, len(joined)))
    return found


def _figure(values: F64, statistic: str) -> float:
    return float(values.mean() if statistic == "mean" else np.percentile(values, 99.0))


def _bounds(value: float, a: list[F64], b: list[F64], statistic: str) -> tuple[float, float]:
    """Returns the 95 % interval of a difference of means or P99; of what is alike pair by pair both are 0."""
    if all(np.array_equal(left, right) for left, right in zip(a, b, strict=True)):
        return 0.0, 0.0
    found = difference_of_means(a, b) if statistic == "mean" else difference_of_percentiles(a, b, 99.0)
    if not (math.isfinite(found.low) and math.isfinite(found.high)):
        return _apart(a, b) if statistic == "p99" else (found.low, found.high)
    times = 1.0 if found.enough else WIDER
    return value - times * (found.value - found.low), value + times * (found.high - found.value)


def _apart(a: list[F64], b: list[F64]) -> tuple[float, float]:
    """Returns the bounds of a difference of P99 from each run's own interval, where the pairs have none.

    A P99 of which the largest value seen is no bound is still bounded from below, and that may be above all
    that the other can be. Each side is asked for at half the error, so that both hold together with 95 %.
    """
    ours, theirs = (percentile(side, 99.0, 1.0 - (1.0 - CONFIDENCE) / 2.0) for side in (a, b))
    return theirs.low - ours.high, theirs.high - ours.low


def over_ends(here: Difference, ends: Sequence[Difference]) -> Difference:
    """Returns a difference as it is known where the spread between requests may be anything in its range.

    Args:
        here: at the spread that was taken.
        ends: the same figure at the ends of the range; none where the spread is known.
    """
    every = [here, *ends]
    low, high = min(d.low for d in every), max(d.high for d in every)
    band = (min(d.difference for d in every), max(d.difference for d in every))
    open_yet = not (low > 0.0 or high < 0.0)
    by_spread = open_yet and any(d.settled for d in every)
    return replace(here, low=low, high=high, band=band, by_spread=by_spread)


def at_ends(a: Results, b: Results, points: tuple[str, str], name: str) -> list[Difference]:
    """Returns the differences at each end of the range of spreads, where one run or both do not know it."""
    labels = [ends_of(run, point) for run, point in zip((a, b), points, strict=True)]
    found = []
    for label in dict.fromkeys([*labels[0], *labels[1]]):
        at = [mine.get(label, point) for mine, point in zip(labels, points, strict=True)]
        pair = [latencies(counted(run, point)) for run, point in zip((a, b), at, strict=True)]
        found += differences(pair[0], pair[1], name)
    return found


def ends_of(run: Results, point: str) -> dict[str, str]:
    """Returns the names under which a point was simulated at the ends of its range of spreads, by end."""
    names = {label: f"{point},{SPREAD_END}={label}" for label in sorted(ENDS)}
    return {label: name for label, name in names.items() if folders_of(run.folder, name)}


def compare(a: Path, b: Path) -> list[Difference]:
    """Compares two runs, point by point.

    Raises:
        FileNotFoundError, FolderFault, NotComparable: when they cannot be.
    """
    left, right = read_results(a), read_results(b)
    releases = [str(run.manifest["specfleet"]) for run in (left, right)]
    if releases[0] != releases[1]:
        raise NotComparable(
            f"{left.folder} was made with Specfleet {releases[0]}, {right.folder} with {releases[1]}; "
            "run both with one release"
        )
    found = []
    for ours, theirs in pairs_of_points(left, right):
        name = ours if ours == theirs else f"{ours} | {theirs}"
        mine, others = counted(left, ours), counted(right, theirs)
        if went_on(left, ours) or went_on(right, theirs):
            both = mine.index.intersection(others.index)
            mine, others = mine.loc[both], others.loc[both]
        check_same_requests(mine, others, name)
        here = differences(latencies(mine), latencies(others), name)
        ends = at_ends(left, right, (ours, theirs), name)
        for difference in here:
            mine_at = [end for end in ends if end.name == difference.name]
            tail = mine_at and is_tail(difference.name)
            found.append(over_ends(difference, mine_at) if tail else difference)
    return found
