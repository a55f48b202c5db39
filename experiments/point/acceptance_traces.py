"""Recorded requests for `acceptance.replay`: files of accepted drafts by output position."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

from specfleet.sim.speculation.replay import MOST, NO_MATCH, Trace


def read_traces(path: str, counts: str = "drafts") -> tuple[Trace, ...]:
    """Returns the recorded requests of a file, one a line that is not blank.

    Args:
        path: JSON lines (`.jsonl`, `.json`, `.ndjson`): a list, or a mapping with a list `accepted`; null
            where nothing was proposed. Anything else is CSV: whole numbers, an empty cell for null.
        counts: what the numbers count, `drafts` accepted or `tokens` of the round (one more).

    Raises:
        ValueError: with the line and what is wrong with it.
    """
    file = Path(path)
    try:
        return _read(file, counts, file.stat().st_mtime_ns)
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {file.name}: {error}") from None


@lru_cache(maxsize=8)
def _read(file: Path, counts: str, changed_ns: int) -> tuple[Trace, ...]:
    """Reads a file; kept until it changes, since every point of a sweep asks for it."""
    text = file.read_text(encoding="utf-8")
    parse = _json_values if file.suffix in (".jsonl", ".json", ".ndjson") else _csv_values
    traces = []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                traces.append(_trace(parse(line), counts))
            except ValueError as error:
                raise ValueError(f"{file.name}:{number}: {error}") from None
    if not traces:
        raise ValueError(f"{file.name} holds no request; give a list of accepted drafts a line")
    return tuple(traces)


def _json_values(line: str) -> object:
    """Returns the list of a JSON line; ValueError if it is no JSON."""
    value = json.loads(line)
    return value.get("accepted") if isinstance(value, dict) else value


def _csv_values(line: str) -> object:
    """Returns the cells of a row, numbers as such, None where they are empty."""
    cells = [cell.strip() for cell in line.split(",")]
    return [int(cell) if cell.isdigit() else cell or None for cell in cells]


def _trace(values: object, counts: str) -> Trace:
    """Returns one request; ValueError says what is no count of it."""
    if not isinstance(values, list) or not values:
        raise ValueError("a request is a list of counts, one an output position")
    least = 1 if counts == "tokens" else 0
    for place, value in enumerate(values):
        known = value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= least)
        if not known:
            raise ValueError(
                f"position {place} is {value!r}; {counts} are whole numbers from {least}, or null"
            )
    return bytes(NO_MATCH if value is None else min(value - least, MOST) for value in values)
