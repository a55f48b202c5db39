"""Replay: a request accepts what a recorded request accepted at the same place of its output.

A trace says, for every output position p, how many drafts would be accepted if drafting started
with p tokens written. A round with p tokens written accepts min(trace[p], K) and goes on behind its
own token: exact for every K, for a K that changes, and whatever steps without a draft lie between.
Output longer than its trace starts the trace again.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from specfleet.sim.speculation.spread import F64

Trace = bytes
"""Accepted drafts by output position, at most `MOST` each; `NO_MATCH` where nothing is proposed."""

NO_MATCH = 255
MOST = 254


def placed(trace: Trace, output_tokens: int) -> Trace:
    """Returns a trace repeated and cut to positions 0 .. `output_tokens`."""
    return (trace * (output_tokens // len(trace) + 1))[: output_tokens + 1]


def walk(trace: Trace, k: int, output_tokens: int, start: int = 1) -> Iterator[tuple[int, int]]:
    """Yields (position, accepted or `NO_MATCH`) of each sampling step after the first, K drafts a round.

    Args:
        trace: of the request.
        k: drafts a round.
        output_tokens: steps are taken while fewer tokens than that are written.
        start: tokens written before the first round; the prefill writes 1.
    """
    at, turns = start, len(trace)
    while at < output_tokens:
        accepted = trace[at % turns]
        if accepted == NO_MATCH:
            yield at, NO_MATCH
            at += 1
        else:
            kept = min(accepted, k)
            yield at, kept
            at += 1 + kept


def rounds_of(trace: Trace, k: int, output_tokens: int, start: int = 1) -> bytes:
    """Returns the drafts accepted in a request's successive rounds; steps without a match are none."""
    return bytes(kept for _, kept in walk(trace, k, output_tokens, start) if kept != NO_MATCH)


def survival_of(traces: tuple[Trace, ...], k: int) -> F64:
    """Returns P(first i drafts accepted), pooled over the rounds of all traces walked with K drafts."""
    rounds = np.frombuffer(b"".join(rounds_of(trace, k, len(trace), start=0) for trace in traces), np.uint8)
    return np.array([np.mean(rounds >= i) if len(rounds) else 0.0 for i in range(1, k + 1)])
