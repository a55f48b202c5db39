"""A step that is scheduled, or under way."""

from __future__ import annotations

from math import inf

import numpy as np

from specfleet.sim.calendar.luck import I64
from specfleet.sim.calendar.rows.asked import RowBatch
from specfleet.sim.calendar.rows.lives import RowRequest
from specfleet.sim.rules import NEVER
from specfleet.sim.step import Step

NOBODY: I64 = np.zeros(0, dtype=np.int64)


class RowFlight:
    """What a step computes: rows that decode, and behind them those whose prompts end in it.

    Attributes:
        at: places of its rows in the table; None: the first ones.
        decodes: rows that decode. drafts: that they verify. num_drafts: their sum.
        joined: whose prompts end in it. joined_at: place of the first of them, as they joined.
        asked: as the policy saw it. planned: drafts wanted next, one for all, or one a row. most: of them.
        unused: no draft proposed after it can be used.
        pieces, ones, ones_context, ones_beyond, chunk, pairs: of prompts, as in `sim.step.Step`.
        running, waiting, blocks_used: when it was scheduled.
        in_vain: rows of who has ended since. vain_drafts, vain_context, vain_seen: drafts of these, the KV
            tokens that they read, and those within the sliding window.
        new, kept, ended: tokens of each row, those kept, and the rows that end; once it has started.
        by_accepted: decoding rows by drafts accepted; once it has started.
        stale: rows at the end of it whose requests were thrown out since.
        start_s, end_s: of its GPU work. shape: it is priced by.
    """

    __slots__ = (
        "asked",
        "at",
        "blocks_used",
        "by_accepted",
        "chunk",
        "decodes",
        "drafts",
        "end_s",
        "ended",
        "in_vain",
        "joined",
        "kept",
        "most",
        "new",
        "num_drafts",
        "ones",
        "ones_beyond",
        "ones_context",
        "pairs",
        "pieces",
        "planned",
        "running",
        "shape",
        "stale",
        "start_s",
        "unused",
        "vain_context",
        "vain_drafts",
        "vain_seen",
        "waiting",
    )

    def __init__(self, drafts: I64, at: I64 | None) -> None:
        self.at = at
        self.drafts = drafts
        self.decodes = len(drafts)
        self.num_drafts = int(np.add.reduce(drafts))
        self.joined: list[RowRequest] = []
        self.asked: RowBatch | None = None
        self.planned: int | I64 = 0
        self.most = 0
        self.unused = False
        self.in_vain = self.vain_drafts = self.vain_context = self.vain_seen = 0
        self.new = self.kept = NOBODY
        self.ended: list[int] = []
        self.by_accepted: list[int] = []
        self.stale: list[RowRequest] = []
        self.start_s = self.end_s = inf
        self.shape: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        """Rows that sample, those of who was thrown out since included."""
        return self.decodes + len(self.joined)

    @property
    def sits(self) -> I64 | slice:
        """Where its rows stand in the table, of those who are there yet."""
        alive = self.rows - len(self.stale)
        return slice(alive) if self.at is None else self.at[:alive]

    def close(self, step: Step, running: int, waiting: int, blocks_used: int) -> None:
        """Takes over what the step gave to prompts, and what the engine holds."""
        self.pieces, self.ones, self.ones_context = step.pieces, step.ones, step.ones_context
        self.ones_beyond, self.chunk, self.pairs = step.ones_beyond, step.chunk, step.pairs
        self.running, self.waiting, self.blocks_used = running, waiting, blocks_used

    def lose_last(self, place: int, row: RowRequest) -> None:
        """Learns that who stands last in the table is thrown out, while the step is under way."""
        alive = self.rows - len(self.stale)
        last = alive - 1 if self.at is None else (self.at.item(alive - 1) if alive else -1)
        if last == place:
            self.stale.insert(0, row)
            row.stale = True

    def drop(self, place: int, context: int, window: int) -> None:
        """Learns that who stands at a place has ended: its row here, if it has one, is in vain.

        Args:
            place: in the table; who stands behind it moves up.
            context: its KV tokens. window: keys that windowed layers see; 0: all.
        """
        at, row = self.at, place
        if at is not None:
            row = int(np.searchsorted(at, place))
        found = row < self.decodes and (at is None or at.item(row) == place)
        if found:
            drafts, end = self.drafts.item(row), context + 1 + self.drafts.item(row)
            self.in_vain += 1
            self.vain_drafts += drafts
            self.vain_context += end
            self.vain_seen += min(end, window or NEVER)
            self.drafts = np.delete(self.drafts, row)
            self.decodes -= 1
            self.num_drafts -= drafts
            if self.asked is not None:
                self.asked.drop(row)
        if at is not None:
            at = np.delete(at, row) if found else at
            at = at - (at > place)
            self.at = None if not len(at) or at.item(-1) == len(at) - 1 else at
