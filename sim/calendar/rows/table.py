"""Those who decode in one engine, a place a request, in the order of the running list."""

from __future__ import annotations

import numpy as np

from specfleet.sim.calendar.luck import I64
from specfleet.sim.calendar.rows.lives import RowRequest
from specfleet.sim.columns.luck import Arena

CONTEXT, WRITTEN, ASSUMED, DRAFTS, BLOCKS, LAST, MOST, BASE, WIDTH = range(9)
VERIFIED, DRAFTED, SINCE, FIRST, RANK, ID, COUNTED = range(9, 16)
NUM_FIELDS = 16


class RowTable:
    """Counts of those who decode, as columns.

    Args:
        capacity: most of them.

    Attributes:
        n: how many there are. num_blocks: their KV blocks.
        members: who they are.
        context, written: KV tokens that stay whatever becomes of the step in flight, and output tokens known.
        assumed: tokens of the row in flight, if steps are scheduled ahead. drafts: to verify next.
        blocks: held. last, most: output tokens at its end, and those it may ask for.
        verified, drafted: verifications, and their drafts.
        since: chunks it has had, less the number of the step of the last one.
        first, rank: step of its first chunk, and its place there. ids: requests. counted: 1 if measured.
        luck: tokens of each verification, at `base` + `verified`.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self.n = self.num_blocks = 0
        self.members: list[RowRequest] = []
        self.luck = Arena()
        self.fields: I64 = np.zeros((NUM_FIELDS, 0), dtype=np.int64)
        self._name_fields()

    def _name_fields(self) -> None:
        fields = self.fields
        self.context, self.written, self.assumed, self.drafts, self.blocks = fields[: BLOCKS + 1]
        self.last, self.most, self.base, self.width = fields[LAST : WIDTH + 1]
        self.verified, self.drafted, self.since = fields[VERIFIED : SINCE + 1]
        self.first, self.rank, self.ids, self.counted = fields[FIRST:]

    def add(self, row: RowRequest) -> None:
        """Takes in a request whose prompt is computed in this step, behind the others."""
        n = self.n
        if n == self.fields.shape[1]:
            grown = np.zeros((NUM_FIELDS, min(max(2 * n, 64), self._capacity)), dtype=np.int64)
            grown[:, :n] = self.fields
            self.fields = grown
            self._name_fields()
        width = len(row.luck)
        base = self.luck.add(row.luck, width, self.base[:n], self.width[:n])
        known, written = row.num_tokens - 1, row.num_tokens - row.prompt_tokens
        self.fields[:, n] = (
            *(known, written, 0, 0, row.num_blocks, row.stop_at, row.max_tokens, base, width),
            *(row.verified, row.drafted, row.chunks, row.first_iteration, row.first_rank),
            *(row.id, row.counted),
        )
        self.members.append(row)
        self.n = n + 1
        self.num_blocks += row.num_blocks

    def refresh(self, place: int) -> RowRequest:
        """Returns who stands at a place, with its counts as they are now."""
        row, values = self.members[place], self.fields[:, place].tolist()
        row.num_tokens = row.prompt_tokens + values[WRITTEN]
        row.num_blocks = values[BLOCKS]
        row.verified, row.drafted = values[VERIFIED : DRAFTED + 1]
        row.first_iteration, row.first_rank = values[FIRST : RANK + 1]
        return row

    def drop(self, places: list[int]) -> None:
        """Lets those at places go, which are in order; who stands behind them moves up."""
        fields, n = self.fields, self.n
        for place in reversed(places):
            self.num_blocks -= self.blocks.item(place)
            fields[:, place : n - 1] = fields[:, place + 1 : n]
            del self.members[place]
            n -= 1
        self.n = n
