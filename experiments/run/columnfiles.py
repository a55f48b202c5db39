"""Columns of numbers as CSV and JSON: block by block, never as lists of all their numbers.

A block of rows is a matrix of characters, and a cell the digits of an integer; times are cut into whole
milliseconds and millionths of one. The text is that of `str` and of `"%.6f"`, to the last digit.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from specfleet.sim.fleet.scaling import ScalingLog
from specfleet.sim.recorder import REJECTED, TIMED_OUT, Columns

BLOCK = 16_384
"""Rows that are text at one time."""
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Characters = npt.NDArray[np.uint8]
"""A row a cell, filled with `PAD` on its left."""
PAD, ZERO, MINUS, POINT, COMMA, NEWLINE = 0, *b"0-.,\n"
DECIMALS, MILLION = 6, 1_000_000


def write_requests(path: Path, columns: Columns) -> None:
    """Writes a row a request: counts as they are, times in milliseconds, empty where there is none.

    The replica of one that ended at none is -1.
    """
    order = ["request_id", "class_id", "counted", "status", "replica", "prompt_tokens", "max_tokens"]
    times = [name for name in columns if name.endswith("_s")]
    counts = [name for name in columns if name not in order and name not in times]
    with path.open("wb") as file:
        file.write(",".join([*order, *counts, *(f"{name[:-2]}_ms" for name in times)]).encode() + b"\n")
        for start in range(0, len(columns["request_id"]), BLOCK):
            block = slice(start, start + BLOCK)
            counted = {name: columns[name][block].astype(np.int64) for name in (*order, *counts)}
            nowhere = np.isin(counted["status"], (REJECTED, TIMED_OUT))
            nowhere |= counted.get("pool", counted["status"]) < 0
            counted["replica"] = np.where(nowhere, -1, counted["replica"])
            cells = [*map(whole_cells, counted.values())]
            cells += [decimal_cells(1e3 * columns[name][block]) for name in times]
            file.write(lines(cells))


def write_fleet(path: Path, log: ScalingLog, loses: bool = False) -> None:
    """Writes a row a decision of an autoscaler, or change of its replicas; `paid` counts those that start,
    are up or drain from then on. Where replicas may be lost, those that drain since notice was given
    (`noticed`) and those that are to be replaced and cannot be yet (`missing`), too."""
    rows = log.changes
    names = ("starting", "up", "draining", *(("noticed",) if loses else ()))
    counts = {name: rows[name].astype(np.int64) for name in names}
    counts["paid"] = log.paid_then().astype(np.int64)
    counts |= {"missing": rows["missing"].astype(np.int64)} if loses else {}
    with path.open("wb") as file:
        file.write(",".join(["time_s", *counts, "metric", "wish"]).encode() + b"\n")
        cells = [decimal_cells(rows["time_s"]), *map(whole_cells, counts.values())]
        file.write(lines([*cells, decimal_cells(rows["metric"]), decimal_cells(rows["wish"])]))


def lines(cells: Sequence[Characters]) -> bytes:
    """Returns the rows of a CSV file; `cells` is a matrix a column."""
    rows = len(cells[0])
    parts: list[Characters] = []
    for matrix in cells:
        parts += [matrix, np.full((rows, 1), COMMA, dtype=np.uint8)]
    parts[-1][:] = NEWLINE
    whole = np.hstack(parts)
    return bytes(whole[whole != PAD])


def whole_cells(values: I64) -> Characters:
    """Returns integers as `str` writes them; -2**63 is none."""
    size = np.abs(values)
    width = len(str(int(size.max(initial=0)))) + 1
    cells = np.full((len(values), width), PAD, dtype=np.uint8)
    _put_digits(cells, size, width)
    negative = np.flatnonzero(values < 0)
    cells[negative, np.argmax(cells[negative] != PAD, axis=1) - 1] = MINUS
    return cells


def decimal_cells(values: F64) -> Characters:
    """Returns numbers as `"%.6f"` writes them; NaN as nothing.

    The fraction of a double is exact, and a million times it to 1e-10. What lies so near the middle of two
    decimals that this could tell wrong, and what is negative, large or no number, is left to `"%.6f"`.
    """
    with np.errstate(invalid="ignore"):
        plain = (values >= 0.0) & (values < 2.0**52) & ~np.signbit(values)
    kept = np.where(plain, values, 0.0)
    whole = np.floor(kept)
    millionths = (kept - whole) * MILLION
    plain &= np.abs(millionths - np.floor(millionths) - 0.5) > 1e-9
    rounded = np.rint(millionths).astype(np.int64)
    front = whole.astype(np.int64) + rounded // MILLION
    others = {
        int(at): b"" if values[at] != values[at] else b"%.6f" % values[at] for at in np.flatnonzero(~plain)
    }
    width = max([len(str(int(front.max(initial=0)))) + 1 + DECIMALS, *map(len, others.values())])
    cells = np.full((len(values), width), PAD, dtype=np.uint8)
    cells[:, -1 - DECIMALS] = POINT
    _put_digits(cells, front, width - 1 - DECIMALS)
    _put_digits(cells, rounded % MILLION + MILLION, width, DECIMALS)
    for at, text in others.items():
        cells[at] = PAD
        cells[at, width - len(text) :] = np.frombuffer(text, dtype=np.uint8)
    return cells


def _put_digits(cells: Characters, values: I64, end: int, digits: int | None = None) -> None:
    """Writes the digits of `values` before column `end`: all that they have, at least one, or `digits`."""
    left = values.astype(np.uint32) if values.max(initial=0) < 2**32 else values
    for place in range(digits or len(str(int(values.max(initial=0))))):
        left, digit = np.divmod(left, 10)
        shown = digit.astype(np.uint8) + np.uint8(ZERO)
        if digits is None and place > 0:
            shown[(left == 0) & (digit == 0)] = PAD
        cells[:, end - 1 - place] = shown


def write_json(path: Path, content: object) -> None:
    """Writes JSON with a final newline; infinities, which JSON lacks, as vLLM writes them ("inf").

    Args:
        path: of the file.
        content: what it holds; of a mapping, values may be columns, which are lists in the file.
    """
    with path.open("w", encoding="utf-8") as file:
        if isinstance(content, Mapping) and any(isinstance(value, np.ndarray) for value in content.values()):
            _write_mapping(file, content)
        else:
            file.write(_text(content))
        file.write("\n")


def _write_mapping(file: IO[str], content: Mapping[str, object]) -> None:
    """Writes a mapping as `json.dumps` would, its columns block by block."""
    before = "{"
    for key, value in content.items():
        file.write(f"{before}\n {json.dumps(key)}: ")
        if isinstance(value, np.ndarray) and len(value) and np.isfinite(value).all():
            opening = "[\n  "
            for start in range(0, len(value), BLOCK):
                file.write(opening + ",\n  ".join(map(repr, value[start : start + BLOCK].tolist())))
                opening = ",\n  "
            file.write("\n ]")
        else:
            listed = value.tolist() if isinstance(value, np.ndarray) else value
            file.write(_text(listed).replace("\n", "\n "))
        before = ","
    file.write("\n}")


def _text(content: object) -> str:
    return json.dumps(_finite(content), indent=1, allow_nan=False)


def _finite(content: object) -> object:
    if isinstance(content, float) and math.isinf(content):
        return "inf" if content > 0 else "-inf"
    if isinstance(content, Mapping):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return content
