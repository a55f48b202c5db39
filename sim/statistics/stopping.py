"""Going on until an answer is settled: as long as it takes, and no longer than is allowed.

Whoever stops as soon as an interval happens to be narrow stops too often where it is too narrow, and
where too little was seen. So an answer is looked at from a least length on, seldom (each look sees at
least half as much again), it counts only where the interval is to be trusted, and must be met once more
on a longer run.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, fields
from math import ceil, inf, isfinite

import numpy as np

from specfleet.sim.statistics.figures import Ranked, mean, percentile_of
from specfleet.sim.statistics.interval import CONFIDENCE, Interval
from specfleet.sim.statistics.series import F64, Runs, Series
from specfleet.sim.statistics.startup import Startup, startup
from specfleet.sim.statistics.verdict import side_of

PERCENTS = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0}


@dataclass(frozen=True)
class Precision:
    """Half-widths asked for, as a share of the figure; None: the figure is not asked for."""

    mean: float | None = 0.02
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = 0.05

    def asked(self) -> dict[str, float]:
        """Returns the half-widths by figure."""
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: width for name, width in given.items() if width is not None}


@dataclass(frozen=True)
class RunLengths:
    """How long runs may be, in requests.

    Args:
        least, most: length of the first and of the longest run.
        growth: each run is at least so many times as long as the one before, and at most `leap` times.
        leap: see `growth`.
        confirm: an answer must be met again on a run so many times as long.
    """

    least: int = 2_000
    most: int = 200_000
    growth: float = 1.5
    leap: float = 4.0
    confirm: float = 1.25

    def __post_init__(self) -> None:
        """Checks the ranges.

        Raises:
            ValueError: if runs could not grow.
        """
        if not 0 < self.least <= self.most or not 1.0 < self.growth <= self.leap or self.confirm <= 1.0:
            raise ValueError(f"lengths from at least 1 to no less, growing at every look: {self}")


@dataclass(frozen=True)
class Observed:
    """What a run of a given length showed, its start-up and drain left out.

    Args:
        metrics: by name.
        startup: what was left out, and whether the rest is steady; None: not looked for.
    """

    metrics: Mapping[str, Runs]
    startup: Startup | None = None


@dataclass(frozen=True)
class Settled:
    """What a run that went on until it was settled showed.

    Attributes:
        intervals: by metric and figure (`mean`, `p99`).
        settled: whether all that was asked for is met.
        used: length of the last run.
        looks: how many lengths were tried.
        in_the_way: what is not met, in words; empty where it is settled.
        startup: of the last run.
    """

    intervals: Mapping[str, Mapping[str, Interval]]
    settled: bool
    used: int
    looks: int
    in_the_way: tuple[str, ...] = ()
    startup: Startup | None = None


@dataclass
class Looked:
    """One look at runs of some length.

    Attributes:
        longer: how many times as long a run has to be; 0: the answer is met.
        hopeless: whether no length would do.
        decided: what the answer is, by name, of what was asked; one that the next look turns round was none.
        why: what is not met, in words.
    """

    longer: float
    hopeless: bool = False
    decided: Mapping[str, object] = field(default_factory=dict)
    why: str = ""


def go_on(look: Callable[[int], Looked], lengths: RunLengths) -> tuple[bool, int, int]:
    """Looks at ever longer runs until an answer is met twice in a row, and is the same.

    Args:
        look: at runs of so many requests.
        lengths: how long runs may be.

    Returns:
        Whether the answer is settled, the length of the last run, and how many lengths were tried.
    """
    looking = going_on(lengths)
    n = next(looking)
    while True:
        try:
            n = looking.send(look(n))
        except StopIteration as ended:
            settled, used, looks = ended.value
            return settled, used, looks


def going_on(lengths: RunLengths) -> Generator[int, Looked, tuple[bool, int, int]]:
    """Yields the lengths at which to look, each after what was seen at the one before; see `go_on`."""
    n, looks, met = lengths.least, 0, False
    before: Mapping[str, object] = {}
    while True:
        found = yield n
        looks += 1
        again = met
        met = not found.longer and not turned(before, found.decided)
        before = found.decided
        if found.hopeless or n >= lengths.most or (met and again):
            return met, n, looks
        times = lengths.confirm if met else min(max(found.longer, lengths.growth), lengths.leap)
        n = min(ceil(n * times), lengths.most)


def turned(before: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    """Returns the names of what was decided before, and is decided otherwise now."""
    return [name for name, answer in now.items() if before.get(name, answer) != answer]


def times_as_long(found: Interval, boundary: float) -> float:
    """Returns how many times as long runs have to be for an interval to be clear of a boundary, roughly.

    At least once. On the boundary itself no length would do.
    """
    distance = abs(found.value - boundary)
    if not distance or not isfinite(found.half_width):
        return inf
    return max(1.1 * min(found.half_width / distance, FAR_OFF) ** 2, 1.0)


FAR_OFF = 1e6
"""Half-widths over a distance beyond which it makes no difference how many."""


def settle(
    observe: Callable[[int], Observed],
    precision: Mapping[str, Precision],
    lengths: RunLengths = RunLengths(),
    confidence: float = CONFIDENCE,
) -> Settled:
    """Goes on until all figures asked for are known as well as asked for.

    Args:
        observe: returns what a run of so many requests shows; `growing` and `replicated` make one from a
            function that gives more.
        precision: by metric of what is observed.
        lengths: how long runs may be.
        confidence: of the intervals.

    Returns:
        The figures of the last run. A saturated one ends the search: no length would settle it.
    """
    last: list[tuple[Observed, dict[str, dict[str, Interval]], list[str]]] = []

    def look(n: int) -> Looked:
        seen = observe(n)
        intervals = {
            name: _figures(seen.metrics[name], wanted, confidence) for name, wanted in precision.items()
        }
        missing, longer = [], 0.0
        for name, wanted in precision.items():
            for figure, width in wanted.asked().items():
                found = intervals[name][figure]
                if found.short or found.relative > width:
                    missing.append(f"{figure} of {name}: {_unmet(found, width)}")
                    longer = max(longer, 1.1 * (found.relative / width) ** 2, 1.0)
        state = seen.startup.state if seen.startup else "stationary"
        if seen.startup and state != "stationary":
            missing.insert(0, f"{state}: {seen.startup.why}")
            longer = max(longer, 1.0)
        last[:] = [(seen, intervals, missing)]
        return Looked(longer, state == "saturated")

    settled, used, looks = go_on(look, lengths)
    seen, intervals, missing = last[0]
    return Settled(intervals, settled, used, looks, tuple(missing), seen.startup)


def _figures(data: Runs, wanted: Precision, confidence: float) -> dict[str, Interval]:
    asked = wanted.asked()
    found = {"mean": mean(data, confidence)} if "mean" in asked else {}
    percents = {name: PERCENTS[name] for name in asked if name in PERCENTS}
    if percents:
        ranked = Ranked(data)
        found |= {name: percentile_of(ranked, percent, confidence) for name, percent in percents.items()}
    return found


def _unmet(found: Interval, width: float) -> str:
    return found.short or f"known within {found.relative:.1%}, asked for within {width:.1%}"


@dataclass(frozen=True)
class Answered:
    """A figure that was looked at until it was clear of a boundary.

    Attributes:
        side: of the boundary on which the truth lies: 1 above, -1 below, 0 not settled.
        figure: as the last run shows it.
        used: length of the last run.
        looks: how many lengths were tried.
    """

    side: int
    figure: Interval
    used: int
    looks: int


def settle_side(
    observe: Callable[[int], Interval], boundary: float, lengths: RunLengths = RunLengths()
) -> Answered:
    """Goes on until it is known on which side of a boundary a figure lies.

    A ratio is set against 1 + the least gain that counts (`verdict`), the share beyond an SLO against
    what may be (`limits`). A figure that lies on the boundary is never settled: it takes the longest run.

    Args:
        observe: returns the figure that runs of so many requests show.
        boundary: see above.
        lengths: how long runs may be.
    """
    said: list[tuple[int, Interval]] = []

    def look(n: int) -> Looked:
        found = observe(n)
        side = side_of(found, boundary)
        said.append((side, found))
        return Looked(0.0, decided={"side": side}) if side else Looked(times_as_long(found, boundary))

    _, used, looks = go_on(look, lengths)
    return Answered(*said[-1], used, looks)


UNSTEADY = 0.2
"""Replications that may seem not to be steady, by chance, before all of them are said not to be."""


@dataclass
class _Growing:
    """Runs that grow by what `more` gives, in portions of `unit` rows where each is a run of its own."""

    more: Callable[[int], Mapping[str, F64]]
    replications: bool
    unit: int = 0
    runs: list[dict[str, F64]] = field(default_factory=list)
    length: int = 0

    def __call__(self, n: int) -> Observed:
        self.unit = self.unit or n
        while n > self.length:
            rows = self.unit if self.replications else n - self.length
            portion = dict(self.more(rows))
            self.length += rows
            if self.replications or not self.runs:
                self.runs.append(portion)
            else:
                self.runs[0] = {k: np.concatenate([self.runs[0][k], v]) for k, v in portion.items()}
        found = [startup(run) for run in self.runs]
        unsteady = [each for each in found if each.state != "stationary"]
        shown = unsteady[0] if len(unsteady) > UNSTEADY * len(found) else None
        shown = shown or next((each for each in found if each.state == "stationary"), found[0])
        pairs = list(zip(self.runs, found, strict=True))
        names = self.runs[0]
        return Observed({name: [Series(cut.kept(run[name])) for run, cut in pairs] for name in names}, shown)


def growing(more: Callable[[int], Mapping[str, F64]]) -> Callable[[int], Observed]:
    """Makes one long run of portions.

    Args:
        more: returns columns by metric, of so many further rows of the same run.
    """
    return _Growing(more, replications=False)


def replicated(more: Callable[[int], Mapping[str, F64]]) -> Callable[[int], Observed]:
    """Makes independent replications of portions, each with its own start-up.

    Args:
        more: returns columns by metric of a new run of so many rows; all are as long as the first.
    """
    return _Growing(more, replications=True)
