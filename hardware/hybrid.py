"""The pool that layers of several kinds share, as vLLM groups them; in slots of the layers that grow.

vLLM (`v1/core/kv_cache_utils.py`) puts layers of one kind into groups of equal size: the smaller of the
numbers of layers by kind, or the larger where it is below 1.25 times the smaller. Every group takes blocks
from one pool; a block holds one group's layers, all of the size of the largest page. A layer with a state
takes one block a sequence, and one more a draft token; a layer with a window gives back what is behind it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from specfleet.hardware.layers.parts import Cache
from specfleet.hardware.model import KV_BYTES, ModelSpec
from specfleet.hardware.placement import Placement

EVEN_ENOUGH = 1.25
"""Numbers of layers nearer than that share one group size, the larger."""

STATE_ALIGNMENT = 16
"""Tokens to whole multiples of which attention blocks are stretched until they hold a state."""


@dataclass(frozen=True)
class PoolShape:
    """What one token of a growing layer takes, and what a sequence takes besides, on one GPU.

    `bytes_per_slot` is a token in all layers that keep everything (or, where none does, in all layers).
    `window_per_1024` slots a 1,024 tokens are held besides up to `window_tokens`, `sequence_slots` always.
    `kinds` says in words what the pool holds.
    """

    bytes_per_slot: int
    window_tokens: int = 0
    window_per_1024: int = 0
    sequence_slots: int = 0
    kinds: str = ""

    @property
    def mixed(self) -> bool:
        """Whether a sequence holds anything but a slot a token."""
        return bool(self.window_per_1024 or self.sequence_slots)

    def held(self, tokens: int) -> int:
        """Slots that a sequence of so many tokens holds."""
        within = min(tokens, self.window_tokens)
        return tokens + (self.window_per_1024 * within >> 10) + self.sequence_slots

    def longest(self, slots: int) -> int:
        """The longest sequence that so many slots hold."""
        low, high = 0, max(0, slots)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.held(middle) <= slots else (low, middle - 1)
        return low


def pool_shape(placement: Placement) -> PoolShape:
    """The shape of an engine's pool: target and drafter together.

    A drafter's layers that keep everything join the target's; builds that count windows in full
    (`MemoryRules.windows_in_full`) hold every layer's tokens for good. SGLang's pool is taken as one of slots
    for all layers, each layer of a drafter as one of the target's; pools of its own for windows and states
    are not modelled.
    """
    element, tp = placement.kv_element_bytes, placement.tensor_parallel_size
    caches = list(_caches(placement.model, tp, element))
    if placement.profile.scheduler == "sglang":
        target = sum(n * cache.bytes_per_token(element) for n, cache in caches)
        return PoolShape(target + target * draft_layers(placement) // placement.model.num_layers or 1)
    if placement.drafter and placement.drafter.model:
        caches += _caches(placement.drafter.model, placement.draft_tensor_parallel_size, element)
    full = [(n, c.bytes_per_token(element)) for n, c in caches if not c.window and c.bytes_per_token(element)]
    windowed = [(n, c.bytes_per_token(element), c.window) for n, c in caches if c.window]
    drafts = placement.num_speculative_tokens
    states = [(n, c.state_bytes + drafts * c.draft_state_bytes) for n, c in caches if c.state_bytes]
    if not full or placement.profile.memory.windows_in_full:
        every = [*full, *((n, size) for n, size, _ in windowed)]
        slot = sum(n * size for n, size in every)
        return _with_states(slot or 1, (0, 0), states, every, drafts)
    slot = sum(n * size for n, size in full)
    if not windowed:
        return _with_states(slot, (0, 0), states, full, drafts)
    size, groups = _group_size(sum(n for n, _ in full), sum(n for n, *_ in windowed))
    page = max(b for _, b, _ in windowed)
    slot = slot if len({b for _, b in full}) > 1 else groups[0] * size * full[0][1]
    reach = max(w for *_, w in windowed)
    ratio = 1024 * groups[1] * size * page // slot
    return _with_states(slot, (reach, ratio), states, full, drafts)


def draft_layers(placement: Placement) -> int:
    """Layers of the drafter that hold KV. SGLang counts each of them as one of the target's."""
    drafter = placement.drafter
    return drafter.model.num_layers if drafter is not None and drafter.model is not None else 0


def _caches(model: ModelSpec, tp: int, element: int) -> Iterable[tuple[int, Cache]]:
    return [(layers, mixer.cache(tp, element)) for mixer, layers in model.mixers.items()]


def _group_size(first: int, second: int) -> tuple[int, tuple[int, int]]:
    """Layers a group, and groups of each kind."""
    low, high = sorted((first, second))
    size = high if high < EVEN_ENOUGH * low else low
    return size, (-(-first // size), -(-second // size))


def _with_states(
    slot: int,
    window: tuple[int, int],
    states: list[tuple[int, int]],
    growing: list[tuple[int, int]],
    drafts: int,
) -> PoolShape:
    """The shape with what states take: whole blocks of attention layers that hold one state each."""
    if not states:
        return PoolShape(slot, *window)
    layers, held = sum(n for n, _ in states), max(size for _, size in states)
    if not growing:
        return PoolShape(slot, *window, sum(n * size for n, size in states))
    attention = sum(n for n, _ in growing)
    token = max(size for _, size in growing)
    block = STATE_ALIGNMENT * -(-held // (STATE_ALIGNMENT * token))
    size, groups = _group_size(attention, layers)
    extra = groups[1] * (1 + drafts) * block * size * token
    return PoolShape(slot, *window, -(-extra // slot))


def kinds_of(model: ModelSpec, kv_cache_dtype: str, tp: int) -> tuple[str, ...]:
    """What each kind of layer keeps, a line each: layers, bytes a token or a sequence."""
    element, lines = KV_BYTES[kv_cache_dtype], []
    for layers, cache in _caches(model, tp, element):
        held = layers * cache.elements * element
        if cache.kind == "state":
            lines.append(f"{layers} with a state: {layers * cache.state_bytes:,} B a sequence")
        else:
            reach = f" of {cache.window:,}" if cache.window else ""
            index = f" + {layers * cache.index_bytes:,} B of indexer keys" if cache.index_bytes else ""
            lines.append(f"{layers} {cache.kind}{reach}: {held:,} B a token{index}")
    return tuple(lines)
