"""The lives of requests in an engine, drawn in blocks before they are admitted.

From its first token to its end a request takes part in successive iterations, and all that an
engine needs of it in the j-th of them follows from its lengths and its luck: whether it has a row,
how much context it reads, how many blocks it holds. `Trajectories` draws that for 256 requests at
once, as rows of packed integers (`packing`) ready to be added to a calendar.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specfleet.sim.calendar.drafts.own import OwnDrafts
from specfleet.sim.calendar.footprints import Footprints, differences, unused_places
from specfleet.sim.calendar.luck import I64, U8, Luck
from specfleet.sim.rules import leaves_drafts_unused, reaches_max_tokens
from specfleet.workloads.requests import RequestTable

BLOCK = 256
"""Requests drawn at once: 60 numpy calls for all of them. 32 cost four times as much a request."""
NOT_YET = -1
"""A request whose first token has no iteration yet."""


@dataclass(slots=True)
class LifeBatch:
    """The lives of up to 256 requests: flat arrays, and lists of Python integers a request.

    Attributes:
        row: differences of the footprints; `start[i]:end[i]` is what admission adds to a calendar,
            from the iteration after the prefill on. side: the same of the second word, or None.
        footprint: the footprints, for whoever is preempted; None where nobody can be.
        gains: tokens of each round, the last one uncut, flat. kept: tokens kept of the last round.
        drafts: of each row, flat, if a life has its own. wants: of the same lives, the drafts wanted next in
            each step from the prefill's end on, as the bit of their number, if a policy wants them.
        spared, rows: the row of each from which on it has outgrown the drafter, and all of them, if
            somebody may.
        prompt, blocks, rounds, most, uses_drafts, final: a value a request: prompt tokens; blocks after a
            prefill in one piece; rounds; max_tokens; whether a draft proposed with its first token might be
            used (if that is noted); KV tokens after its last round.
        unused: place (from `start`) of the row none of whose drafts can be used, or -1.
    """

    first_place: int
    row: I64
    side: I64 | None
    footprint: I64 | None
    gains: U8 | None
    drafts: U8 | None
    wants: I64 | None
    kept: I64
    starts: I64
    rounds_column: I64
    prompt: list[int]
    blocks: list[int]
    rounds: list[int]
    most: list[int]
    uses_drafts: list[bool]
    final: list[int]
    start: list[int]
    end: list[int]
    unused: list[int]
    spared: list[int]
    rows: list[int]


class Trajectories:
    """Lives of requests, drawn in batches, in the order in which a replica (or a fleet) meets them.

    Args:
        table: all requests.
        order: row numbers; a *place* is an index into it.
        rules: of the engine.
        luck: of the drafts; None without speculation.
        keeps_footprints: somebody may be preempted.
        drafting: decides the drafts of each life; None is always K.

    Attributes:
        rounds, accepted: of each request, by place, once its life is drawn.
        verified, drafted: of these rounds with drafts, and their drafts, where each life has its own.
    """

    def __init__(
        self,
        table: RequestTable,
        order: I64,
        rules: Footprints,
        luck: Luck | None,
        keeps_footprints: bool,
        drafting: OwnDrafts | None = None,
    ) -> None:
        self.order = order
        self.drafting = drafting
        self.rules = rules
        self.luck = luck
        self._prompt, self._output, self._most = table.prompt_tokens, table.output_tokens, table.max_tokens
        self.keeps_footprints = keeps_footprints
        n = len(order)
        self.first = np.full(n, NOT_YET, dtype=np.int32)
        self.rounds = np.zeros(n, dtype=np.int32)
        self.accepted = np.zeros(n, dtype=np.int32)
        self._away: npt.NDArray[np.bool_] | None = None
        self.verified, self.drafted = np.zeros((2, n if drafting is not None else 0), dtype=np.int64)
        self._blocks: dict[int, LifeBatch] = {}
        self.book: Callable[[LifeBatch], None] | None = None
        self.longest_row = int(table.output_tokens.max(initial=1)) + 2

    def block(self, number: int) -> LifeBatch:
        """Returns a block, drawing it on first sight."""
        found = self._blocks.get(number)
        if found is None:
            self.settle()
            found = self._blocks[number] = self._draw(number)
        return found

    def settle(self) -> None:
        """Books and forgets the blocks all of whose requests have their first token."""
        for number, block in list(self._blocks.items()):
            low = block.first_place
            if (self.first[low : low + BLOCK] != NOT_YET).all():
                if self._away is not None:
                    block.rounds_column[self._away[low : low + BLOCK]] = 0
                if self.book is not None:
                    self.book(block)
                del self._blocks[number]

    def send_away(self, place: int) -> None:
        """Notes that a request which might have come has gone elsewhere: it has no rounds here."""
        if self._away is None:
            self._away = np.zeros(len(self.first), dtype=bool)
        self._away[place] = True
        self.first[place] = 0

    def _requests(self, low: int) -> tuple[I64, I64, I64, I64]:
        """Returns row numbers, prompt, output and max_tokens of the block that begins at a place."""
        ids = self.order[low : low + BLOCK]
        return ids, self._prompt[ids], self._output[ids], self._most[ids]

    def _draw(self, number: int) -> LifeBatch:
        rules, low = self.rules, number * BLOCK
        ids, prompt, output, most = self._requests(low)
        wanted = output - 1
        gains, drafts, starts, before, rounds = self._rounds(ids, wanted)
        lengths = np.diff(starts, append=len(before) - 1)
        base = before[starts]
        computed = before[:-1] + np.repeat(prompt - base, lengths)
        last = starts + np.maximum(rounds - 1, 0)
        known = 1 + before[last] - base  # tokens known before the last round
        known[rounds == 0] = 0
        certain = reaches_max_tokens(known, 1, most)
        held = rules.scheduler.held_at_admission_each(prompt, prompt + most)
        ends = starts + rounds + rules.lag
        rows = None if drafts is None else drafts.astype(np.int64)
        footprint = rules.footprints(computed, ends, rounds, prompt + wanted, held, certain, drafts=rows)
        summed = rules.summed(footprint)
        row = differences(summed, 0)
        row[starts] = summed[starts] - rules.prefilling(held)
        self.rounds[low : low + BLOCK] = rounds
        self.accepted[low : low + BLOCK] = before[starts + rounds] - base - rounds
        spared, among = [], []
        if rules.scheduler.drafter_positions:
            spared, among, _ = (column.tolist() for column in rules.outgrown(footprint, ends, rounds, prompt))
        wants = self._with_own(low, drafts, starts, lengths, rounds, certain) if drafts is not None else None
        return LifeBatch(
            first_place=low,
            row=row,
            side=rules.sides(footprint, starts, prompt, rows),
            footprint=footprint if self.keeps_footprints else None,
            gains=gains,
            drafts=drafts,
            wants=wants,
            kept=wanted - (before[last] - base),
            starts=starts,
            rounds_column=rounds,
            prompt=prompt.tolist(),
            blocks=held.tolist(),
            rounds=rounds.tolist(),
            most=most.tolist(),
            uses_drafts=list((~leaves_drafts_unused(0 * most, 0, most)).tolist())
            if rules.notes_unused
            else [],
            final=(prompt + wanted).tolist(),
            start=starts.tolist(),
            end=(ends + 1).tolist(),
            unused=self._unused(known, certain, rounds, before, starts, base, most),
            spared=spared,
            rows=among,
        )

    def _with_own(
        self, low: int, drafts: U8, starts: I64, lengths: I64, rounds: I64, certain: npt.NDArray[np.bool_]
    ) -> I64 | None:
        """Books the drafts of lives that have their own; returns what is wanted, as `LifeBatch.wants`.

        Args:
            low: the first place of the block.
            drafts: flat; those of no row become zero.
            starts, lengths: of each life in it. rounds, certain: of each.
        """
        rows = rounds + (self.rules.lag * ~certain)
        place = np.arange(len(drafts)) - np.repeat(starts, lengths)
        wants = None
        if self.drafting is not None and self.drafting.planned:
            wanted = self.drafting.wanted(self.order[low : low + BLOCK], lengths, drafts)
            wants = np.where(place <= np.repeat(rows, lengths), np.int64(1) << wanted, 0)
        drafts *= place < np.repeat(rows, lengths)
        verified = np.where(place < np.repeat(rounds, lengths), drafts, 0)
        self.verified[low : low + BLOCK] = np.add.reduceat(verified > 0, starts, dtype=np.int64)
        self.drafted[low : low + BLOCK] = np.add.reduceat(verified, starts, dtype=np.int64)
        return wants

    def _rounds(self, ids: I64, wanted: I64) -> tuple[U8 | None, U8 | None, I64, I64, I64]:
        """Draws rounds until each request has its tokens.

        Returns:
            Tokens of each round, flat (None: one each), and its drafts (None: K); first place of each
            request; tokens before each place, over all requests, one longer; rounds each request needs.
        """
        if self.luck is None:
            lengths = wanted + 2
            starts = np.cumsum(lengths) - lengths
            return None, None, starts, np.arange(int(lengths.sum()) + 1), wanted
        drafting, drafts = self.drafting, None
        draw = (drafting or self.luck).rounds_to_draw(ids, wanted)
        while True:
            hashes = (draw + 3) // 2
            gains = self.luck.gains(ids, hashes)
            if drafting is not None:
                gains, drafts = drafting.decide(ids, wanted, hashes, gains)
            before = np.zeros(len(gains) + 1, dtype=np.int64)
            np.cumsum(gains, out=before[1:])
            starts = 2 * (np.cumsum(hashes) - hashes)
            rounds = np.searchsorted(before, before[starts] + wanted) - starts
            short = rounds > draw
            if not short.any():
                return gains, drafts, starts, before, rounds
            draw = np.where(short, wanted, draw)

    def _unused(
        self,
        known: I64,
        certain: npt.NDArray[np.bool_],
        rounds: I64,
        before: I64,
        starts: I64,
        base: I64,
        most: I64,
    ) -> list[int]:
        """Returns the place of each request's row whose drafts are sure not to be used, or -1."""
        if not self.rules.notes_unused:
            return []
        previous = starts + np.maximum(rounds - 2, 0)
        earlier = np.where(rounds > 1, 1 + before[previous] - base, 0)
        return list(unused_places(self.rules.lag, rounds, known, earlier, most, certain).tolist())
