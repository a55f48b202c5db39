"""What an engine keeps of those aboard under SGLang's rules: their luck, and what it has brought."""

from __future__ import annotations

from array import array
from typing import Protocol

import numpy as np

from specfleet.sim.columns.luck import SPARE, Arena
from specfleet.sim.recorder import Recorder
from specfleet.sim.requests import Request
from specfleet.sim.sequence import Head, Sequence
from specfleet.sim.sglang.aboard.berths import BASE, FOUND, I64, Berths
from specfleet.sim.sglang.aboard.head import BOOLS, BerthHead


class EngineClock(Protocol):
    """Whoever counts iterations: an engine.

    Attributes:
        iterations: so far. replica: its number.
    """

    iterations: int
    replica: int


class LuckNotes:
    """As `BerthNotes`.

    Args:
        engine: whose requests they are.
        columns: the counts.

    Attributes:
        noted: batches of rows that are columns, so far.
        looks_up: drafts are not found every step. by_place: some luck belongs to places in the output.
        uncounted: some of those aboard may not be measured. skips: luck was taken out of lives.
    """

    def __init__(self, engine: EngineClock, columns: Berths) -> None:
        self.engine = engine
        self.columns = columns
        self.noted = 0
        self.luck, self.matches = Arena(), Arena()
        self._uses: dict[int, int] = {}
        self.looks_up = self.by_place = self.uncounted = self.skips = False

    def clear(self) -> None:
        """Nobody is aboard any more."""
        self.luck.end = self.matches.end = 0
        self._uses = {}
        self.looks_up = self.by_place = self.uncounted = self.skips = False

    def leaves(self, berth: int) -> None:
        """A berth is free from now on."""
        del self._uses[berth]

    def _add(self, arena: Arena, field: int, own: bytes, width: int) -> int:
        """Adds bytes of a request to those of the others; returns where they begin."""
        if arena.end + width <= len(arena.bytes):
            none = self.columns.ids[:0]
            return arena.add(own, width, none, none)
        berths = np.array([*self._uses], dtype=np.int64)
        starts, widths = self.columns.table[field, berths], np.array([*self._uses.values()], dtype=np.int64)
        start = arena.add(own, width, starts, widths)
        self.columns.table[field, berths] = starts
        return start

    def enter(self, sequence: Sequence, berth: int) -> list[int]:
        """As `BerthNotes.enter`."""
        request = sequence
        assert isinstance(request, Request)
        width = request.max_tokens + SPARE
        if request.proposals is not None and not self.looks_up:
            self.looks_up = True
            for other, places in self._uses.items():
                self.columns.found[other] = self._add(self.matches, FOUND, b"\1" * places, places)
        base = self._add(self.luck, BASE, request.accepted, width)
        found = 0
        if self.looks_up:
            own = b"\1" * width if request.proposals is None else request.proposals
            found = self._add(self.matches, FOUND, own, width)
        self._uses[berth] = width
        self.by_place |= request.by_output_position
        self.uncounted |= not request.counted
        return self._fields(request, base, found)

    def reload(self, sequence: Sequence, berth: int) -> list[int]:
        """As `BerthNotes.reload`; luck may have been taken out of its life, too."""
        assert isinstance(sequence, Request)
        base, width = self.columns.base.item(berth), self._uses[berth]
        own = sequence.accepted[:width]
        self.luck.bytes[base : base + len(own)] = np.frombuffer(own, np.uint8)
        self.luck.bytes[base + len(own) : base + width] = 0
        return self._fields(sequence, base, self.columns.found.item(berth))

    def _fields(self, request: Request, base: int, found: int) -> list[int]:
        counts = [base, request.verifications, found, request.samplings]
        counts += [request.draft_tokens, request.accepted_tokens]
        kinds = [int(request.by_output_position), int(request.counted)]
        return [*counts, *kinds, request.chunks - self.noted, request.last_iteration]

    def refresh(self, sequence: Sequence, values: list[int]) -> None:
        """As `BerthNotes.refresh`."""
        request = sequence
        assert isinstance(request, Request)
        base, request.verifications, _, request.samplings, request.draft_tokens = values[:5]
        request.accepted_tokens = values[5]
        request.chunks = values[8] + self.noted
        request.last_iteration = values[9]
        if self.skips and not request.by_output_position:
            places = min(len(request.accepted), request.max_tokens + SPARE)
            request.accepted = self.luck.bytes[base : base + places].tobytes()

    def luck_after(self, rounds: I64, berths: I64) -> I64:
        """As `BerthNotes.luck_after`."""
        columns = self.columns
        nth = np.minimum(columns.verified[berths] + rounds, columns.most[berths] + (SPARE - 1))
        luck: I64 = self.luck.bytes.take(columns.base[berths] + nth).astype(np.int64)
        return luck

    def skip_luck(self, berths: I64) -> None:
        """As `BerthNotes.skip_luck`; who leaves takes along what is left of its luck."""
        self.columns.base[berths] += 1
        self.skips = True

    def sample(self, head: Head, histogram: list[int]) -> None:
        """Draws what each row samples.

        Args:
            head: the rows.
            histogram: measured verifications by drafts accepted; added to.
        """
        assert isinstance(head, BerthHead)
        columns, berths = self.columns, head.berths
        head.started = True
        if self.uncounted:
            head.counted = columns.counted.take(berths) > 0
        if not head.num_drafts:
            head.new = np.ones(head.n, dtype=np.int64)
            return
        drafts, nth = head.drafts, columns.verified.take(berths)
        places = nth
        if self.by_place:
            places = np.where(columns.by_place.take(berths), columns.written.take(berths), nth)
        agreed = np.minimum(self.luck.bytes.take(columns.base.take(berths) + places), drafts)
        found = agreed
        if head.each and head.voids is None and head.stale is None:
            columns.verified[berths] = nth + 1
            columns.drafted[berths] += head.each
            if head.counted is not None:
                found = agreed[head.counted]
        else:
            verifies = self._verifies(head)
            agreed *= verifies
            columns.verified[berths] = nth + verifies
            columns.drafted[berths] += drafts * verifies
            found = agreed[verifies if head.counted is None else verifies & head.counted]
        columns.accepted[berths] += agreed
        head.new = agreed + 1
        for kept, rounds in enumerate(np.bincount(found).tolist()):
            histogram[kept] += rounds

    @staticmethod
    def _verifies(head: BerthHead) -> BOOLS:
        """Returns which rows verify drafts, and not in vain."""
        verifies = head.drafts > 0
        for idle in (head.voids, head.stale):
            if idle is not None:
                verifies &= ~idle
        return verifies

    def ended(self, head: BerthHead, rank: int) -> list[tuple[Request, int]]:
        """Returns those of a batch's rows who have ended, with the ranks of their chunks; `rank`: of chunks
        before them."""
        kept, found = head.kept, []
        for row in head.left:
            request = head.members[row]
            assert isinstance(request, Request)
            request.chunks += 1
            request.last_iteration = self.engine.iterations
            before = row if head.stale is None else int(np.count_nonzero(kept[:row]))
            found.append((request, rank + before + 1))
        return found

    def note(self, head: BerthHead, now: float, ends_s: array[float], gaps: list[int], to: Recorder) -> int:
        """Notes the chunks of a batch's rows; returns their tokens.

        Args:
            head: the rows, committed.
            now: when they left.
            ends_s: when each iteration so far ended.
            gaps: measured chunks that follow one of the iteration before, by their tokens; added to.
            to: gets the others.
        """
        if not head.n:
            return 0
        columns, berths, current = self.columns, head.berths, self.engine.iterations
        latest, kept = columns.latest.take(berths), head.kept
        counts = kept if head.counted is None else kept * head.counted
        late = latest != current - 1
        if late.any():
            late &= kept > 0
            self._note_late(head, late, latest, now, ends_s, to)
            counts = counts * ~late
        for tokens, chunks in enumerate(np.bincount(counts).tolist()):
            if tokens:
                gaps[tokens] += chunks
        columns.latest[berths] = current
        self.noted += 1
        return int(np.add.reduce(kept))

    def _note_late(
        self, head: BerthHead, late: I64, latest: I64, now: float, ends_s: array[float], to: Recorder
    ) -> None:
        """Notes chunks whose predecessors came more than one iteration before."""
        columns, rows, engine = self.columns, np.flatnonzero(late), self.engine
        before, berths = latest[rows], head.berths[rows]
        table = np.empty((len(rows), 5), dtype=np.int64)
        table[:, 0], table[:, 1] = columns.ids[berths], engine.replica
        table[:, 2], table[:, 3], table[:, 4] = before, engine.iterations, columns.counted[berths]
        to.late_gaps(now, now - np.frombuffer(ends_s)[before], head.kept[rows], table)

    def proposed(self, head: BerthHead, planned: int | I64) -> int | I64:
        """Returns the drafts that rows find after a step, of those planned."""
        if not self.looks_up:
            return planned
        columns, berths = self.columns, head.berths
        nth = sampled = columns.sampled.take(berths)
        if self.by_place:
            nth = np.where(columns.by_place.take(berths), columns.written.take(berths), sampled)
        columns.sampled[berths] = sampled + 1
        found = self.matches.bytes.take(columns.found.take(berths) + nth)
        drafts: I64 = found.astype(np.int64) * planned
        return drafts
