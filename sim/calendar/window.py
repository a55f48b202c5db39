"""The iterations of a lane that are not over: their times and what was logged of them."""

from __future__ import annotations

from array import array
from math import inf

import numpy as np

from specfleet.sim.calendar.books.log import Log
from specfleet.sim.calendar.luck import F64, I64

WIDTHS = {"prefills": 6, "padded": 2, "one_pass": 1, "rerolled": 1, "waiting": 2}
"""Numbers an entry in the logs that begin with an iteration."""


class Window:
    """What a lane logged from iteration `base` on.

    Args:
        lag: 1 for asynchronous engines.

    Attributes:
        base: the first iteration that is kept.
        start_s, end_s, turn_s: when each started, ended and was scheduled.
        before_s: when the one before `base` ended; inf if there is none.
    """

    def __init__(self, lag: int) -> None:
        self._lag = lag
        self._log = Log()
        self.base = 0
        self.before_s = inf
        self.start_s: F64 = np.zeros(0)
        self.end_s: F64 = np.zeros(0)
        self.turn_s: F64 = np.zeros(0)

    @property
    def until(self) -> int:
        """The first iteration that is still to come."""
        return self.base + len(self.end_s)

    def take(self, log: Log) -> None:
        """Moves everything from a lane's log here; the lane goes on writing into it."""
        count = len(self.end_s)
        end_s = np.array(log.end_s)
        start_s = np.concatenate([self._last_end(), end_s])[:-1]
        wakes = np.array(log.wakes, dtype=np.int64) - self.until
        start_s[wakes] = np.array(log.wake_s)
        turn_s = start_s
        if self._lag:
            turn_s = np.concatenate([self.start_s[-1:] if count else np.zeros(1), start_s])[:-1]
            turn_s[wakes] = start_s[wakes]
        self.start_s = np.concatenate([self.start_s, start_s])
        self.end_s = np.concatenate([self.end_s, end_s])
        self.turn_s = np.concatenate([self.turn_s, turn_s])
        for name in ("sums", "beyond", *WIDTHS):
            getattr(self._log, name).extend(getattr(log, name))
            del getattr(log, name)[:]
        del log.end_s[:], log.wakes[:], log.wake_s[:]

    def _last_end(self) -> F64:
        if len(self.end_s):
            return self.end_s[-1:]
        return np.array([self.before_s if self.before_s < inf else 0.0])

    def pop(self, over: int) -> tuple[Log, F64, F64]:
        """Forgets the first `over` iterations; returns their log, numbered from 0, starts and ends."""
        mine, log = self._log, Log()
        log.sums, log.beyond = mine.sums[:over], mine.beyond[:over]
        del mine.sums[:over], mine.beyond[:over]
        for name, width in WIDTHS.items():
            rows: I64 = np.array(getattr(mine, name), dtype=np.int64).reshape(-1, width)
            split = int(np.searchsorted(rows[:, 0], self.base + over))
            rows[:, 0] -= self.base
            setattr(log, name, array("q", rows[:split].tobytes()))
            del getattr(mine, name)[: split * width]
        start_s, end_s = self.start_s[:over], self.end_s[:over]
        self.before_s = float(end_s[-1])
        self.start_s, self.end_s = self.start_s[over:].copy(), self.end_s[over:].copy()
        self.turn_s = self.turn_s[over:].copy()
        self.base += over
        return log, start_s, end_s
