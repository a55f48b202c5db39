"""The requests of lanes that go row by row: their luck drawn 256 at once, and what became of them."""

from __future__ import annotations

from array import array
from math import nan

import numpy as np

from specfleet.sim.calendar.luck import I64
from specfleet.sim.calendar.plan import CalendarRun
from specfleet.sim.calendar.trajectories import BLOCK, NOT_YET
from specfleet.sim.requests import segments_of
from specfleet.sim.sequence import Sequence

FIRST, LAST, CHUNKS, VERIFIED, DRAFTED, ACCEPTED, FIRST_RANK, LAST_RANK, PREEMPTIONS, CACHED = range(10)
"""Numbers kept of each request that has ended."""


class RowRequest(Sequence):
    """A request in a lane. Who decodes has its counts in the lane's table, and not here.

    Attributes:
        place: in the order of the lives. luck: drafts accepted by verification.
        counted: it is measured.
        verified, drafted: verifications, and their drafts.
        chunks: that it has had. last_iteration: of the last of them.
        first_iteration, first_rank: of the first, and its place in its step.
        stale: it was thrown out with a row in flight.
    """

    __slots__ = (
        "chunks",
        "counted",
        "drafted",
        "first_iteration",
        "first_rank",
        "last_iteration",
        "luck",
        "place",
        "stale",
        "verified",
    )

    place: int
    luck: bytes
    counted: bool
    stale: bool
    verified: int
    drafted: int
    chunks: int
    last_iteration: int
    first_iteration: int
    first_rank: int


class RowLives:
    """Requests, in the order in which lanes meet them.

    Args:
        run: that is about to begin.
        order: their rows in the table; a *place* is an index into it.

    Attributes:
        done: numbers of each request that has ended, by field and place.
        first: of which the step of the first chunk, known as soon as that has left.
        admitted_s: when each was admitted.
        warmups: requests with a lower row number are not measured.
    """

    def __init__(self, run: CalendarRun, order: I64) -> None:
        self.run, self.order = run, order
        self._with_segments = run.shared
        self.warmups = run.scenario.load.num_warmups
        self._blocks: dict[int, tuple[bytes, list[int], list[int]]] = {}
        self._left: dict[int, int] = {}
        self.done: I64 = np.zeros((CACHED + 1, len(order)), dtype=np.int64)
        self.first = self.done[FIRST]
        self.first[:] = NOT_YET
        self.admitted_s = array("d", [nan]) * len(order)

    def row(self, place: int) -> RowRequest:
        """Returns the request of a place; asked for once."""
        table, number = self.run.table, self.order.item(place)
        streams = table.output_stream
        made = RowRequest(
            number,
            table.prompt_tokens.item(number),
            table.max_tokens.item(number),
            table.output_tokens.item(number),
            segments=segments_of(table, number) if self._with_segments else None,
            output_stream=None if streams is None else streams.item(number),
        )
        made.place, made.luck = place, self._luck(place)
        made.counted, made.stale = number >= self.warmups, False
        made.verified = made.drafted = made.chunks = made.first_rank = 0
        made.first_iteration = made.last_iteration = NOT_YET
        return made

    def _luck(self, place: int) -> bytes:
        """Returns the drafts that a request accepts at full depth, verification by verification."""
        number, j = divmod(place, BLOCK)
        found = self._blocks.get(number)
        if found is None:
            found = self._blocks[number] = self._drawn(number)
            self._left[number] = len(found[1])
        drawn, starts, counts = found
        self._left[number] -= 1
        if not self._left[number]:
            del self._blocks[number], self._left[number]
        return drawn[starts[j] : starts[j] + counts[j]]

    def _drawn(self, number: int) -> tuple[bytes, list[int], list[int]]:
        """Draws a block: all verifications that its requests can need, however few drafts they have."""
        ids, luck = self.order[number * BLOCK : (number + 1) * BLOCK], self.run.luck
        assert luck is not None
        hashes = (self.run.table.output_tokens[ids].astype(np.int64) + 1) // 2 + 1
        gains, counts = luck.gains(ids, hashes), 2 * hashes
        drawn = (gains - np.uint8(1)).tobytes()
        return drawn, (np.cumsum(counts) - counts).tolist(), counts.tolist()

    def note_cached(self, place: int, tokens: int) -> None:
        """Notes the tokens that a request found in the prefix cache when it was first admitted."""
        if tokens:
            self.done[CACHED, place] = tokens

    def settle(self) -> None:
        """As `Trajectories.settle`: nothing is booked here."""

    def send_away(self, place: int) -> None:
        """As `Trajectories.send_away`: nothing was drawn for it alone."""
