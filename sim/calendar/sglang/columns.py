"""From what a lane under SGLang's rules noted to the recorder's columns, all at once after the run."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from specfleet.hardware.stepcost import StepShape
from specfleet.sim.calendar.books.ledger import Ledger
from specfleet.sim.calendar.columns import Stays
from specfleet.sim.calendar.luck import I64
from specfleet.sim.calendar.sglang.lane import SglangLane
from specfleet.sim.calendar.sglang.pauses import Pauses
from specfleet.sim.calendar.sglang.planned import PartRounds, PlannedLane
from specfleet.sim.calendar.sglang.stays import ROUNDS, Segments, StayColumns
from specfleet.sim.pauses import LatePauses
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
        self.lane, self.index, self.ledger = lane, index, ledger
        self.rows = np.frombuffer(lane.rows, dtype=np.int64).reshape(-1, WIDTH)
        self.start_s, self.end_s, self.turn_s = np.frombuffer(lane.times).reshape(-1, 3).T.copy()
        self.rounds = lane.parts.rounds() if isinstance(lane, PlannedLane) else None
        if self.rounds is not None:
            gains = self._with_parts(self.rounds)
        stays = self.stays = StayColumns(lane.stays, gains)
        decode = self.rows[:, -1]
        self.at = np.zeros(int(decode.max(initial=0)) + 1, dtype=np.int64)
        """The iteration of each decode batch."""
        its = np.flatnonzero(decode)
        self.at[decode[its]] = its
        self.counted = counted[stays.place]
        if ledger is not None:
            lane.stays.correct(ledger, index)

    def _with_parts(self, rounds: PartRounds) -> tuple[npt.NDArray[np.uint8], I64]:
        """Notes how many rounds each stay has had; returns `gains`."""
        columns = self.lane.stays.columns()
        count = columns.shape[1]
        columns[ROUNDS] = np.bincount(rounds.stay, minlength=count)
        begins = np.zeros(len(self.lane.lives.order), dtype=np.int64)
        begins[columns[0]] = np.cumsum(columns[ROUNDS]) - columns[ROUNDS]
        return np.concatenate([rounds.tokens, np.zeros(1, dtype=np.uint8)]), begins

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
        stays, width = self.stays, self.lane.rules.num_speculative_tokens + 2
        counted, warm = self._rounds_by_decode(width)
        each = counted + warm
        firsts = np.bincount(stays.first, minlength=count)
        chunks, output = firsts.copy(), firsts.copy()
        chunks[self.at[1:]] += each[1:].sum(axis=1)
        output[self.at[1:]] += each[1:] @ np.arange(width)
        gaps = np.zeros((count, width), dtype=np.int32)
        steady = np.flatnonzero(self.at[1:] == self.at[:-1] + 1) + 1
        steady = steady[steady > 1]
        gaps[self.at[steady]] = counted[steady]
        self._each = counted
        at_once = np.flatnonzero(self._follows(stays.whole) & self.counted)
        np.add.at(gaps, (self.at[stays.since[at_once]], stays.tokens(at_once, 0)), 1)
        return {"chunks": chunks, "output_tokens": output, "gaps_by_tokens": gaps}

    def _rounds_by_decode(self, width: int) -> tuple[I64, I64]:
        """Returns rounds by decode batch and tokens kept: counted, warm-ups'."""
        if self.rounds is not None:
            both = [self.rounds.counts(which, len(self.at), width) for which in (self.counted, ~self.counted)]
            return both[0], both[1]
        if self.ledger is not None:
            counted, warm = self.ledger.counts(self.index, len(self.at))
            none = np.zeros_like(counted)
            return counted.astype(np.int64), (none if warm is None else warm).astype(np.int64)
        planes, stays = [], self.stays
        for mine in (self.counted, ~self.counted):
            since = stays.since[mine]
            change = np.bincount(since, minlength=len(self.at) + 1)
            change -= np.bincount(since + stays.rounds[mine], minlength=len(self.at) + 1)[: len(change)]
            plane = np.zeros((len(self.at), width), dtype=np.int64)
            plane[:, 1] = np.cumsum(change)[: len(self.at)]
            planes.append(plane)
        return planes[0], planes[1]

    def _follows(self, segments: Segments) -> npt.NDArray[np.bool_]:
        """Returns which segments begin in the iteration after the first token of their stay."""
        decodes = segments.last >= segments.since
        follows = np.zeros(len(decodes), dtype=np.bool_)
        first = self.stays.first[segments.stay[decodes]]
        follows[decodes] = self.at[segments.since[decodes]] == first + 1
        return follows

    def odd_gaps(self) -> Columns:
        """Returns the pauses of more than one iteration: a prefill batch lay between two decodes."""
        lane, stays = self.lane, self.stays
        ids = lane.lives.order[stays.place]
        pauses = Pauses(
            stays, self.at, self.end_s, self._follows(stays.segments), self.counted, ids, lane.replica
        )
        if stays.again is not None:
            return pauses.columns()
        return LatePauses(pauses.columns, pauses.alike(self._each))

    @cached_property
    def missed(self) -> I64:
        """Rounds that are no verifications, a row a place of `place`."""
        return self.lane.lives.missed(self.place)

    @property
    def place(self) -> I64:
        """The requests, in order of their first tokens."""
        return self.stays.place[self.stays.opening]

    def requests(self) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        """Yields the request columns that the engine knows, a row a place of `place`."""
        lane, stays, place = self.lane, self.stays, self.place
        first, last = stays.first[stays.opening], stays.ends_in(self.at)[stays.closing]
        yield "chunks", stays.chunks()
        yield "first_iteration", first
        yield "last_iteration", last
        yield "admitted_s", self.turn_s[stays.admitted[stays.opening]]
        yield "first_token_s", self.end_s[first]
        yield "finished_s", self.end_s[last]
        for name, notes in (("cached_tokens", lane.stays.cached), ("preemptions", lane.stays.retractions)):
            if notes:
                noted = np.zeros(len(lane.lives.order), dtype=np.int64)
                noted[np.fromiter(notes.keys(), np.int64)] = np.fromiter(notes.values(), np.int64)
                yield name, noted[place]
        if (found := self.rounds) is not None:
            count, verified = len(place), (found.drafts > 0).astype(np.int64)
            yield "verifications", found.by_stay(verified, count)
            yield "draft_tokens", found.by_stay(found.drafts, count)
            yield "accepted_tokens", found.by_stay(found.drawn.astype(np.int64) - 1, count)
        elif k := lane.rules.num_speculative_tokens:
            verified = lane.lives.rounds[place].astype(np.int64) - self.missed
            yield "verifications", verified
            yield "draft_tokens", verified * k
            yield "accepted_tokens", lane.lives.accepted[place]

    def ranks(self) -> tuple[I64, I64]:
        """Returns the places of each request's first and last chunk within their batches."""
        stays, segments = self.stays, self.stays.segments
        first, last = (segments.since - 1).astype(np.int32), segments.last.astype(np.int32)
        ranks = Stays(slice(None), first, last).ranks_at_last()
        final = np.zeros(len(stays.place), dtype=np.int64)
        final[segments.stay] = ranks  # those of one stay follow one another
        closing = stays.closing
        last_rank = np.where(stays.rounds[closing] > 0, final[closing], stays.rank[closing])
        return stays.rank[stays.opening], last_rank
