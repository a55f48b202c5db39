"""What is wrong with an experiment file, in the words of the one who wrote it."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable
from dataclasses import dataclass

COMMAND_LINE = "command line"
"""The `file` of a value given as `key=value`."""
MAPPING = "experiment"
"""The `file` of an experiment given as a mapping, from Python."""
OVERRIDES = "overrides"
"""The `file` of a value given over an experiment's own, from Python."""
NO_FILES = (MAPPING, OVERRIDES, COMMAND_LINE)
"""What stands in the place of a file, in the order in which faults are listed."""


class UserError(Exception):
    """A mistake of the user: the text says where it is, what is wrong and what to do."""


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with the input.

    Args:
        file: the YAML file as the user named it, or one of `NO_FILES`.
        line: 1 for the first line; 0 where there is no file.
        key: dotted path of the key at fault, empty where the file is no YAML.
        message: what is wrong; what to do.
    """

    file: str
    line: int
    key: str
    message: str

    def __str__(self) -> str:
        """`file:line: key: what is wrong; what to do`."""
        place = f"{self.file}:{self.line}" if self.line else self.file
        return ": ".join(part for part in (place, on_one_line(self.key), self.message) if part)


class InputFaults(UserError):  # noqa: N818 (it holds faults, it is not one)
    """Everything that is wrong with an experiment, each thing once, sorted by line, command line last."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        """`faults` in any order."""
        unique = dict.fromkeys(faults)
        self.faults = sorted(unique, key=lambda f: (_rank(f.file), f.file, f.line))
        super().__init__(self.render())

    def render(self) -> str:
        """One line a fault."""
        return "\n".join(map(str, self.faults))


def on_one_line(name: str) -> str:
    """A user's word as it is, or in quotes with its line breaks spelled out."""
    return name if name.isprintable() else repr(name)


def _rank(file: str) -> int:
    """Files first, then what was given beside them."""
    return NO_FILES.index(file) + 1 if file in NO_FILES else 0


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known word that `word` most likely means, case and dashes aside; None if none is near."""
    return _closest(word, tuple(known))


@functools.lru_cache(maxsize=1024)
def _closest(word: str, known: tuple[str, ...]) -> str | None:
    spelling = {name.lower().replace("-", "_"): name for name in known}
    plain = word.lower().replace("-", "_")
    near = difflib.get_close_matches(plain, spelling, n=1, cutoff=0.7)
    return spelling[near[0]] if near else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`did you mean X?`, or the known words where none is near."""
    names = list(known)
    near = closest(word, names)
    return f"did you mean {near}?" if near else f"use one of {', '.join(names)}"
