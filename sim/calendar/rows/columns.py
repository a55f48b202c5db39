"""What a lane that went row by row wrote down, as columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from specfleet.sim.calendar.columns import I32, Places
from specfleet.sim.calendar.rows.lane import RowLane
from specfleet.sim.calendar.rows.lives import (
    ACCEPTED,
    CACHED,
    CHUNKS,
    DRAFTED,
    FIRST,
    FIRST_RANK,
    LAST,
    LAST_RANK,
    PREEMPTIONS,
    VERIFIED,
)
from specfleet.sim.recorder import Columns

NAMES = {
    "preemptions": PREEMPTIONS,
    "cached_tokens": CACHED,
    "chunks": CHUNKS,
    "first_iteration": FIRST,
    "last_iteration": LAST,
    "verifications": VERIFIED,
    "accepted_tokens": ACCEPTED,
    "draft_tokens": DRAFTED,
}


class RowColumns:
    """As `calendar.columns.LaneColumns`, of a lane that went row by row.

    Args:
        lane: after its run.
        places: of its requests, in order of arrival.
    """

    def __init__(self, lane: RowLane, places: Places) -> None:
        self.lane, self.places = lane, places
        self._end_s = np.frombuffer(lane.log.end_s, dtype=np.float64)

    def iterations(self) -> Columns:
        """As `LaneColumns.iterations`."""
        return self.lane.log.recorder.iterations()

    def odd_gaps(self) -> Columns:
        """As `LaneColumns.odd_gaps`."""
        return self.lane.log.recorder.odd_gaps()

    def requests(self) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        """As `LaneColumns.requests`."""
        lives, places = self.lane.lives, self.places
        for name, field in NAMES.items():
            yield name, lives.done[field][places].astype(np.int32)
        yield "admitted_s", np.frombuffer(lives.admitted_s, dtype=np.float64)[places]
        yield "first_token_s", self._end_s[lives.done[FIRST][places]]
        yield "finished_s", self._end_s[lives.done[LAST][places]]

    def chunk_ranks(self) -> Iterator[I32]:
        """As `LaneColumns.chunk_ranks`."""
        for field in (FIRST_RANK, LAST_RANK):
            yield self.lane.lives.done[field][self.places].astype(np.int32)
