"""What one step of an engine on the fast path gives to prompts."""

from __future__ import annotations


class Step:
    """Pieces of prompts in one step, added up, and what the step has left to give.

    Attributes:
        acc: the packed running sum, newcomers included.
        used: KV blocks held.
        left: tokens of the budget.
        room: seats in the running list.
        chunk, rows, pairs: tokens, rows and (query, key) pairs of the pieces; of which
        ones, ones_context: rows of one token, which are priced as decode rows, and their context.
        useful: a draft proposed after one of them might be used.
    """

    __slots__ = ("acc", "chunk", "left", "ones", "ones_context", "pairs", "room", "rows", "used", "useful")

    def __init__(self) -> None:
        self.begin(0, 0, 0, 0)

    def begin(self, acc: int, used: int, left: int, room: int) -> None:
        """Empties it for the next step."""
        self.acc = acc
        self.used = used
        self.left = left
        self.room = room
        self.chunk = self.rows = self.pairs = self.ones = self.ones_context = 0
        self.useful = False

    def add(self, tokens: int, past: int, slots: int) -> None:
        """Adds a piece of a prompt of which `past` tokens are computed, and the drafter's slots."""
        self.chunk += tokens
        self.rows += 1
        self.left -= tokens + slots
        if tokens == 1:
            self.ones += 1
            self.ones_context += past + 1
        else:
            self.pairs += tokens * past + tokens * (tokens + 1) // 2
