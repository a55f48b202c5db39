"""What is wrong with an experiment file, in the words of the one who wrote it."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable
from dataclasses import dataclass

COMMAND_LINE = "command line"
"""The `file` of a value given as `key=value`."""


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with the input.

    Args:
        file: the YAML file as the user named it, or `COMMAND_LINE`.
        line: 1 for the first line; 0 on the command line.
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
        return ": ".join(part for part in (place, self.key, self.message) if part)


class InputFaults(Exception):  # noqa: N818 (it holds faults, it is not one)
    """Everything that is wrong with an experiment, each thing once, sorted by line, command line last."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        """`faults` in any order."""
        unique = dict.fromkeys(faults)
        self.faults = sorted(unique, key=lambda f: (f.file == COMMAND_LINE, f.file, f.line))
        super().__init__(self.render())

    def render(self) -> str:
        """One line a fault."""
        return "\n".join(map(str, self.faults))


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
