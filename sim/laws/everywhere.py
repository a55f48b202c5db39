"""`--check`: a run is stepped once more, its laws checked after every turn, and both ways must agree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from specfleet.sim.errors import Breach
from specfleet.sim.laws.names import BOTH_WAYS
from specfleet.sim.pauses import alike
from specfleet.sim.recorder import Columns
from specfleet.sim.scenario import RunResult


def check_alike(ours: RunResult, stepped: RunResult) -> None:
    """Checks that two ways of simulating the same run agree to the last bit.

    Raises:
        Breach: they do not; names the first request that differs.
    """
    for said, request, time_s in _differences(ours, stepped):
        raise Breach(BOTH_WAYS, said, request, time_s)


def differences(ours: RunResult, theirs: RunResult) -> list[str]:
    """Returns what differs between two runs, by column; times are compared bit by bit."""
    return [said for said, _, _ in _differences(ours, theirs)]


def _differences(ours: RunResult, theirs: RunResult) -> Iterator[tuple[str, int | None, float | None]]:
    tables: list[tuple[str, Columns, Columns]] = [
        ("requests", ours.requests, theirs.requests),
        ("iterations", by_replica(ours.iterations), by_replica(theirs.iterations)),
        ("odd_gaps", by_replica(ours.odd_gaps), by_replica(theirs.odd_gaps)),
    ]
    if not (ours.parts or ours.scenario.deployment.replicas > 1):  # of several, the order is nobody's
        tables.append(("odd_gaps alike", alike(ours.odd_gaps)._asdict(), alike(theirs.odd_gaps)._asdict()))
    for table, a, b in tables:
        if a.keys() != b.keys():
            yield f"{table}: columns {sorted(a.keys() ^ b.keys())}", None, None
            continue
        for name in a:
            if len(a[name]) != len(b[name]):
                yield f"{table}.{name}: {len(a[name])} rows, not {len(b[name])}", None, None
            elif a[name].shape != b[name].shape:
                yield f"{table}.{name}: of shape {a[name].shape}, not {b[name].shape}", None, None
            elif not np.array_equal(a[name], b[name], equal_nan=a[name].dtype.kind == "f"):
                wrong = np.flatnonzero(_unequal(a[name], b[name]))
                said = f"{table}.{name}: rows {wrong[:3]} are {a[name][wrong[:3]]}, not {b[name][wrong[:3]]}"
                ids = a.get("request_id")
                end_s = a["finished_s" if table == "requests" else "end_s"]
                yield said, None if ids is None else int(ids[wrong[0]]), float(end_s[wrong[0]])
    for mine, its in zip(ours.parts, theirs.parts, strict=False):
        if mine.scaling is None or its.scaling is None:
            continue
        for name, column in {**mine.scaling.changes, **mine.scaling.stays}.items():
            other = {**its.scaling.changes, **its.scaling.stays}[name]
            if not np.array_equal(column, other, equal_nan=True):
                yield f"scaling.{name}: {column[:3]}, not {other[:3]}", None, None
    for name in ("rounds_by_accepted", "refusals", "steps_without_drafter"):
        if getattr(ours, name) != getattr(theirs, name):
            yield f"{name}: {getattr(ours, name)}, not {getattr(theirs, name)}", None, None


def _unequal(a: npt.NDArray[np.generic], b: npt.NDArray[np.generic]) -> npt.NDArray[np.bool_]:
    """Returns in which rows two columns differ; a time that never was equals another."""
    apart = a != b
    if a.dtype.kind == "f":
        apart &= ~(np.isnan(a) & np.isnan(b))
    return np.asarray(apart.reshape(len(a), -1).any(axis=1))


def by_replica(columns: Columns) -> Columns:
    """Returns rows replica by replica: between replicas, the order of equal times is nobody's."""
    order = np.argsort(columns["replica"], kind="stable")
    return {name: values[order] for name, values in columns.items()}


def check_counts_alike(ours: Mapping[str, object], stepped: Mapping[str, object]) -> None:
    """Checks that the counts of a run whose requests were forgotten are those of one that kept them.

    Raises:
        Breach: they are not.
    """
    for name, value in ours.items():
        if value != stepped[name]:
            raise Breach(BOTH_WAYS, f"{name} is {value} where requests are forgotten, else {stepped[name]}")
