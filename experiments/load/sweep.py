"""The points of an experiment: every combination of the axes' values."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from specfleet.experiments.load.bill import switched_off
from specfleet.experiments.load.defaults import filled
from specfleet.experiments.schema.blocks.acceptance import Process, processes
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.overrides import key_path
from specfleet.experiments.schema.structure import replaced
from specfleet.experiments.schema.yamlfile import Value

Each = TypeVar("Each")

MAX_POINTS = 100_000
"""Points of one experiment."""

_MAX_ID = 120
"""Characters of a point's name: a folder bears it."""

ENDS = ("widest", "narrowest")
"""Of a range of spreads between requests."""
SPREAD_END = "spread"
"""What a point's name ends in at an end of its range of spreads."""


WITHOUT = "without"
"""What a point's name ends in where one class does not draft."""


@dataclass(frozen=True)
class Point:
    """One run of a sweep.

    Args:
        index: position in the grid, the last axis fastest.
        id: names the point's folder, such as `max_concurrency=64,num_speculative_tokens=3`.
        axes: dotted key -> value.
        config: the experiment with these values and every default filled in; it has no axes of its own.
    """

    index: int
    id: str
    axes: Mapping[str, Value]
    config: Experiment

    @cached_property
    def ends(self) -> tuple[Point, ...]:
        """The point at the ends of its `acceptance.concentration_range`, on the same requests and luck: what
        bounds its P99. None where the spread between requests is given."""
        return tuple(
            replace(self, id=f"{self.id},{SPREAD_END}={label}", config=config)
            for label, config in at_ends(self.config)
        )

    @cached_property
    def switched_off(self) -> dict[str, Point]:
        """The point without the drafts of each class, where its bill is asked for; empty else."""
        return {
            name: replace(self, id=f"{self.id},{WITHOUT}={_label(name)}", config=config)
            for name, config in switched_off(self.config).items()
        }

    def at_end_of(self, other: Point) -> Point:
        """Returns this point at the end of its range at which another one stands; itself without a range."""
        label = other.id.rpartition(f",{SPREAD_END}=")[2]
        return next((end for end in self.ends if end.id.endswith(f",{SPREAD_END}={label}")), self)


def at_ends(config: Experiment) -> list[tuple[str, Experiment]]:
    """Returns an experiment at those ends of its `acceptance.concentration_range` at which it does not stand:
    `widest` and `narrowest`. None where the spread between requests is given."""
    pools = config.deployment.pools
    if not pools:
        ends = [_end_of(config.acceptance, end) for end in range(2)]
        return [
            (label, config.model_copy(update={"acceptance": at}))
            for label, at in zip(ENDS, ends, strict=True)
            if at != config.acceptance
        ]
    found = []
    for end, label in enumerate(ENDS):
        there = {
            name: pool.model_copy(update={"acceptance": _end_of(pool.acceptance, end)})
            for name, pool in pools.items()
        }
        if there != pools:
            deployment = config.deployment.model_copy(update={"pools": there})
            found.append((label, config.model_copy(update={"deployment": deployment})))
    return found


def _end_of(given: Process | dict[str, Process] | None, end: int) -> Process | dict[str, Process] | None:
    """Returns acceptance at an end of its range of spreads, 0 the widest; itself where it stands there."""
    ranges = {name: process.concentration_range for name, process in processes(given).items()}
    if all(r is None or r[end] == processes(given)[name].concentration for name, r in ranges.items()):
        return given
    at = {
        name: process.at_concentration(r[end] if (r := ranges[name]) else None)
        for name, process in processes(given).items()
    }
    return at if isinstance(given, dict) else at[""]


def with_ends(points: Sequence[Point]) -> tuple[Point, ...]:
    """Points, what bounds the P99 of those whose spread between requests is not known, and what a bill is
    made of."""
    return tuple(one for point in points for one in (point, *point.ends, *point.switched_off.values()))


def expand(experiment: Experiment) -> tuple[Point, ...]:
    """All points; one, called `point`, where nothing is swept."""
    data = experiment.model_dump(exclude_unset=True)
    data.setdefault("sweep", {}).setdefault("axes", {})
    axes = data["sweep"]["axes"]
    return tuple(
        Point(index, point_id(values), values, filled(Experiment.model_validate(with_values(data, values))))
        for index, values in enumerate(grid(axes))
    )


def grid(axes: Mapping[str, tuple[Each, ...]]) -> Iterator[dict[str, Each]]:
    """Dotted key -> value of every point; a single empty one without axes."""
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def with_values(data: dict[str, Value], values: Mapping[str, Value]) -> dict[str, Value]:
    """A copy of the experiment's plain values with a point's in place."""
    for key, value in values.items():
        data = replaced(data, key_path(key), value)
    return data


def short_names(keys: tuple[str, ...]) -> dict[str, str]:
    """Axis -> the last part of its key, or the whole key where two axes end alike."""
    ends = Counter(key.rpartition(".")[2] for key in keys)
    return {key: end if ends[end := key.rpartition(".")[2]] == 1 else key for key in keys}


def point_id(values: Mapping[str, Value]) -> str:
    """A folder name for a point. Long ones end in a hash, as two may differ beyond the cut."""
    if not values:
        return "point"
    names = short_names(tuple(values))
    text = ",".join(f"{names[key]}={_label(value)}" for key, value in values.items())
    if len(text) <= _MAX_ID:
        return text
    exact = json.dumps(values, sort_keys=True, default=str)
    return f"{text[: _MAX_ID - 9]}-{hashlib.sha256(exact.encode()).hexdigest()[:8]}"


def _label(value: Value) -> str:
    """A value in letters that every file system takes; what does not survive that is marked by a hash."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int | float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "empty"
    if isinstance(value, str) and "--" not in text:
        named = text.replace("/", "--")
        if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", named):
            return named
    return f"{safe[:24].rstrip('-.')}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
