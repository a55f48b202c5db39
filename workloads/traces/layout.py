"""What a format is: the keys it is known by, the unit of its times, and a row made of a record."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from specfleet.workloads.traces.collect import Collector
from specfleet.workloads.traces.files import Record, TraceFile
from specfleet.workloads.traces.options import ReadOptions
from specfleet.workloads.traces.report import Trace, TraceError
from specfleet.workloads.traces.requests import trace_of
from specfleet.workloads.traces.rows import Row, rejected

TABLE, OBJECTS = "table", "objects"
"""Shapes of a file: cells under a header, or JSON objects."""
Rows = Iterator[tuple[int, Row, Record | None]]
"""(line, row, record) of every row of a file."""


class FileHead(NamedTuple):
    """What the beginning of a file shows: its shape, and the columns or the keys of its first object."""

    shape: str
    keys: tuple[str, ...]


def seen(file: TraceFile) -> FileHead:
    """Looks at the beginning of a file; TraceError for one that is empty or cannot be read."""
    if file.is_parquet():
        return FileHead(TABLE, file.parquet_columns())
    for _, line in file.lines():
        if line.lstrip()[:1] not in ("{", "["):
            return FileHead(TABLE, tuple(next(file.cells())[1]))
        for _, record in file.objects():
            return FileHead(OBJECTS, tuple(record or ()))
    raise TraceError(f"{file.path}: the file is empty; expected requests, one a line")


@dataclass(frozen=True)
class TraceFormat:
    """A reader of one format, by what its files hold.

    Args:
        title: what it is called in reports.
        shape: `TABLE` or `OBJECTS`.
        keys: columns or keys that every file of it has, each once; how it is recognised.
        row: a row of a record, where a record is a request.
        time_key: where times are; a file without it records none.
        unit: of its times.
        absent: keys that no file of it has.
        used: further keys that are read, so that they are not called unused.
        ordered: rows stand in order of time.
        block_size: tokens of a block of `hash_ids`.
        rows: in place of `row`, where a record holds many requests, or one belongs to another.
        place: what rows are counted in.
    """

    title: str
    shape: str
    keys: tuple[str, ...]
    row: Callable[[Record], Row] | None = None
    time_key: str | None = None
    unit: str | None = None
    absent: tuple[str, ...] = ()
    used: tuple[str, ...] = ()
    ordered: bool = True
    block_size: int | None = None
    rows: Callable[[TraceFile, ReadOptions], Rows] | None = None
    place: str = "line"

    def recognises(self, found: FileHead) -> bool:
        """Whether a file that begins so is of this format."""
        names = set(found.keys)
        return found.shape == self.shape and names.issuperset(self.keys) and not names & set(self.absent)

    def __call__(self, path: str | os.PathLike[str], **asked: object) -> Trace:
        """The requests of a file and the report on how they were read; keywords as `ReadOptions`.

        Arrivals are seconds from the first kept request. Real traffic stops by itself, so outputs shorter
        than `max_tokens` end by a stop token, and longer ones are cut there, with a notice. Rows with missing
        or unreadable tokens or time are dropped and counted: rows read are rows kept and rows dropped.
        Raises TraceError when the file is missing, empty, of another format, keeps no row, or its clock goes
        back by 1 s or more; ValueError for options out of range.
        """
        options = self._options(ReadOptions(**asked))  # type: ignore[arg-type] # named by ReadOptions alone
        file = TraceFile(os.fspath(path))
        found = seen(file)
        self._check(file, found)
        unit = self.unit if self.time_key is None or self.time_key in found.keys else None
        reading = Collector(file.path, options, unit, self.ordered, self.place)
        for place, row, record in (self.rows or self._each)(file, options):
            reading.add(place, row, record)
            if reading.full:
                break
        used = {*self.keys, *self.used, self.time_key}
        unused = [name for name in found.keys if name not in used] if self.shape == TABLE else []
        return trace_of(reading, self.title, unused)

    def _options(self, asked: ReadOptions) -> ReadOptions:
        """What is asked, with what the format itself says; ValueError where it says otherwise."""
        if asked.columns:
            raise ValueError(f"columns: {self.title} has columns of its own; use the format columns")
        if asked.time_unit not in (None, self.unit):
            raise ValueError(
                f"time_unit: {self.title} has its times in {self.unit or 'no unit'}, not {asked.time_unit}; "
                "remove it, or use the format columns"
            )
        return dataclasses.replace(asked, block_size=asked.block_size or self.block_size)

    def _check(self, file: TraceFile, found: FileHead) -> None:
        """TraceError unless the file has each needed key once."""
        if found.shape == self.shape and all(found.keys.count(name) == 1 for name in self.keys):
            return
        kind = (
            "the first line must name the columns" if self.shape == TABLE else "an object must have the keys"
        )
        raise TraceError(
            f"{file.path}, line 1: not of the format {self.title}: {kind} {', '.join(self.keys)} once each, "
            f"found {', '.join(found.keys)[:200] or 'none'}; name its columns, or the format that it has"
        )

    def _each(self, file: TraceFile, _: ReadOptions) -> Rows:
        """A row of every record."""
        assert self.row is not None
        for place, record in file.rows() if self.shape == TABLE else file.objects():
            if record is None:
                what = "not as many fields as the header" if self.shape == TABLE else "no JSON object"
                yield place, rejected(what), None
            else:
                yield place, self.row(record), record


def text(value: object) -> str:
    """A name of a session or class; empty where there is none."""
    return "" if value is None else str(value)[:200]
