"""How well the figures of a point are known, against how well they are asked for (`run.precision`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf

from specfleet.experiments.run.traffic import Served
from specfleet.experiments.schema.blocks.until import HalfWidths
from specfleet.sim.statistics.figures import Ranked, mean, percentile_of
from specfleet.sim.statistics.interval import Interval
from specfleet.sim.statistics.stopping import PERCENTS

NOT_KNOWN, AT_MOST = "not_known", "at_most"
"""Columns of a summary, of points that go on until they are settled: the figures that are not known as well
as asked, in words, empty where all are; and the requests of the longest simulation that the file allows."""


@dataclass(frozen=True)
class Loose:
    """A figure that is not known as well as it is asked for.

    Attributes:
        figure: such as `P99 TTFT`.
        within: half-width of its 95 % interval as a share of it; inf where nothing bounds it yet.
        longer: how many times as long runs have to be, roughly.
    """

    figure: str
    within: float
    longer: float

    @property
    def said(self) -> str:
        """In words, such as `P99 TTFT (within 9.1 %)`, rounded up: never as good as it was asked for."""
        within = "too little seen" if self.within == inf else f"within {ceil(1000 * self.within) / 10:g} %"
        return f"{self.figure} ({within})"


def loose(runs: Sequence[Served], wanted: HalfWidths) -> list[Loose]:
    """Returns the figures of a point that are not known within `wanted`.

    These are mean and percentiles of TTFT and TPOT.

    Args:
        runs: a simulation a seed.
        wanted: half-widths by figure; None: not asked for.
    """
    asked = {name: width for name, width in wanted.model_dump().items() if width is not None}
    if any(len(run) < 2 for run in runs):
        return [Loose("every figure", inf, inf)]
    found = []
    for figure, width, interval in _figures(runs, asked):
        if interval.short or interval.relative > width:
            within = inf if interval.short else interval.relative
            found.append(Loose(figure, within, max(1.1 * (interval.relative / width) ** 2, 1.0)))
    return found


def _figures(runs: Sequence[Served], asked: Mapping[str, float]) -> Iterator[tuple[str, float, Interval]]:
    """Each figure that is asked for, the width asked for, and its interval."""
    series = {"TPOT": [run.tpot_s[run.output_tokens > 1] for run in runs], "TTFT": [r.ttft_s for r in runs]}
    for name, values in series.items():
        if not all(map(len, values)):
            continue
        if "mean" in asked:
            yield f"mean {name}", asked["mean"], mean(values)
        if percents := {each: PERCENTS[each] for each in asked if each in PERCENTS}:
            ranked = Ranked(values)
            for each, percent in percents.items():
                yield f"{each.upper()} {name}", asked[each], percentile_of(ranked, percent)
