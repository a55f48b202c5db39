"""The luck of look-ups that may find nothing, for many requests at once.

Asynchronous engines verify K drafts in every step, and of a look-up that found nothing none is accepted
(`Lives.accepted`). Whether a step finds drafts is a two-state chain of the request; the n-th step that does
takes the n-th draw of its rounds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from specfleet.sim.speculation.acceptance import ONE, Chain
from specfleet.sim.speculation.bursts import states_each
from specfleet.sim.speculation.luck import I64, PROPOSAL, ROUND, VAIN, draws_each

U8 = npt.NDArray[np.uint8]
U64 = npt.NDArray[np.uint64]


def gains(seed: int, ids: I64, chains: Sequence[Chain], bounds: U64, hashes: I64) -> U8:
    """Returns tokens by step (1 + accepted), one request after another, from its first step on.

    Args:
        seed: of the luck.
        ids: requests, shape `(n,)`.
        chains: of each, when its steps find drafts.
        bounds: what a round's draw must stay below to accept draft 1, 2, ..: shape `(n, positions)`.
        hashes: half the steps of each, at least 1.
    """
    starts = 2 * (np.cumsum(hashes) - hashes)
    of = np.repeat(np.arange(len(ids)), 2 * hashes)
    found, hot = _found(seed, ids, chains, hashes)
    before: I64 = np.cumsum(found) - found
    hits = np.flatnonzero(found)
    request = of[hits]
    round_of_hit: I64 = before[hits] - before[starts][request]
    draws = draws_each(seed, ids, ROUND, hashes)[starts[request] + round_of_hit]
    accepted = np.zeros(len(hits), dtype=np.uint8)
    for place in range(bounds.shape[1]):
        accepted += draws < bounds[request, place]
    if found is not hot:
        accepted *= hot[hits]
    tokens = np.ones(len(of), dtype=np.uint8)
    tokens[hits] += accepted
    return tokens


def found(seed: int, ids: I64, chains: Sequence[Chain], hashes: I64) -> npt.NDArray[np.bool_]:
    """Returns whether each step finds drafts; arguments as `gains`."""
    return _found(seed, ids, chains, hashes)[0]


def _found(
    seed: int, ids: I64, chains: Sequence[Chain], hashes: I64
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Returns whether each step finds drafts, and whether it copies; the same object where all finds copy."""
    hot = _hot(seed, ids, chains, hashes)
    if not max(chain.vain for chain in chains):
        return hot, hot
    of = np.repeat(np.arange(len(ids)), 2 * hashes)
    in_vain = draws_each(seed, ids, VAIN, hashes) < np.array([c.vain * ONE for c in chains])[of]
    return hot | in_vain, hot


def _hot(seed: int, ids: I64, chains: Sequence[Chain], hashes: I64) -> npt.NDArray[np.bool_]:
    """Returns whether each step of each request is one that copies."""
    share, stay, enter, _ = np.array(chains).T
    more = hashes + 1  # a draw for the state before the first step, and one to spare
    draws = draws_each(seed, ids, PROPOSAL, more) / ONE
    starts = 2 * (np.cumsum(more) - more)
    states = states_each(draws, starts, 2 * more, share, stay, enter)
    steps = np.ones(len(draws), dtype=np.bool_)
    steps[starts], steps[starts + 2 * more - 1] = False, False
    return states[steps]
