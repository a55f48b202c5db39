"""From a lane's log to the recorder's columns, all at once after the run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sim.recorder import Columns
from sim.timeline_lane import Lane
from sim.timeline_luck import F64, I64

LAYERS = 128
"""Requests compared with one another at once when chunks are ranked within their step."""


@dataclass(frozen=True)
class Stays:
    """Every stay of a request in the running list, in its order.

    Attributes:
        place: of the request. first: iteration in which its prefill ended.
        last: iteration of its last chunk.
    """

    place: I64
    first: I64
    last: I64

    @classmethod
    def of(cls, lane: Lane, places: I64) -> Stays:
        """Returns a lane's stays; `places` are its requests in order of arrival."""
        first = lane.lives.first[places].astype(np.int64)
        rounds = lane.lives.rounds[places].astype(np.int64)
        index_of = dict(zip(places.tolist(), range(len(places)), strict=True)) if lane.log.cut else {}
        for place, done in lane.log.cut.items():
            rounds[index_of[place]] = done
        if not lane.log.stays:
            return cls(places, first, first + rounds)
        more = np.array(lane.log.stays, dtype=np.int64)
        rank = np.concatenate([np.arange(1, len(places) + 1), more[:, 3]])
        order = np.argsort(rank, kind="stable")
        return cls(
            np.concatenate([places, more[:, 0]])[order],
            np.concatenate([first, more[:, 1]])[order],
            np.concatenate([first + rounds, more[:, 1] + more[:, 2]])[order],
        )

    def decoding(self, iterations: int, counted: npt.NDArray[np.bool_] | None = None) -> I64:
        """Returns how many of them send a chunk after their first in each iteration."""
        first, last = (
            (self.first, self.last) if counted is None else (self.first[counted], self.last[counted])
        )
        change = np.bincount(first + 1, minlength=iterations + 2)
        change -= np.bincount(last + 1, minlength=iterations + 2)
        return np.cumsum(change)[:iterations]

    def ranks_at_first(self, decoding: I64) -> I64:
        """Returns the place (from 1) of each stay's first chunk in its step: behind all who decode."""
        order = np.argsort(self.first, kind="stable")
        ordered = self.first[order]
        ranks = np.empty_like(order)
        ranks[order] = np.arange(len(order)) - np.searchsorted(ordered, ordered) + 1
        return ranks + decoding[self.first]

    def ranks_at_last(self) -> I64:
        """Returns the place (from 1) of each stay's last chunk: those before it in the list still there."""
        ranks = np.ones(len(self.last), dtype=np.int64)
        alive = np.zeros(0, dtype=np.int64)
        for low in range(0, len(self.last), LAYERS):
            last = self.last[low : low + LAYERS]
            # nobody from here on ends before the first of them has begun
            alive = alive[np.searchsorted(alive, self.first[low]) :]
            longer = np.tri(len(last), k=-1, dtype=np.bool_) & (last[None, :] >= last[:, None])
            ranks[low : low + LAYERS] += longer.sum(axis=1) + len(alive) - np.searchsorted(alive, last)
            alive = np.sort(np.concatenate([alive, last]))
        return ranks


class LaneColumns:
    """What one lane's log says, as columns.

    Args:
        lane: after its run.
        places: of its requests, in order of arrival.
        counted: whether each belongs to the measured part, by place.
    """

    def __init__(self, lane: Lane, places: I64, counted: npt.NDArray[np.bool_]) -> None:
        self.lane = lane
        self.places = places
        self.counted = counted
        log = lane.log
        self.end_s: F64 = np.frombuffer(log.end_s, dtype=np.float64)
        self.iterations_count = len(self.end_s)
        wakes = np.frombuffer(log.wakes, dtype=np.int64)
        self.start_s = np.concatenate([[0.0], self.end_s[:-1]])[: self.iterations_count]
        self.start_s[wakes] = np.frombuffer(log.wake_s, dtype=np.float64)
        self.turn_s = self.start_s
        if lane.rules.lag:
            self.turn_s = np.concatenate([[0.0], self.start_s[:-1]])[: self.iterations_count]
            self.turn_s[wakes] = self.start_s[wakes]
        self.stays = Stays.of(lane, places)

    def iterations(self) -> Columns:
        """Returns the iteration columns."""
        lane, log, count = self.lane, self.lane.log, self.iterations_count
        pack, rules = lane.rules.packing, lane.rules
        sums = np.frombuffer(log.sums, dtype=np.int64)
        n = ((sums >> pack.rows) & pack.rows_mask).astype(np.int32)
        context = (sums & pack.context_mask).astype(np.int32)
        k = lane.drafts_by_iteration()
        columns: Columns = {
            "replica": np.broadcast_to(np.int32(lane.replica), count),
            "tokens": n * (1 + k),
            "decode_sequences": n.copy(),
            "prefill_sequences": np.zeros(count, dtype=np.int32),
            "logit_rows": n * (1 + k),
            "draft_tokens": n * k,
            "kv_tokens": context,
            "kv_tokens_in_window": context,
            "prefill_pairs": np.zeros(count, dtype=np.int64),
            "uniform": np.broadcast_to(k == rules.k, count).astype(np.int8),
            "draft_passes": lane.passes_by_iteration(),
            "reroll": np.broadcast_to(np.int8(0), count),
            "running": (sums >> pack.running).astype(np.int32),
            "waiting": np.zeros(count, dtype=np.int32),
            "kv_blocks_used": ((sums >> pack.blocks) & pack.blocks_mask).astype(np.int32),
        }
        it, tokens, rows, ones, ones_context, pairs = (
            np.frombuffer(log.prefills, dtype=np.int64).reshape(-1, 6).T
        )
        columns["uniform"][it] = (ones == rows) & (
            columns["tokens"][it] + tokens == (n[it] + rows) * (1 + rules.k)
        )
        columns["tokens"][it] += tokens.astype(np.int32)
        columns["decode_sequences"][it] += ones.astype(np.int32)
        columns["prefill_sequences"][it] = rows - ones
        columns["logit_rows"][it] += rows.astype(np.int32)
        columns["kv_tokens"][it] += ones_context.astype(np.int32)
        if rules.window:
            beyond = np.frombuffer(log.beyond, dtype=np.int64)
            columns["kv_tokens_in_window"] = columns["kv_tokens"] - beyond.astype(np.int32)
        columns["prefill_pairs"][it] = pairs
        columns["draft_passes"][np.frombuffer(log.one_pass, dtype=np.int64)] = 1
        it, waiting = np.frombuffer(log.waiting, dtype=np.int64).reshape(-1, 2).T
        columns["waiting"][it] = waiting
        return columns | self._chunks() | {"start_s": self.start_s, "end_s": self.end_s}

    def _chunks(self) -> Columns:
        """Returns `chunks`, `output_tokens` and `gaps_by_tokens`."""
        lane, count = self.lane, self.iterations_count
        firsts = np.bincount(self.stays.first, minlength=count)
        decoding = self.stays.decoding(count)
        if lane.ledger is None:
            gaps = np.zeros((count, 2), dtype=np.int32)
            gaps[:, 1] = self.stays.decoding(count, self.counted[self.stays.place])
            chunks = (decoding + firsts).astype(np.int32)
            return {"chunks": chunks, "output_tokens": chunks, "gaps_by_tokens": gaps}
        counted, warm = lane.ledger.counts(lane.lane, count)
        tokens = counted @ np.arange(lane.ledger.width)
        if warm is not None:
            tokens += warm @ np.arange(lane.ledger.width)
        return {
            "chunks": (decoding + firsts).astype(np.int32),
            "output_tokens": (tokens + firsts).astype(np.int32),
            "gaps_by_tokens": counted.astype(np.int32),
        }

    def odd_gaps(self) -> Columns:
        """Returns the pauses of more than one iteration."""
        it, before, place = np.frombuffer(self.lane.log.odd_gaps, dtype=np.int64).reshape(-1, 3).T
        end = self.end_s[it]
        return {
            "request_id": self.lane.lives.order[place],
            "replica": np.full(len(it), self.lane.replica),
            "from_iteration": before,
            "to_iteration": it,
            "counted": self.counted[place].astype(np.int64),
            "end_s": end,
            "gap_s": end - self.end_s[before],
            "tokens": np.ones(len(it), dtype=np.int64),
        }

    def requests(self) -> Columns:
        """Returns the request columns that the engine knows, a row a place of `places`."""
        lane, log, places = self.lane, self.lane.log, self.places
        first = lane.lives.first[places].astype(np.int64)
        rounds = lane.lives.rounds[places].astype(np.int64)
        accepted = lane.lives.accepted[places].astype(np.int64)
        finish, admitted = first + rounds, first.copy()
        chunks, preemptions = 1 + rounds, np.zeros(len(places), dtype=np.int64)
        if log.admitted or log.preemptions:
            index_of = np.zeros(len(lane.lives.order), dtype=np.int64)
            index_of[places] = np.arange(len(places))
            for place, it in log.admitted.items():
                admitted[index_of[place]] = it
            for place, count in log.preemptions.items():
                preemptions[index_of[place]] = count
            for place, values in log.totals.items():
                j = index_of[place]
                rounds[j], accepted[j], chunks[j], finish[j] = values
        if lane.verified is not None:
            rounds = lane.verified[places]
        if lane.ledger is None:
            rounds = accepted = np.zeros(len(places), dtype=np.int64)
        return {
            "admitted_s": self.turn_s[admitted],
            "first_token_s": self.end_s[first],
            "finished_s": self.end_s[finish],
            "chunks": chunks,
            "first_iteration": first,
            "last_iteration": finish,
            "verifications": rounds,
            "draft_tokens": rounds * lane.rules.k if lane.drafts is None else lane.drafts[places],
            "accepted_tokens": accepted,
            "preemptions": preemptions,
        }

    def chunk_ranks(self) -> tuple[I64, I64]:
        """Returns the place of each request's first and last chunk within its step, as `requests`."""
        stays = self.stays
        first = stays.ranks_at_first(stays.decoding(self.iterations_count))
        last = stays.ranks_at_last()
        by_first, by_last = np.zeros((2, len(self.lane.lives.order)), dtype=np.int64)
        by_first[stays.place[::-1]] = first[::-1]  # the first stay of each wins
        by_last[stays.place] = last
        return by_first[self.places], by_last[self.places]
