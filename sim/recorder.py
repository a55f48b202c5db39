"""Append-only columns of a run: one row an iteration, one row a request. Nothing is derived here."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Rows
from typing import Any

import numpy as np
import numpy.typing as npt

from specfleet.hardware.stepcost import StepShape

Columns = dict[str, npt.NDArray[Any]]
I64 = npt.NDArray[np.int64]
FLOATS = npt.NDArray[np.float64]

ITERATION_COLUMNS = (
    "replica",
    *StepShape._fields,
    "reroll",
    "running",
    "waiting",
    "kv_blocks_used",
    "chunks",
    "output_tokens",
)
FINISHED, REJECTED, ABORTED, TIMED_OUT, LOST, GAVE_UP = 0, 1, 2, 3, 4, 5
"""Values of the request column `status`: served; refused on arrival; begun, and ended with an error; held at
the gateway for too long; lost with a replica that failed, and not sent anew any more; given up by its
client."""

REQUEST_TIMES = (
    "sent_s",
    "arrived_s",
    "admitted_s",
    "first_token_s",
    "finished_s",
    "first_chunk_s",
    "last_chunk_s",
)
REQUEST_COUNTS = (
    "status",
    "replica",
    "output_tokens",
    "cached_tokens",
    "chunks",
    "first_iteration",
    "last_iteration",
    "verifications",
    "draft_tokens",
    "accepted_tokens",
    "preemptions",
)


class Recorder:
    """Collects what one run did.

    Args:
        num_requests: rows of the request table.
        max_chunk_tokens: most tokens of one streamed chunk (K + 1).
    """

    def __init__(self, num_requests: int, max_chunk_tokens: int) -> None:
        self._integers = array("q")
        self._times = array("d")
        self._gaps = array("q")
        self._width = max_chunk_tokens + 1
        self._odd_gap_s = array("d")
        self._odd_gap_end_s = array("d")
        self._odd_gap_tokens = array("q")
        self._odd_gap_rows = array("q")
        self.rounds_by_accepted = [0] * max_chunk_tokens
        self._requests: Columns = {name: np.full(num_requests, np.nan) for name in REQUEST_TIMES} | {
            name: np.zeros(num_requests, dtype=np.int64) for name in REQUEST_COUNTS
        }

    def iteration(
        self, start_s: float, end_s: float, row: tuple[int, ...], gaps_by_tokens: Rows[int]
    ) -> None:
        """Adds an iteration.

        Args:
            start_s: when its GPU work began.
            end_s: when its tokens left.
            row: the values of `ITERATION_COLUMNS`.
            gaps_by_tokens: counted chunks that follow a chunk of the iteration before on the same
                replica, by the tokens they carry (index 0 unused).
        """
        self._times.extend((start_s, end_s))
        self._integers.extend(row)
        self._gaps.extend(gaps_by_tokens)

    def odd_gap(
        self, end_s: float, gap_s: float, tokens: int, row: tuple[int, int, int, int], counted: bool
    ) -> None:
        """Adds a chunk whose predecessor came more than one iteration before.

        Args:
            end_s: when it was sent.
            gap_s: seconds since its predecessor.
            tokens: that it carries.
            row: request, replica, and the replica's iterations of the predecessor and of the chunk.
            counted: whether its request is measured.
        """
        self._odd_gap_rows.extend((*row, counted))
        self._odd_gap_end_s.append(end_s)
        self._odd_gap_s.append(gap_s)
        self._odd_gap_tokens.append(tokens)

    def late_gaps(self, end_s: float, gap_s: FLOATS, tokens: I64, rows: I64) -> None:
        """As `odd_gap`, of many chunks that are sent at once; `rows`: shape `(chunks, 5)`, with `counted`."""
        self._odd_gap_rows.frombytes(rows.tobytes())
        self._odd_gap_end_s.extend([end_s] * len(tokens))
        self._odd_gap_s.frombytes(gap_s.tobytes())
        self._odd_gap_tokens.frombytes(tokens.tobytes())

    def request(self, request_id: int, **values: float) -> None:
        """Sets columns of a request's row."""
        for name, value in values.items():
            self._requests[name][request_id] = value

    def more(self, names: Rows[str]) -> None:
        """Adds columns of requests, of zeros: seconds where the name ends so, or else counts."""
        n = len(self._requests["status"])
        for name in names:
            self._requests[name] = np.zeros(n, dtype=np.float64 if name.endswith("_s") else np.int64)

    def requests(self) -> Columns:
        """Returns the request columns."""
        return dict(self._requests)

    def iterations(self) -> Columns:
        """Returns the iteration columns; `gaps_by_tokens` has shape `(iterations, K + 2)`."""
        table = np.frombuffer(self._integers, dtype=np.int64).reshape(-1, len(ITERATION_COLUMNS))
        times = np.frombuffer(self._times, dtype=np.float64).reshape(-1, 2)
        columns: Columns = {name: table[:, i] for i, name in enumerate(ITERATION_COLUMNS)}
        gaps = np.frombuffer(self._gaps, dtype=np.int64).reshape(-1, self._width)
        return columns | {"start_s": times[:, 0], "end_s": times[:, 1], "gaps_by_tokens": gaps}

    def odd_gaps(self) -> Columns:
        """Returns the odd gaps: `end_s`, `gap_s` (seconds), `tokens` of the chunk after each, `request_id`,
        `replica`, `from_iteration`, `to_iteration`, `counted`."""
        rows = np.frombuffer(self._odd_gap_rows, dtype=np.int64).reshape(-1, 5)
        names = ("request_id", "replica", "from_iteration", "to_iteration", "counted")
        return {name: rows[:, i] for i, name in enumerate(names)} | {
            "end_s": np.frombuffer(self._odd_gap_end_s, dtype=np.float64),
            "gap_s": np.frombuffer(self._odd_gap_s, dtype=np.float64),
            "tokens": np.frombuffer(self._odd_gap_tokens, dtype=np.int64),
        }


def alone_s(columns: Columns) -> npt.NDArray[np.float64]:
    """Returns the seconds of each iteration after the one before it on its replica has ended.

    Those of a pipeline overlap: so counted, their sum is the time in which a batch is under way.
    """
    start, end, replica = columns["start_s"], columns["end_s"], columns["replica"]
    seconds = np.asarray(end - start, dtype=np.float64)
    for index in np.unique(replica):
        rows = np.flatnonzero(replica == index)
        seconds[rows[1:]] = end[rows[1:]] - np.maximum(start[rows[1:]], end[rows[:-1]])
    return seconds
