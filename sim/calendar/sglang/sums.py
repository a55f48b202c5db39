"""The calendar of decode batches: what those who run contribute to each, and who is gone from it."""

from __future__ import annotations

import numpy as np

from specfleet.sim.calendar.sglang.lives import Leave, SglangLives

LONGEST_WINDOW = 1024
"""Decode batches that are worked out at once, at most."""
SHORTEST_CALENDAR = 1 << 14
GONE, BEFORE, SURE, SURE_BEFORE, GHOST, GHOST_PAGES, GHOST_BEYOND = range(7)
"""Columns of what stands where requests are gone, as the fields of `Leave`."""


class SglangCalendar:
    """Differences by decode batch, and notes of those who are gone.

    Args:
        longest_row: most entries that one request takes.
        lag: with overlap, so that rows in vain and certain ends are noted too.

    Attributes:
        row: differences of the packed sum. reach: of context and output that an admission expects.
        beyond: differences of what lies outside a sliding window.
        gone: shape `(7, entries)`, the columns above.
        edge: the entry from which it has to be moved to the front.
    """

    def __init__(self, longest_row: int, lag: bool) -> None:
        entries = max(SHORTEST_CALENDAR, 4 * longest_row) + longest_row + LONGEST_WINDOW
        self.row = np.zeros(entries, dtype=np.int64)
        self.reach = np.zeros(entries, dtype=np.int64)
        self.beyond = np.zeros(entries, dtype=np.int64)
        self.gone = np.zeros((7, entries), dtype=np.int64)
        self.edge = entries - longest_row - LONGEST_WINDOW - 4
        self.at, self.reach_at, self.beyond_at = self.row.data, self.reach.data, self.beyond.data
        self.gone_at = [column.data for column in self.gone]
        self.lag = lag

    def add(self, block: SglangLives, j: int, entry: int) -> None:
        """Adds a request whose first decode is at `entry`."""
        low, high = block.start[j], block.end[j]
        after = entry + high - low - 1
        part = self.row[entry : after + 1]
        np.add(part, block.row[low:high], part)
        reach = block.reach[j]
        self.reach_at[entry] += reach
        self.reach_at[after] -= reach
        self.gone_at[GONE][after] += block.leave.pages[j]
        if self.lag:
            self._count(block.leave, j, after, 1)
        if block.clipped is not None:
            self.reach[entry : after + 1] -= block.clipped[low:high]
        if block.beyond is not None:
            self.beyond[entry : after + 1] += block.beyond[low:high]

    def add_rest(self, block: SglangLives, j: int, entry: int) -> None:
        """Adds a request that is in the decode before `entry` already, its first one in `block`."""
        low, high = block.start[j] + 1, block.end[j]
        after = entry + high - low - 1
        self.row[entry : after + 1] += block.row[low:high]
        self.reach_at[after] -= block.reach[j]
        self.gone_at[GONE][after] += block.leave.pages[j]
        if self.lag:
            self._count(block.leave, j, after, 1)
        if block.clipped is not None:
            self.reach[entry : after + 1] -= block.clipped[low:high]

    def _count(self, leave: Leave, j: int, after: int, sign: int) -> None:
        """Notes what else stands where a request is gone with overlap, or takes that back."""
        gone = self.gone_at
        gone[BEFORE][after] += sign * leave.before[j]
        if sure := leave.sure[j]:
            gone[SURE][after] += sign * sure
            gone[SURE_BEFORE][after] += sign * leave.sure_before[j]
        else:
            gone[GHOST][after] += sign * leave.ghost[j]
            gone[GHOST_PAGES][after] += sign * leave.ghost_pages[j]
            gone[GHOST_BEYOND][after] += sign * leave.ghost_beyond[j]

    def remove(self, block: SglangLives, j: int, entry: int, done: int) -> None:
        """Takes a request out from `entry` on, where it would decode for the time after the first `done`."""
        low, high = block.start[j] + done, block.end[j]
        after = entry + high - low - 1
        self.row[entry : after + 1] -= block.row[low:high]
        if not done:
            self.reach_at[entry] -= block.reach[j]
        self.reach_at[after] += block.reach[j]
        self.gone_at[GONE][after] -= block.leave.pages[j]
        if self.lag:
            self._count(block.leave, j, after, -1)
        if block.clipped is not None:
            self.reach[entry : after + 1] += block.clipped[low:high]
        if block.beyond is not None:
            self.beyond[entry : after + 1] -= block.beyond[low:high]

    def move_to_front(self, entry: int) -> None:
        """Makes `entry` the second one; the one before it is kept."""
        for table in (self.row, self.reach, self.beyond, *self.gone):
            future = table[entry - 1 :].copy()
            table[: len(future)] = future
            table[len(future) :] = 0
