"""Columns of numbers read back from CSV files, block by block."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

BLOCK, BLOCK_BYTES = 16_384, 1 << 20
"""Rows, and characters, that are looked at together."""
LARGE_BYTES = 8_000_000
"""Files of another make from which pandas reads faster than it is imported."""
DECIMALS, MOST_DIGITS = 6, 15
"""Digits behind the point of a time as a run writes it; digits of any number that a double holds exactly."""
COMMA, NEWLINE, POINT, ZERO = b",\n.0"
F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
Characters = npt.NDArray[np.uint8]


class _OtherMakeError(Exception):
    """A file that is not written as a run writes it."""


def read_numbers(path: Path, names: Sequence[str], only: Mapping[str, int]) -> F64:
    """Returns columns of a CSV file, shape `(rows, len(names))`.

    Args:
        path: of the file.
        names: of the columns.
        only: column -> the value that rows must have there, to be read.

    Raises:
        ValueError: a cell of these rows holds no number.
        KeyError: a column is not there.
    """
    size, width = path.stat().st_size, len(names)
    try:
        return _gathered(_read_own(path, names, only), size, width)
    except _OtherMakeError:
        read = _read_large if size >= LARGE_BYTES else _read_small
        return _gathered(read(path, names, only), size, width)


def _gathered(blocks: Iterator[F64], size: int, width: int) -> F64:
    """Returns blocks of rows as one table, which is filled as they come, so that each is there once.

    Args:
        blocks: of rows. size: of the file, bytes. width: columns.
    """
    table = np.empty((1 + size // (2 * width), width))  # a number is a digit and what parts it from the next
    rows = 0
    for block in blocks:
        table[rows : rows + len(block)] = block
        rows += len(block)
    return table[:rows]


def _read_own(path: Path, names: Sequence[str], only: Mapping[str, int]) -> Iterator[F64]:
    """Reads what a run has written: whole numbers, and times (`_ms`) with six decimals.

    A time is read as a whole number of millionths and divided by a million: of two numbers that are held
    exactly that is the double nearest to the decimals, as `float` has it.
    """
    with path.open("rb") as file:
        first = file.readline()
        if b'"' in first or b"\r" in first:
            raise _OtherMakeError
        heading = first.rstrip(b"\n").decode("utf-8", "replace").split(",")
        place = {name: i for i, name in enumerate(heading)}
        wanted = [(place[name], name.endswith("_ms")) for name in names]
        asked = [(place[name], value) for name, value in only.items()]
        left = b""
        while data := file.read(BLOCK_BYTES):
            text, _, left = (left + data).rpartition(b"\n")
            if text:
                yield _numbers(text + b"\n", len(heading), wanted, asked)
        if left:
            yield _numbers(left + b"\n", len(heading), wanted, asked)


def _numbers(
    data: bytes, columns: int, wanted: Sequence[tuple[int, bool]], asked: Sequence[tuple[int, int]]
) -> F64:
    """Returns the wanted columns of the rows of a text that have the values asked for."""
    text = np.frombuffer(data, dtype=np.uint8)
    cells = np.flatnonzero((text == COMMA) | (text == NEWLINE))
    if len(cells) % columns:
        raise _OtherMakeError
    starts, ends = np.concatenate(([0], cells[:-1] + 1)).reshape(-1, columns), cells.reshape(-1, columns)
    if (text[ends[:, -1]] != NEWLINE).any() or np.count_nonzero(text == NEWLINE) != len(ends):
        raise _OtherMakeError
    for column, value in asked:
        chosen = _whole(text, starts[:, column], ends[:, column], 0) == value
        starts, ends = starts[chosen], ends[chosen]
    found = np.empty((len(ends), len(wanted)))
    for place, (column, time) in enumerate(wanted):
        number = _whole(text, starts[:, column], ends[:, column], DECIMALS if time else 0)
        found[:, place] = number / 10**DECIMALS if time else number
    return found


def _whole(text: Characters, starts: I64, ends: I64, decimals: int) -> I64:
    """Returns cells as whole numbers, in units of the last of their decimals."""
    digits = ends - starts - (decimals > 0)
    if (digits <= decimals).any() or digits.max(initial=0) > MOST_DIGITS:
        raise _OtherMakeError
    if decimals and (text[ends - 1 - decimals] != POINT).any():
        raise _OtherMakeError
    found = np.zeros(len(ends), dtype=np.int64)
    for power in range(int(digits.max(initial=0))):
        there = digits > power
        behind = np.where(there, ends - 1 - power - (decimals > 0 and power >= decimals), 0)
        digit = np.where(there, text[behind] - np.uint8(ZERO), np.uint8(0))
        if (digit > 9).any():
            raise _OtherMakeError
        found += digit.astype(np.int64) * 10**power
    return found


def _read_small(path: Path, names: Sequence[str], only: Mapping[str, int]) -> Iterator[F64]:
    with path.open(newline="") as file:
        rows = csv.reader(file)
        place = {name: i for i, name in enumerate(next(rows))}
        wanted = [place[name] for name in names]
        asked = [(place[name], str(value)) for name, value in only.items()]
        chosen = ([float(row[i]) for i in wanted] for row in rows if all(row[i] == v for i, v in asked))
        while block := list(islice(chosen, BLOCK)):
            yield np.array(block, dtype=np.float64)


def _read_large(path: Path, names: Sequence[str], only: Mapping[str, int]) -> Iterator[F64]:
    import pandas as pd

    columns = list(dict.fromkeys([*names, *only]))
    # pandas 3 always reads to the last digit; where older ones are asked not to be quick they do too
    exact: Any = {"float_precision": "round_trip"} if int(pd.__version__.split(".")[0]) < 3 else {}
    with pd.read_csv(path, usecols=columns, dtype=np.float64, chunksize=4 * BLOCK, **exact) as frames:
        for frame in frames:
            chosen = np.logical_and.reduce([frame[name].to_numpy() == value for name, value in only.items()])
            yield frame.loc[chosen, list(names)].to_numpy()
