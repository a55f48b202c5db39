"""One row of a trace as a format gives it, and numbers read without a guess or a float in between."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from specfleet.workloads.traces.timestamps import NANOSECONDS_PER_SECOND, parse_stamp

UNITS = {"s": NANOSECONDS_PER_SECOND, "ms": 1_000_000, "us": 1_000, "ns": 1, "iso": 0}
"""Units of a time; nanoseconds in one, 0 for a date and time of day written out."""
MAX_TOKEN_DIGITS = 9
_NUMBER = re.compile(r"(-?)(\d{1,19})(?:\.(\d{0,24}))?(?:[eE]([+-]?\d{1,2}))?", re.ASCII)
_TOKENS = re.compile(r"(\d+)(?:\.0*)?", re.ASCII)
_LAST_NS = 1 << 62


class BadRowError(ValueError):
    """A row to leave out; the text is the reason, the same for every row with that fault."""


class Row(NamedTuple):
    """What a format found in one row; nothing is checked yet.

    Attributes:
        time: as the file holds it; None where the format records no times.
        prompt, output: tokens, as the file holds them.
        session, traffic_class: names; empty where there are none.
        hashes: ids of the prompt's blocks, from its start; None where none are recorded.
        reject: why the format itself leaves the row out; empty to keep it.
        turn: its number in its session.
        pause: from the answer before it, in the unit of its time, or seconds.
        end: when its answer was complete. took: how long that was. Both in the unit of its time.
    """

    time: object
    prompt: object
    output: object
    session: str = ""
    traffic_class: str = ""
    hashes: Sequence[object] | None = None
    reject: str = ""
    turn: object = None
    pause: object = None
    end: object = None
    took: object = None


def rejected(reason: str) -> Row:
    """A row that the format itself leaves out."""
    return Row(None, None, None, reject=reason)


def tokens_of(value: object) -> int:
    """A count of tokens, 0 or more; BadRowError for anything else. `12.0` is 12: tables are written so."""
    if value is None or value == "":
        raise BadRowError("a token count is missing")
    match = None if isinstance(value, bool) else _TOKENS.fullmatch(str(value)[:64])
    if match is None or len(match[1].lstrip("0")) > MAX_TOKEN_DIGITS:
        raise BadRowError(f"a token count is not a whole number of at most {MAX_TOKEN_DIGITS} digits")
    return int(match[1])


def number_of(value: object) -> int:
    """The number of a turn, -1 where it has none; BadRowError for what is no whole number of 0 or more."""
    if value is None or value == "":
        return -1
    try:
        return tokens_of(value)
    except BadRowError as error:
        raise BadRowError("the number of a turn is not a whole number") from error


def span_ns(value: object, unit: str | None) -> int:
    """Nanoseconds of a span in a unit of `UNITS`, in seconds where times are dates or not recorded; -1 where
    nothing is said. BadRowError for what is no number of 0 or more."""
    if value is None or value == "":
        return -1
    found, _ = time_ns(value, "s" if unit in (None, "iso") else str(unit))
    if found < 0:
        raise BadRowError("a pause or a duration is negative")
    return found


def time_ns(value: object, unit: str) -> tuple[int, bool]:
    """(nanoseconds, whether the text names its zone) of a time in a unit of `UNITS`.

    Numbers below a nanosecond are cut. Raises BadRowError for what is no time in that unit.
    """
    if value is None or value == "":
        raise BadRowError("a time is missing")
    try:
        if unit == "iso":
            return parse_stamp(str(value)[:64])
        return _scaled(str(value)[:64], UNITS[unit]), True
    except ValueError as error:
        raise BadRowError("unreadable time stamp") from error


def _scaled(text: str, factor: int) -> int:
    """A decimal number times a power of ten, cut to a whole number. ValueError for anything else."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise ValueError(f"not a number: {text!r}")
    sign, whole, fraction, exponent = match.groups()
    digits, shift = whole + (fraction or ""), int(exponent or 0) - len(fraction or "")
    scaled: int = int(digits) * factor
    scaled = scaled * 10 ** max(shift, 0) // 10 ** max(-shift, 0)
    if scaled >= _LAST_NS:
        raise ValueError(f"a time nanoseconds cannot count in 64 bits: {text!r}")
    return -scaled if sign else scaled
