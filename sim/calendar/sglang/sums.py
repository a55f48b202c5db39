"""The calendar of decode batches: what those who run contribute to each, and who is gone from it."""

from __future__ import annotations

import numpy as np

from specfleet.sim.calendar.sglang.lives import SglangLives

LONGEST_WINDOW = 1024
"""Decode batches that are worked out at once, at most."""
SHORTEST_CALENDAR = 1 << 14
GONE, BEFORE, SURE, SURE_BEFORE, GHOST, GHOST_PAGES = range(6)
"""Columns of what stands where requests are gone, as the fields of `Leave`."""


class SglangCalendar:
    """Differences by decode batch, and notes of those who are gone.

    Args:
        longest_row: most entries that one request takes.
        lag: with overlap, so that rows in vain and certain ends are noted too.

    Attributes:
        row, left: differences of the packed sum, and of the output that an admission expects.
        gone: shape `(6, entries)`, the columns above.
        edge: the entry from which it has to be moved to the front.
    """

    def __init__(self, longest_row: int, lag: bool) -> None:
        entries = max(SHORTEST_CALENDAR, 4 * longest_row) + longest_row + LONGEST_WINDOW
        self.row = np.zeros(entries, dtype=np.int64)
        self.left = np.zeros(entries, dtype=np.int64)
        self.gone = np.zeros((6, entries), dtype=np.int64)
        self.edge = entries - longest_row - LONGEST_WINDOW - 4
        self.at, self.left_at = self.row.data, self.left.data
        self.gone_at = [column.data for column in self.gone]
        self.columns = range(6 if lag else 1)

    def add(self, block: SglangLives, j: int, entry: int) -> None:
        """Adds a request whose first decode is at `entry`."""
        low, high = block.start[j], block.end[j]
        length = high - low
        part = self.row[entry : entry + length]
        np.add(part, block.row[low:high], part)
        part = self.left[entry : entry + length]
        np.add(part, block.left[low:high], part)
        after, leave = entry + length - 1, block.leave
        for column in self.columns:
            if number := leave[column][j]:
                self.gone_at[column][after] += number

    def remove(self, block: SglangLives, j: int, entry: int, done: int) -> None:
        """Takes a request out from `entry` on, where it would decode for the time after the first `done`."""
        low, high = block.start[j] + done, block.end[j]
        self.row[entry : entry + high - low] -= block.row[low:high]
        self.left[entry : entry + high - low] -= block.left[low:high]
        for column in self.columns:
            self.gone_at[column][entry + high - low - 1] -= block.leave[column][j]

    def move_to_front(self, entry: int) -> None:
        """Makes `entry` the second one; the one before it is kept."""
        for table in (self.row, self.left, *self.gone):
            future = table[entry - 1 :].copy()
            table[: len(future)] = future
            table[len(future) :] = 0
