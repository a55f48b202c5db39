"""Checks every point of the grid, and says each fault once, at the value it comes from."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TypeAlias, cast

from pydantic import ValidationError

from specfleet.experiments.load import load_range
from specfleet.experiments.load.defaults import filled
from specfleet.experiments.load.rules.base import Conflict
from specfleet.experiments.load.rules.conflicts import conflicts
from specfleet.experiments.load.rules.plan import plan_conflicts
from specfleet.experiments.load.rules.pools import drafts_of, pooled_conflicts
from specfleet.experiments.load.rules.sizes import too_many_runs
from specfleet.experiments.load.rules.sweep import (
    claim_conflicts,
    measured_at_k_conflicts,
    repeated,
    report_conflicts,
    unusable_axes,
)
from specfleet.experiments.load.sweep import MAX_POINTS, grid, with_values
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.faults import Fault
from specfleet.experiments.schema.overrides import key_path
from specfleet.experiments.schema.pools import pool_experiments
from specfleet.experiments.schema.structure import Finding, check, replaced, shown
from specfleet.experiments.schema.yamlfile import Document, KeyPath, Value, dotted

_Said: TypeAlias = tuple[tuple[KeyPath, ...], str | None, int | None]
"""The keys of a conflict, the axis that is to blame, and the place of its value there."""


class GridCheck:
    """The faults of one experiment, and its sound points.

    After `run`, `faults` holds every fault, each once; `points` the filled points, of use when there is none.
    """

    def __init__(self, document: Document, data: dict[str, Value]) -> None:
        """`data` are the document's values, made ready by `config.py`."""
        self.faults: list[Fault] = list(document.faults)
        self.points: list[Experiment] = []
        self._document = document
        self._unread = {fault.key for fault in document.faults}
        self._base = check(data)
        self._axes: dict[str, dict[int, Value]] = {}
        self._written = cast("dict[str, tuple[Value, ...]]", self._base.experiment.sweep.axes)
        self._said: set[tuple[object, ...]] = set()
        self._points = 0
        self._vain: dict[_Said, list[Conflict]] = {}

    @property
    def experiment(self) -> Experiment:
        """The experiment as written; its sound part while there are faults."""
        return self._base.experiment

    def run(self) -> None:
        """Checks single values, axes, every point, and the report."""
        for finding in self._base.findings:
            self._say(finding.path, finding.message)
        self._check_axes()
        ks: set[int] = set()
        sizes = [len(values) for values in self._axes.values()]
        if math.prod(sizes) <= MAX_POINTS and all(sizes):
            ks = {k for k in map(self._check_point, self._index_grid()) if k}
            self._report_vain()
        self._report_all(measured_at_k_conflicts(self.experiment, ks), {})
        self._report_all(report_conflicts(self.experiment.report, self._written), {})
        self._report_all(claim_conflicts(self.experiment.claim, self._written), {})
        self._report_all(plan_conflicts(self.experiment), {})

    def check_load(self) -> None:
        """Checks `sweep.load` alone, before there is a grid."""
        for finding in self._base.findings:
            self._say(finding.path, finding.message)
        self._report_all(load_range.conflicts(self.experiment), {})

    def _index_grid(self) -> Iterator[dict[str, int]]:
        """Axis -> place of its value in the file, for every point."""
        return grid({key: tuple(values) for key, values in self._axes.items()})

    def _say(self, path: KeyPath, message: str) -> None:
        """Notes a fault at a key, or at the nearest thing around it that was written.

        A key whose text could not be read has been reported already.
        """
        key = dotted(path)
        if key not in self._unread:
            mark = self._document.mark(path)
            self.faults.append(Fault(mark.file, mark.line, key, message))

    def _check_axes(self) -> None:
        """Keeps the axes that name a key, and of those the values that are sound by themselves."""
        written = self._written
        self._report_all(repeated(written), {})
        self._report_all(too_many_runs(self.experiment, written), {})
        unusable = unusable_axes(written, self._document)
        for key, message in unusable.items():
            self._say(("sweep", "axes", key), message)
        said = {finding.path for finding in self._base.findings}
        for key, values in written.items():
            if key in unusable:
                continue
            self._axes[key] = {}
            here = key_path(key)
            for i, value in enumerate(values):
                found = check(replaced(self._base.data, here, value)).findings
                for finding in found:
                    if finding.path[: len(here)] == here or finding.path not in said:
                        self._say_value(key, i, value, finding)
                if not found:
                    self._axes[key][i] = value

    def _say_value(self, key: str, i: int, value: Value, finding: Finding) -> None:
        """Notes a fault of one value of an axis."""
        inner = finding.path[len(key_path(key)) :]
        text = f"{dotted(inner)}: {finding.message}" if inner else finding.message
        mark = self._document.mark(("sweep", "axes", key, i))
        self.faults.append(Fault(mark.file, mark.line, f"sweep.axes.{key}", f"value {shown(value)}: {text}"))

    def _check_point(self, places: dict[str, int]) -> int:
        """Fills and checks one point; its K."""
        self._points += 1
        values = {key: self._axes[key][i] for key, i in places.items()}
        data = with_values(self._base.data, values)
        try:
            sound = Experiment.model_validate(data)
        except ValidationError:
            self._report_all((Conflict((f.path,), f.message) for f in check(data).findings), places)
            return 0
        if not sound.deployment.pools:
            config = filled(sound)
            self.points.append(config)
            self._report_all(conflicts(config), places)
            return drafts_of(config)
        written = {*self._document.marks, *map(key_path, places)}
        found, unsound = pooled_conflicts(sound, data, written)
        self._report_all(found, places)
        if not unsound:
            self.points.append(filled(sound))
            return max(map(drafts_of, pool_experiments(self.points[-1]).values()))
        return 0

    def _report_all(self, found: Iterable[Conflict], places: dict[str, int]) -> None:
        """Notes conflicts between sound values, each once for a swept value or for the whole grid."""
        for conflict in found:
            if not all(self._is_sound(path) for path in conflict.paths):
                continue
            if conflict.vain:
                axis = self._swept(replace(conflict, paths=conflict.paths[:1]), places)
                place = None if axis is None else places[axis]
                self._vain.setdefault((conflict.paths, axis, place), []).append(conflict)
                continue
            axis = self._swept(conflict, places)
            self._report(conflict, axis, None if axis is None else places[axis], of_point=bool(places))

    def _report_vain(self) -> None:
        """Notes keys that say nothing at any of the points that have them."""
        for (paths, axis, place), found in self._vain.items():
            points = self._points
            if axis is not None:
                points //= len(self._axes[axis])
            if len(found) == points:
                self._report(replace(found[0], paths=paths), axis, place)

    def _report(self, conflict: Conflict, axis: str | None, place: int | None, of_point: bool = True) -> None:
        """Notes a conflict, at a value of an axis or where it is written: once, whatever other points say of
        the same keys."""
        identity = (conflict.paths, axis, place, "" if of_point else conflict.message)
        if identity in self._said:
            return
        self._said.add(identity)
        if axis is not None and place is not None:
            finding = Finding(key_path(axis), conflict.message)
            self._say_value(axis, place, self._axes[axis][place], finding)
        else:
            marks = self._document.marks
            blamed = next((path for path in conflict.paths if path in marks), conflict.paths[0])
            self._say(blamed, conflict.message)

    def _swept(self, conflict: Conflict, places: dict[str, int]) -> str | None:
        """The first axis that takes part in a conflict."""
        paths = [(key, path) for path in conflict.paths for key in places]
        return next((key for key, path in paths if _touches(key_path(key), path)), None)

    def _is_sound(self, path: KeyPath) -> bool:
        """Whether the value of a key can be relied on; a swept key's point values are sound."""
        swept = any(_touches(key_path(key), path) for key in self._axes)
        return swept or self._base.is_sound(path)


def _touches(a: KeyPath, b: KeyPath) -> bool:
    """Whether one of two keys contains the other."""
    return a[: len(b)] == b[: len(a)]
