"""Blocks that prompts may share, and who holds them."""

from __future__ import annotations

NOBODYS, ITS_OWNERS = -1, -2
"""In the place of a key, of a run of blocks in the free list: nobody asks for them; or only the request that
held them and was thrown out."""


class Cached:
    """A block that prompts may share; or, in the free list, a run of blocks that nobody asks for.

    Attributes:
        key: of its content.
        users: how many hold it.
        until: the iteration in which the last of them leaves, while somebody holds it.
    """

    __slots__ = ("key", "until", "users")

    def __init__(self, key: int, until: int) -> None:
        self.key = key
        self.users = 1
        self.until = until


class Holder:
    """One request and the blocks it holds that others may ask for, from the first on.

    Attributes:
        place: of the request.
        keys: of all its blocks that others may ask for: of its prompt, and of an output that nobody asks for
            before it has left.
        blocks: those of its prompt that are computed, or found.
        before: while it computes its prompt in pieces, when the blocks it found were to be given back, 0
            where nobody held them.
        own: blocks behind them that it finds, since they were its own before it was thrown out.
        unkeyed, private: its other blocks when it leaves: without a key, and with one.
        until: the iteration in which it leaves. number: of those who leave together, the lower goes first.
    """

    __slots__ = ("before", "blocks", "keys", "number", "own", "place", "private", "unkeyed", "until")

    def __init__(self, place: int, keys: list[int], hit: list[Cached], own: int = 0) -> None:
        self.place = place
        self.own = own
        self.keys = keys
        self.blocks = hit
        self.before: list[int] = []
        self.unkeyed = self.private = self.until = self.number = 0

    def note_others(self) -> None:
        """Notes who holds what it found, before it does."""
        self.before = [block.until if block.users else 0 for block in self.blocks]
