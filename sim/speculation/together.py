"""The luck of a few requests at once: what `Acceptance.accepted` and `proposals` draw for each of them."""

from __future__ import annotations

import numpy as np

from specfleet.sim.speculation.acceptance import ONE, U64, Acceptance
from specfleet.sim.speculation.bursts import states_each
from specfleet.sim.speculation.luck import I64, PROPOSAL, ROUND, draws_each

Bytes = list[bytes]


def accepted_each(seed: int, ids: I64, rounds: I64, thresholds: U64) -> Bytes:
    """Returns the drafts accepted in each request's first rounds, where they are drawn against thresholds.

    Args:
        seed: of the luck.
        ids: requests, shape `(n,)`.
        rounds: to draw of each.
        thresholds: of each, as `Acceptance.thresholds`: shape `(n, k)`.
    """
    hashes = np.maximum((rounds + 1) // 2, 1)
    draws, counts = draws_each(seed, ids, ROUND, hashes), 2 * hashes
    accepted = np.zeros(len(draws), dtype=np.uint8)
    for place in range(thresholds.shape[1]):
        accepted += draws < np.repeat(thresholds[:, place], counts)
    return _cut(accepted.tobytes(), np.cumsum(counts) - counts, rounds)


def proposals_each(drawing: Acceptance, ids: I64, steps: I64) -> Bytes | None:
    """Returns whether each request's first samplings find drafts; None where all do.

    Args:
        drawing: the process of all, with one chain for all of them.
        ids, steps: requests, and samplings of each.
    """
    chain = drawing.chain(0)
    if chain is None:
        return None
    hashes = (steps + 2) // 2
    counts = 2 * hashes
    draws, starts = draws_each(drawing.seed, ids, PROPOSAL, hashes) / ONE, np.cumsum(counts) - counts
    share, stay, enter = (np.full(len(ids), value) for value in chain[:3])
    states = states_each(draws, starts, counts, share, stay, enter)
    return _cut(states.tobytes(), starts + 1, steps)


def _cut(drawn: bytes, starts: I64, counts: I64) -> Bytes:
    return [drawn[a : a + n] for a, n in zip(starts.tolist(), counts.tolist(), strict=True)]
