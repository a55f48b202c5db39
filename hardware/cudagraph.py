"""vLLM's CUDA-graph ladder: a step is padded up to the next captured token count."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


def capture_sizes(max_capture_tokens: int, query_len: int) -> tuple[int, ...]:
    """Captured token counts up to `max_capture_tokens`, in growing order.

    The ladder is 1, 2, 4, 8 to 248 by 8, 256 and up by 16. With speculation every rung is rounded up to a
    multiple of `query_len` = 1 + drafts, so that a uniform batch fits, and rungs beyond the maximum are
    dropped. Source: vLLM `compilation` defaults.
    """
    if query_len < 1:
        raise ValueError(f"query_len is {query_len}; it is 1 + num_speculative_tokens, so at least 1")
    ladder = [1, 2, 4, *range(8, 256, 8), *range(256, max_capture_tokens + 1, 16)]
    rounded = {-(-size // query_len) * query_len for size in ladder if size <= max_capture_tokens}
    return tuple(sorted(size for size in rounded if size <= max_capture_tokens))


def padded(tokens: int, sizes: Sequence[int]) -> int:
    """Tokens that run: the next captured size, or `tokens` itself above the last one (eager, no graph)."""
    place = bisect_left(sizes, tokens)
    return sizes[place] if place < len(sizes) else tokens
