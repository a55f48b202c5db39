"""`key=value` arguments: changes to an experiment before it is checked."""

from __future__ import annotations

from collections.abc import Iterable

from specfleet.experiments.schema.faults import COMMAND_LINE, Fault
from specfleet.experiments.schema.structure import replaced
from specfleet.experiments.schema.yamlfile import Document, KeyPath, Mark, Value, parse_value

_DOTTED_KEYS = (("sweep", "axes"), ("report", "baseline"))
"""Mappings whose keys are dotted themselves."""


def key_path(dotted: str) -> KeyPath:
    """A dotted key as steps from the top; below `sweep.axes` and `report.baseline` the rest is one key."""
    parts = tuple(dotted.split("."))
    if parts[:2] in _DOTTED_KEYS and len(parts) > 2:
        return (*parts[:2], ".".join(parts[2:]))
    return parts


def overridden(document: Document, overrides: Iterable[str]) -> Document:
    """The document with each `key=value` in place, marked as written on the command line.

    Values follow the rules of the file; arguments that are no `key=value` are the document's faults.
    """
    data, marks = document.data, dict(document.marks)
    faults = []
    for text in overrides:
        text = text.encode("utf-8", "backslashreplace").decode()
        dotted, equals, given = text.partition("=")
        path = key_path(dotted.strip())
        if not equals or not all(path):
            faults.append(
                Fault(COMMAND_LINE, 0, text, "is no key=value; write for example serve.max_num_seqs=64")
            )
            continue
        try:
            value: Value = parse_value(given)
        except ValueError as error:
            faults.append(Fault(COMMAND_LINE, 0, dotted, str(error)))
            continue
        data = replaced(data, path, value)
        marks = {known: mark for known, mark in marks.items() if known[: len(path)] != path}
        marks[path] = Mark(COMMAND_LINE, 0)
    return Document(document.file, data, marks, (*document.faults, *faults))
