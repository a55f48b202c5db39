"""What one step has to give, who gets it, and what it adds up to.

`Step.admissions` and `Step.next_piece` are the only places where it is decided whether a prompt, or a piece
of one, gets budget, a seat and KV blocks: for `Scheduler` and for the calendar alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

from specfleet.sim.rules import NEVER, SchedulerRules

Life = TypeVar("Life")
Candidate = tuple[Life, int, int, int, int]
"""Somebody who waits, known tokens, computed tokens (those found in the prefix cache included), blocks of
the hit, and of these the ones that nobody holds."""
Admission = tuple[Life, int, int, int]
"""Somebody who is let in, the tokens to compute now (placeholder drafts included), the new blocks, and the
placeholder drafts."""


class Piece(NamedTuple):
    """What a begun prompt gets of a step: tokens, and blocks on top of those it holds."""

    tokens: int
    blocks: int


class Step:
    """One step: what is left of it, and the prompt pieces it computes, added up.

    Args:
        rules: of the engine.
        window: keys that windowed layers see; 0: none, or nobody outgrows it.

    Attributes:
        tokens, seats, free_blocks: left to give.
        rows: of running sequences, before anybody is let in.
        cap: most tokens of one sequence.
        pads: admissions with one token left may be filled up with placeholder drafts.
        preempted: somebody was thrown out, so nobody is let in.
        useful: a draft proposed after one of the pieces might be used.
        lacks_reserve: the head of the queue waits for blocks, however little of it is computed.
        pieces, chunk, past, pairs: prompt pieces; their tokens; tokens of their prompts computed before;
            their causal (query, key) pairs.
        ones, ones_context, ones_beyond: pieces that are priced as decode rows, since they compute one token
            (and placeholder drafts); the context they read; of which outside the sliding window.
        padded: placeholder drafts, in `chunk` too.
    """

    __slots__ = (
        "cap",
        "chunk",
        "free_blocks",
        "lacks_reserve",
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
        self.tokens, self.seats, self.free_blocks = tokens, seats, free_blocks
        self.rows, self.cap = rows, cap
        self.pads = False
        self.preempted = self.useful = self.lacks_reserve = False
        self.pieces = self.chunk = self.past = self.pairs = 0
        self.ones = self.ones_context = self.ones_beyond = self.padded = 0

    def add(self, tokens: int, past: int, drafts: int = 0) -> None:
        """Adds a piece of a prompt of which `past` tokens are computed; `drafts` of it are placeholders."""
        self.tokens -= tokens + self.rules.draft_slots
        self.pieces += 1
        self.chunk += tokens
        self.past += past
        if tokens == 1 + drafts:
            end = past + tokens
            self.ones += 1
            self.ones_context += end
            self.padded += drafts
            if 0 < self.window < end:
                self.ones_beyond += end - self.window
        else:
            self.pairs += tokens * past + tokens * (tokens + 1) // 2

    def next_piece(self, known: int, computed: int, held: int) -> Piece | None:
        """Gives a begun prompt its next piece; None, with nothing changed, if its blocks are not free.

        Args:
            known, computed: its tokens. held: its blocks.
        """
        tokens = self.rules.piece(known - computed, computed, self.tokens, self.cap)
        grown = max(self.rules.blocks(computed + tokens) - held, 0)
        if grown > self.free_blocks:
            return None
        self.free_blocks -= grown
        self.add(tokens, computed)
        return Piece(tokens, grown)

    def admissions(self, waiting: Iterable[Candidate[Life]], beside: bool) -> Iterator[Admission[Life]]:
        """Lets in who waits, in turn, while tokens, seats and blocks last; the head blocks those behind it.

        Whoever is yielded is in; the next one is looked at when the caller has taken them.

        Args:
            waiting: those who wait, in their order.
            beside: others are running, so that the watermark holds.
        """
        rules, cap = self.rules, self.cap
        slots = rules.draft_slots
        watermark = rules.watermark_blocks if beside else 0
        if self.tokens <= slots or not self.seats:
            return
        for life, known, computed, found, idle in waiting:
            tokens, room, drafts = known - computed, self.tokens - slots, 0
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
                tokens = room
            end = computed + tokens
            blocks = rules.blocks_at_admission(end)
            needed = blocks if end >= known else max(blocks, rules.blocks_reserved(known))
            free = self.free_blocks - idle - watermark
            if needed - found > free:
                self.lacks_reserve = rules.blocks_reserved(known) - found > free
                return
            self.free_blocks -= blocks - found + idle
            self.seats -= 1
            self.add(tokens, computed, drafts)
            yield life, tokens, blocks - found, drafts
            watermark = rules.watermark_blocks
            if self.tokens <= slots or not self.seats:
                return
