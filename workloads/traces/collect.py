"""From rows to requests: what is kept and what is dropped and why, on one clock."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from specfleet.workloads.traces.files import Record
from specfleet.workloads.traces.options import ReadOptions
from specfleet.workloads.traces.report import Dropped, TraceError
from specfleet.workloads.traces.rows import BadRowError, Row, number_of, span_ns, time_ns, tokens_of
from specfleet.workloads.traces.timestamps import NANOSECONDS_PER_SECOND

CLOCK_RESET_NS = NANOSECONDS_PER_SECOND
"""From here on a step back in time is a reset clock and no late entry."""
MOST_NAMES = 100_000
"""Traffic classes, at most; a column with more is no class."""


class _Stamp(NamedTuple):
    """A time as whole nanoseconds, as the file spells it, and where."""

    ns: int
    text: str
    place: int


@dataclass
class Collector:
    """Rows kept so far and the count of everything else, while a file is read.

    Args:
        path: of the file.
        options: what is asked.
        unit: of its times; None where it records none.
        ordered: its rows stand in order of time, so that a step back of 1 s is a reset clock.
        place: what a row is counted in: `line`, or `request` of a list.
    """

    path: str
    options: ReadOptions
    unit: str | None
    ordered: bool = True
    place: str = "line"
    time_ns: array[int] = field(default_factory=lambda: array("q"))
    prompt: array[int] = field(default_factory=lambda: array("q"))
    output: array[int] = field(default_factory=lambda: array("q"))
    session: array[int] = field(default_factory=lambda: array("q"))
    turn: array[int] = field(default_factory=lambda: array("q"))
    pause_ns: array[int] = field(default_factory=lambda: array("q"))
    end_ns: array[int] = field(default_factory=lambda: array("q"))
    traffic_class: array[int] = field(default_factory=lambda: array("q"))
    hashes: array[int] = field(default_factory=lambda: array("q"))
    num_hashes: array[int] = field(default_factory=lambda: array("q"))
    sessions: dict[str, int] = field(default_factory=dict)
    numbered: set[tuple[str, int]] = field(default_factory=set)
    classes: dict[str, int] = field(default_factory=dict)
    blocks: dict[int, int] = field(default_factory=dict)
    dropped: dict[str, Dropped] = field(default_factory=dict)
    said: Counter[str] = field(default_factory=Counter)
    rows_read: int = 0
    origin: _Stamp | None = None
    latest_read: _Stamp | None = None
    first: _Stamp | None = None
    last: _Stamp | None = None
    shift_ns: int = 0

    @property
    def full(self) -> bool:
        """As many rows are kept as are asked for."""
        return self.options.limit is not None and len(self.time_ns) >= self.options.limit

    def add(self, place: int, row: Row, record: Record | None = None) -> None:
        """Take in one row, to keep or to drop; TraceError where it says that the file cannot be used."""
        self.rows_read += 1
        try:
            self._take(place, row, record or {})
        except BadRowError as bad:
            reason = str(bad)
            _, rows, first = self.dropped.get(reason, Dropped(reason, 0, place))
            self.dropped[reason] = Dropped(reason, rows + 1, first)

    def _take(self, place: int, row: Row, record: Record) -> None:
        """Keep one row; BadRowError says why not."""
        if row.reject:
            raise BadRowError(row.reject)
        self._filter(record)
        ns, zoned = (0, True) if self.unit is None else time_ns(row.time, self.unit)
        prompt, output = self._tokens(row.prompt, place), self._tokens(row.output, place)
        turn = self._turn(row)
        end_ns = self._end(row, ns)
        stamp = _Stamp(self._on_one_clock(_Stamp(ns, str(row.time), place)), str(row.time), place)
        self.origin = self.origin or stamp
        if self.options.window is not None:
            start, end = self.options.window
            if not start <= (stamp.ns - self.origin.ns) / NANOSECONDS_PER_SECOND < end:
                raise BadRowError("outside the window asked for")
        self.said["unzoned"] += not zoned
        self.first = stamp if self.first is None or stamp.ns < self.first.ns else self.first
        self.last = stamp if self.last is None or stamp.ns >= self.last.ns else self.last
        self.time_ns.append(stamp.ns)
        self.prompt.append(prompt)
        self.output.append(output)
        self.turn.append(turn[0])
        self.pause_ns.append(turn[1])
        self.end_ns.append(-1 if end_ns < 0 else end_ns + stamp.ns - ns)
        if row.session and turn[0] >= 0:
            self.numbered.add((row.session, turn[0]))
        self._take_names(row)
        self._take_hashes(row, prompt)

    def _turn(self, row: Row) -> tuple[int, int]:
        """Number of a turn and nanoseconds before it, -1 where they are not known or not asked for."""
        if self.options.turns == "arrivals":
            return -1, -1
        number = number_of(row.turn)
        if row.session and (row.session, number) in self.numbered:
            raise BadRowError("its session has a turn of this number already")
        return number, span_ns(row.pause, self.unit)

    def _end(self, row: Row, ns: int) -> int:
        """When the answer was complete, on the row's clock; -1 where it is not known or not asked for."""
        if self.options.turns == "arrivals" or self.unit is None:
            return -1
        if row.end is not None and row.end != "":
            return max(time_ns(row.end, self.unit)[0], 0)
        took = span_ns(row.took, self.unit)
        return -1 if took < 0 else ns + took

    def _filter(self, record: Mapping[str, object]) -> None:
        """BadRowError where a row is not among those asked for."""
        for name, wanted in self.options.where.items():
            if name not in record:
                raise BadRowError(f"has no {name[:80]}, which where: asks for")
            if str(record[name]) != wanted:
                raise BadRowError(f"{name[:80]} is not {wanted[:80]}")

    def _tokens(self, value: object, place: int) -> int:
        """A positive token count, by the rule for zeros."""
        count = tokens_of(value)
        if count:
            return count
        if self.options.on_zero == "error":
            raise TraceError(
                f"{self.path}, {self.place} {place}: zero prompt or output tokens; set on_zero to drop or "
                "clip1"
            )
        if self.options.on_zero == "clip1":
            self.said["clipped"] += 1
            return 1
        raise BadRowError("zero prompt or output tokens")

    def _on_one_clock(self, stamp: _Stamp) -> int:
        """Nanoseconds on the clock of the first row; TraceError for a reset clock that is not allowed for."""
        stamp = stamp._replace(ns=stamp.ns + self.shift_ns)
        latest = self.latest_read
        if latest is None or stamp.ns >= latest.ns:
            self.latest_read = stamp
            return stamp.ns
        back_ns = latest.ns - stamp.ns
        if not self.ordered or back_ns < CLOCK_RESET_NS or self.options.on_reset == "sort":
            self.said["back"] += 1
            return stamp.ns
        if self.options.on_reset == "append":
            self.said["resets"] += 1
            self.shift_ns += back_ns
            self.latest_read = stamp._replace(ns=latest.ns)
            return latest.ns
        raise TraceError(
            f"{self.path}: the clock goes back by {back_ns / NANOSECONDS_PER_SECOND:g} s, "
            f"from {latest.text[:40]} ({self.place} {latest.place}) to {stamp.text[:40]} ({self.place} "
            f"{stamp.place}); if two recordings were joined, split the file there or set on_reset: append; "
            "if it is only out of order, sort it by time or set on_reset: sort"
        )

    def _take_names(self, row: Row) -> None:
        """Session and traffic class as numbers; -1 for a request of no session."""
        known = self.sessions.setdefault(row.session, len(self.sessions)) if row.session else -1
        self.session.append(known)
        name = row.traffic_class or "default"
        if name not in self.classes and len(self.classes) >= MOST_NAMES:
            raise TraceError(f"{self.path}: more than {MOST_NAMES:,} traffic classes; map another column")
        self.traffic_class.append(self.classes.setdefault(name, len(self.classes)))

    def _take_hashes(self, row: Row, prompt: int) -> None:
        """The prompt's blocks; none where they are not those of a prompt of this length."""
        size, found = self.options.block_size, row.hashes
        if size is None or found is None:
            self.num_hashes.append(0)
            return
        whole = all(isinstance(one, int) and not isinstance(one, bool) for one in found)
        if not whole or len(found) != -(-prompt // size):
            self.said["unhashed"] += 1
            self.num_hashes.append(0)
            return
        self.num_hashes.append(len(found))
        for one in found:
            assert isinstance(one, int)
            self.hashes.append(self.blocks.setdefault(one, len(self.blocks)))

    def notices(self) -> list[str]:
        """What a user should know beyond the counts."""
        said = self.said
        back = "less than 1 s" if self.ordered and self.options.on_reset != "sort" else "any time"
        found = (
            (self.unit is None, "no arrival times; all requests come at once unless a request rate is given"),
            (said["unzoned"], f"{said['unzoned']:,} time stamps name no zone; taken as UTC"),
            (said["back"], f"{said['back']:,} rows step back in time by {back}; sorted"),
            (said["resets"], f"{said['resets']:,} reset clocks; each part appended to the one before"),
            (said["clipped"], f"{said['clipped']:,} zero token counts taken as 1"),
            (
                said["unhashed"],
                f"{said['unhashed']:,} rows whose hash_ids are not one a block of {self.options.block_size} "
                "tokens; their prompts share nothing",
            ),
            (self.full, f"stopped at the limit of {self.options.limit} rows"),
        )
        return [text for count, text in found if count]
