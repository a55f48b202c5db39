"""What is known of each decoding sequence under SGLang's rules, as columns.

There a batch decodes everybody who runs, or nobody. So those aboard are all who run, and each has a *berth*
from when it comes aboard until nothing of it is in flight any more: rows of batches, and the running list,
are berths in order. What is in a berth is not in its sequence until it is written back.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from specfleet.sim.rules import NEVER, last_output
from specfleet.sim.sequence import Sequence
from specfleet.sim.sglang.pool import Holding

I64 = npt.NDArray[np.int64]

COMMITTED, ALLOCATED, WRITTEN, LAST, MOST, DRAFTS, VOID, ASSUMED, ALIVE, PROMPT, CERTAIN, ID = range(12)
BASE, VERIFIED, FOUND, SAMPLED, DRAFTED, ACCEPTED, BY_PLACE, COUNTED, SINCE, LATEST = range(12, 22)
NUM_FIELDS = 22
LEAST_BERTHS = 64


class Berths:
    """Counts of those aboard, a column a field.

    Attributes:
        free: berths that nobody has.
        committed, allocated: KV tokens, as of `Holding`.
        written: output tokens known. last, most: the one that ends it; the last one that it may ask for.
        drafts: to verify next. void: those are placeholders.
        assumed: batches in flight in which it samples, where they are decided ahead.
        alive: it has not ended. prompt: its tokens. certain: its output length is known.
        ids: of the requests.
        base, verified: where its luck begins; verifications so far. found, sampled: the same of its look-ups.
        drafted, accepted: drafts verified and accepted.
        by_place: whether its luck belongs to places in the output. counted: it is measured.
        since: its chunks less the batches of rows that have been noted. latest: iteration of its last chunk.
    """

    def __init__(self) -> None:
        self.table: I64 = np.zeros((NUM_FIELDS, 0), dtype=np.int64)
        self.free: list[int] = []
        self._name_fields()

    def _name_fields(self) -> None:
        table = self.table
        self.committed, self.allocated, self.written = table[: WRITTEN + 1]
        self.last, self.most, self.drafts, self.void = table[LAST : VOID + 1]
        self.assumed, self.alive, self.prompt, self.certain, self.ids = table[ASSUMED : ID + 1]
        self.base, self.verified, self.found, self.sampled = table[BASE : SAMPLED + 1]
        self.drafted, self.accepted, self.by_place, self.counted = table[DRAFTED : COUNTED + 1]
        self.since, self.latest = table[SINCE : LATEST + 1]

    def take(self) -> int:
        """Returns a berth that is free."""
        if not self.free:
            before = self.table.shape[1]
            grown = np.zeros((NUM_FIELDS, max(2 * before, LEAST_BERTHS)), dtype=np.int64)
            grown[:, :before] = self.table
            self.table = grown
            self.free = [*range(grown.shape[1] - 1, before - 1, -1)]
            self._name_fields()
        return self.free.pop()

    def load(self, sequence: Sequence, holding: Holding, berth: int, own: list[int]) -> None:
        """Writes what a sequence has into its berth; `own`: the fields from `BASE` on."""
        last = last_output(sequence.max_tokens, sequence.stop_at, NEVER)
        self.table[:, berth] = (
            holding.committed,
            holding.allocated,
            sequence.num_output_tokens,
            last,
            sequence.max_tokens,
            sequence.num_drafts,
            sequence.drafts_are_void,
            sequence.num_output_placeholders,
            1,
            sequence.prompt_tokens,
            sequence.ignore_eos,
            sequence.id,
            *own,
        )

    def clear(self) -> None:
        """Lets all go."""
        self.free = [*range(self.table.shape[1] - 1, -1, -1)]
