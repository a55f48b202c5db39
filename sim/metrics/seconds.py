"""What falls into each second of a run: only the peaks are kept."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from specfleet.sim.metrics.samples import F64
from specfleet.sim.metrics.sums import Counted
from specfleet.sim.pauses import alike
from specfleet.sim.recorder import Columns

I64 = npt.NDArray[np.int64]


class Seconds:
    """Counts events by second, and remembers the largest sums of seconds that are over.

    Streamed chunks (not tokens) and requests present, as `vllm bench serve` counts them: a request is present
    from the second of its send to that of its last chunk.

    Args:
        start_s: where the first second begins.
        receive_s: from the end of an iteration until the client has its chunks.
    """

    def __init__(self, start_s: float, receive_s: float = 0.0) -> None:
        self._start_s, self._receive_s = start_s, receive_s
        self._first = 0
        self._present = 0
        self._chunks, self._arrived, self._left = (np.zeros(1024, dtype=np.int64) for _ in range(3))
        self._peaks = (0, 0)

    def add_requests(self, counted: Counted) -> None:
        """Counts requests, each from its send to its last chunk, and their first chunks."""
        sent = self._places(counted.sent_s)
        np.add.at(self._arrived, sent, 1)
        del sent  # a column of all requests, as the next one
        last = self._places(counted.last_s)
        np.add.at(self._left, last, 1)
        del last
        self._add_chunks(counted.sent_s + counted.ttft_s)

    def add_iterations(self, end_s: F64, chunks: I64) -> None:
        """Counts the `chunks` that leave with iterations, each after a chunk of the iteration before."""
        seen = chunks > 0
        self._add_chunks(end_s[seen] + self._receive_s, chunks[seen])

    def add_gaps(self, columns: Columns) -> None:
        """Counts the chunks after pauses of more than one iteration (columns as `RunResult.odd_gaps`)."""
        odd = alike(columns)
        self._add_chunks(odd.end_s + self._receive_s, odd.chunks.sum(axis=1))

    def _add_chunks(self, times_s: F64, counts: I64 | None = None) -> None:
        places = self._places(times_s)
        np.add.at(self._chunks, places, np.ones(1, dtype=np.int64) if counts is None else counts)

    def _places(self, times_s: F64) -> I64:
        places = (times_s - self._start_s).astype(np.int64)
        places -= self._first
        if len(places) and (most := int(places.max())) >= len(self._chunks):
            self._reach(most + 1024)
        return places

    def merge(self, other: Seconds) -> None:
        """Takes in what another has counted from the same start on; no second of either is closed."""
        most = max(len(self._chunks), len(other._chunks))
        for one in (self, other):
            one._reach(most)
        self._chunks += other._chunks
        self._arrived += other._arrived
        self._left += other._left

    def _reach(self, seconds: int) -> None:
        """Makes room for so many seconds from the first that is kept on."""
        more = np.zeros(max(seconds - len(self._chunks), 0), dtype=np.int64)
        self._chunks = np.concatenate([self._chunks, more])
        self._arrived = np.concatenate([self._arrived, more])
        self._left = np.concatenate([self._left, more])

    def close(self, before_s: float) -> None:
        """Closes the seconds before a time: nothing falls into them any more."""
        until = int(before_s - self._start_s)
        over = min(until - self._first, len(self._chunks))
        if over > 0:
            self._peaks = self._until(over)
            self._present += int((self._arrived[:over] - self._left[:over]).sum())
            self._first = until if over == len(self._chunks) else self._first + over
            for column in (self._chunks, self._arrived, self._left):
                column[:-over], column[-over:] = column[over:].copy(), 0

    def _until(self, end: int) -> tuple[int, int]:
        chunks = int(self._chunks[:end].max(initial=0))
        left = self._left[:end]
        present = self._present + np.cumsum(self._arrived[:end] - left) + left
        return max(self._peaks[0], chunks), max(self._peaks[1], int(present.max(initial=0)))

    def peaks(self) -> tuple[int, int]:
        """Returns the most chunks, and the most requests present, in one second."""
        return self._until(len(self._chunks))
