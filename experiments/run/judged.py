"""The columns of a summary that are read off the requests of a run: what was offered, served and gained."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path

from specfleet.experiments.load.sweep import Point
from specfleet.experiments.point.build import class_names_of
from specfleet.experiments.point.ceiling import ceiling
from specfleet.experiments.point.sessions import patience_of
from specfleet.experiments.run.bill import entries
from specfleet.experiments.run.gains import THROUGHPUT, gains
from specfleet.experiments.run.traffic import Served, is_open, offered_and_served, over_all, state

MOST_HELD = 2_000_000
"""Requests that are kept while others are read, 48 bytes each: a large study does not fit in memory."""


class Requests:
    """The requests of a run's simulations, read when asked for; the last are kept.

    Args:
        folder: the run's folder. Runs that kept no requests have none of these columns.
        known: what was read already, by point and seed.
    """

    def __init__(self, folder: Path, known: Mapping[tuple[str, int], Served | None] | None = None) -> None:
        self._folder = folder
        self._known = dict(known or {})
        self._recent: OrderedDict[tuple[str, int], Served | None] = OrderedDict()
        self._held = 0
        self._states: dict[str, str] = {}
        self._traffic: dict[tuple[str, tuple[int, ...]], dict[str, object]] = {}

    def traffic(self, point: Point, seeds: Sequence[int]) -> dict[str, object]:
        """Returns, in an open loop, what was offered and served over the window of arrivals, whether the
        run is stationary, still filling or saturated, and the capacity by closed form with what binds it."""
        asked = point.id, tuple(seeds)
        if asked not in self._traffic:
            self._traffic[asked] = self._traffic_of(point, seeds)
        return self._traffic[asked]

    def _traffic_of(self, point: Point, seeds: Sequence[int]) -> dict[str, object]:
        runs = self.runs(point, seeds)
        if runs is None or not is_open(point.config.workload):
            return {}
        changing = point.config.workload.arrivals is not None
        offered, served = over_all(runs) if changing else offered_and_served(runs)
        rate = point.config.workload.request_rate
        lost = point.config.deployment.gateway is not None or bool(patience_of(point.config.workload))
        if lost and rate is not None and rate < inf:
            offered = rate  # what the gateway turned away, or clients gave up, is not among those served
        row: dict[str, object] = {"offered_per_s": offered, "served_per_s": served}
        row["state"] = self._states[point.id] = "changing" if changing else state(runs)
        top = ceiling(point.config, seeds[0])
        if top is None:
            return row
        asked = point.config.workload.request_rate
        if (asked if asked is not None and asked < inf else offered) > top.beyond_per_s:
            row["state"] = self._states[point.id] = "saturated"
        return row | {"capacity_per_s": top.per_s, "binds": top.binds}

    def gains(
        self, point: Point, other: Point, seeds: Sequence[int], row: Mapping[str, object], least_gain: float
    ) -> dict[str, object]:
        """Returns the intervals and verdicts of a point's ratios to another.

        Args:
            point, other: the point, and what it is compared with.
            seeds: that both have finished.
            row: the figures of the point; its traffic classes are named there.
            least_gain: what a ratio must exceed 1 by to count.
        """
        open_loop = is_open(point.config.workload)
        mine, theirs = self.runs(point, seeds), self.runs(other, seeds)
        if mine is None or theirs is None:
            return {f"{THROUGHPUT}_verdict": None} if open_loop else {}
        saturated = "saturated" in (self._states.get(point.id), self._states.get(other.id))
        found = gains(mine, theirs, _classes(row), open_loop, saturated, least_gain)
        return {f"{THROUGHPUT}_verdict": None} | found if open_loop else found

    def bill(self, point: Point, seeds: Sequence[int], least_gain: float) -> dict[str, object]:
        """Returns what the drafts of each class do to the P99 of each; empty where no bill is asked for.

        Args:
            point: of which all is simulated.
            seeds: that are finished.
            least_gain: what a ratio must differ from 1 by to count.
        """
        names, having = class_names_of(point.config.workload), self.runs(point, seeds)
        found: dict[str, object] = {}
        for whose, without in point.switched_off.items():
            lacking = self.runs(without, seeds)
            if having is not None and lacking is not None:
                for entry in entries(whose, names, having, lacking, least_gain):
                    found |= entry.columns()
        return found

    def runs(self, point: Point, seeds: Sequence[int]) -> list[Served] | None:
        """Returns the requests of a point, a simulation a seed; None if any kept none."""
        runs = [self._of(point.id, seed) for seed in seeds]
        found = [run for run in runs if run is not None]
        return found if found and len(found) == len(runs) else None

    def _of(self, point: str, seed: int) -> Served | None:
        key = point, seed
        if key in self._known:
            return self._known[key]
        if key not in self._recent:
            path = self._folder / "points" / f"{point},seed={seed}" / "requests.csv"
            self._recent[key] = found = Served.read(path) if path.is_file() else None
            self._held += 0 if found is None else len(found)
            while self._held > MOST_HELD and len(self._recent) > 1:
                _, gone = self._recent.popitem(last=False)
                self._held -= 0 if gone is None else len(gone)
        self._recent.move_to_end(key)
        return self._recent[key]


def _classes(row: Mapping[str, object]) -> list[str]:
    """Names of the traffic classes in the order of their numbers."""
    named = (key.split(":")[1] for key in row if key.startswith("class:") and not key.endswith("_ci95"))
    return list(dict.fromkeys(named))
