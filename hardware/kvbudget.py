"""The KV pool of one GPU as a table, with the lines that vLLM prints at start."""

from __future__ import annotations

import math
from dataclasses import dataclass

from specfleet.hardware.hybrid import PoolShape

GIB = 2**30
_LABEL_WIDTH = 34

Line = tuple[str, int]
"""A label and its bytes."""


@dataclass(frozen=True)
class KvBudget:
    """Memory of one GPU, line by line in bytes, and the pool that comes out.

    `num_gpu_blocks` counts vLLM's null block, as its log does; `tokens` is blocks x block size.
    `device_bytes` is the GPU's memory, None when the pool itself was given. `factors` spells
    `bytes_per_token` as a product. The next two say how the build checks and prints, see MemoryRules. Where
    layers of several kinds share the pool, `shape` says what a sequence holds beside a slot a token
    (`bytes_per_token` is then a slot, of the layers that keep everything) and `kinds` what each keeps. Of a
    pipeline this is the stage with the fewest blocks, and `stages` says what each has.
    """

    lines: tuple[Line, ...]
    bytes_per_token: int
    block_size: int
    num_gpu_blocks: int
    device_bytes: int | None = None
    factors: str = ""
    null_block_is_reserved: bool = False
    prints_tokens_by_request: bool = False
    shape: PoolShape | None = None
    kinds: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        """Tokens that the pool holds; of mixed layers, slots of those that keep everything."""
        return self.num_gpu_blocks * self.block_size

    @property
    def largest_max_model_len(self) -> int:
        """Tokens of the longest request that the engine would start with."""
        slots = self.tokens - (self.block_size if self.null_block_is_reserved else 0)
        return self.shape.longest(slots) if self.shape else slots

    def blocks(self, tokens: int) -> int:
        """Blocks that a request of `tokens` tokens occupies."""
        return -(-(self.shape.held(tokens) if self.shape else tokens) // self.block_size)

    def request_bytes(self, tokens: int) -> int:
        """Bytes that a request of `tokens` tokens occupies on this GPU, in whole blocks."""
        return self.blocks(tokens) * self.block_size * self.bytes_per_token

    def _bytes(self, tokens: int) -> int:
        """Bytes of one sequence, not rounded up to blocks."""
        return (self.shape.held(tokens) if self.shape else tokens) * self.bytes_per_token

    def max_concurrency(self, max_model_len: int) -> float:
        """Requests of full length that fit at once, in blocks as vLLM counts them."""
        return self.num_gpu_blocks / self.blocks(max_model_len)

    def printed_tokens(self, max_model_len: int | None = None) -> int:
        """The size in vLLM's log line; some builds print full-length requests x their length, floored."""
        if max_model_len is None or not self.prints_tokens_by_request:
            return self.tokens
        return int(self.max_concurrency(max_model_len) * max_model_len)

    def utilization_for(self, requests: int, tokens: int) -> float | None:
        """Least `gpu_memory_utilization` whose pool holds that many requests; None when the pool is given.

        Everything but the pool stays as it is.
        """
        if self.device_bytes is None:
            return None
        fixed = sum(size for _, size in self.lines[1:-1])
        return (fixed + requests * self.request_bytes(tokens)) / self.device_bytes

    def refusal(self, max_model_len: int) -> str | None:
        """Why the engine would not start with `max_model_len`, in vLLM's two numbers, or None."""
        has = self.largest_max_model_len
        if self.shape is None and self.blocks(max_model_len) * self.block_size <= has:
            return None
        if self.shape is not None and max_model_len <= has:
            return None
        room = "raise gpu_memory_utilization"
        if self.device_bytes is None:
            room = "give the KV cache more (num_gpu_blocks_override, kv_cache_memory_bytes)"
        return (
            f"max_model_len {max_model_len:,} does not fit: one request of that length needs "
            f"{max_model_len:,} tokens ({self.request_bytes(max_model_len) / GIB:.2f} GiB), the KV cache has "
            f"{has:,} ({self._bytes(has) / GIB:.2f} GiB). The engine refuses to start; the largest "
            f"max_model_len that fits is {has:,}. Lower max_model_len or {room}."
        )

    def render(self, max_model_len: int | None = None) -> str:
        """The budget as text, ending in vLLM's own start-up lines (the second one needs `max_model_len`)."""
        table = [f"{label:<{_LABEL_WIDTH}}{value / GIB:9.2f} GiB" for label, value in self.lines]
        product = f" = {self.factors}" if self.factors else ""
        table.append(f"{'KV bytes per token and GPU':<{_LABEL_WIDTH}}{self.bytes_per_token:9,} B{product}")
        table.extend(f"  {kind}" for kind in self.kinds)
        blocks = f"{self.num_gpu_blocks:9,} of {self.block_size} tokens"
        table.append(f"{'KV blocks':<{_LABEL_WIDTH}}{blocks}")
        table.extend(f"  {stage}" for stage in self.stages)
        if max_model_len is not None:
            size = self.request_bytes(max_model_len)
            label = f"KV of one {max_model_len:,}-token request"
            table.append(f"{label:<{_LABEL_WIDTH}}{size / GIB:9.3f} GiB ({size / 1e9:.3f} GB)")
        table.append(f"GPU KV cache size: {self.printed_tokens(max_model_len):,} tokens")
        if max_model_len is not None:
            table.append(self.concurrency_line(max_model_len))
            if refusal := self.refusal(max_model_len):
                table.append(refusal)
        return "\n".join(table)

    def concurrency_line(self, tokens: float) -> str:
        """vLLM's line for requests of `tokens` tokens, rounded up to whole ones."""
        whole = math.ceil(tokens)
        return f"Maximum concurrency for {whole:,} tokens per request: {self.max_concurrency(whole):.2f}x"
