"""CUDA-graph ladders: a step is padded up to the next captured size."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

Ladder = Sequence[Sequence[int]]
"""Runs of captured sizes, each (first, last, step)."""

VLLM_LADDER: Ladder = ((1, 2, 1), (4, 4, 1), (8, 248, 8), (256, 1024, 16))
"""1, 2, 4, 8 to 248 by 8, 256 and up by 16. Source: vLLM `compilation` defaults."""

Tier = tuple[int, int]
"""(1 + drafts, most requests that run with so many)."""


def capture_sizes(
    max_capture_tokens: int,
    query_len: int,
    *,
    ladder: Ladder = VLLM_LADDER,
    counts_sequences: bool = False,
    rounds_to_query: bool = True,
) -> tuple[int, ...]:
    """Captured sizes in tokens up to `max_capture_tokens`, in growing order.

    `query_len` is 1 + drafts. With `rounds_to_query` (vLLM's first runner) every rung is rounded up to a
    multiple of it, so that a uniform batch fits, and rungs beyond the maximum are dropped. With
    `counts_sequences` (SGLang, TensorRT-LLM) a rung is a number of sequences, each of `query_len` tokens.
    """
    if query_len < 1:
        raise ValueError(f"query_len is {query_len}; it is 1 + num_speculative_tokens, so at least 1")
    rungs = [size for first, last, step in ladder for size in range(first, last + 1, step)]
    if counts_sequences:
        return tuple(sorted({size * query_len for size in rungs if size * query_len <= max_capture_tokens}))
    sizes = {size for size in rungs if size <= max_capture_tokens}
    return rounded_sizes(sizes, query_len, max_capture_tokens) if rounds_to_query else tuple(sorted(sizes))


def rounded_sizes(sizes: Iterable[int], query_len: int, max_capture_tokens: int) -> tuple[int, ...]:
    """Sizes rounded up to multiples of `query_len`, those beyond the maximum dropped."""
    multiples = {-(-size // query_len) * query_len for size in sizes}
    return tuple(sorted(size for size in multiples if size <= max_capture_tokens))


def uniform_sizes(tiers: Iterable[Tier], max_capture_tokens: int, ceiling: int) -> tuple[int, ...]:
    """What vLLM 0.33 captures besides, for batches in which everybody has the same number of tokens.

    Of each tier its query length times 1, 2, 4, 8 to 248 by 8, 256 and up by 16 requests, and times its most
    requests, of which `ceiling` at most; without drafts only the largest batch.
    """
    found: set[int] = set()
    for query_len, most in tiers:
        counts = {min(most, ceiling)}
        if query_len > 1:
            counts |= set(capture_sizes(min(most, ceiling), 1, ladder=(*VLLM_LADDER[:3], (256, ceiling, 16))))
        found |= {count * query_len for count in counts}
    return tuple(sorted(size for size in found if size <= max_capture_tokens))


def padded(tokens: int, sizes: Sequence[int]) -> int:
    """Tokens that run: the next captured size, or `tokens` itself above the last one (eager, no graph)."""
    place = bisect_left(sizes, tokens)
    return sizes[place] if place < len(sizes) else tokens


def padding(sizes: Sequence[int], largest: int) -> NDArray[np.int64]:
    """`padded`, by scheduled tokens from 0 (which runs nothing) to `largest`."""
    run = np.arange(largest + 1)
    graphs = np.array(sizes, dtype=np.int64)
    captured = run[: int(graphs[-1]) + 1 if len(graphs) else 0]
    captured[:] = graphs[np.searchsorted(graphs, captured)]
    run[0] = 0
    return run
