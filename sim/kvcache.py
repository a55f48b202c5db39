"""KV blocks: who holds how many, and, with prefix caching, which ones.

Two lengths are kept apart. A sequence *holds* physical blocks (`Sequence.num_blocks`) and has
a *logical* length (`Sequence.num_computed_tokens`). A rejected draft lowers the logical length
and frees nothing; the next step overwrites the stale slots. Only finish and preemption free.

`KVCache` counts. `PrefixCache` also knows each block's content, so that a later prompt can
start from it; it hands out and evicts blocks in vLLM's order, because which block goes first
decides the later hits.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from collections.abc import Sequence as Rows
from functools import cached_property
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
        self._users = [0] * num_gpu_blocks
        self._key_of: list[int | None] = [None] * num_gpu_blocks
        self._block_with: dict[int, int] = {}
        self._others_with: dict[int, dict[int, None]] = {}
        self._held: dict[int, list[int]] = {}
        self._num_registered: dict[int, int] = {}
        self._across: dict[tuple[object, ...], int] = {}
        self._rows: dict[tuple[tuple[tuple[object, int], ...], object], list[int]] = {}
        self._num_keys = 0

    @cached_property
    def _free(self) -> OrderedDict[int, None]:
        """Free blocks, the first to be handed out first; made for whoever asks for one."""
        return OrderedDict.fromkeys(range(1, self.total_blocks + 1))

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
        blocks: list[int] = []
        with_key = self._block_with
        for key in self._keys(sequence)[: findable_blocks(sequence.num_tokens, self.block_size)]:
            if key not in with_key:
                break
            blocks.append(with_key[key])
        del blocks[usable_hit(len(blocks), self.drops_last_block) :]
        return Hit(tuple(blocks), len(blocks) * self.block_size) if blocks else NO_HIT

    def idle(self, hit: Hit) -> int:
        """As `KVCache.idle`."""
        return sum([1 for block in hit.blocks if self._users[block] == 0])

    def take(self, sequence: Sequence, hit: Hit, blocks: int) -> None:
        """As `KVCache.take`; blocks of the hit that nobody else holds leave the free list too."""
        for block in hit.blocks:
            if self._users[block] == 0:
                del self._free[block]
            self._users[block] += 1
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
        next_block, key_of, users, free = self._free.popitem, self._key_of, self._users, self._free
        for sequence, count in zip(sequences, counts, strict=True):
            held = self._held[sequence.id]
            for _ in range(count):
                block = next_block(last=False)[0]
                if key_of[block] is not None:
                    self._forget(block)
                users[block] = 1
                held.append(block)
        self.free_blocks = len(free)

    def _forget(self, block: int) -> None:
        """Takes its key from a block; of several with that key the one that has had it longest is found."""
        key = self._key_of[block]
        assert key is not None
        self._key_of[block] = None
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
        key_of, with_key = self._key_of, self._block_with
        for block, key in zip(self._held[sequence.id][first:full], keys[first:full], strict=True):
            key_of[block] = key
            if with_key.setdefault(key, block) != block:
                self._others_with.setdefault(key, {})[block] = None
        self._num_registered[sequence.id] = full

    def free(self, sequence: Sequence) -> None:
        """As `KVCache.free`. Tail blocks go first; those without a key are reused at once."""
        reusable: list[int] = []
        evictable: list[int] = []
        users, key_of = self._users, self._key_of
        for block in reversed(self._held.pop(sequence.id, [])):
            left = users[block] = users[block] - 1
            if not left:
                (reusable if key_of[block] is None else evictable).append(block)
        self._num_registered.pop(sequence.id, None)
        for block in reversed(reusable):
            self._free[block] = None
            self._free.move_to_end(block, last=False)
        self._free.update(dict.fromkeys(evictable))
        self.free_blocks = len(self._free)
        sequence.num_blocks = 0
        sequence.slots = 0

    def check(self, holders: Iterable[Sequence]) -> None:
        """Proves used + free = total, each shared block counted once, and that keys agree both ways."""
        users = [0] * (self.total_blocks + 1)
        for sequence in holders:
            for block in self._held.get(sequence.id, ()):
                users[block] += 1
        for block, (counted, held) in enumerate(zip(self._users, users, strict=True)):
            if counted != held:
                raise Breach(BLOCKS, f"block {block} counts {counted} users, {held} sequences hold it")
        self._add_up(sum(1 for count in users if count), len(self._free))
        found = [(key, (block, *self._others_with.get(key, ()))) for key, block in self._block_with.items()]
        if any(self._key_of[block] != key for key, blocks in found for block in blocks):
            raise Breach(BLOCKS, "a block of the prefix cache lost its key")
