"""Rules about the grid as a whole: its axes, what is reported over them, and the K of a measurement."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping

from specfleet.experiments.load.rules.base import Conflict
from specfleet.experiments.load.sweep import MAX_POINTS, point_id
from specfleet.experiments.schema.blocks.acceptance import processes
from specfleet.experiments.schema.blocks.expect import Claim
from specfleet.experiments.schema.blocks.experiment import METRICS, Experiment, Report, is_metric
from specfleet.experiments.schema.faults import COMMAND_LINE, OVERRIDES, closest, did_you_mean, on_one_line
from specfleet.experiments.schema.overrides import key_path
from specfleet.experiments.schema.structure import homes, is_key, shown
from specfleet.experiments.schema.yamlfile import Document, KeyPath, Value

_FIXED = ("name", "seed", "replications", "run", "sweep", "report", "plugins")
"""Blocks that are the same for all points."""

OUTSIDE = (COMMAND_LINE, OVERRIDES)

Axes = Mapping[str, tuple[Value, ...]]


def unusable_axes(axes: Axes, document: Document) -> dict[str, str]:
    """Axis -> what is wrong with its key; what to do."""
    found: dict[str, str] = {}
    for key in axes:
        path = key_path(key)
        if not all(path) or not is_key(path):
            found[key] = f"names no key; {_meant_axis(key)}"
        elif path[0] in _FIXED:
            found[key] = f"{path[0]} is the same for all points; sweep another key"
        elif (file := _set_in(document, path)) is not None:
            where = "on the command line" if file == COMMAND_LINE else "among overrides"
            found[key] = f"is swept, so {key} {where} has no effect; set sweep.axes.{key}=[...]"
        for other in axes:
            around = key_path(other)
            if other != key and path[: len(around)] == around:
                found[key] = f"is inside {other}, which is swept too; keep one"
    return found


def _set_in(document: Document, path: KeyPath) -> str | None:
    """Where a key was set by its own name beside the file; None where a block around it was, or nothing."""
    files = [document.mark(path).file, document.mark(path[:-1]).file]
    return files[0] if path in document.marks and files[0] in OUTSIDE and files[1] not in OUTSIDE else None


def _meant_axis(key: str) -> str:
    """The dotted key that a wrong axis most likely means."""
    every = [".".join((*home, name)) for name, blocks in homes().items() for home in blocks]
    last = key.rpartition(".")[2]
    same_end = [name for name in every if name.rpartition(".")[2] == last.replace("-", "_")]
    near = closest(key, same_end) or (same_end[0] if same_end else closest(key, every))
    return f"did you mean {near}?" if near else "give a dotted key such as workload.max_concurrency"


def repeated(axes: Axes) -> Iterator[Conflict]:
    """A value given twice, which would run the same point twice, and grids without end."""
    for key, values in axes.items():
        names = [point_id({key: value}) for value in values]
        count = Counter(names)
        twice = sorted({shown(value) for value, name in zip(values, names, strict=True) if count[name] > 1})
        if twice:
            yield Conflict((("sweep", "axes", key),), f"has {', '.join(twice)} twice; keep one")
    size = math.prod(map(len, axes.values()))
    if size > MAX_POINTS:
        yield Conflict((("sweep", "axes"),), f"the grid has {size} points; use at most {MAX_POINTS}")


def report_conflicts(report: Report, axes: Axes) -> Iterator[Conflict]:
    """What is plotted must be an axis or a metric; what is compared with must be a point."""
    if report.x is not None and report.x not in axes and not is_metric(report.x):
        yield Conflict.at(
            f"{on_one_line(report.x)} is neither an axis nor a metric; {_axis_hint(report.x, axes)}",
            "report.x",
        )
    if report.lines is not None and report.lines not in axes:
        yield Conflict.at(
            f"{on_one_line(report.lines)} is no axis; {_axis_hint(report.lines, axes)}", "report.lines"
        )
    for number, name in enumerate(report.y):
        if not is_metric(name):
            yield Conflict.at(_no_metric(name), f"report.y.{number}")
    for key, value in (report.baseline or {}).items():
        where = ("report", "baseline", key)
        if key not in axes:
            yield Conflict((where,), f"is no axis; {_axis_hint(key, axes)}")
        elif value not in axes[key]:
            values = ", ".join(map(_told, axes[key]))
            yield Conflict((where,), f"{_told(value)} is not on the axis; use one of {values}")


def _no_metric(name: str) -> str:
    near = closest(name, sorted(METRICS))
    hint = f"did you mean {near}?" if near else "use a column of summary.csv, such as output_throughput"
    return f"{on_one_line(name)} is no metric; {hint}"


def _told(value: object) -> str:
    """A value of an axis, mappings written out."""
    return json.dumps(value) if isinstance(value, dict) else shown(value)


def claim_conflicts(claim: Claim | None, axes: Axes) -> Iterator[Conflict]:
    """What a claim looks at must be there."""
    for number, asked in enumerate(claim.expect if claim else (), 1):
        here, at = f"expectation {number}", f"claim.expect.{number - 1}"
        for name in (asked.figure, asked.over_figure):
            if name is not None and not is_metric(name) and not name.startswith("class:"):
                yield Conflict.at(f"{here}: {_no_metric(name)}", at)
        for key, value in {**asked.where, **(asked.over or {})}.items():
            if key not in axes:
                yield Conflict.at(f"{here}: {on_one_line(key)} is no axis; {_axis_hint(key, axes)}", at)
            elif value not in axes[key]:
                values = ", ".join(map(_told, axes[key]))
                message = f"{here}: {_told(value)} is not on the axis {key}; use one of {values}"
                yield Conflict.at(message, at)
        for fault in asked.faults():
            yield Conflict.at(f"{here}: {fault}", at)


def _axis_hint(name: str, axes: Axes) -> str:
    """The axis that was meant."""
    if not axes:
        return "nothing is swept, add it to sweep.axes"
    last = name.rpartition(".")[2]
    same_end = [key for key in axes if key.rpartition(".")[2] == last]
    return f"did you mean {same_end[0]}?" if same_end else did_you_mean(name, axes)


def measured_at_k_conflicts(experiment: Experiment, ks: set[int]) -> Iterator[Conflict]:
    """An acceptance length belongs to one K; which, cannot be guessed when several run."""
    if len(ks) < 2:
        return
    for name, process in processes(experiment.acceptance).items():
        block = f"acceptance.{name}" if name else "acceptance"
        for key in ("acceptance_length", "draft_acceptance_rate"):
            if getattr(process, key) is not None and process.measured_at_k is None:
                several = ", ".join(map(str, sorted(ks)))
                yield Conflict.at(
                    f"depends on the number of drafts, and {several} are swept; add measured_at_k",
                    f"{block}.{key}",
                    f"{block}.measured_at_k",
                )
