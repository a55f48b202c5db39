"""Shell loops around a benchmark: what they go through becomes axes of a sweep."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specfleet.experiments.flags.faults import LineFault

_FLAGS = {
    "--max-concurrency": "max_concurrency",
    "--request-rate": "request_rate",
    "--random-input-len": "input_len",
    "--random-output-len": "output_len",
    "--input-len": "input_len",
    "--output-len": "output_len",
}
"""Flags whose values a loop may go through, and their key of `workload`."""
_VARIABLE = re.compile(r"\$\{?(\w+)\}?")
_TIMES = re.compile(r"\$\(\(\s*(?:\$?\{?(\w+)\}?\s*\*\s*(\d+)|(\d+)\s*\*\s*\$?\{?(\w+)\}?)\s*\)\)")


@dataclass
class Sent:
    """What a benchmark sends.

    Attributes:
        workload: keys of the block.
        notes: one sentence for each thing that was read otherwise than it stands.
        axes: of a sweep.
        slo: limits of a request.
    """

    workload: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    axes: dict[str, list[Any]] = field(default_factory=dict)
    slo: dict[str, float] = field(default_factory=dict)


@dataclass
class Looped:
    """A benchmark's words with one value for each variable of a loop.

    Attributes:
        words: with the first value in each place.
        axes: key of `workload` -> all values.
        per_concurrency: requests for each of `max_concurrency`, where `--num-prompts` is a multiple of it.
    """

    words: list[str]
    axes: dict[str, list[Any]] = field(default_factory=dict)
    per_concurrency: int = 0


def unlooped(words: Sequence[str], loops: Mapping[str, Sequence[str]]) -> Looped:
    """The words of a benchmark within loops.

    Args:
        words: of the command; variables of loops stand in it as they were written.
        loops: variable -> its values.

    Raises:
        LineFault: a variable that no loop around it has, where a number must stand.
    """
    this, given = Looped([]), list(_flags(words))
    users = next((value for flag, value, _ in given if flag == "--max-concurrency"), "")
    for flag, value, head in given:
        values = _through(value, loops) if flag in _FLAGS else []
        times = _TIMES.fullmatch(value) if flag == "--num-prompts" else None
        if values:
            this.axes[_FLAGS[flag]] = values
            this.words.append(f"{head}{values[0]}")
        elif times is not None and users.strip("${}") == (times[1] or times[4]):
            this.per_concurrency = int(times[2] or times[3])
            this.words.append(f"{head}{this.per_concurrency}")
        elif "$" in value and flag in (*_FLAGS, "--num-prompts"):
            raise LineFault("variable", flag, f"{value}: the text does not set it; write its value")
        else:
            this.words.append(head + value)
    return this


def _flags(words: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Each word's flag with dashes, its value, and what of the word stands before the value."""
    flag = ""
    for word in words:
        if not word.startswith("--"):
            yield flag, word, ""
            continue
        name, equals, value = word.partition("=")
        flag = name.replace("_", "-")
        yield (flag, value, name + equals) if equals else ("", word, "")


def _through(value: str, loops: Mapping[str, Sequence[str]]) -> list[Any]:
    """The numbers that a variable goes through."""
    match = _VARIABLE.fullmatch(value)
    return _numbers(loops.get(match[1], ())) if match else []


def _numbers(values: Sequence[str]) -> list[Any]:
    """Texts as numbers; empty where one is none."""
    try:
        return [int(text) if re.fullmatch(r"\d+", text) else float(text) for text in values]
    except ValueError:
        return []
