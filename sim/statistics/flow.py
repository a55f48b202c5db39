"""Requests as they come and go: who is in the system, and which part of a run is whole."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from specfleet.sim.statistics.series import F64

LATE = 1e-3
"""Share of the requests kept that may end after the last one was sent, in a system that empties."""


@dataclass(frozen=True)
class Flow:
    """When requests were sent and when they had ended, a row a request in order of sending.

    Args:
        sent_s: rising, shape `(n,)`.
        finished_s: of the same requests, shape `(n,)`.
    """

    sent_s: F64
    finished_s: F64

    def __post_init__(self) -> None:
        """Checks the columns.

        Raises:
            ValueError: if they differ in length, are empty, or requests are not in order of sending.
        """
        if self.sent_s.shape != self.finished_s.shape or not len(self.sent_s):
            raise ValueError("a flow has a time of sending and of the end for each request")
        if (np.diff(self.sent_s) < 0.0).any():
            raise ValueError("a flow lists its requests in the order in which they were sent")

    @classmethod
    def of(cls, sent_s: F64, finished_s: F64) -> tuple[Flow, npt.NDArray[np.intp]]:
        """Returns the flow of requests in any order, and the order in which they were sent."""
        order = np.argsort(sent_s, kind="stable")
        return cls(sent_s[order], finished_s[order]), order

    @cached_property
    def inside(self) -> F64:
        """Requests in the system that each request met when it was sent."""
        n = len(self.sent_s)
        both = np.concatenate([np.sort(self.finished_s), self.sent_s])  # whoever ends at a time has left
        places = np.flatnonzero(np.argsort(both, kind="stable") >= n)  # two rising runs merge in one pass
        return np.asarray(2 * np.arange(n) - places, dtype=np.float64)

    @cached_property
    def whole(self) -> int:
        """How many requests, from the first on, were served while others still came.

        After the last request was sent the system empties, and who is left has it better than a user
        in a steady system. To leave out just these would leave out long requests; so all are left out
        from the first one on that was sent no earlier than one that ended too late.
        """
        late = np.cumsum(self.finished_s > self.sent_s[-1])
        allowed = LATE * np.arange(1, len(late) + 1)
        over = np.flatnonzero(late > allowed)
        return int(over[0]) if len(over) else len(late)

    def per_second(self, from_s: float, to_s: float) -> tuple[float, float]:
        """Returns requests sent and finished per second in a stretch of time."""
        seconds = max(to_s - from_s, 1e-300)
        counts = [int(((times > from_s) & (times <= to_s)).sum()) for times in (self.sent_s, self.finished_s)]
        return counts[0] / seconds, counts[1] / seconds

    def completions(self, amounts: F64, from_s: float, to_s: float) -> tuple[F64, F64]:
        """Returns amounts and seconds between completions, whose ratio is a throughput.

        Args:
            amounts: what each request adds when it ends, such as its output tokens.
            from_s, to_s: the stretch of time.
        """
        inside = (self.finished_s > from_s) & (self.finished_s <= to_s)
        order = np.argsort(self.finished_s[inside], kind="stable")
        ends = self.finished_s[inside][order]
        return np.asarray(amounts[inside][order], dtype=np.float64), np.diff(ends, prepend=from_s)
