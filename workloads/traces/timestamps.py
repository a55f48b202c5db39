"""Time stamps as text to whole nanoseconds, without a float in between."""

from __future__ import annotations

import re
from datetime import date
from functools import lru_cache

NANOSECONDS_PER_SECOND = 1_000_000_000
LAST_SECOND = (1 << 63) // NANOSECONDS_PER_SECOND
_STAMP = re.compile(
    r"(\d{4}-\d\d-\d\d)[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?\s*(Z|[+-](?:0\d|1[0-4])(?::?[0-5]\d)?)?",
    re.ASCII,
)


@lru_cache(maxsize=64)
def _midnight_s(day: str) -> int:
    """Seconds from 1970 to the start of a day YYYY-MM-DD. ValueError for a day that does not exist."""
    return (date.fromisoformat(day).toordinal() - date(1970, 1, 1).toordinal()) * 86_400


def _offset_s(zone: str | None) -> int:
    """UTC offset in seconds; no zone counts as UTC."""
    if zone is None or zone == "Z":
        return 0
    digits = zone[1:].replace(":", "").ljust(4, "0")
    return (-1 if zone[0] == "-" else 1) * (int(digits[:2]) * 3600 + int(digits[2:]) * 60)


def parse_stamp(text: str) -> tuple[int, bool]:
    """(nanoseconds since 1970 UTC, whether the text names its zone) of a time stamp.

    `YYYY-MM-DD hh:mm:ss` with `T` or a space, 0 to 9 fractional digits, and `Z`, an offset or nothing (taken
    as UTC) behind. Raises ValueError for anything else, and for days and hours that do not exist.
    """
    match = _STAMP.fullmatch(text)
    if match is None:
        raise ValueError(f"not a time stamp: {text!r}")
    day, hour, minute, second, fraction, zone = match.groups()
    if hour > "23" or minute > "59" or second > "59":
        raise ValueError(f"no such time of day: {text!r}")
    clock_s = int(hour) * 3600 + int(minute) * 60 + int(second)
    whole_s = _midnight_s(day) + clock_s - _offset_s(zone)
    if abs(whole_s) >= LAST_SECOND:
        raise ValueError(f"a year nanoseconds cannot count in 64 bits: {text!r}")
    return whole_s * NANOSECONDS_PER_SECOND + int((fraction or "").ljust(9, "0")), zone is not None
