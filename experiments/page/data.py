"""A finished run as its page shows it: slices of lines, and what the figures draw as plain data."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from specfleet.experiments.figures.answer import stretches
from specfleet.experiments.figures.data import Line, Shown, shown
from specfleet.experiments.figures.lines import bounds
from specfleet.experiments.figures.style import DASHES, MARKERS, Horizontal
from specfleet.experiments.load.config import load as load_experiment
from specfleet.experiments.load.sweep import Point, expand
from specfleet.experiments.run.results import Row, is_number, number, read_results
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.faults import InputFaults
from specfleet.experiments.schema.yamlfile import read_yaml
from specfleet.experiments.words.names import label, name_and_unit, noun
from specfleet.experiments.words.tail import Split, read_split
from specfleet.experiments.words.values import named, text
from specfleet.experiments.words.verdict import QUESTIONS

STATISTICS = {"mean": "Mean", "median": "Median", "p90": "P90", "p95": "P95", "p99": "P99"}
_SHORT = len("TP 16 = ")
"""Characters of an axis' name that each of its lines may repeat."""

LATENCIES = ("ttft", "tpot", "itl", "e2el")


@dataclass(frozen=True)
class Slice:
    """The points that share the values of all axes but two.

    Attributes:
        name: those values, such as `gpu = h100-sxm`; empty where there are no further axes.
        shown: its points as lines over the horizontal axis.
    """

    name: str
    shown: Shown

    @classmethod
    def of(cls, name: str, given: Shown) -> Slice:
        """Returns a slice whose lines do not each repeat the name of their axis, unless that is short."""
        starts = {line.label.partition(" = ")[0] for line in given.lines if " = " in line.label}
        start = f"{starts.pop()} = " if len(starts) == 1 else ""
        if len(start) <= _SHORT or not all(line.label.startswith(start) for line in given.lines):
            return cls(name, given)
        lines = tuple(replace(line, label=line.label.removeprefix(start)) for line in given.lines)
        return cls(name, replace(given, lines=lines))


@dataclass(frozen=True)
class Finished:
    """A run's folder, read.

    Attributes:
        folder: where it is.
        manifest: versions, seeds, axes, notices, failures.
        rows: a mapping a point, in the order of the summary.
        slices: the same points, arranged.
        experiment: as resolved.yaml has it; None where that does not load any more.
        points: the points with their configurations; none without the experiment.
        unread: why it does not; empty where it does.
    """

    folder: Path
    manifest: Mapping[str, object]
    rows: tuple[Row, ...]
    slices: tuple[Slice, ...]
    experiment: Experiment | None
    points: tuple[Point, ...]
    unread: str

    @property
    def shown(self) -> Shown:
        """The first slice: all have the same axes, setting and limits."""
        return self.slices[0].shown

    @property
    def name(self) -> str:
        """Of the experiment."""
        return str(self.manifest["name"])

    @property
    def lines_key(self) -> str | None:
        """The axis whose values are the lines."""
        key = _mapping(self.manifest.get("report")).get("lines")
        return str(key) if key in self.shown.axes and key != self.shown.along else None

    def typed(self) -> list[Row]:
        """Returns the rows with the axes' values as the experiment gives them, not as a table does."""
        axes = {point.id: point.axes for point in self.points}
        return [{**row, **axes.get(str(row["point"]), {})} for row in self.rows]


def read(folder: Path) -> Finished:
    """Reads a run's folder.

    Raises:
        FileNotFoundError, FolderFault: if it is not the folder of a finished run.
    """
    results = read_results(folder)
    resolved = results.folder / "resolved.yaml"
    config = read_yaml(resolved).data if resolved.is_file() else {}
    rows, axes, report = tuple(results.rows), results.axes, results.report
    name = str(results.manifest["name"])
    experiment, unread = (None, results.stale[0]) if results.stale else _experiment(resolved)
    points = expand(experiment) if experiment else ()
    slices = tuple(
        Slice.of(slice_name, shown(mine, axes, report, config, name))
        for slice_name, mine in _sliced(rows, axes, report)
    )
    return Finished(results.folder, results.manifest, rows, slices, experiment, points, unread)


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _experiment(resolved: Path) -> tuple[Experiment | None, str]:
    """The experiment that was run, or why it cannot be had: another release, a trace that moved."""
    try:
        return load_experiment(resolved, ()).experiment, ""
    except (InputFaults, OSError, ValueError, KeyError) as error:
        return None, str(error).splitlines()[0]


def _sliced(
    rows: Sequence[Row], axes: Sequence[str], report: Mapping[str, object]
) -> Iterator[tuple[str, list[Row]]]:
    """The rows by the values of the axes that are neither horizontal nor lines."""
    x, lines = report.get("x"), report.get("lines")
    along = x if x in axes else next((key for key in axes if key != lines), None)
    others = [key for key in axes if key not in (along, lines)]
    values = [list(dict.fromkeys(row[key] for row in rows)) for key in others]
    for chosen in itertools.product(*values):
        mine = [row for row in rows if all(row[k] == v for k, v in zip(others, chosen, strict=True))]
        if mine:
            yield ", ".join(named(k, v) for k, v in zip(others, chosen, strict=True)), mine


def payload(run: Finished, figures: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """Returns what the page's script draws: axes, names with units, lines with their columns."""
    given = run.shown
    keys = [*dict.fromkeys(key for figure in figures for key in _metrics(figure))]
    return {
        "x": _horizontal(run),
        "fields": {key: dict(zip(("name", "unit"), field(key), strict=True)) for key in keys},
        "statistics": STATISTICS,
        "axis": noun(lines_key) if (lines_key := run.lines_key) else "",
        "limits": dict(given.limits_ms),
        "replications": given.replications,
        "figures": list(figures),
        "slices": [
            {"name": part.name, "lines": [_line(run.folder, line, part.shown, keys) for line in lines]}
            for part in run.slices
            for lines in [part.shown.lines]
        ],
    }


def field(key: str) -> tuple[str, str]:
    """Returns a metric's name and unit, also of a traffic class (`class:NAME:METRIC`)."""
    if not key.startswith(("class:", "speedup:class:")):
        return name_and_unit(key)
    *_, traffic, metric = key.split(":")
    name, unit = name_and_unit(metric)
    ratio = key.startswith("speedup:")
    return (
        (f"speedup of {name}, {traffic}", "ratio to the baseline") if ratio else (f"{name}, {traffic}", unit)
    )


def _metrics(figure: Mapping[str, object]) -> Iterator[str]:
    """The columns that a figure reads, every statistic where it can be switched."""
    keys, over = figure["keys"], figure.get("over")
    assert isinstance(keys, list)
    for key in map(str, [*keys, over] if over else keys):
        yield from [key.replace("{s}", s) for s in STATISTICS] if "{s}" in key else [key]


def _horizontal(run: Finished) -> dict[str, object]:
    """The horizontal axis of the figures."""
    given = run.shown
    if given.x is None or given.along is None:
        return {"key": None, "noun": "", "label": "", "values": [], "numeric": False, "log": False}
    values = tuple(dict.fromkeys(row[given.along] for row in run.rows))
    axis = Horizontal(given.along, values)
    return {
        "key": given.along,
        "noun": noun(given.along),
        "label": label(given.along),
        "values": [text(value) for value in values],
        "numeric": axis.numeric,
        "log": axis.logarithmic,
        "metric": given.x if given.x != given.along else None,
    }


def _line(folder: Path, line: Line, given: Shown, keys: Sequence[str]) -> dict[str, object]:
    """One line: its look, and its columns as lists, null where a point has no value."""
    rows = line.rows
    along = given.along
    place = line.position
    columns = {key: [_value(row, key) for row in rows] for key in keys}
    known = {key: [bounds(row, key) if is_number(row.get(key)) else None for row in rows] for key in keys}
    return {
        "label": line.label or ("all points" if along else "the point"),
        "baseline": line.baseline,
        "colour": "base" if line.baseline else str(place % 8),
        "marker": "x" if line.baseline else MARKERS[place % len(MARKERS)],
        "dashes": "1.6 2.2" if line.baseline else _dashes(place),
        "x": [_place(row[along]) if along else None for row in rows],
        "at": [text(row[along]) if along else "" for row in rows],
        "columns": {key: column for key, column in columns.items() if any(v is not None for v in column)},
        "bounds": {
            key: {end: [pair and pair[i] for pair in column] for i, end in enumerate(("low", "high"))}
            for key, column in known.items()
            if any(column)
        },
        "verdicts": {q: found for q in QUESTIONS if (found := _stretches(line, given, q))},
        "splits": [read_split(folder, str(row["point"])) if "point" in row else None for row in rows],
    }


def _dashes(place: int) -> str:
    """The dashes of the figures, as SVG writes them at its line width."""
    dashes = DASHES[place % len(DASHES)]
    return "" if isinstance(dashes, str) else " ".join(f"{1.8 * length:g}" for length in dashes[1])


def _place(value: object) -> object:
    return value if is_number(value) else text(value)


def _value(row: Row, key: str) -> float | None:
    return number(row, key) if is_number(row.get(key)) else None


def _stretches(line: Line, given: Shown, question: str) -> list[tuple[float, float, str]]:
    along = given.along
    if along is None or along in given.baseline or not all(is_number(row[along]) for row in line.rows):
        return []
    return stretches(line.rows, along, question)


def point_name(row: Row, axes: Sequence[str]) -> str:
    """Returns a point's axes in words, the last first, such as `K = 3, concurrency = 64`."""
    words = []
    for key in reversed(axes):
        start, equals, rest = named(key, row[key]).partition(" = ")
        plain = start == key.rpartition(".")[2].replace("_", " ")
        words.append(f"{noun(key)}{equals}{rest}" if plain and equals else f"{start}{equals}{rest}")
    return ", ".join(words) or "the one point"


def splits_at(run: Finished, part: Slice, last: float) -> Iterator[tuple[str, Split]]:
    """Yields the lines of a slice that have a latency split at the horizontal value `last`."""
    along = part.shown.along
    for line in part.shown.lines:
        for row in line.rows:
            if along is None or (is_number(row[along]) and number(row, along) == last):
                found = read_split(run.folder, str(row["point"]))
                if found is not None:
                    yield line.label or run.name, found
