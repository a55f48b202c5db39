"""What is known of each decoding sequence, as columns.

A sequence that is *aboard* has its counts here and not in itself: `refresh` writes them back, and whoever
leaves has had that done. Those aboard are the first ones of the running list, in its order.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from specfleet.sim.rules import last_output
from specfleet.sim.sequence import Sequence

I64 = npt.NDArray[np.int64]

CONTEXT, WRITTEN, DRAFTS, BLOCKS, LAST, MOST, KEYED, ASSUMED = range(8)
BASE, VERIFIED, FOUND, SAMPLED, DRAFTED, ACCEPTED, BY_PLACE, COUNTED, SINCE, ID = range(8, 18)
NUM_FIELDS = 18


class Notes(Protocol):
    """Whoever keeps more of a sequence than its token counts: an engine."""

    def ready(self, sequence: Sequence) -> bool:
        """Whether a sequence that decodes may come aboard."""
        ...

    def enter(self, sequence: Sequence) -> list[int]:
        """Returns the fields from `BASE` to `SINCE`."""
        ...

    def luck_after(self, rounds: I64, places: I64) -> I64:
        """As `Batch.luck_after`, for some of those aboard."""
        ...

    def skip_luck(self, places: I64) -> None:
        """As `Batch.skip_luck`, for some of those aboard."""
        ...

    def refresh(self, sequence: Sequence, values: list[int]) -> None:
        """Writes them, as they are now, into the sequence."""
        ...


class Columns:
    """Counts of those aboard, a column a field, a place a sequence.

    Args:
        capacity: most sequences.
        block_size, max_model_len: of the engine. ahead: it schedules steps ahead.

    Attributes:
        n: sequences aboard.
        context: tokens whose KV stays whatever becomes of the batch in flight: all known ones but the last.
        written: output tokens known.
        drafts: to verify next.
        blocks: KV blocks held. num_blocks: their sum.
        last, most: the output token that ends it; the last one that it may ask for.
        keyed: tokens whose full blocks have a key in the prefix cache once it leaves.
        assumed: tokens of its rows in flight.
        base, verified: where its luck begins; verifications so far. found, sampled: the same of its look-ups.
        drafted, accepted: drafts verified and accepted.
        by_place: whether its luck belongs to places in the output. counted: it is measured. since: its chunks
            less the iterations of the engine, which is as many as long as it has one in each.
        ids: of the requests.
        longest: no context is longer.
        void: the drafts of all are placeholders.
        each: drafts of all, where they are known to be alike; else None.
        in_flight: of a step that is not scheduled ahead, the drafts that its rows verify, until it has ended.
        notes: keeps the rest.
    """

    def __init__(self, capacity: int, block_size: int, max_model_len: int, ahead: bool) -> None:
        self.capacity = capacity
        self.ahead = ahead
        self.block_size = block_size
        self.max_model_len = max_model_len
        self.n = 0
        self.num_blocks = 0
        self.longest = 0
        self.void = False
        self.each: int | None = None
        self.in_flight: I64 | None = None
        self.notes: Notes | None = None
        self._table: I64 = np.zeros((NUM_FIELDS, 0), dtype=np.int64)
        self._name_fields()

    def _name_fields(self) -> None:
        table = self._table
        self.context, self.written, self.drafts, self.blocks = table[:4]
        self.last, self.most, self.keyed, self.assumed = table[LAST : ASSUMED + 1]
        self.base, self.verified, self.found, self.sampled = table[BASE : SAMPLED + 1]
        self.drafted, self.accepted = table[DRAFTED], table[ACCEPTED]
        self.by_place, self.counted, self.since, self.ids = table[BY_PLACE : ID + 1]

    def board(self, sequence: Sequence) -> None:
        """Takes a sequence in that decodes, behind the others."""
        if self.n == self._table.shape[1]:
            grown = np.zeros((NUM_FIELDS, min(max(2 * self.n, 64), self.capacity)), dtype=np.int64)
            grown[:, : self.n] = self._table
            self._table = grown
            self._name_fields()
        context, written = sequence.num_tokens - 1, sequence.num_tokens - sequence.prompt_tokens
        last = last_output(sequence.max_tokens, sequence.stop_at, self.max_model_len - sequence.prompt_tokens)
        own = self.notes.enter(sequence) if self.notes is not None else [0] * (ID - BASE)
        counts = (context, written, sequence.num_drafts, sequence.num_blocks, last, sequence.max_tokens)
        self._table[:, self.n] = (*counts, 0, sequence.num_output_placeholders, *own, sequence.id)
        if not self.n:
            self.each = sequence.num_drafts
        elif self.each != sequence.num_drafts:
            self.each = None
        self.n += 1
        self.num_blocks += sequence.num_blocks
        self.longest = max(self.longest, context)

    def reload(self, sequence: Sequence, place: int) -> None:
        """Takes over what was written into the sequence at a place when a row of its own was committed."""
        self.context[place] = sequence.num_tokens - 1
        self.written[place] = sequence.num_output_tokens
        self.assumed[place] = sequence.num_output_placeholders

    def refresh(self, sequence: Sequence, place: int) -> None:
        """Writes the counts of the sequence at a place back into it."""
        values = self._table[:, place].tolist()
        in_flight = values[ASSUMED]
        if self.in_flight is not None and place < len(self.in_flight):
            in_flight = 1 + self.in_flight.item(place)
        sequence.num_computed_tokens = values[CONTEXT] + in_flight
        sequence.num_in_flight_tokens = in_flight
        sequence.num_output_placeholders = in_flight if self.ahead else 0
        sequence.num_tokens = sequence.prompt_tokens + values[WRITTEN]
        sequence.num_drafts = values[DRAFTS]
        sequence.num_blocks = values[BLOCKS]
        sequence.slots = values[BLOCKS] * self.block_size
        sequence.drafts_are_void = self.void
        if self.notes is not None:
            self.notes.refresh(sequence, values[BASE:ID])

    def grow(self, new: I64, drafts: I64) -> None:
        """Adds tokens that rows of the first ones brought, in the place of those that were assumed."""
        counts = self._table[: WRITTEN + 1, : len(new)]
        counts += new
        self.in_flight = None
        if self.ahead:
            rest = self.assumed[: len(new)]
            rest -= drafts
            rest -= 1

    def drop(self, places: list[int]) -> None:
        """Lets those at places go, which are in order; who stands behind them moves up."""
        table, n = self._table, self.n
        for place in reversed(places):
            self.num_blocks -= int(self.blocks[place])
            table[:, place : n - 1] = table[:, place + 1 : n]
            n -= 1
        self.n = n
        if self.in_flight is not None:
            self.in_flight = np.delete(
                self.in_flight, [place for place in places if place < len(self.in_flight)]
            )

    def clear(self) -> None:
        """Lets all go."""
        self.n = self.num_blocks = self.longest = 0
        self.in_flight = None
