"""What one step of an engine on the fast path gives to prompts."""

from __future__ import annotations


class Step:
    """Pieces of prompts in one step, added up, and what the step has left to give.

    Args:
        slots: of the drafter, taken from the budget by each row.
        window: keys that windowed layers see; 0: nobody outgrows it.

    Attributes:
        acc: the packed running sum, newcomers included.
        used: KV blocks held.
        left: tokens of the budget.
        room: seats in the running list.
        chunk, rows, pairs: tokens, rows and (query, key) pairs of the pieces; of which
        ones, ones_context: rows of one token, which are priced as decode rows, and their context.
        past: tokens of their prompts computed before.
        beyond: of `ones_context`, tokens outside the sliding window.
        padded: placeholder drafts beside rows of one token, in `chunk` and `ones_context` too.
        short: somebody was thrown out, so nobody is admitted.
        useful: a draft proposed after one of them might be used.
    """

    __slots__ = (
        "acc",
        "beyond",
        "chunk",
        "left",
        "ones",
        "ones_context",
        "padded",
        "pairs",
        "past",
        "room",
        "rows",
        "short",
        "slots",
        "used",
        "useful",
        "window",
    )

    def __init__(self, slots: int, window: int) -> None:
        self.slots = slots
        self.window = window
        self.begin(0, 0, 0, 0)

    def begin(self, acc: int, used: int, left: int, room: int) -> None:
        """Empties it for the next step."""
        self.acc = acc
        self.used = used
        self.left = left
        self.room = room
        self.chunk = self.rows = self.pairs = self.ones = self.ones_context = self.past = 0
        self.beyond = self.padded = 0
        self.short = self.useful = False

    def add(self, tokens: int, past: int) -> None:
        """Adds a piece of a prompt of which `past` tokens are computed."""
        self.chunk += tokens
        self.rows += 1
        self.past += past
        self.left -= tokens + self.slots
        if tokens == 1:
            self.ones += 1
            self.ones_context += past + 1
            if self.window:
                self.beyond += max(past + 1 - self.window, 0)
        else:
            self.pairs += tokens * past + tokens * (tokens + 1) // 2

    def pad(self, drafts: int, past: int) -> None:
        """Adds placeholder drafts to the piece that was added last, one token behind `past` others."""
        self.chunk += drafts
        self.ones_context += drafts
        self.left -= drafts
        self.padded += drafts
        if self.window:
            self.beyond += max(past + 1 + drafts - self.window, 0) - max(past + 1 - self.window, 0)
