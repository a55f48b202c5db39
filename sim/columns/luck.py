"""The luck of those aboard: drawn for life, laid out in one array, read for all of them at once."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from specfleet.sim.columns.state import Columns
from specfleet.sim.requests import Request
from specfleet.sim.sequence import Head, Sequence

SPARE = 2
"""Places beyond `max_tokens`: no verification and no place in the output comes after them."""
LEAST_BYTES = 1 << 16
"""Of an arena that holds anybody: some hundred requests."""
I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]


class Clock(Protocol):
    """Whoever counts iterations: an engine.

    Attributes:
        iterations: so far.
    """

    iterations: int


class Arena:
    """Bytes of many requests, one after another.

    Attributes:
        bytes: of all. end: where the next request's begin.
    """

    def __init__(self) -> None:
        self.bytes: U8 = np.zeros(0, dtype=np.uint8)  # many engines never have anybody aboard
        self.end = 0

    def add(self, own: bytes, width: int, starts: I64, widths: I64) -> int:
        """Adds a request's bytes, with zeros up to `width`; returns where they begin.

        Args:
            own: the bytes; what goes beyond `width` is never read.
            width: places to take.
            starts, widths: where the bytes of those begin that are aboard, and how many they are; where they
                have to move, the former is written.
        """
        if not len(self.bytes):
            self.bytes = np.zeros(LEAST_BYTES, dtype=np.uint8)
        if self.end + width > len(self.bytes):
            self._pack(starts, widths, width)
        start, self.end = self.end, self.end + width
        own = own[:width]
        self.bytes[start : start + len(own)] = np.frombuffer(own, np.uint8)
        self.bytes[start + len(own) : self.end] = 0
        return start

    def _pack(self, starts: I64, widths: I64, more: int) -> None:
        """Moves what is kept to the front, of a larger array if half of it would be taken."""
        size, end = len(self.bytes), 0
        while size < 2 * (int(widths.sum()) + more):
            size *= 2
        packed = np.zeros(size, dtype=np.uint8)
        for place, (start, n) in enumerate(zip(starts.tolist(), widths.tolist(), strict=True)):
            packed[end : end + n] = self.bytes[start : start + n]
            starts[place] = end
            end += n
        self.bytes, self.end = packed, end


class ColumnNotes:
    """What an engine keeps of those aboard, as `state.Notes`: their luck, and what it has brought.

    Args:
        engine: whose requests they are.
        columns: the counts.

    Attributes:
        looks_up: drafts are not found every step. by_place: some luck belongs to places in the output.
        uncounted: some of those aboard may not be measured. skips: luck was taken out of lives.
    """

    def __init__(self, engine: Clock, columns: Columns) -> None:
        self.engine = engine
        self.columns = columns
        self.luck, self.matches = Arena(), Arena()
        self.looks_up = self.by_place = self.uncounted = self.skips = False
        columns.notes = self

    def ready(self, sequence: Sequence) -> bool:
        """As `Notes.ready`: its last chunk left at the last iteration."""
        request = sequence
        assert isinstance(request, Request)
        return request.last_iteration == self.engine.iterations - 1

    def enter(self, sequence: Sequence) -> list[int]:
        """As `Notes.enter`."""
        request = sequence
        assert isinstance(request, Request)
        columns, n = self.columns, self.columns.n
        width, widths = request.max_tokens + SPARE, columns.most[:n] + SPARE
        base, found = self.luck.add(request.accepted, width, columns.base[:n], widths), 0
        if request.proposals is not None and not self.looks_up:
            self.looks_up = True
            for place, other in enumerate(columns.most[:n].tolist()):
                columns.found[place] = self._always(other + SPARE)
        if request.proposals is not None:
            found = self.matches.add(request.proposals, width, columns.found[:n], widths)
        elif self.looks_up:
            found = self._always(width)
        self.by_place |= request.by_output_position
        self.uncounted |= not request.counted
        counts = [base, request.verifications, found, request.samplings, request.draft_tokens]
        since = request.chunks - self.engine.iterations
        return [
            *counts,
            request.accepted_tokens,
            int(request.by_output_position),
            int(request.counted),
            since,
        ]

    def _always(self, width: int) -> int:
        """Adds the matches of a request that finds drafts every step."""
        n = self.columns.n
        return self.matches.add(b"\1" * width, width, self.columns.found[:n], self.columns.most[:n] + SPARE)

    def refresh(self, sequence: Sequence, values: list[int]) -> None:
        """As `Notes.refresh`."""
        request = sequence
        assert isinstance(request, Request)
        _, request.verifications, _, request.samplings, request.draft_tokens = values[:5]
        request.accepted_tokens = values[5]
        request.chunks = values[8] + self.engine.iterations
        request.last_iteration = self.engine.iterations - 1
        if self.skips:
            request.accepted = self.luck.bytes[values[0] : values[0] + len(request.accepted)].tobytes()

    def luck_after(self, rounds: I64, places: I64) -> I64:
        """As `Notes.luck_after`."""
        columns = self.columns
        nth = np.minimum(columns.verified[places] + rounds, columns.most[places] + (SPARE - 1))
        luck: I64 = self.luck.bytes.take(columns.base[places] + nth).astype(np.int64)
        return luck

    def skip_luck(self, places: I64) -> None:
        """As `Notes.skip_luck`; who leaves takes along what is left of its luck."""
        self.columns.base[places] += 1
        self.skips = True

    def sample(self, head: Head, histogram: list[int]) -> None:
        """Draws what each row samples.

        Args:
            head: the rows.
            histogram: measured verifications by drafts accepted; added to.
        """
        n, columns = head.n, self.columns
        head.started = True
        if columns.ahead:  # only now is it known what the step before has brought
            head.ends = columns.context[:n] + columns.assumed[:n]
        if self.uncounted:
            head.counted = columns.counted[:n] > 0
            self.uncounted = not head.counted.all()
        if not head.num_drafts or head.void:
            head.new, head.by_accepted = np.ones(n, dtype=np.int64), [n]
            return
        drafts, each, verified = head.drafts, head.each, columns.verified[:n]
        nth = np.where(columns.by_place[:n], columns.written[:n], verified) if self.by_place else verified
        agreed = np.minimum(self.luck.bytes.take(columns.base[:n] + nth), drafts)
        idle = 0
        if each is None:
            verifies = drafts > 0
            idle = n - int(np.count_nonzero(verifies))
            verified += verifies
        else:
            verified += 1
        drafted, accepted = columns.drafted[:n], columns.accepted[:n]
        drafted += drafts
        accepted += agreed
        head.new = agreed + 1
        head.by_accepted = found = np.bincount(agreed).tolist()
        if head.counted is not None:
            measured = head.counted if each is not None else verifies & head.counted
            found, idle = np.bincount(agreed[measured]).tolist(), 0
        for kept, rounds in enumerate(found):
            histogram[kept] += rounds
        histogram[0] -= idle

    def gaps(self, head: Head, gaps: list[int]) -> int:
        """Counts measured chunks by their tokens: each row's last one left an iteration before.

        Returns:
            The tokens of all chunks.
        """
        if head.by_accepted is None or head.counted is not None:
            kept = head.kept if head.counted is None else head.kept[head.counted]
            for tokens, chunks in enumerate(np.bincount(kept).tolist()):
                gaps[tokens] += chunks
            return int(np.add.reduce(head.kept))
        total = head.n
        for accepted, chunks in enumerate(head.by_accepted):
            total += accepted * chunks
            gaps[accepted + 1] += chunks
        for place in head.left:  # what goes beyond the end is dropped
            new, kept_of_it = head.new.item(place), head.kept.item(place)
            gaps[new] -= 1
            gaps[kept_of_it] += 1
            total -= new - kept_of_it
        return total

    def proposed(self, planned: int | I64, n: int) -> int | I64:
        """Returns the drafts that the first `n` of those aboard find after a step, of those planned."""
        if not self.looks_up:
            return planned
        columns = self.columns
        sampled = columns.sampled[:n]
        nth = np.where(columns.by_place[:n], columns.written[:n], sampled) if self.by_place else sampled
        drafts: I64 = self.matches.bytes.take(columns.found[:n] + nth) * np.asarray(planned, dtype=np.int64)
        sampled += 1
        return drafts
