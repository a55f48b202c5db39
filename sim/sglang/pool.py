"""SGLang's KV pool: pages that running requests own, and the radix tree that owns the rest.

A request's KV is the *protected* part, which lies in the tree and is locked for it, and pages of its own.
Only page counts are kept: which page is handed out changes no decision.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from specfleet.sim.errors import Stall
from specfleet.sim.rules import NEVER, blocks_for
from specfleet.sim.sequence import Sequence
from specfleet.sim.sglang.radix import Key, Node, Piece, RadixTree


class Text(Protocol):
    """What the tree asks of a request: its content. `Sequence`, or the same of a life drawn ahead."""

    prompt_tokens: int
    stop_at: int

    @property
    def num_tokens(self) -> int:
        """Tokens known."""
        ...

    @property
    def stretches(self) -> tuple[tuple[object, int], ...]:
        """Its tokens, prompt and output, as the first so many of streams."""
        ...


class Path(Protocol):
    """What a request has in the tree.

    Attributes:
        protected: KV tokens. node: where they end, locked; None if it has nothing there.
    """

    protected: int
    node: Node | None


class Holding:
    """What one request holds.

    Attributes:
        committed: KV tokens whose content is known to be right.
        allocated: KV tokens that have a place, drafts' reserve included.
        protected: of which in the tree.
        node: where its path in the tree ends, locked; None if it is not in the tree.
    """

    __slots__ = ("allocated", "committed", "node", "protected")

    def __init__(self) -> None:
        self.committed = self.allocated = self.protected = 0
        self.node: Node | None = None


class Match(NamedTuple):
    """A prefix found in the tree: where it ends, and its tokens."""

    node: Node | None
    tokens: int


class Evicting:
    """KV of which a tree keeps a part until it is needed.

    Attributes:
        free: KV tokens that nobody holds and that are not in the tree.
        tree: None where everything is freed at the end.
    """

    free: int
    tree: RadixTree | None

    @property
    def evictable(self) -> int:
        """KV tokens in the tree that nobody locks."""
        return self.tree.evictable if self.tree is not None else 0

    @property
    def available(self) -> int:
        """KV tokens free, or free once evicted."""
        return self.free + self.evictable

    def lock(self, match: Match) -> None:
        """Keeps a prefix."""
        if self.tree is not None and match.node is not None:
            self.tree.lock(match.node)

    def unlock(self, match: Match) -> None:
        """Takes that back."""
        if self.tree is not None and match.node is not None:
            self.tree.unlock(match.node)

    def make_free(self, tokens: int) -> None:
        """Evicts until so many tokens are free, as far as the tree allows."""
        if self.tree is not None and self.free < tokens:
            self.free += self.tree.evict(tokens - self.free)


class TokenPool(Evicting):
    """The KV of one engine.

    Args:
        blocks: pages in the pool.
        page: tokens a page.
        radix: the tree is used; otherwise everything is freed at the end.
        by_pairs: as `RadixTree`.

    Attributes:
        free: KV tokens that nobody holds and that are not in the tree.
    """

    def __init__(self, blocks: int, page: int, radix: bool, by_pairs: bool) -> None:
        self.page = self.block_size = page
        self.total_blocks = blocks
        self.free = blocks * page
        self.tree = RadixTree(page, by_pairs) if radix else None
        self.held: dict[int, Holding] = {}

    @property
    def free_blocks(self) -> int:
        """Pages free, or free once evicted."""
        return self.available // self.page

    def pages(self, tokens: int) -> int:
        """Returns the pages of so many tokens, as tokens."""
        return blocks_for(tokens, self.page) * self.page

    def match(self, sequence: Text, short_by: int = 1) -> Match:
        """Finds the longest prefix in the tree, `short_by` known tokens short at most, and touches it."""
        if self.tree is None:
            return Match(None, 0)
        return Match(*self.tree.match(tokens_of(sequence, sequence.num_tokens - short_by)))

    def hold(self, sequence: Sequence, match: Match) -> Holding:
        """Begins to hold a prefix, which has been locked."""
        holding = self.held[sequence.id] = Holding()
        holding.node = match.node
        holding.committed = holding.allocated = holding.protected = match.tokens
        return holding

    def grow(self, holding: Holding, tokens: int) -> None:
        """Gives a request places up to so many tokens; they have been made free.

        Raises:
            Stall: they are not there. SGLang ends with an error where what it promised does not suffice.
        """
        grown = self.pages(tokens) - self.pages(holding.allocated)
        if grown > self.free:
            raise Stall(f"SGLang would end here: {grown} KV tokens are needed, {self.free} are free")
        self.free -= grown
        holding.allocated = tokens

    def keep(self, sequence: Sequence, tokens: int) -> None:
        """Puts the first tokens of a running request into the tree; what is there already is used instead."""
        if self.tree is not None:
            self.free += protect(self.tree, self.held[sequence.id], sequence, tokens)

    def finish(self, sequence: Sequence, tokens: int) -> None:
        """Takes everything from a finished request; its first tokens stay in the tree."""
        tree, holding = self.tree, self.held.pop(sequence.id)
        own = self.pages(holding.allocated) - holding.protected
        self.free += own - (leave(tree, holding, sequence, tokens) if tree is not None else 0)

    def drop(self, sequence: Sequence) -> None:
        """Takes everything from a request; nothing new of it stays in the tree."""
        holding = self.held.pop(sequence.id)
        self.free += self.pages(holding.allocated) - holding.protected
        if self.tree is not None and holding.node is not None:
            self.tree.unlock(holding.node)

    def check(self, holders: Iterable[Sequence]) -> None:
        """Proves that free, owned and cached tokens make the pool.

        Raises:
            AssertionError: with the figures.
        """
        ids = {sequence.id for sequence in holders}
        assert ids >= self.held.keys(), "KV is held for a request that is gone"
        own = sum(self.pages(holding.allocated) - holding.protected for holding in self.held.values())
        cached = 0
        if self.tree is not None:
            self.tree.check()
            cached = self.tree.evictable + self.tree.locked
        total = self.total_blocks * self.page
        assert self.free + own + cached == total, (
            f"KV tokens do not add up: {self.free} free + {own} owned + {cached} in the tree != {total}"
        )


def protect(tree: RadixTree, path: Path, text: Text, tokens: int) -> int:
    """Puts the first tokens of a running request into the tree and locks them.

    Returns:
        KV tokens that it gives back, since they were there already.
    """
    units = tree.units(tokens)
    node, found = tree.insert(tokens_of(text, tokens), text.prompt_tokens, _way(path))
    spare = max(found - path.protected, 0)
    tree.touch(node)
    if path.node is not None:
        tree.unlock(path.node)
    tree.lock(node)
    path.node, path.protected = node, units
    return spare


def _way(path: Path) -> tuple[Node, int] | None:
    """Returns where the path of a request ends, and its units, if it has one."""
    return None if path.node is None else (path.node, path.protected)


def leave(tree: RadixTree, path: Path, text: Text, tokens: int) -> int:
    """Leaves the first tokens of a request that ends in the tree; returns how many were not there."""
    units = tree.units(tokens)
    _, found = tree.insert(tokens_of(text, tokens), text.prompt_tokens, _way(path))
    if path.node is not None:
        tree.unlock(path.node)
    return max(units - max(found, path.protected), 0)


def tokens_of(text: Text, count: int) -> Key:
    """Returns the first tokens of a request, prompt and output. All stop tokens are one and the same."""
    end = text.prompt_tokens + text.stop_at - 1 if text.stop_at != NEVER else NEVER
    left, key = min(count, end), list[Piece]()
    for stream, tokens in text.stretches:
        if tokens >= left:
            if left:
                key.append((stream, 0, left))
            break
        if tokens:
            key.append((stream, 0, tokens))
            left -= tokens
    if count > end:
        key.append(("stop", 0, count - end))
    return tuple(key)
