"""From what a lane under SGLang's rules noted to the recorder's columns, all at once after the run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from specfleet.hardware.stepcost import StepShape
from specfleet.sim.calendar.books.ledger import Ledger
from specfleet.sim.calendar.columns import Stays
from specfleet.sim.calendar.luck import F64, I64
from specfleet.sim.calendar.sglang.lane import SglangLane
from specfleet.sim.recorder import Columns

WIDTH = len(StepShape._fields) + 4


class SglangColumns:
    """What one lane noted, as columns.

    Args:
        lane: after its run. index: its number among those that share requests.
        ledger: the rounds by decode batch; None without speculation.
        counted: whether each place belongs to the measured part.
        order: the lane's places in order of arrival.
        gains: tokens of every round kept, and where those of each place begin; None without speculation.
    """

    def __init__(
        self,
        lane: SglangLane,
        index: int,
        ledger: Ledger | None,
        counted: npt.NDArray[np.bool_],
        gains: tuple[npt.NDArray[np.uint8], I64] | None,
    ) -> None:
        self.lane, self.index, self.ledger, self.gains = lane, index, ledger, gains
        self.rows = np.frombuffer(lane.rows, dtype=np.int64).reshape(-1, WIDTH)
        self.start_s, self.end_s, self.turn_s = np.frombuffer(lane.times).reshape(-1, 3).T.copy()
        self.place, self.first, self.rank, self.admitted = (
            np.frombuffer(column, dtype=np.int64)
            for column in (lane.place, lane.first, lane.rank, lane.admitted)
        )
        decode = self.rows[:, -1]
        self.at = np.zeros(int(decode.max(initial=0)) + 1, dtype=np.int64)
        """The iteration of each decode batch."""
        its = np.flatnonzero(decode)
        self.at[decode[its]] = its
        self.since = lane.lives.first[self.place].astype(np.int64) + 1
        self.rounds = lane.lives.rounds[self.place].astype(np.int64)
        self.counted = counted[self.place]

    def iterations(self) -> Columns:
        """Returns the iteration columns."""
        names = (*StepShape._fields, "running", "waiting", "kv_blocks_used")
        columns: Columns = {name: self.rows[:, i].astype(np.int32) for i, name in enumerate(names)}
        columns["prefill_pairs"] = self.rows[:, names.index("prefill_pairs")]
        count = len(self.rows)
        columns |= {
            "replica": np.broadcast_to(np.int32(self.lane.replica), count),
            "reroll": np.zeros(count, dtype=np.int8),
            "start_s": self.start_s,
            "end_s": self.end_s,
        }
        return columns | self._chunks(count)

    def _chunks(self, count: int) -> Columns:
        """Returns `chunks`, `output_tokens` and `gaps_by_tokens`."""
        width = self.lane.rules.num_speculative_tokens + 2
        counted, warm = self._rounds_by_decode(width)
        each = counted + warm
        firsts = np.bincount(self.first, minlength=count)
        chunks, output = firsts.copy(), firsts.copy()
        chunks[self.at[1:]] += each[1:].sum(axis=1)
        output[self.at[1:]] += each[1:] @ np.arange(width)
        gaps = np.zeros((count, width), dtype=np.int32)
        steady = np.flatnonzero(self.at[1:] == self.at[:-1] + 1) + 1
        steady = steady[steady > 1]
        gaps[self.at[steady]] = counted[steady]
        at_once = self._follows() & self.counted
        np.add.at(gaps, (self.at[self.since[at_once]], self._tokens(np.flatnonzero(at_once), 0)), 1)
        return {"chunks": chunks, "output_tokens": output, "gaps_by_tokens": gaps}

    def _rounds_by_decode(self, width: int) -> tuple[I64, I64]:
        """Returns rounds by decode batch and tokens kept: counted, warm-ups'."""
        if self.ledger is not None:
            counted, warm = self.ledger.counts(self.index, len(self.at))
            none = np.zeros_like(counted)
            return counted.astype(np.int64), (none if warm is None else warm).astype(np.int64)
        planes = []
        for mine in (self.counted, ~self.counted):
            change = np.bincount(self.since[mine], minlength=len(self.at) + 1)
            change -= np.bincount((self.since + self.rounds)[mine], minlength=len(self.at) + 1)[: len(change)]
            plane = np.zeros((len(self.at), width), dtype=np.int64)
            plane[:, 1] = np.cumsum(change)[: len(self.at)]
            planes.append(plane)
        return planes[0], planes[1]

    def _follows(self) -> npt.NDArray[np.bool_]:
        """Returns whose second chunk comes in the iteration after its first."""
        decodes = self.rounds > 0
        follows = np.zeros(len(self.place), dtype=np.bool_)
        follows[decodes] = self.at[self.since[decodes]] == self.first[decodes] + 1
        return follows

    def _tokens(self, ones: I64, rounds: I64 | int) -> I64:
        """Returns the tokens that the n-th round of some requests keeps."""
        if self.gains is None:
            return np.ones(len(ones), dtype=np.int64)
        tokens, begins = self.gains
        kept: I64 = tokens[begins[self.place[ones]] + rounds].astype(np.int64)
        return kept

    def odd_gaps(self) -> Columns:
        """Returns the pauses of more than one iteration: a prefill batch lay between two decodes."""
        breaks = np.flatnonzero(self.at[1:] != self.at[:-1] + 1) + 1
        low = np.searchsorted(breaks, self.since + self._follows())
        high = np.searchsorted(breaks, self.since + self.rounds)
        counts = np.maximum(high - low, 0)
        ones = np.repeat(np.arange(len(self.place)), counts)
        begins = np.cumsum(counts) - counts
        nth = np.repeat(low - begins, counts) + np.arange(len(ones))
        # a tenth of the time in 16 bits
        order = np.argsort(nth.astype(np.uint16) if len(breaks) < 1 << 16 else nth, kind="stable")
        ones, decode = ones[order], breaks[nth[order]]
        before = np.where(decode == self.since[ones], self.first[ones], self.at[decode - 1])
        it = self.at[decode]
        end: F64 = self.end_s[it]
        return {
            "request_id": self.lane.lives.order[self.place[ones]],
            "replica": np.full(len(it), self.lane.replica),
            "from_iteration": before,
            "to_iteration": it,
            "counted": self.counted[ones].astype(np.int64),
            "end_s": end,
            "gap_s": end - self.end_s[before],
            "tokens": self._tokens(ones, decode - self.since[ones]),
        }

    def requests(self) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        """Yields the request columns that the engine knows, a row a place of `place`."""
        last = np.where(self.rounds > 0, self.at[np.maximum(self.since + self.rounds - 1, 0)], self.first)
        yield "chunks", 1 + self.rounds
        yield "first_iteration", self.first
        yield "last_iteration", last
        yield "admitted_s", self.turn_s[self.admitted]
        yield "first_token_s", self.end_s[self.first]
        yield "finished_s", self.end_s[last]
        if k := self.lane.rules.num_speculative_tokens:
            yield "verifications", self.rounds
            yield "draft_tokens", self.rounds * k
            yield "accepted_tokens", self.lane.lives.accepted[self.place]

    def ranks(self) -> tuple[I64, I64]:
        """Returns the places of each request's first and last chunk within their batches."""
        first = (self.since - 1).astype(np.int32)
        last = Stays(slice(None), first, first + self.rounds.astype(np.int32)).ranks_at_last()
        return self.rank, np.where(self.rounds > 0, last, self.rank)
