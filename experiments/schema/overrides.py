"""Changes to an experiment before it is checked: `key=value` arguments, or keys with values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeAlias

from specfleet.experiments.schema.faults import COMMAND_LINE, OVERRIDES, Fault
from specfleet.experiments.schema.given import Change
from specfleet.experiments.schema.structure import replaced
from specfleet.experiments.schema.yamlfile import Document, KeyPath, Mark, Value, parse_value

Override: TypeAlias = str | tuple[str, Value]
"""`key=value` as a user writes it, or a dotted key and its value."""

_DOTTED_KEYS = (("sweep", "axes"), ("report", "baseline"))
"""Mappings whose keys are dotted themselves."""


def key_path(dotted: str) -> KeyPath:
    """A dotted key as steps from the top; below `sweep.axes` and `report.baseline` the rest is one key."""
    parts = tuple(dotted.split("."))
    if parts[:2] in _DOTTED_KEYS and len(parts) > 2:
        return (*parts[:2], ".".join(parts[2:]))
    return parts


def overridden(document: Document, overrides: Iterable[Override]) -> Document:
    """The document with each change in place, marked as written on the command line, or from Python.

    Texts follow the rules of the file; arguments that are no `key=value` are the document's faults.
    """
    data, marks = document.data, dict(document.marks)
    faults = []
    for override in overrides:
        change = _read(override) if isinstance(override, str) else (key_path(override[0]), override[1])
        if isinstance(change, Fault):
            faults.append(change)
            continue
        path, value = change
        data = replaced(data, path, value)
        marks = {known: mark for known, mark in marks.items() if known[: len(path)] != path}
        mark = Mark(OVERRIDES if isinstance(override, Change) else COMMAND_LINE, 0)
        marks |= dict.fromkeys(_within(path, value), mark)
    return Document(document.file, data, marks, (*document.faults, *faults))


def _within(path: KeyPath, value: Value) -> Iterator[KeyPath]:
    """Yields the place of a value and of all that it holds."""
    yield path
    inside = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, tuple) else ()
    )
    for key, inner in inside:
        yield from _within((*path, key), inner)


def _read(text: str) -> tuple[KeyPath, Value] | Fault:
    """Returns the key and value of a `key=value`, or what is wrong with it."""
    text = text.encode("utf-8", "backslashreplace").decode()
    dotted, equals, given = text.partition("=")
    path = key_path(dotted.strip())
    if not equals or not all(path):
        return Fault(COMMAND_LINE, 0, text, "is no key=value; write for example serve.max_num_seqs=64")
    try:
        return path, parse_value(given)
    except ValueError as error:
        return Fault(COMMAND_LINE, 0, dotted, str(error))
