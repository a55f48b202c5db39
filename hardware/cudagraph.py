"""CUDA-graph ladders: a step is padded up to the next captured size."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

Ladder = Sequence[Sequence[int]]
"""Runs of captured sizes, each (first, last, step)."""

VLLM_LADDER: Ladder = ((1, 2, 1), (4, 4, 1), (8, 248, 8), (256, 1024, 16))
"""1, 2, 4, 8 to 248 by 8, 256 and up by 16. Source: vLLM `compilation` defaults."""


def capture_sizes(
    max_capture_tokens: int,
    query_len: int,
    *,
    ladder: Ladder = VLLM_LADDER,
    counts_sequences: bool = False,
    rounds_to_query: bool = True,
) -> tuple[int, ...]:
    """Captured sizes in tokens up to `max_capture_tokens`, in growing order.

    `query_len` is 1 + drafts. With `rounds_to_query` (vLLM) every rung is rounded up to a multiple of it, so
    that a uniform batch fits, and rungs beyond the maximum are dropped. With `counts_sequences` (SGLang,
    TensorRT-LLM) a rung is a number of sequences, each of `query_len` tokens.
    """
    if query_len < 1:
        raise ValueError(f"query_len is {query_len}; it is 1 + num_speculative_tokens, so at least 1")
    rungs = [size for first, last, step in ladder for size in range(first, last + 1, step)]
    if counts_sequences:
        sizes = {size * query_len for size in rungs}
    else:
        multiple = query_len if rounds_to_query else 1
        sizes = {-(-size // multiple) * multiple for size in rungs if size <= max_capture_tokens}
    return tuple(sorted(size for size in sizes if size <= max_capture_tokens))


def padded(tokens: int, sizes: Sequence[int]) -> int:
    """Tokens that run: the next captured size, or `tokens` itself above the last one (eager, no graph)."""
    place = bisect_left(sizes, tokens)
    return sizes[place] if place < len(sizes) else tokens
