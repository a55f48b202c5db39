"""KV blocks: who holds how many, and, with prefix caching, which ones.

Two lengths are kept apart. A sequence *holds* physical blocks (`Sequence.num_blocks`) and has
a *logical* length (`Sequence.num_computed_tokens`). A rejected draft lowers the logical length
and frees nothing; the next step overwrites the stale slots. Only finish and preemption free.

`KVCache` counts. `PrefixCache` also knows each block's content, so that a later prompt can
start from it; it hands out and evicts blocks in vLLM's order, because which block goes first
decides the later hits.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from collections.abc import Sequence as Rows
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

from specfleet.sim.errors import Breach
from specfleet.sim.laws.names import BLOCKS
from specfleet.sim.rules import blocks_for, findable_blocks, usable_hit

if TYPE_CHECKING:
    from specfleet.sim.sequence import Sequence


class Hit(NamedTuple):
    """A prefix found in the cache: its blocks and its length in tokens."""

    blocks: tuple[int, ...]
    tokens: int


NO_HIT = Hit((), 0)


class KVCache:
    """A pool of equal blocks, counted.

    Args:
        num_gpu_blocks: blocks in the pool; one of them is the null block, never handed out.
        block_size: tokens a block.
    """

    def __init__(self, num_gpu_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.total_blocks = num_gpu_blocks - 1
        self.free_blocks = self.total_blocks

    def lookup(self, sequence: Sequence) -> Hit:
        """Returns the longest cached prefix of `sequence`: none here."""
        return NO_HIT

    def idle(self, hit: Hit) -> int:
        """Returns the blocks of a hit that nobody holds, so that taking them makes fewer free."""
        return 0

    def take(self, sequence: Sequence, hit: Hit, blocks: int) -> None:
        """Gives a waiting sequence the blocks that `lookup` found and `blocks` new ones, which are free."""
        self.free_blocks -= blocks
        sequence.num_blocks = blocks
        sequence.slots = blocks * self.block_size

    def grow(self, sequence: Sequence, slots: int) -> bool:
        """Makes a running sequence hold at least `slots` tokens; False if the pool cannot."""
        growth = blocks_for(slots, self.block_size) - sequence.num_blocks
        if growth <= 0:
            return True
        if growth > self.free_blocks:
            return False
        self.free_blocks -= growth
        sequence.num_blocks += growth
        sequence.slots = sequence.num_blocks * self.block_size
        return True

    def grow_each(self, sequences: Rows[Sequence], counts: Rows[int]) -> None:
        """Gives running sequences so many more blocks each, which are free; does not count them in each."""
        self.free_blocks -= sum(counts)

    def hold(self, blocks: int) -> None:
        """Counts blocks that sequences brought along as held."""
        self.free_blocks -= blocks

    def register(self, sequence: Sequence, num_tokens: int) -> None:
        """Makes the first `num_tokens` of `sequence` findable by others: nothing to do here."""

    def free(self, sequence: Sequence) -> None:
        """Takes all blocks back from a finished or preempted sequence."""
        self.free_blocks += sequence.num_blocks
        sequence.num_blocks = 0
        sequence.slots = 0

    def check(self, holders: Iterable[Sequence]) -> None:
        """Proves used + free = total.

        Args:
            holders: every unfinished sequence.

        Raises:
            Breach: with the figures, if a block was lost or made.
        """
        self._add_up(sum(sequence.num_blocks for sequence in holders), self.free_blocks)

    def _add_up(self, used: int, free: int) -> None:
        if used + free != self.total_blocks:
            raise Breach(BLOCKS, f"{used} used and {free} free blocks, of {self.total_blocks}")


class PrefixCache(KVCache):
    """A pool that knows its blocks' contents.

    A full block's *key* stands for everything up to its end: the pair (key before it, the pieces
    of token streams it holds). Equal keys mean equal prefixes.

    Args:
        num_gpu_blocks: as in `KVCache`.
        block_size: as in `KVCache`.
        hash_lookahead_tokens: tokens past a block that its key covers (1 with an EAGLE drafter,
            whose KV at a block's last position reads the next token).
        drops_last_block: a hit gives up its last block (older builds with an EAGLE drafter).
    """

    def __init__(
        self,
        num_gpu_blocks: int,
        block_size: int,
        hash_lookahead_tokens: int = 0,
        drops_last_block: bool = False,
    ) -> None:
        super().__init__(num_gpu_blocks, block_size)
        self.hash_lookahead_tokens = hash_lookahead_tokens
        self.drops_last_block = drops_last_block
        self._untouched = 1
        """The first block that nobody has held yet, and all behind it."""
        self._reusable: list[int] = []
        """Free blocks without a key, the next one last: before the untouched, which go before `_idle`."""
        self._idle: OrderedDict[int, None] = OrderedDict()
        """Free blocks with a key, the first to be handed out first."""
        self._others_hold: dict[int, int] = {}
        """By block that several hold, how many more than one."""
        self._key_of: dict[int, int] = {}
        self._block_with: dict[int, int] = {}
        self._others_with: dict[int, dict[int, None]] = {}
        self._held: dict[int, list[int]] = {}
        self._num_registered: dict[int, int] = {}
        """By sequence, how many of its blocks have a key: the first ones."""
        self._across: dict[tuple[object, ...], int] = {}
        self._rows: dict[tuple[tuple[tuple[object, int], ...], object], list[int]] = {}
        self._num_keys = 0

    def _keys(self, sequence: Sequence) -> list[int]:
        """Returns the keys of the sequence's known full blocks, extending its list as tokens arrive.

        A block inside one stream is the n-th behind what came before that stream: those of a stream are a
        row of numbers, given out once. Only a block that lies across streams is looked up by its pieces.
        """
        keys, size, ahead = sequence.block_keys, self.block_size, self.hash_lookahead_tokens
        count = (sequence.num_tokens - ahead) // size
        if len(keys) >= count:
            return keys
        offset = 0
        path: tuple[tuple[object, int], ...] = ()
        for stream, length in sequence.stretches:
            stop = offset + length
            while len(keys) < count and len(keys) * size < stop:
                first, inside = len(keys), min(count, (stop - ahead) // size)
                if inside > first:
                    base = -(-offset // size)
                    row = self._rows.setdefault((path, stream), [])
                    self._number(row, inside - base)
                    keys += row[first - base : inside - base]
                    continue
                start = first * size
                content = (keys[-1] if keys else -1, *sequence.pieces(start, start + size + ahead))
                key = self._across.setdefault(content, self._num_keys)
                self._num_keys += key == self._num_keys
                keys.append(key)
            if len(keys) == count:
                break
            if length:
                offset, path = stop, (*path, (stream, length))
        return keys

    def _number(self, row: list[int], count: int) -> None:
        """Extends a row of keys to `count`."""
        more = count - len(row)
        if more > 0:
            row.extend(range(self._num_keys, self._num_keys + more))
            self._num_keys += more

    def lookup(self, sequence: Sequence) -> Hit:
        """Returns the longest cached prefix, in whole blocks, at least one known token short."""
        keys = self._keys(sequence)[: findable_blocks(sequence.num_tokens, self.block_size)]
        there = self._block_with
        if not keys or keys[0] not in there:
            return NO_HIT
        blocks = [*map(there.__getitem__, takewhile(there.__contains__, keys))]
        del blocks[usable_hit(len(blocks), self.drops_last_block) :]
        return Hit(tuple(blocks), len(blocks) * self.block_size) if blocks else NO_HIT

    def idle(self, hit: Hit) -> int:
        """As `KVCache.idle`."""
        return sum(map(self._idle.__contains__, hit.blocks))

    def take(self, sequence: Sequence, hit: Hit, blocks: int) -> None:
        """As `KVCache.take`; blocks of the hit that nobody else holds leave the free list too."""
        idle, others = self._idle, self._others_hold
        for block in hit.blocks:
            if block in idle:
                del idle[block]
            else:
                others[block] = others.get(block, 0) + 1
        self._held[sequence.id] = list(hit.blocks)
        self._num_registered[sequence.id] = len(hit.blocks)
        self._hand_out(sequence, blocks)

    def grow(self, sequence: Sequence, slots: int) -> bool:
        """As `KVCache.grow`."""
        growth = blocks_for(slots, self.block_size) - sequence.num_blocks
        if growth <= 0:
            return True
        if growth > self.free_blocks:
            return False
        self._hand_out(sequence, growth)
        return True

    def _hand_out(self, sequence: Sequence, count: int) -> None:
        """Hands `count` blocks from the front of the free list to `sequence`; their contents are gone."""
        self.grow_each([sequence], [count])
        held = self._held[sequence.id]
        sequence.num_blocks = len(held)
        sequence.slots = len(held) * self.block_size

    def grow_each(self, sequences: Rows[Sequence], counts: Rows[int]) -> None:
        """As `KVCache.grow_each`: blocks from the front of the free list, whose contents are gone."""
        blocks, end, held = self._first_free(sum(counts)), 0, self._held
        for sequence, count in zip(sequences, counts, strict=True):
            start, end = end, end + count
            held[sequence.id] += blocks[start:end]
        self._count_free()

    def _first_free(self, count: int) -> list[int]:
        """Takes so many blocks from the front of the free list."""
        reusable, first = self._reusable, self._untouched
        blocks = reusable[: -count - 1 : -1]
        del reusable[len(reusable) - len(blocks) :]
        missing = count - len(blocks)
        if missing:
            self._untouched = min(first + missing, self.total_blocks + 1)
            blocks += range(first, self._untouched)
            for _ in range(count - len(blocks)):
                block = self._idle.popitem(last=False)[0]
                self._forget(block)
                blocks.append(block)
        return blocks

    def _count_free(self) -> None:
        untouched = self.total_blocks + 1 - self._untouched
        self.free_blocks = len(self._reusable) + len(self._idle) + untouched

    def _forget(self, block: int) -> None:
        """Takes its key from a block; of several with that key the one that has had it longest is found."""
        key = self._key_of.pop(block)
        others = self._others_with.get(key)
        if self._block_with[key] != block:
            assert others is not None
            del others[block]
        elif others:
            self._block_with[key] = first = next(iter(others))
            del others[first]
        else:
            del self._block_with[key]
        if others is not None and not others:
            del self._others_with[key]

    def register(self, sequence: Sequence, num_tokens: int) -> None:
        """Makes the full blocks among the first `num_tokens` findable."""
        first, full = self._num_registered[sequence.id], num_tokens // self.block_size
        if full <= first:
            return  # a row fills a block once in several steps
        keys = self._keys(sequence)
        full = min(full, len(keys))
        if full <= first:
            return
        with_key, blocks, keys = self._block_with, self._held[sequence.id][first:full], keys[first:full]
        self._key_of.update(zip(blocks, keys, strict=True))
        if with_key.keys().isdisjoint(keys):
            with_key.update(zip(keys, blocks, strict=True))
        else:
            for block, key in zip(blocks, keys, strict=True):
                if with_key.setdefault(key, block) != block:
                    self._others_with.setdefault(key, {})[block] = None
        self._num_registered[sequence.id] = full

    def free(self, sequence: Sequence) -> None:
        """As `KVCache.free`. Tail blocks go first; those without a key are reused at once."""
        held, others = self._held.pop(sequence.id, []), self._others_hold
        registered = self._num_registered.pop(sequence.id, 0)
        self._reusable += held[registered:]
        with_key = held[:registered]
        with_key.reverse()
        if others and (shared := others.keys() & with_key):
            with_key = [block for block in with_key if block not in shared]
            for block in shared:
                others[block] -= 1
                if not others[block]:
                    del others[block]
        self._idle.update(dict.fromkeys(with_key))
        self._count_free()
        sequence.num_blocks = 0
        sequence.slots = 0

    def check(self, holders: Iterable[Sequence]) -> None:
        """Proves used + free = total, each shared block counted once, and that keys agree both ways."""
        held = Counter(block for sequence in holders for block in self._held.get(sequence.id, ()))
        free = {*self._reusable, *self._idle}
        for block, users in held.items():
            counted = 1 + self._others_hold.get(block, 0)
            if block in free or block >= self._untouched:
                counted = 0
            if counted != users:
                raise Breach(BLOCKS, f"block {block} counts {counted} users, {users} sequences hold it")
        self._add_up(len(held), self.free_blocks)
        if len(free) != len(self._reusable) + len(self._idle):
            raise Breach(BLOCKS, "a block is free twice")
        found = [(key, (block, *self._others_with.get(key, ()))) for key, block in self._block_with.items()]
        if any(self._key_of.get(block) != key for key, blocks in found for block in blocks):
            raise Breach(BLOCKS, "a block of the prefix cache lost its key")
