"""Reader of the Azure LLM inference traces (Azure Public Dataset: 2023, 2024 and the multimodal ones).

CSV with the columns `TIMESTAMP, ContextTokens, GeneratedTokens`, found by name: multimodal files put
`NumImages` second. 2023 stamps have seven fractional digits and no zone, with CRLF and no newline at the end
of the file; 2024 stamps have a UTC offset and six digits, or none where the fraction is zero.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from specfleet.workloads.requests import RequestTable
from specfleet.workloads.traces.report import Dropped, LengthSummary, Trace, TraceError, TraceReport, gap_cv
from specfleet.workloads.traces.timestamps import NANOSECONDS_PER_SECOND, parse_stamp

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
CLOCK_RESET_NS = NANOSECONDS_PER_SECOND
MAX_TOKEN_DIGITS = 9


class _BadRowError(ValueError):
    """A row to leave out; the text is the reason, the same for every row with that fault."""


class _Stamp(NamedTuple):
    """A time as whole nanoseconds since 1970, as the file spells it, and its line."""

    ns: int
    text: str
    line: int


def read_azure(
    path: str | os.PathLike[str],
    *,
    speed: float = 1.0,
    limit: int | None = None,
    window: tuple[float, float] | None = None,
    max_tokens: int | None = None,
) -> Trace:
    """The requests of an Azure trace file and a report on how they were read.

    Arrivals are seconds from the first kept request. `window` keeps rows with start <= t < end, in recorded
    seconds from the first usable row of the file; `limit` stops after that many kept rows; `speed` 2 halves
    every gap. `max_tokens` is the cap each request states, by default the largest output kept: real traffic
    stops by itself, so shorter outputs end by a stop token; longer ones are cut at the cap, with a notice.

    Rows with zero, missing or unreadable tokens or an unreadable time are dropped and counted. Time stamps
    that step back by less than 1 s are sorted, with a notice.
    Raises TraceError when the file is missing, empty, has another header, keeps no row, or its clock goes
    back by 1 s or more; ValueError for options out of range.
    """
    _check_options(speed, limit, window, max_tokens)
    reading = _Reading(str(path), window, limit)
    for line, cells in _lines(Path(path)):
        reading.add(line, cells)
        if limit is not None and len(reading.time_ns) >= limit:
            break
    return _trace(reading, speed, max_tokens)


def _check_options(
    speed: float, limit: int | None, window: tuple[float, float] | None, max_tokens: int | None
) -> None:
    """ValueError for options out of range."""
    if not 0 < speed < float("inf"):
        raise ValueError(f"speed must be a positive number (2 halves every gap), got {speed}")
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1 row, got {limit}")
    if window is not None and not 0 <= window[0] < window[1]:
        raise ValueError(f"window must be (start, end) in seconds with 0 <= start < end, got {window}")
    if max_tokens is not None and max_tokens < 1:
        raise ValueError(f"max_tokens must be at least 1, got {max_tokens}")


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(line number, cells) of every line that is not blank; TraceError when the file cannot be read as text.

    Split at commas by hand: no cell of this format holds one, and a stray quote must not swallow lines.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, [cell.strip(' \t\r\n"') for cell in line.split(",")]
    except FileNotFoundError as error:
        raise TraceError(f"{path}: no such trace file; check the path") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: not a UTF-8 text file; unpack it if it is compressed") from error
    except OSError as error:
        raise TraceError(
            f"{path}: cannot be read ({error.strerror}); check the path and its rights"
        ) from error


def _tokens(text: str) -> int:
    """A positive token count; _BadRowError for anything else."""
    if not text:
        raise _BadRowError("a token count is missing")
    if not (text.isascii() and text.isdigit() and len(text) <= MAX_TOKEN_DIGITS):
        raise _BadRowError(f"a token count is not a whole number of at most {MAX_TOKEN_DIGITS} digits")
    if not int(text):
        raise _BadRowError("zero prompt or output tokens")
    return int(text)


@dataclass
class _Reading:
    """Rows kept so far and the count of everything else, while a file is read."""

    path: str
    window: tuple[float, float] | None
    limit: int | None
    header: list[str] = field(default_factory=list)
    time_ns: array[int] = field(default_factory=lambda: array("q"))
    prompt: array[int] = field(default_factory=lambda: array("q"))
    output: array[int] = field(default_factory=lambda: array("q"))
    dropped: dict[str, Dropped] = field(default_factory=dict)
    rows_read: int = 0
    unzoned: int = 0
    steps_back: int = 0
    origin: _Stamp | None = None
    latest_read: _Stamp | None = None
    first: _Stamp | None = None
    last: _Stamp | None = None

    def add(self, line: int, cells: list[str]) -> None:
        """Take in one line: the header, or a row to keep or to drop."""
        if not self.header:
            self._take_header(cells)
            return
        self.rows_read += 1
        try:
            self._take_row(line, cells)
        except _BadRowError as bad:
            reason = str(bad)
            _, rows, first_line = self.dropped.get(reason, Dropped(reason, 0, line))
            self.dropped[reason] = Dropped(reason, rows + 1, first_line)

    def _take_header(self, cells: list[str]) -> None:
        """Remember the header; TraceError unless it names each needed column once."""
        if any(cells.count(name) != 1 for name in COLUMNS):
            raise TraceError(
                f"{self.path}: not an Azure LLM trace: the first line must name the columns "
                f"{', '.join(COLUMNS)} once each, found {', '.join(cells)[:200]}; rename the columns or "
                "choose the reader of this format"
            )
        self.header = cells

    def _take_row(self, line: int, cells: list[str]) -> None:
        """Keep one row; _BadRowError says why not, TraceError that the clock was reset."""
        if len(cells) != len(self.header):
            raise _BadRowError(f"not {len(self.header)} fields as in the header")
        text, prompt, output = (cells[self.header.index(name)] for name in COLUMNS)
        try:
            ns, zoned = parse_stamp(text)
        except ValueError as error:
            raise _BadRowError("unreadable time stamp") from error
        prompt_tokens, output_tokens = _tokens(prompt), _tokens(output)
        stamp = _Stamp(ns, text, line)
        self._check_clock(stamp)
        self.origin = self.origin or stamp
        if self.window is not None:
            start, end = self.window
            if not start <= (ns - self.origin.ns) / NANOSECONDS_PER_SECOND < end:
                raise _BadRowError("outside the window asked for")
        self.unzoned += not zoned
        self.first = stamp if self.first is None or ns < self.first.ns else self.first
        self.last = stamp if self.last is None or ns >= self.last.ns else self.last
        self.time_ns.append(ns)
        self.prompt.append(prompt_tokens)
        self.output.append(output_tokens)

    def _check_clock(self, stamp: _Stamp) -> None:
        """Count a tiny step back in time; TraceError for a reset clock."""
        latest = self.latest_read
        if latest is None or stamp.ns >= latest.ns:
            self.latest_read = stamp
        elif latest.ns - stamp.ns < CLOCK_RESET_NS:
            self.steps_back += 1
        else:
            raise TraceError(
                f"{self.path}: the clock goes back by {(latest.ns - stamp.ns) / NANOSECONDS_PER_SECOND:g} s, "
                f"from {latest.text} (line {latest.line}) to {stamp.text} (line {stamp.line}); if two "
                "recordings were joined, split the file there; if it is only out of order, sort it by time"
            )

    def notices(self) -> list[str]:
        """What a user should know beyond the counts."""
        unused = [name for name in self.header if name not in COLUMNS]
        found = (
            (self.unzoned, f"{self.unzoned:,} time stamps name no zone; taken as UTC"),
            (self.steps_back, f"{self.steps_back:,} rows step back in time by less than 1 s; sorted"),
            (len(unused), f"columns not used: {', '.join(unused)}"),
            (len(self.time_ns) == self.limit, f"stopped at the limit of {self.limit} rows"),
        )
        return [text for count, text in found if count]


def _trace(reading: _Reading, speed: float, max_tokens: int | None) -> Trace:
    """Sort, re-base and cap what was read; TraceError when nothing was kept."""
    if reading.first is None or reading.last is None:
        raise TraceError(_nothing_kept(reading))
    time_ns = np.array(reading.time_ns, dtype=np.int64)
    order = np.argsort(time_ns, kind="stable")
    recorded_s = (time_ns[order] - reading.first.ns) / NANOSECONDS_PER_SECOND
    prompt = np.array(reading.prompt, dtype=np.int64)[order]
    output = np.array(reading.output, dtype=np.int64)[order]
    cap = int(output.max()) if max_tokens is None else max_tokens
    notices = reading.notices()
    if cut := int((output > cap).sum()):
        notices.append(f"{cut:,} outputs cut at max_tokens {cap}")
    report = TraceReport(
        path=reading.path,
        format="Azure LLM inference trace",
        rows_read=reading.rows_read,
        rows_kept=len(time_ns),
        dropped=tuple(reading.dropped.values()),
        first_time=reading.first.text,
        last_time=reading.last.text,
        span_s=float(recorded_s[-1]),
        gap_cv=gap_cv(recorded_s),
        prompt=LengthSummary.of(prompt),
        output=LengthSummary.of(output),
        speed=speed,
        notices=tuple(notices),
    )
    caps = np.full(len(output), cap, dtype=np.int64)
    table = RequestTable.of(prompt, np.minimum(output, cap), arrival_s=recorded_s / speed, max_tokens=caps)
    return Trace(table, report)


def _nothing_kept(reading: _Reading) -> str:
    """Why a file gave no request, and what to do."""
    if not reading.header:
        return f"{reading.path}: the file is empty; expected a header with {', '.join(COLUMNS)}"
    if not reading.rows_read:
        return f"{reading.path}: a header and no rows; the download may have been cut off"
    reasons = "; ".join(
        f"{d.rows:,} {d.reason} (first at line {d.first_line})" for d in reading.dropped.values()
    )
    return f"{reading.path}: none of {reading.rows_read:,} rows is usable: {reasons}"
