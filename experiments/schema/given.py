"""An experiment given from Python: a mapping in place of a file, and changes as values in place of text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

import yaml

from specfleet.experiments.schema.faults import MAPPING, OVERRIDES, Fault, InputFaults
from specfleet.experiments.schema.yamlfile import Document, Mark, Value, read_yaml, whole

Given: TypeAlias = "Path | str | Mapping[str, object]"
"""The path of an experiment file, or what such a file holds."""


class Change(NamedTuple):
    """A dotted key and its value, given from Python."""

    key: str
    value: Value


def document(given: Given) -> Document:
    """The document of a file or a mapping. InputFaults for what is neither."""
    if isinstance(given, Path | str):
        return read_yaml(given)
    return Document(
        MAPPING, {str(key): plain(given[key], MAPPING, str(key)) for key in given}, {(): _NOWHERE}
    )


_NOWHERE = Mark(MAPPING, 0)


def text_of(given: Given) -> bytes:
    """The file's bytes, or a mapping as the file that it could have been."""
    if isinstance(given, Path | str):
        return Path(given).read_bytes()
    return yaml.safe_dump(_lists(document(given).data), sort_keys=False, allow_unicode=True).encode()


def plain(value: object, origin: str, key: str) -> Value:
    """A Python value as YAML would have read it: sequences as tuples, arrays of numpy as numbers.

    Raises:
        InputFaults: naming `key`, for a value that no file can hold.
    """
    if isinstance(value, str):
        try:
            return whole(value)
        except ValueError as error:
            raise InputFaults([Fault(origin, 0, key, str(error))]) from None
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(name): plain(child, origin, f"{key}.{name}") for name, child in value.items()}
    if isinstance(value, Path):
        return str(value)
    if callable(listed := getattr(value, "tolist", None)):
        return plain(listed(), origin, key)
    if isinstance(value, list | tuple | range):
        return tuple(plain(child, origin, f"{key}[{i}]") for i, child in enumerate(value))
    message = f"a {type(value).__name__} is nothing that a file can hold; give numbers, text, lists, mappings"
    raise InputFaults([Fault(origin, 0, key, message)])


def changes(values: Mapping[str, object] | None, blocks: Mapping[str, object]) -> list[Change]:
    """Returns the changes of `values`, dotted keys, and of each key of the blocks given whole or in part.

    Raises:
        InputFaults: for a value that no file can hold.
    """
    found = dict(values or {})
    for name, block in blocks.items():
        inside = block.items() if isinstance(block, Mapping) else ()
        found |= {f"{name}.{key}": value for key, value in inside} or {name: block}
    return [Change(key, plain(value, OVERRIDES, key)) for key, value in found.items()]


def said(overrides: Iterable[str | tuple[str, Value]]) -> list[str]:
    """Returns changes as `key=value`."""
    return [each if isinstance(each, str) else f"{each[0]}={_flow(each[1])}" for each in overrides]


def _flow(value: Value) -> str:
    """A value in one line of YAML."""
    text = yaml.safe_dump(_lists(value), default_flow_style=True, width=10_000, allow_unicode=True)
    return text.removesuffix("...\n").strip()


def _lists(value: Value) -> object:
    """Tuples as the lists that YAML writes."""
    if isinstance(value, dict):
        return {key: _lists(child) for key, child in value.items()}
    return [_lists(child) for child in value] if isinstance(value, tuple) else value
