"""From a lane's log to the recorder's columns, all at once after the run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from specfleet.hardware.stepcost import StepShape, shape_fields
from specfleet.sim.calendar.books.log import Log
from specfleet.sim.calendar.footprints import Footprints
from specfleet.sim.calendar.lane import Lane
from specfleet.sim.calendar.luck import F64, I64
from specfleet.sim.recorder import Columns

LAYERS = 128
"""Requests compared with one another at once when chunks are ranked within their step."""
BLOCK = 65_536
"""Stays whose place among those of one step is counted at once."""
I32 = npt.NDArray[np.int32]
Places = I64 | slice
"""Requests of a lane in order of arrival; a slice spares copies where it has all of them."""


@dataclass(frozen=True)
class Stays:
    """Every stay of a request in the running list, in its order.

    Attributes:
        place: of the request. first: iteration in which its prefill ended.
        last: iteration of its last chunk.
    """

    place: Places
    first: I32
    last: I32

    @classmethod
    def of(cls, lane: Lane, places: Places) -> Stays:
        """Returns a lane's stays; `places` are its requests in order of arrival."""
        first, rounds = lane.books.lives.first[places], lane.books.lives.rounds[places]
        if not lane.log.cut and not lane.log.stays:
            return cls(places, first, first + rounds)
        each = np.arange(len(lane.books.lives.order))[places]
        rounds = rounds.copy()
        index_of = _index_of(lane, places)
        for cut, done in lane.log.cut.items():
            rounds[index_of[cut]] = done
        if not lane.log.stays:
            return cls._those_that_count(each, first, first + rounds)
        more = np.array(lane.log.stays, dtype=np.int64)
        rank = np.concatenate([np.arange(1, len(each) + 1), more[:, 3]])
        order = np.argsort(rank, kind="stable")
        starts = np.concatenate([first, more[:, 1]])[order]
        ends = np.concatenate([first + rounds, more[:, 1] + more[:, 2]])[order]
        place = np.concatenate([each, more[:, 0]])[order]
        return cls._those_that_count(place, starts.astype(np.int32), ends.astype(np.int32))

    @classmethod
    def _those_that_count(cls, place: I64, first: I32, last: I32) -> Stays:
        """Leaves out those of which nothing counts, since their requests were given up."""
        counts = last >= first
        return cls(place, first, last) if counts.all() else cls(place[counts], first[counts], last[counts])

    def decoding(self, iterations: int, counted: npt.NDArray[np.bool_] | None = None) -> I32:
        """Returns how many of them send a chunk after their first in each iteration."""
        first, last = (
            (self.first, self.last)
            if counted is None or counted.all()
            else (self.first[counted], self.last[counted])
        )
        change = np.bincount(first, minlength=iterations)
        change -= np.bincount(last, minlength=iterations)
        decoding = np.zeros(iterations, dtype=np.int32)
        decoding[1:] = np.cumsum(change[: iterations - 1])  # from the iteration after the first chunk on
        return decoding

    def ranks_at_first(self, decoding: I32) -> I32:
        """Returns the place (from 1) of each stay's first chunk in its step: behind all who decode."""
        order = np.argsort(self.first, kind="stable")
        ordered, ranks = self.first[order], decoding[self.first]
        for low in range(0, len(order), BLOCK):
            block = slice(low, low + BLOCK)
            before = np.searchsorted(ordered, ordered[block])
            ranks[order[block]] += (np.arange(low, low + len(before)) - before + 1).astype(np.int32)
        return ranks

    def ranks_at_last(self) -> I32:
        """Returns the place (from 1) of each stay's last chunk: those before it in the list still there."""
        ranks = np.ones(len(self.last), dtype=np.int32)
        alive = np.zeros(0, dtype=np.int32)
        for low in range(0, len(self.last), LAYERS):
            last = self.last[low : low + LAYERS]
            # nobody from here on ends before the first of them has begun
            alive = alive[np.searchsorted(alive, self.first[low]) :]
            longer = np.tri(len(last), k=-1, dtype=np.bool_) & (last[None, :] >= last[:, None])
            ranks[low : low + LAYERS] += longer.sum(axis=1, dtype=np.int32)
            ranks[low : low + LAYERS] += (len(alive) - np.searchsorted(alive, last)).astype(np.int32)
            alive = np.sort(np.concatenate([alive, last]))
        return ranks


class LaneColumns:
    """What one lane's log says, as columns.

    Args:
        lane: after its run.
        places: of its requests, in order of arrival.
        counted: whether each belongs to the measured part, by place.
    """

    def __init__(self, lane: Lane, places: Places, counted: npt.NDArray[np.bool_]) -> None:
        self.lane = lane
        self.places = places
        self.counted = counted
        wakes = np.frombuffer(lane.log.wakes, dtype=np.int64)
        wake_s = np.frombuffer(lane.log.wake_s, dtype=np.float64)
        times = np.concatenate([np.zeros(1), np.frombuffer(lane.log.end_s, dtype=np.float64)])
        self.end_s: F64 = times[1:]
        self.iterations_count = len(self.end_s)
        self.stepped = np.frombuffer(lane.log.stepped, dtype=np.int64)
        self.start_s: F64 = times[:-1]  # while it is busy, an iteration starts when the one before ends
        if (wakes > 0).any() or len(self.stepped):
            self.start_s = self.start_s.copy()
        self.start_s[wakes] = wake_s
        if lane.log.recorder is not None:
            self.start_s[self.stepped] = lane.log.recorder.iterations()["start_s"]
        self.stays = Stays.of(lane, places)

    def turn_s(self) -> F64:
        """Returns when each iteration was scheduled."""
        if not self.lane.rules.lag:
            return self.start_s
        wakes = np.frombuffer(self.lane.log.wakes, dtype=np.int64)
        turn_s = np.empty(self.iterations_count)
        turn_s[:1], turn_s[1:] = 0.0, self.start_s[:-1]
        turn_s[wakes] = self.start_s[wakes]
        return turn_s

    def iterations(self) -> Columns:
        """Returns the iteration columns."""
        lane, times = self.lane, {"start_s": self.start_s, "end_s": self.end_s}
        k, passes = lane.books.drafts_by_iteration(), lane.books.passes_by_iteration()
        replica: Columns = {"replica": np.broadcast_to(np.int32(lane.replica), self.iterations_count)}
        chunks = self._chunks()  # before the others: it needs room for a moment
        columns = replica | chunks | shapes_of(lane.log, lane.rules, k, passes)
        if lane.log.recorder is not None:
            for name, values in lane.log.recorder.iterations().items():
                if name in columns:
                    kind = np.promote_types(columns[name].dtype, _holding(int(values.max(initial=0))))
                    columns[name] = columns[name].astype(kind)
                    columns[name][self.stepped] = values
        return columns | times

    def _chunks(self) -> Columns:
        """Returns `chunks`, `output_tokens` and `gaps_by_tokens`."""
        lane, count = self.lane, self.iterations_count
        firsts = np.bincount(self.stays.first, minlength=count).astype(np.int32)
        decoding = self.stays.decoding(count)
        chunks = decoding + firsts
        if lane.books.ledger is None:
            gaps = np.zeros((count, 2), dtype=np.int32)
            gaps[:, 1] = self.stays.decoding(count, self.counted[self.stays.place])
            return {"chunks": chunks, "output_tokens": chunks, "gaps_by_tokens": gaps}
        counted, warm = lane.books.ledger.counts(lane.books.engine, count)
        output = firsts
        for plane in (counted,) if warm is None else (counted, warm):
            for tokens in range(1, lane.books.ledger.width):
                output += np.multiply(plane[:, tokens], tokens, dtype=np.int32)
        return {"chunks": chunks, "output_tokens": output, "gaps_by_tokens": counted}

    def odd_gaps(self) -> Columns:
        """Returns the pauses of more than one iteration."""
        it, before, place = np.frombuffer(self.lane.log.odd_gaps, dtype=np.int64).reshape(-1, 3).T
        end = self.end_s[it]
        columns: Columns = {
            "request_id": self.lane.books.lives.order[place],
            "replica": np.full(len(it), self.lane.replica),
            "from_iteration": before,
            "to_iteration": it,
            "counted": self.counted[place].astype(np.int64),
            "end_s": end,
            "gap_s": end - self.end_s[before],
            "tokens": np.ones(len(it), dtype=np.int64),
        }
        if self.lane.log.recorder is None:
            return columns
        stepped = self.lane.log.recorder.odd_gaps()
        order = np.argsort(np.concatenate([it, stepped["to_iteration"]]), kind="stable")
        return {name: np.concatenate([columns[name], stepped[name]])[order] for name in columns}

    def requests(self) -> Iterator[tuple[str, npt.NDArray[np.generic]]]:
        """Yields the request columns that the engine knows, a row a place of `places`, one at a time.

        A column left out is zero for all.
        """
        lane, log, places = self.lane, self.lane.log, self.places
        first, rounds = lane.books.lives.first[places], lane.books.lives.rounds[places]
        accepted = lane.books.lives.accepted[places]
        finish, admitted, chunks = first + rounds, first, 1 + rounds
        preemptions, drafts = np.zeros(0, dtype=np.int32), rounds * np.int32(lane.rules.k)
        index_of = _index_of(lane, places) if log.is_eventful else first
        if log.admitted:
            admitted = first.copy()
        if log.preemptions:
            preemptions = np.zeros(len(first), dtype=np.int32)
        if log.totals:
            rounds, accepted = rounds.copy(), accepted.copy()
        if log.is_eventful:
            for place, it in log.admitted.items():
                admitted[index_of[place]] = it
            for place, count in log.preemptions.items():
                preemptions[index_of[place]] = count
            for place, (counts, last) in log.totals.items():
                j = index_of[place]
                (rounds[j], accepted[j], chunks[j], drafts[j]), finish[j] = counts, last
            for place, skipped in log.skipped.items():
                finish[index_of[place]] += skipped
        if log.preemptions:
            yield "preemptions", preemptions
        if log.cached:
            by_place = np.zeros(len(lane.books.lives.order), dtype=np.int32)
            found = np.frombuffer(log.cached, dtype=np.int64).reshape(-1, 2)
            by_place[found[:, 0]] = found[:, 1]
            yield "cached_tokens", by_place[places]
        yield "chunks", chunks
        yield "first_iteration", first
        yield "last_iteration", finish
        admitted_s = self.turn_s()[admitted]
        for place, seconds in log.admitted_s.items():
            admitted_s[index_of[place]] = seconds
        yield "admitted_s", admitted_s
        yield "first_token_s", self.end_s[first]
        yield "finished_s", self.end_s[finish]
        if lane.books.ledger is not None:
            if lane.books.verified is not None and lane.books.drafts is not None:
                rounds = lane.books.verified[places].astype(np.int32)
                drafts = lane.books.drafts[places].astype(np.int32)
            yield "verifications", rounds
            yield "accepted_tokens", accepted
            yield "draft_tokens", drafts

    def chunk_ranks(self) -> Iterator[I32]:
        """Yields the place of each request's first, then of its last chunk within its step, as `requests`."""
        stays, order = self.stays, np.zeros(len(self.lane.books.lives.order), dtype=np.int32)
        ranks = stays.ranks_at_first(stays.decoding(self.iterations_count))
        if isinstance(stays.place, slice):
            yield ranks
            yield stays.ranks_at_last()
            return
        order[stays.place[::-1]] = ranks[::-1]  # the first stay of each wins
        order[list(self.lane.log.first_rank)] = list(self.lane.log.first_rank.values())
        yield order[self.places]
        order[stays.place] = stays.ranks_at_last()
        order[list(self.lane.log.last_rank)] = list(self.lane.log.last_rank.values())
        yield order[self.places]


def shapes_of(log: Log, rules: Footprints, k: I32, passes: I32) -> Columns:
    """Returns the shapes of a log's iterations, numbered from 0, and what the engine held in them.

    Args:
        log: its `sums`, `prefills`, `waiting`, `one_pass`, `rerolled`, `beyond`, `drafts`.
        rules: of the engine.
        k: drafts of a decoding row, by iteration or for all.
        passes: of the drafter, if its drafts might be used.
    """
    pack = rules.packing
    sums = np.frombuffer(log.sums, dtype=np.int64)
    count = len(sums)
    n = ((sums >> pack.rows) & pack.rows_mask).astype(np.int32)
    it, tokens, rows, ones, ones_context, pairs = np.frombuffer(log.prefills, dtype=np.int64).reshape(-1, 6).T
    drafts = n * k if rules.k else np.broadcast_to(np.int32(0), count)
    if log.drafts:
        drafts = np.array(log.drafts, dtype=np.int32)
    chunk = _scattered(count, it, tokens - ones)
    if log.padded:
        padded_it, padded = np.frombuffer(log.padded, dtype=np.int64).reshape(-1, 2).T
        drafts[padded_it] += padded.astype(np.int32)
        chunk[padded_it] -= padded.astype(np.int32)
    n[it] += ones.astype(np.int32)
    context = np.frombuffer(log.beyond, dtype=np.int64) if pack.wide else sums & pack.context_mask
    context = context.astype(np.int32)
    context[it] += ones_context.astype(np.int32)
    in_window = context
    if rules.window:
        in_window = context - np.frombuffer(log.beyond, dtype=np.int64).astype(np.int32)
    passes = passes.astype(_holding(int(passes.max(initial=0))))
    passes[np.frombuffer(log.one_pass, dtype=np.int64)] = 1
    prompts = _scattered(count, it, rows - ones)
    all_pairs = _scattered(count, it, pairs, _holding(int(pairs.max(initial=0))))
    fields = shape_fields(n, drafts, context, in_window, prompts, chunk, all_pairs, passes)
    columns: Columns = dict(zip(StepShape._fields, fields, strict=True))
    rerolled = np.frombuffer(log.rerolled, dtype=np.int64)
    it, waiting = np.frombuffer(log.waiting, dtype=np.int64).reshape(-1, 2).T
    return columns | {
        "reroll": _scattered(count, rerolled, np.ones_like(rerolled), np.int8),
        "running": (sums >> pack.running).astype(np.int32),
        "waiting": _scattered(count, it, waiting),
        "kv_blocks_used": ((sums >> pack.blocks) & pack.blocks_mask).astype(np.int32),
    }


def _scattered(count: int, at: I64, values: I64, kind: npt.DTypeLike = np.int32) -> npt.NDArray[Any]:
    """Returns a column that has `values` at some places and zero elsewhere."""
    column = np.zeros(count, dtype=kind)
    column[at] = values
    return column


def _index_of(lane: Lane, places: Places) -> I32:
    """Returns where each place of a lane stands among `places`, by place."""
    index_of = np.zeros(len(lane.books.lives.order), dtype=np.int32)
    index_of[places] = np.arange(len(index_of[places]), dtype=np.int32)
    return index_of


def _holding(most: int) -> np.dtype[np.generic]:
    """Returns the smallest signed integer type that holds 0 to `most`."""
    return np.min_scalar_type(-most - 1)
