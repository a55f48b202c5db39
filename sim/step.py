"""What one step has to give, who gets it, and what it adds up to.

`Step.admissions` and `Step.next_piece` are the only places where it is decided whether a prompt, or a piece
of one, gets budget, a seat and KV blocks: for `Scheduler` and for the calendar alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

from specfleet.sim.rules import NEVER, SchedulerRules

Life = TypeVar("Life")
Candidate = tuple[Life, int, int, int, int, int]
"""Somebody who waits, known tokens, computed tokens (those found in the prefix cache included), blocks of
the hit, of these the ones that nobody holds, and the blocks that it holds at least once it is in."""
Admission = tuple[Life, int, int, int]
"""Somebody who is let in, the tokens to compute now (placeholder drafts included), the new blocks, and the
placeholder drafts."""


class Piece(NamedTuple):
    """What a begun prompt gets of a step: tokens, and blocks on top of those it holds."""

    tokens: int
    blocks: int


NO_PIECE = Piece(0, 0)
"""What is left of a step is less than the least piece of a prompt."""


class Step:
    """One step: what is left of it, and the prompt pieces it computes, added up.

    Args:
        rules: of the engine.
        window: keys that windowed layers see; 0: none, or nobody outgrows it.

    Attributes:
        tokens, seats, free_blocks: left to give. given: the same when those who decode had been served.
        rows: of running sequences, before anybody is let in. beside: some are running, so that the
            watermark holds.
        cap: most tokens of one sequence.
        cut: a prompt got less than it lacks: nobody behind it is let in.
        pads: admissions with one token left may be filled up with placeholder drafts.
        preempted: somebody was thrown out, so nobody is let in.
        useful: a draft proposed after one of the pieces might be used.
        lacks: free blocks without which the head of the queue waits, however little of it is computed; 0 if
            it does not wait for blocks.
        pieces, past, pairs: prompt pieces; tokens of their prompts computed before; their causal
            (query, key) pairs.
        ones, ones_context, ones_beyond: pieces that are priced as decode rows, since they compute one token
            (and placeholder drafts); the context they read; of which outside the sliding window.
        padded: placeholder drafts, in `chunk` too.
    """

    __slots__ = (
        "beside",
        "cap",
        "cut",
        "free_blocks",
        "given",
        "lacks",
        "ones",
        "ones_beyond",
        "ones_context",
        "padded",
        "pads",
        "pairs",
        "past",
        "pieces",
        "preempted",
        "rows",
        "rules",
        "seats",
        "tokens",
        "useful",
        "window",
    )

    def __init__(self, rules: SchedulerRules, window: int = 0) -> None:
        self.rules = rules
        self.window = window
        self.begin(0, 0, 0, 0)

    def begin(self, tokens: int, seats: int, free_blocks: int, rows: int, cap: int = NEVER) -> None:
        """Starts the next step; arguments as the attributes."""
        self.tokens, self.seats, self.free_blocks = self.given = tokens, seats, free_blocks
        self.rows, self.cap = rows, cap
        self.pads = self.cut = False
        self.preempted = self.useful = self.beside = False
        self.lacks = 0
        self.pieces = self.past = self.pairs = 0
        self.ones = self.ones_context = self.ones_beyond = self.padded = 0

    @property
    def chunk(self) -> int:
        """Tokens of the pieces, placeholder drafts included."""
        return self.given[0] - self.tokens - self.pieces * self.rules.draft_slots

    def _add(self, tokens: int, past: int, drafts: int) -> None:
        """Adds a piece of a prompt of which `past` tokens are computed; `drafts` of it are placeholders."""
        self.pieces += 1
        self.past += past
        if tokens > 1 + drafts:
            self.pairs += (
                tokens * past + tokens * (tokens + 1) // 2
            )  # `prefill_pairs`: a call costs a tenth more
            return
        end = past + tokens
        self.ones += 1
        self.ones_context += end
        self.padded += drafts
        if 0 < self.window < end:
            self.ones_beyond += end - self.window

    def next_piece(self, known: int, computed: int, held: int) -> Piece | None:
        """Gives a begun prompt its next piece; None, with nothing changed, if its blocks are not free.

        Args:
            known, computed: its tokens. held: its blocks.
        """
        tokens = self.rules.piece(known - computed, computed, self.tokens, self.cap)
        if computed + tokens < known:
            self.cut, tokens = True, self.rules.cut(tokens)
            if tokens <= 0:
                return NO_PIECE
        grown = max(self.rules.blocks(computed + tokens) - held, 0)
        if grown > self.free_blocks:
            return None
        self.free_blocks -= grown
        self.tokens -= tokens + self.rules.draft_slots
        self._add(tokens, computed, 0)
        return Piece(tokens, grown)

    def admissions(self, waiting: Iterable[Candidate[Life]]) -> Iterator[Admission[Life]]:
        """Lets in who waits, in turn, while tokens, seats and blocks last; the head blocks those behind it.

        Whoever is yielded is in; the next one is looked at when the caller has taken them.

        Args:
            waiting: those who wait, in their order.
        """
        rules, cap, slots = self.rules, self.cap, self.rules.draft_slots
        left, seats, free = self.tokens, self.seats, self.free_blocks
        watermark = rules.watermark_blocks if self.beside else 0
        if left <= slots or not seats or self.cut or (rules.static_batching and self.beside):
            return
        for life, known, computed, found, idle, least in waiting:
            tokens, room, drafts = known - computed, left - slots, 0
            if tokens == 1 and self.pads and cap > rules.placeholders and rules.pads(self.rows > 0, computed):
                drafts = rules.placeholders
                tokens += drafts
                if tokens > room:
                    return
            if tokens > cap:
                tokens = cap
            if tokens > room:
                if not rules.chunks_prompts:
                    return
                self.cut, tokens = True, rules.cut(room)
                if not tokens:
                    return
            end = computed + tokens
            new = max(rules.blocks_at_admission(end), least) - found
            allowed = free - idle - watermark
            if new > allowed or (end < known and rules.blocks_reserved(known) - found > allowed):
                self.lacks = max(rules.blocks_reserved(known), least) - found + idle + watermark
                return
            left -= tokens + slots
            seats -= 1
            free -= new + idle
            self.tokens, self.seats, self.free_blocks = left, seats, free
            self._add(tokens, computed, drafts)
            yield life, tokens, new, drafts
            watermark = rules.watermark_blocks
            if left <= slots or not seats or self.cut:
                return
