"""An acceptance that stands in its class, `workload.mix.NAME.acceptance`, put where all of them are.

It is the same as a process of that name in `acceptance:`, so all that follows knows one place. Places in the
file stay, so that faults name the line that was typed.
"""

from __future__ import annotations

from dataclasses import replace

from specfleet.experiments.schema.blocks.acceptance import Process
from specfleet.experiments.schema.faults import Fault
from specfleet.experiments.schema.yamlfile import Document, KeyPath, Mark, Value

_MIX: KeyPath = ("workload", "mix")


def translated(document: Document) -> Document:
    """The document with every class's acceptance in `acceptance:`; itself where no class has one."""
    workload = document.data.get("workload")
    mix = workload.get("mix") if isinstance(workload, dict) else None
    if not isinstance(workload, dict) or not isinstance(mix, dict):
        return document
    mine = {
        name: each["acceptance"]
        for name, each in mix.items()
        if isinstance(each, dict) and "acceptance" in each
    }
    axes = _axes(document.data)
    if not mine and axes is None:
        return document
    given, faults = document.data.get("acceptance"), []
    for name in mine:
        if (fault := _twice(document, name, given)) is not None:
            faults.append(fault)
    data = dict(document.data)
    if mine:
        left = {name: _without(each) for name, each in mix.items()}
        data["workload"] = {**workload, "mix": left}
        beside = given if isinstance(given, dict) and not _one_process(given) else {}
        data["acceptance"] = {**beside, **mine}
    if axes is not None:
        sweep = data["sweep"]
        assert isinstance(sweep, dict)
        data["sweep"] = {**sweep, "axes": axes}
    return replace(document, data=data, marks=_marks(document, mine), faults=(*document.faults, *faults))


def _twice(document: Document, name: str, given: Value) -> Fault | None:
    """What is wrong where an acceptance stands in a class and in `acceptance:` as well."""
    if not isinstance(given, dict) or not given or set(given) == {"scale"}:
        return None
    if not _one_process(given) and name not in given:
        return None
    path: KeyPath = (*_MIX, name, "acceptance")
    other: KeyPath = ("acceptance",) if _one_process(given) else ("acceptance", name)
    mark, line = document.mark(path), document.mark(other).line
    where = ".".join(map(str, other))
    message = f"{where} (line {line}) says the same of {name}; keep one of the two"
    return Fault(mark.file, mark.line, ".".join(map(str, path)), message)


def _one_process(given: dict[str, Value]) -> bool:
    return bool(given.keys() & (Process.model_fields.keys() - {"scale"}))


def _without(each: Value) -> Value:
    if not isinstance(each, dict):
        return each
    return {key: value for key, value in each.items() if key != "acceptance"}


def _axes(data: dict[str, Value]) -> dict[str, Value] | None:
    """The axes under the names that their keys have now; None where none is of a class's acceptance."""
    sweep = data.get("sweep")
    axes = sweep.get("axes") if isinstance(sweep, dict) else None
    if not isinstance(axes, dict):
        return None
    found = {_moved(key): values for key, values in axes.items()}
    return None if list(found) == list(axes) else found


def _moved(key: str) -> str:
    parts = key.split(".")
    if parts[:2] != list(_MIX) or parts[3:4] != ["acceptance"]:
        return key
    return ".".join(["acceptance", parts[2], *parts[4:]])


def _marks(document: Document, mine: dict[str, Value]) -> dict[KeyPath, Mark]:
    """The places of keys, under both names."""
    marks = dict(document.marks)
    for path, mark in document.marks.items():
        if path[:2] == _MIX and len(path) > 3 and path[2] in mine and path[3] == "acceptance":
            marks[("acceptance", *path[2:3], *path[4:])] = mark
            marks.setdefault(("acceptance",), mark)
        if path[:2] == ("sweep", "axes") and len(path) > 2 and isinstance(path[2], str):
            marks[(*path[:2], _moved(path[2]), *path[3:])] = mark
    return marks
