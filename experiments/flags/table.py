"""The flags of an engine's server, and what each does here."""

from __future__ import annotations

import csv
import functools
import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

SIMULATED, HARMLESS, REFUSED = "simulated", "harmless", "refused"


@dataclass(frozen=True)
class Flag:
    """One flag.

    Attributes:
        name: as in a config file, with underscores.
        kind: of its value, a key of `values.TYPES` (`?` behind it: `None` is taken), or `switch`.
        several: `+` for one or more values, `?` for none or one, empty for one.
        default: its value where it is not given.
        spellings: further option strings, short ones included.
        off: option strings that set a switch to false.
        choices: what its value must be one of; empty is anything.
        does: `simulated`, `harmless` or `refused`: what a value other than the default does here.
        needs: what must be on, or what the model must have, for it to change anything.
        why: the reason where it is refused, a remark where it is harmless.
    """

    name: str
    kind: str
    several: str
    default: Any
    spellings: tuple[str, ...]
    off: tuple[str, ...]
    choices: tuple[Any, ...]
    does: str
    needs: str
    why: str

    @property
    def option(self) -> str:
        """Its long option string."""
        return "--" + self.name.replace("_", "-")


@functools.cache
def flags(table: str = "vllm-0.33") -> dict[str, Flag]:
    """The flags of a table in `data/`, by name. Facts of `vllm serve`'s own parser, version 0.33.0."""
    text = files("specfleet.experiments.flags").joinpath(f"data/{table}.csv").read_text(encoding="utf-8")
    return {row["name"]: _flag(row) for row in csv.DictReader(text.splitlines())}


def _flag(row: dict[str, str]) -> Flag:
    kind = row["type"]
    read = int if kind == "int" else str
    choices: tuple[Any, ...] = tuple(None if c == "None" else read(c) for c in row["choices"].split())
    return Flag(
        row["name"],
        kind,
        row["values"],
        json.loads(row["default"]),
        tuple(row["spellings"].split()),
        tuple(row["off"].split()),
        choices,
        row["does"],
        row["needs"],
        row["why"],
    )
