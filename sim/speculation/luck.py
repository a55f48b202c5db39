"""Luck as a pure function: counter-based random bits.

A draw depends on (seed, request id, purpose, counter) and on nothing else: not on batch order,
replica, window or process. So two policies, two draft lengths or two fleets meet the same luck.
The mixer is the finaliser of splitmix64 (Steele, Lea and Flood, OOPSLA 2014).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]
U32 = npt.NDArray[np.uint32]
I64 = npt.NDArray[np.int64]

LEVEL, ROUND, PROPOSAL, ROUTE, BURST, TIE, VAIN, WORDS, FAILURE, TAKEN_AWAY = range(1, 11)
"""Purposes: a request's own level, its verification rounds, its proposals, its route, its bursts, its place
among outputs of equal length, its proposals in vain; words of synthetic logits; when a replica fails, and
when its instance is taken."""

_MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def _mix_int(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def mix(x: U64) -> U64:
    """Finalises splitmix64 in place, for many numbers at once."""
    shifted = x >> np.uint64(30)
    x ^= shifted
    x *= np.uint64(0xBF58476D1CE4E5B9)
    np.right_shift(x, np.uint64(27), out=shifted)
    x ^= shifted
    x *= np.uint64(0x94D049BB133111EB)
    np.right_shift(x, np.uint64(31), out=shifted)
    x ^= shifted
    return x


def key(seed: int, request_id: int, purpose: int) -> int:
    """Returns the 64-bit key of one stream of draws."""
    return _mix_int((_mix_int((seed * GOLDEN + purpose) & _MASK) + request_id * GOLDEN) & _MASK)


def keys(seed: int, request_ids: I64, purpose: int) -> U64:
    """Returns `key` for many requests."""
    base = np.uint64(_mix_int((seed * GOLDEN + purpose) & _MASK))
    return mix(request_ids.astype(np.uint64) * np.uint64(GOLDEN) + base)


def bits64(stream: int, first: int, count: int) -> U64:
    """Returns draws `first .. first + count` of a stream, 64 bits each, shape `(count,)`."""
    x = np.arange(first + 1, first + 1 + count, dtype=np.uint64)
    x *= np.uint64(GOLDEN)
    x += np.uint64(stream)
    return mix(x)


def bits32(stream: int, count: int) -> U32:
    """Returns the first `count` draws of 32 bits: each 64-bit draw serves two, low half first."""
    return bits64(stream, 0, (count + 1) // 2).view("<u4")[:count]


def draws_each(seed: int, request_ids: I64, purpose: int, hashes: I64, skipped: I64 | None = None) -> U32:
    """Returns `2 * hashes` draws of 32 bits of each request, flat; the counters are one running sum.

    Args:
        seed: of the luck.
        request_ids: shape `(n,)`.
        purpose: of the draws.
        hashes: 64-bit hashes of each, at least 1.
        skipped: hashes of each that come before these; None is none.
    """
    step, streams = np.uint64(GOLDEN), keys(seed, request_ids, purpose)
    if skipped is not None:
        streams += skipped.astype(np.uint64) * step
    x = np.full(int(hashes.sum()), step, dtype=np.uint64)
    starts = np.cumsum(hashes) - hashes
    last = streams + hashes.astype(np.uint64) * step
    x[starts] += streams
    x[starts[1:]] -= last[:-1]
    np.add.accumulate(x, out=x)
    return mix(x).view("<u4")


def bits_once(seed: int, request_id: int, purpose: int) -> int:
    """Returns one 64-bit draw for a request."""
    return _mix_int((key(seed, request_id, purpose) + GOLDEN) & _MASK)


def bits_each(seed: int, request_ids: I64, purpose: int) -> U64:
    """Returns `bits_once` for many requests, shape `(n,)`."""
    return mix(keys(seed, request_ids, purpose) + np.uint64(GOLDEN))
