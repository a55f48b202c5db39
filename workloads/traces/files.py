"""A trace file as lines, cells or JSON objects, packed or not; what cannot be read is a `TraceError`."""

from __future__ import annotations

import csv
import gzip
import io
import json
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeAlias

from specfleet.workloads.traces.report import TraceError

Record: TypeAlias = Mapping[str, object]
LONGEST_LINE = 1 << 28
"""Characters of a line, at most: what a file may make a reader hold."""
LARGEST_JSON = 1 << 30
"""Bytes of a file that is one JSON value, at most; such a file is read whole."""
_PACKED = {b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip", b"BZh": "bzip2", b"\xfd7zXZ": "xz"}


@dataclass(frozen=True)
class TraceFile:
    """A file that is read from its start as often as asked.

    Args:
        path: of the file; unpacked while it is read where it is gzip.
    """

    path: str

    @contextmanager
    def _open(self) -> Iterator[IO[bytes]]:
        """The unpacked bytes; TraceError for what cannot be read."""
        try:
            with Path(self.path).open("rb") as plain:
                start = plain.read(6)
                plain.seek(0)
                for mark, name in _PACKED.items():
                    if start.startswith(mark):
                        raise TraceError(f"{self.path}: packed as {name}; unpack it, or pack it as gzip")
                if start.startswith(b"\x1f\x8b"):
                    with gzip.GzipFile(fileobj=plain) as unpacked:
                        yield unpacked  # type: ignore[misc] # an IO[bytes] in all that is used
                else:
                    yield plain
        except FileNotFoundError as error:
            raise TraceError(f"{self.path}: no such trace file; check the path") from error
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise TraceError(f"{self.path}: not a whole gzip file; fetch it again") from error
        except (OSError, ValueError) as error:
            if isinstance(error, TraceError):
                raise
            said = getattr(error, "strerror", None) or str(error)
            raise TraceError(
                f"{self.path}: cannot be read ({said}); check the path and its rights"
            ) from error

    def lines(self) -> Iterator[tuple[int, str]]:
        """(line number from 1, text) of every line that is not blank."""
        number = 0
        with self._open() as file:
            text = io.TextIOWrapper(file, encoding="utf-8-sig")
            try:
                while line := text.readline(LONGEST_LINE):
                    number += 1
                    if len(line) >= LONGEST_LINE:
                        raise TraceError(
                            f"{self.path}, line {number}: longer than {LONGEST_LINE:,} characters; one "
                            "request a line is expected"
                        )
                    if line.strip():
                        yield number, line.rstrip("\r\n")
            except UnicodeDecodeError as error:
                raise TraceError(
                    f"{self.path}: not a UTF-8 text file (after line {number}); unpack it if it is "
                    "compressed, save it as UTF-8 if it is text"
                ) from error
            finally:
                text.detach()

    def cells(self) -> Iterator[tuple[int, list[str]]]:
        """(line number, cells) of every line of a table that is not blank, its header first.

        Cells are parted by what parts most of the header: a comma, a semicolon or a tab. A quote never
        reaches over a line, so that a stray one swallows no rows.
        """
        mark, width = "", 0
        for number, line in self.lines():
            mark = mark or max(",;\t", key=line.count)
            cells = cells_of(line, mark)
            if len(cells) != width and width and '"' in line:
                cells = [cell.strip(' \t"') for cell in line.split(mark)]
            width = width or len(cells)
            yield number, cells

    def is_parquet(self) -> bool:
        """Whether the file is of columns, as Parquet writes them."""
        with self._open() as file:
            return file.read(4) == b"PAR1"

    def parquet_columns(self) -> tuple[str, ...]:
        """The names of the columns of a Parquet file."""
        from specfleet.workloads.traces.parquet import columns_of

        return columns_of(self.path)

    def rows(self) -> Iterator[tuple[int, Record | None]]:
        """(line number, cells by column) of every row of a table; None for a row of another length."""
        if self.is_parquet():
            from specfleet.workloads.traces.parquet import rows_of

            yield from rows_of(self.path)
            return
        header: list[str] = []
        for number, cells in self.cells():
            if not header:
                header = cells
            else:
                yield number, dict(zip(header, cells, strict=True)) if len(cells) == len(header) else None

    def objects(self) -> Iterator[tuple[int, Record | None]]:
        """(line, object) of a JSONL file, or (number from 1, object) of one that is a single JSON value.

        None where a line is no JSON object. Numbers with a fraction stay texts, so that none is rounded.
        """
        for number, line in self.lines():
            try:
                first = from_json(line)
            except ValueError:
                if number == 1 and line.lstrip()[:1] in ("{", "["):
                    yield from self._whole()
                    return
                yield number, None
                continue
            if isinstance(first, list) and number == 1:
                yield from _listed(first)
            else:
                yield number, first if isinstance(first, dict) else None

    def _whole(self) -> Iterator[tuple[int, Record | None]]:
        """The objects of a file that is one JSON value over several lines, or JSONL with a bad first line."""
        if Path(self.path).stat().st_size > LARGEST_JSON:
            raise TraceError(f"{self.path}: more than {LARGEST_JSON:,} bytes of one JSON value; write JSONL")
        with self._open() as file:
            raw = file.read(LARGEST_JSON + 1)
        if len(raw) > LARGEST_JSON:
            raise TraceError(f"{self.path}: more than {LARGEST_JSON:,} bytes of one JSON value; write JSONL")
        try:
            value = from_json(raw.decode("utf-8-sig"))
        except UnicodeDecodeError as error:
            raise TraceError(f"{self.path}: not a UTF-8 text file; save it as UTF-8") from error
        except ValueError as error:
            at = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
            raise TraceError(
                f"{self.path}{at}: neither JSON nor JSONL ({str(error)[:120]}); mend it or fetch it again"
            ) from error
        if isinstance(value, list):
            yield from _listed(value)
        else:
            yield 1, value if isinstance(value, dict) else None


def _listed(values: list[object]) -> Iterator[tuple[int, Record | None]]:
    for number, value in enumerate(values, start=1):
        yield number, value if isinstance(value, dict) else None


def cells_of(line: str, mark: str) -> list[str]:
    """The cells of one line, quotes and spaces around them taken off."""
    try:
        cells = next(csv.reader((line,), delimiter=mark), [])
    except csv.Error:
        cells = line.split(mark)
    return [cell.strip(' \t\r\n"') for cell in cells]


def from_json(text: str) -> object:
    """A JSON value, numbers with a fraction as texts. ValueError for anything else."""
    try:
        return json.loads(text, parse_float=str, parse_constant=_none)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _none(_: str) -> None:
    """NaN and the infinities are no values."""
