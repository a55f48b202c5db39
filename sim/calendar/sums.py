"""The calendar: what sequences will contribute to their engine, iteration by iteration, added up.

A sequence is added once, when its prompt is computed. From then on the running sum over the calendar says
in every iteration how many run and decode, and the KV blocks and context they hold; nothing is done when one
ends.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from specfleet.sim.calendar.books.standing import Drawn
from specfleet.sim.calendar.drafts.own import OwnDrafts
from specfleet.sim.calendar.footprints import Footprints
from specfleet.sim.calendar.luck import I64, U8
from specfleet.sim.calendar.position import Position
from specfleet.sim.calendar.stay import Stay

LONGEST_WINDOW = 4096
"""Most iterations priced at once."""
SHORTEST_CALENDAR = 1 << 14
"""Iterations a calendar looks ahead at least: its future moves to the front now and then."""


class Calendar:
    """Differences of the running sum by entry; an entry is an iteration, counted from the last move on.

    Args:
        footprints: of the engine's sequences.
        longest_row: most entries of one sequence.
        learns: what every step will have shown has to be known: to a policy, or to the price of the step.
        drafting: decides the drafts of each life; None is always K.
        cuts: somebody may be taken out.

    Attributes:
        row, side: differences of both packed words (`side` is empty where none is kept).
        side_sum: the running sum of `side`.
        unused: rows none of whose drafts can be used.
        outcomes: rounds by entry and tokens sampled, if that has to be known.
        drafts: of all rows, where each life has its own. wants: bits of the numbers of drafts that a policy
            wants of them next, then.
        beyond: rows for which the drafter has no positions left, where there may be any.
        entry, unused_entry: `row` and `unused`, for single entries, which are read three times as fast so.
        edge: the last entry before the future has to move to the front.
    """

    def __init__(
        self,
        footprints: Footprints,
        longest_row: int,
        learns: bool,
        drafting: OwnDrafts | None = None,
        cuts: bool = False,
    ) -> None:
        self.footprints = footprints
        self._longest_row = longest_row
        size = max(SHORTEST_CALENDAR, 3 * (longest_row + LONGEST_WINDOW))
        self.row: I64 = np.zeros(size, dtype=np.int64)
        self.unused: I64 = np.zeros(size, dtype=np.int64)
        self.side: I64 = np.zeros(size if footprints.has_side else 0, dtype=np.int64)
        self.side_sum = 0
        self.outcomes: I64 = np.zeros((size if learns else 0, footprints.k + 2), dtype=np.int64)
        self.drafts: I64 = np.zeros(size if drafting is not None else 0, dtype=np.int64)
        limited = footprints.scheduler.drafter_positions > 0
        self.beyond: I64 = np.zeros(size if limited else 0, dtype=np.int64)
        wants = drafting is not None and drafting.planned
        self.wants: I64 = np.zeros(size if wants else 0, dtype=np.int64)
        levels = (size if wants and cuts else 0, footprints.k + 2)
        self._wanting: npt.NDArray[np.int32] = np.zeros(levels, dtype=np.int32)
        """Rows by entry and 1 + drafts wanted of them: a bit of `wants` goes with the last of them."""
        self._beside = self.drafts, self.wants, self._wanting, self.beyond
        self._flat: I64 = self.outcomes.reshape(-1)
        self._firsts: I64 = np.arange(0, self._flat.size, footprints.k + 2)
        self.entry, self.unused_entry = self.row.data, self.unused.data
        self.edge = size - longest_row - LONGEST_WINDOW - 2

    def add(self, stay: Stay, i: int) -> None:
        """Adds a sequence from entry `i` on, the first after its prefill."""
        self.row[i : i + len(stay.row)] += stay.row
        if stay.side is not None:
            self.side[i : i + len(stay.row)] += stay.side
        self.expect_outcomes(i, stay.gains, stay.rounds)
        if stay.drafts is not None:
            self.expect_drafts(i, stay.drafts, stay.wants)
        self.beyond[i + stay.spared : i + stay.rows] += 1
        if stay.unused >= 0:
            self.unused[i + stay.unused] += 1

    def take_out(self, stay: Stay, done: int, i: int) -> int:
        """Takes a sequence out from entry `i` on; returns its share of the running sum there.

        Args:
            stay: the sequence. done: rounds it has had.
            i: the entry whose differences are in the running sum already.
        """
        assert stay.footprint is not None
        rest = stay.row[done + 1 :]
        self.row[i + 1 : i + 1 + len(rest)] -= rest
        if stay.side is not None:
            rest = stay.side[done + 1 :]
            self.side[i + 1 : i + 1 + len(rest)] -= rest
            self.side_sum -= int(stay.side[: done + 1].sum())
        self.beyond[i + max(stay.spared - done, 0) : i + max(stay.rows - done, 0)] -= 1
        if stay.early and not done:
            self.beyond[i] -= 1
        if stay.unused >= done:
            self.unused[i + stay.unused - done] -= 1
        if stay.drafts is not None:
            self._forget_drafts(i, stay.drafts[done:], None if stay.wants is None else stay.wants[done + 1 :])
        if len(self.outcomes):
            gains, left = stay.gains, stay.rounds - done
            lost = 1 if gains is None else gains[done : stay.rounds]
            self.outcomes[np.arange(i, i + left), lost] -= 1
        return self.footprints.summed(int(stay.footprint[done]))

    def add_together(self, drawn: Drawn, i: int) -> None:
        """Adds sequences drawn together, from entry `i` on."""
        entries = drawn.offsets + i
        np.add.at(self.row, entries, drawn.row)
        np.add.at(self.unused, drawn.unused + i, 1)
        if drawn.beyond is not None:
            np.add.at(self.beyond, drawn.beyond + i, 1)
        if drawn.side is not None:
            np.add.at(self.side, entries, drawn.side)

    def expect_outcomes(self, i: int, gains: U8 | None, rounds: int) -> None:
        """Notes what the rounds of a sequence will show, from entry `i` on (without gains: a token each)."""
        if not len(self.outcomes):
            return
        if gains is None:
            self.outcomes[i : i + rounds, 1] += 1
        elif rounds > 0:
            self._flat[self._firsts[i : i + rounds] + gains[:rounds]] += 1

    def expect_drafts(self, i: int, drafts: U8, wants: I64 | None) -> None:
        """Notes the drafts of a life's rows from entry `i` on, and what is wanted from the one before on."""
        self.drafts[i : i + len(drafts)] += drafts
        if wants is not None:
            self.wants[i - 1 : i - 1 + len(wants)] |= wants
            if len(self._wanting):
                self._wanting.reshape(-1)[self._wanting_of(i - 1, wants)] += 1

    def _wanting_of(self, i: int, wants: I64) -> I64:
        """Returns which counts of rows belong to what a life wants from entry `i` on; none twice."""
        width = self._wanting.shape[1]
        return np.arange(i * width, (i + len(wants)) * width, width) + np.frexp(wants)[1]

    def _forget_drafts(self, i: int, drafts: U8, wants: I64 | None) -> None:
        """Takes back what was noted of a life's rows from entry `i` on."""
        self.drafts[i : i + len(drafts)] -= drafts
        if wants is not None:
            rows, which = self._wanting.reshape(-1), self._wanting_of(i, wants)
            rows[which] -= 1
            self.wants[i : i + len(wants)] &= ~np.where(rows[which] == 0, wants, 0)

    def own_drafts(self, i: int, passes_at: tuple[int, ...]) -> tuple[int, int]:
        """Returns the drafts of entry `i`, and the passes after it, of those by the drafts wanted."""
        wanted = self.wants.item(i).bit_length() - 1 if len(self.wants) else -1
        return self.drafts.item(i), passes_at[wanted]

    def all_own_drafts(self, i: int, most: int, passes_at: tuple[int, ...]) -> tuple[I64, I64]:
        """As `own_drafts`, for `most` entries."""
        wanted = np.frexp(self.wants[i : i + most])[1] - 1 if len(self.wants) else np.full(most, -1)
        return self.drafts[i : i + most], np.array(passes_at, dtype=np.int64)[wanted]

    def expect_all(self, i: int, rounds: I64, tokens: npt.NDArray[np.integer]) -> None:
        """Notes what many rounds will show: the tokens sampled, by iterations after entry `i`."""
        if len(rounds):
            width = self.outcomes.shape[1]
            counts = np.bincount(rounds * width + tokens)
            self._flat[i * width : i * width + len(counts)] += counts

    def keep_blocks(self, kept: Mapping[int, int], shift: int) -> None:
        """Lets blocks stay that a leaving sequence would take with it.

        Args:
            kept: blocks by iteration. shift: from an iteration to its entry.
        """
        entry, bit = self.row.data, self.footprints.packing.blocks
        for at, count in kept.items():
            entry[at + shift] += count << bit

    def sides(self, i: int, most: int) -> I64:
        """Returns the second packed word in `most` iterations from entry `i` on (0 where none is kept)."""
        if not self.footprints.has_side:
            return np.zeros(1, dtype=np.int64)
        sides = self.side[i : i + most].copy()
        sides[0] += self.side_sum
        return np.add.accumulate(sides, out=sides)

    def skip(self, i: int) -> None:
        """Drops what entry `i` would change: nothing runs in its iteration."""
        self.row[i] = 0
        if self.footprints.has_side:
            self.side[i] = 0
        self.skip_beside(i)

    def skip_beside(self, i: int) -> None:
        """As `skip`, for what is not added up."""
        for table in self._beside:
            table[i : i + 1] = 0

    def clear(self, i: int) -> None:
        """Empties it from entry `i` on: whoever is in it has left after the longest row."""
        for table in (self.row, self.unused, self.side, self.outcomes, *self._beside):
            table[i : i + self._longest_row + 4] = 0
        self.side_sum = 0

    def move_to_front(self, at: Position) -> None:
        """Makes the entry of the next iteration the first."""
        i, at.i = at.i, 0
        for table in (self.row, self.unused, self.side, self.outcomes, *self._beside):
            future = table[i:].copy()
            table[: len(future)] = future
            table[len(future) :] = 0
