"""How deep the target follows a tree, request by request: from a chain's acceptance to a tree's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specfleet.sim.speculation.spread import F64
from specfleet.sim.speculation.trees import Path, TreeSpec

SECOND_RANK = 0.42
"""Acceptance of the second candidate where the first is rejected, see `trees.rank_vector`."""


def rank_shares(ranks: int, by_rank: Sequence[float] | None = None) -> tuple[float, ...]:
    """Returns what each rank after the first accepts of what the first rejects, shape `(ranks - 1,)`.

    Args:
        ranks: candidates of a node.
        by_rank: acceptance by rank where it was measured; None takes the law of `trees.rank_vector`.

    Raises:
        ValueError: if `by_rank` has fewer ranks.
    """
    if by_rank is None:
        return tuple(SECOND_RANK / 2.0**rank for rank in range(ranks - 1))
    if len(by_rank) < ranks:
        raise ValueError(f"acceptance is given for {len(by_rank)} ranks, the tree has {ranks}")
    rejected = 1.0 - by_rank[0]
    return tuple(p / rejected if rejected else 0.0 for p in by_rank[1:ranks])


def tree_survival(tree: TreeSpec, conditional: F64, by_rank: Sequence[float] | None = None) -> F64:
    """Returns P(accepted depth >= d), shape `(requests, num_nodes)`, 0 below the tree.

    Args:
        tree: the nodes verified.
        conditional: acceptance of first candidates, given the one before, shape `(requests, depth)`.
        by_rank: see `rank_shares`. No rank accepts more than the one before.
    """
    ranks = 1 + max(map(max, tree.paths))
    shares = rank_shares(ranks, by_rank)
    by_depth: list[list[F64]] = []
    for alpha in conditional.T:
        column = [alpha]
        for share in shares:
            column.append(np.minimum(column[-1], share * (1.0 - alpha)))
        by_depth.append(column)
    chance: dict[Path, F64] = {(): np.ones(len(conditional))}
    survival = np.zeros((len(conditional), tree.num_nodes))
    for path in tree.paths:
        chance[path] = chance[path[:-1]] * by_depth[len(path) - 1][path[-1]]
        survival[:, len(path) - 1] += chance[path]
    return np.minimum(survival, 1.0)
