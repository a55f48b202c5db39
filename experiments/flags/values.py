"""Texts of a command line as values, each by the type of its flag."""

from __future__ import annotations

import json
import re
from argparse import ArgumentTypeError
from collections.abc import Callable
from typing import Any

_SUFFIXED = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}


def size(text: str) -> int:
    """A whole number, or one with a suffix: `64k` is 64,000, `64K` 65,536; `1.5k` is 1,500.

    Raises:
        ArgumentTypeError: for anything else, and for decimals before a binary suffix.
    """
    text = text.strip()
    match = _SUFFIXED.fullmatch(text)
    if match is None:
        return whole(text)
    number, suffix = match.groups()
    power: int = _POWERS[suffix.lower()]
    if suffix.islower():
        return int(float(number) * 10 ** (3 * power))
    if "." in number:
        raise ArgumentTypeError(
            f"{text}: {suffix} is binary and takes no decimals; {number}{suffix.lower()} may be meant"
        )
    return int(number) << (10 * power)


def length(text: str) -> int:
    """A size, or -1 for `auto`."""
    return -1 if text.strip().lower() in ("-1", "auto") else size(text)


def whole(text: str) -> int:
    """A whole number; underscores between digits are taken, suffixes are not."""
    try:
        return int(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is no whole number; write plain digits") from None


def number(text: str) -> float:
    """A number."""
    try:
        return float(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is no number") from None


def from_json(text: str) -> Any:
    """What a JSON text says."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArgumentTypeError(f"no valid JSON: {error}") from None


def json_or_text(text: str) -> Any:
    """What a JSON text says, or the text."""
    return from_json(text) if re.match(r"\s*[{\[]", text) else text


def json_object(text: str) -> dict[str, Any]:
    """A JSON object."""
    found = from_json(text)
    if not isinstance(found, dict):
        raise ArgumentTypeError("is no JSON object; write {...}")
    return found


def ids(text: str) -> list[int | str]:
    """Devices, separated by commas."""
    return [int(one) if one.strip().isdigit() else one.strip() for one in text.split(",")]


def dotted(text: str) -> Any:
    """The value of a dotted key: JSON, a size, or text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return size(text)
    except ArgumentTypeError:
        return text


TYPES: dict[str, Callable[[str], Any]] = {
    "text": str,
    "word": str.lower,
    "int": whole,
    "float": number,
    "size": size,
    "length": length,
    "json": from_json,
    "object": json_object,
    "json or text": json_or_text,
    "ids": ids,
}
"""By the `types` column of the flag tables; a `?` behind it lets an empty text or `None` mean unset."""


def reader(kind: str) -> Callable[[str], Any]:
    """What reads a text of a type."""
    read = TYPES[kind.removesuffix("?")]
    if not kind.endswith("?"):
        return read

    def read_or_none(text: str) -> Any:
        return None if text in ("", "None") else read(text)

    return read_or_none
