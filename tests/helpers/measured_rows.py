"""Measured rows as a file."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path


def write(path: Path, rows: list[Mapping[str, str]]) -> Path:
    """A CSV of rows."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)
    return path
