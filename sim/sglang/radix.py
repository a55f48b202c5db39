"""SGLang's radix tree: prompts and outputs by content, counted in KV tokens.

A node stands for the KV of a run of tokens. Nodes on the path of a running request are locked; unlocked
leaves are evicted, least recently used first, a whole node at a time. With an EAGLE drafter the tree is keyed
by pairs of tokens, so that n tokens make n - 1 units. Lengths are units, all multiples of the page.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

Piece = tuple[object, int, int]
"""Tokens `from..to` of a named stream."""
Key = tuple[Piece, ...]

MOST_STALE = 64
"""Notes of leaves, beside four a leaf, that may be out of date."""
_TICK = 1 << 20
"""Between two accesses; ancestors of what is found are older than it by one each."""


def cut(key: Key, start: int, end: int) -> Key:
    """Returns the tokens `start..end` of a key."""
    stream, low, high = key[0]
    if start < end <= high - low:  # mostly the first page, which lies in one piece
        return ((stream, low + start, low + end),)
    pieces, offset = [], 0
    for stream, low, high in key:
        first, last = max(start - offset, 0), min(end - offset, high - low)
        if first < last:
            pieces.append((stream, low + first, low + last))
        offset += high - low
        if offset >= end:
            break
    return tuple(pieces)


def after(key: Key, tokens: int) -> Key:
    """Returns a key without its first tokens."""
    for index, (stream, low, high) in enumerate(key):
        if tokens < high - low:
            return ((stream, low + tokens, high), *key[index + 1 :])
        tokens -= high - low
    return ()


def length(key: Key) -> int:
    """Returns the tokens of a key."""
    return sum([high - low for _, low, high in key])


def common(a: Key, b: Key) -> int:
    """Returns the tokens that two keys have in common from their beginnings."""
    shared = 0
    for (stream, low, high), (other, other_low, other_high) in zip(a, b, strict=False):
        if stream != other or low != other_low:
            break
        shared += min(high, other_high) - low
        if high != other_high:
            break
    return shared


@dataclass(slots=True, eq=False)
class Node:
    """A run of tokens in the tree.

    Attributes:
        key: its tokens; keyed by pairs, one more than its units.
        units: KV tokens that it holds.
        children: by their first page.
        locks: running requests whose path goes through it.
        used: when it was last looked at; larger is later.
    """

    key: Key = ()
    units: int = 0
    parent: Node | None = None
    children: dict[Key, Node] = field(default_factory=dict)
    locks: int = 0
    used: int = 0


class RadixTree:
    """The tree of one engine.

    Args:
        page: tokens a KV page.
        by_pairs: an EAGLE drafter needs the token after each, so that the tree is keyed by pairs.

    Attributes:
        evictable: KV tokens of nodes that nobody locks.
        locked: KV tokens of the others.
    """

    def __init__(self, page: int, by_pairs: bool) -> None:
        self.page = page
        self.extra = int(by_pairs)
        self.root = Node(locks=1)
        self.evictable = self.locked = 0
        self._leaves: dict[Node, None] = {}
        self._oldest: list[tuple[int, int, Node]] = []
        self._clock = self._entries = 0

    def units(self, tokens: int) -> int:
        """Returns the units that so many tokens make, in whole pages."""
        return max(tokens - self.extra, 0) // self.page * self.page

    def _tick(self) -> int:
        self._clock += _TICK
        return self._clock

    def _first_page(self, key: Key) -> Key:
        stream, low, high = key[0]
        end = low + self.page + self.extra
        return ((stream, low, end),) if end <= high else cut(key, 0, self.page + self.extra)

    def _shared(self, node: Node, key: Key) -> int:
        """Returns the units that a node and a key share."""
        return self.units(common(node.key, key))

    def match(self, key: Key) -> tuple[Node, int]:
        """Finds the longest prefix of a key and touches it; a node that is found in part is split.

        Returns:
            The node where it ends, and its units.
        """
        node, found, left = self.root, 0, self.units(length(key))
        while left:
            child = node.children.get(self._first_page(key))
            if child is None:
                break
            shared = self._shared(child, key)
            node = self._split(child, shared) if shared < child.units else child
            found += shared
            left -= shared
            if left:
                key = after(key, shared)
        self.touch(node)
        return node, found

    def touch(self, node: Node) -> None:
        """A node, and with it all above it, was just looked at."""
        used = self._tick()
        while node is not self.root:
            node.used = used
            used -= 1
            assert node.parent is not None
            node = node.parent

    def insert(self, key: Key, prompt: int, path: tuple[Node, int] | None = None) -> tuple[Node, int]:
        """Adds a key, touching what is there.

        Args:
            key: its tokens.
            prompt: of which prompt: new outputs are a node of their own, so that they can go first.
            path: a node that is kept, and the units to its end, with which the key begins.

        Returns:
            The node where it ends, and the units of it that were there before.
        """
        node, found, left = self.root, 0, self.units(length(key))
        if path is not None and path[1] <= left:
            node, found = path
            left -= found
            for passed in self._down_to(node):
                passed.used = self._tick()
            if left:
                key = after(key, found)
        while left:
            first = self._first_page(key)
            child = node.children.get(first)
            if child is None:
                break
            child.used = self._tick()
            shared = self._shared(child, key)
            node = self._split(child, shared) if shared < child.units else child
            found += shared
            left -= shared
            if left:
                key = after(key, shared)
        if left:
            leaf = Node(cut(key, 0, left + self.extra), left, node, used=self._tick())
            node.children[first] = leaf
            self.evictable += left
            self._may_go(leaf)
            self._leaves.pop(node, None)
            if found < self.units(prompt) < found + left:
                self._split(leaf, self.units(prompt) - found)
            node = leaf
        return node, found

    def _down_to(self, node: Node) -> list[Node]:
        """Returns the nodes from the root's child down to one."""
        way = []
        at: Node | None = node
        while at is not None and at is not self.root:
            way.append(at)
            at = at.parent
        way.reverse()
        return way

    def _split(self, child: Node, units: int) -> Node:
        """Splits a node after so many units; returns the upper half. Both count as just looked at."""
        parent, key = child.parent, child.key
        assert parent is not None
        upper = Node(cut(key, 0, units + self.extra), units, parent, locks=child.locks, used=self._tick())
        parent.children[self._first_page(key)] = upper
        child.parent, child.units = upper, child.units - units
        child.key = cut(key, units, units + child.units + self.extra)
        upper.children[self._first_page(child.key)] = child
        child.used = self._tick()
        return upper

    def lock(self, node: Node) -> None:
        """Keeps a node and all above it."""
        at: Node | None = node
        while at is not None and at is not self.root:
            if not at.locks:
                self.evictable -= at.units
                self.locked += at.units
            at.locks += 1
            self._leaves.pop(at, None)
            at = at.parent

    def unlock(self, node: Node) -> None:
        """Takes a lock back."""
        at: Node | None = node
        while at is not None and at is not self.root:
            at.locks -= 1
            if not at.locks:
                self.evictable += at.units
                self.locked -= at.units
                if not at.children:
                    self._may_go(at)
            at = at.parent

    def _may_go(self, leaf: Node) -> None:
        """Notes an unlocked leaf. What is noted of its last use may grow old: `evict` looks again."""
        self._leaves[leaf] = None
        self._entries += 1
        heapq.heappush(self._oldest, (leaf.used, self._entries, leaf))
        if len(self._oldest) > 4 * len(self._leaves) + MOST_STALE:
            self._oldest = [(node.used, index, node) for index, node in enumerate(self._leaves)]
            heapq.heapify(self._oldest)

    def evict(self, tokens: int) -> int:
        """Drops unlocked leaves, least recently used first, until so many KV tokens are free.

        Returns:
            The KV tokens that are free now.
        """
        freed = 0
        while freed < tokens and self._oldest:
            used, entry, node = heapq.heappop(self._oldest)
            if node not in self._leaves:
                continue
            if node.used != used:
                heapq.heappush(self._oldest, (node.used, entry, node))
                continue
            parent = node.parent
            assert parent is not None
            del self._leaves[node]
            del parent.children[self._first_page(node.key)]
            freed += node.units
            if parent is not self.root and not parent.children and not parent.locks:
                self._may_go(parent)
        self.evictable -= freed
        return freed

    def check(self) -> None:
        """Proves that sizes, locks and leaves are those of the nodes.

        Raises:
            AssertionError: with the figures.
        """
        evictable = locked = 0
        leaves, stack = set(), [*self.root.children.values()]
        while stack:
            node = stack.pop()
            assert length(node.key) == node.units + self.extra, "a node holds another number of tokens"
            if node.locks:
                locked += node.units
            else:
                evictable += node.units
                assert not any(child.locks for child in node.children.values()), "a lock has a gap above it"
                if not node.children:
                    leaves.add(node)
            stack += node.children.values()
        assert (evictable, locked) == (self.evictable, self.locked), (
            f"the tree counts {self.evictable} evictable and {self.locked} locked KV tokens, "
            f"its nodes {evictable} and {locked}"
        )
        assert leaves == set(self._leaves), "the leaves that may be evicted are not those of the tree"
