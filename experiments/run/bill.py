"""Who pays for whom: the P99 of every class with the drafts of a class over the same without them.

Both met the same requests and the same luck, so the two are paired request by request. The drafter is loaded
in both. More than 1 is what a class pays for the drafts of another, less than 1 what it has of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import Literal, NamedTuple

import numpy as np

from specfleet.experiments.run.gains import WIDER
from specfleet.experiments.run.traffic import Served, common
from specfleet.sim.statistics.interval import Interval
from specfleet.sim.statistics.pairs import ratio_of_percentiles
from specfleet.sim.statistics.series import F64

LATENCIES = ("ttft", "tpot", "e2el")
Side = Literal["pays", "gains", "neither", "not settled"]


class BillEntry(NamedTuple):
    """What the drafts of a class do to the P99 of one.

    Attributes:
        whose: the class whose drafts are made or not.
        who: the class that is looked at; `whose` itself, too.
        latency: `ttft`, `tpot` or `e2el`.
        without_ms, with_ms: the P99 without and with them, all replications together.
        ratio: of with over without; None where too few requests came for an interval.
        side: what that settles.
    """

    whose: str
    who: str
    latency: str
    without_ms: float
    with_ms: float
    ratio: Interval | None
    side: Side

    def columns(self) -> dict[str, object]:
        """The entry as columns of summary.csv."""
        key = f"bill:{self.whose}:{self.who}:p99_{self.latency}_ms"
        found: dict[str, object] = {
            key: self.with_ms / self.without_ms if self.without_ms else 1.0,
            f"{key}_without": self.without_ms,
            f"{key}_with": self.with_ms,
            f"{key}_side": self.side,
        }
        if self.ratio is not None:
            found |= {f"{key}_low": self.ratio.low, f"{key}_high": self.ratio.high}
        return found


def entries(
    whose: str,
    names: Sequence[str],
    having: Sequence[Served],
    lacking: Sequence[Served],
    least_gain: float,
) -> Iterator[BillEntry]:
    """Yields what the drafts of a class do to each class.

    Args:
        whose: the class.
        names: of all classes, in the order of `class_id`.
        having, lacking: the replications with its drafts and without.
        least_gain: what a ratio must differ from 1 by to count.
    """
    pairs = [common(a, b) for a, b in zip(lacking, having, strict=True)]
    for place, who in enumerate(names):
        mine = [(a.taken(a.class_id == place), b.taken(b.class_id == place)) for a, b in pairs]
        if not mine or not all(len(a) for a, _ in mine):
            continue
        for latency in LATENCIES:
            sides = [[_seconds(run, latency) for run in runs] for runs in zip(*mine, strict=True)]
            if all(len(values) for values in sides[0]):
                yield _entry(whose, who, latency, sides[0], sides[1], least_gain)


def _seconds(run: Served, latency: str) -> F64:
    if latency == "ttft":
        return run.ttft_s
    if latency == "e2el":
        return np.asarray(np.round(run.last_s - run.sent_s, 9))
    return run.tpot_s[run.output_tokens > 1]


def _entry(
    whose: str, who: str, latency: str, lacking: list[F64], having: list[F64], least_gain: float
) -> BillEntry:
    before, after = (float(1e3 * np.percentile(np.concatenate(s), 99.0)) for s in (lacking, having))
    same = all(np.array_equal(a, b) for a, b in zip(lacking, having, strict=True))
    positive = all(values.min() > 0.0 for values in (*lacking, *having))
    ratio = ratio_of_percentiles(lacking, having, 99.0) if positive and not same else None
    return BillEntry(
        whose, who, latency, before, after, ratio, "neither" if same else _side(ratio, least_gain)
    )


def _side(ratio: Interval | None, least_gain: float) -> Side:
    """What a ratio settles; where too little was seen to trust its interval, one `WIDER` times as wide."""
    if ratio is None or not (ratio.low > 0.0 and ratio.high < inf):
        return "not settled"
    ends = (ratio.low, ratio.high)
    low, high = ends if ratio.enough else (ratio.value * (end / ratio.value) ** WIDER for end in ends)
    if low > 1.0 + least_gain:
        return "pays"
    if high < 1.0 - least_gain:
        return "gains"
    return "neither" if low >= 1.0 - least_gain and high <= 1.0 + least_gain else "not settled"
