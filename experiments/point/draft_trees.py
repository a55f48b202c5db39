"""From the `draft_tree:` block to the nodes verified."""

from __future__ import annotations

import operator
from collections.abc import Callable
from itertools import accumulate

import numpy as np

from specfleet.experiments.point.acceptance_specs import acceptance_spec, written_out
from specfleet.experiments.schema.blocks.acceptance import Process, processes
from specfleet.experiments.schema.blocks.base import MOST_DRAFTS
from specfleet.experiments.schema.blocks.tree import DraftTree
from specfleet.sim.speculation import trees
from specfleet.sim.speculation.acceptance import conditional_table, spread_of
from specfleet.sim.speculation.tree_survival import rank_shares
from specfleet.sim.speculation.trees import TreeSpec

_DEEPEST = 8
"""Draft passes of an optimal tree where neither `max_depth` nor measured positions limit them."""

Means = Callable[[int], list[float]]
"""Mean conditional acceptance at so many positions."""


def resolved_tree(block: DraftTree, acceptance: Process | dict[str, Process] | None) -> TreeSpec:
    """Returns the tree of a block for traffic of this acceptance; of several classes, the mean.

    Raises:
        ValueError: as `tree_of`, or without the acceptance that the form needs.
    """
    given = [written_out(process) for process in processes(acceptance).values()]
    lengths = [len(process.by_position) for process in given if process.by_position is not None]

    def means(depth: int) -> list[float]:
        if not given:
            raise ValueError("needs an acceptance: block")
        specs = [acceptance_spec(process) for process in given]
        tables = [conditional_table(spec, depth, spread_of(spec)).mean(axis=0) for spec in specs]
        return list(np.mean(tables, axis=0).tolist())

    return tree_of(block, means, min(lengths) if lengths else None)


def tree_of(block: DraftTree, means: Means, positions: int | None) -> TreeSpec:
    """Returns the tree of a block.

    Args:
        block: with exactly one form.
        means: mean conditional acceptance by position, for the forms that depend on it.
        positions: positions that the acceptance was measured at, None where any number can be had.

    Raises:
        ValueError: if the parameters fit no tree, or the acceptance has too few positions.
    """
    if block.shape is not None:
        nodes = sum(accumulate(block.shape, operator.mul))
        if nodes > MOST_DRAFTS:
            raise ValueError(f"{nodes} nodes; use at most {MOST_DRAFTS}")
        return trees.shape(block.shape)
    if block.paths is not None:
        return TreeSpec(block.paths)
    if block.sglang is not None:
        asked = block.sglang
        tree = trees.ConfidenceTree(asked.steps, asked.topk, asked.num_draft_tokens)
        return tree.static(_vectors(means(asked.steps), asked.topk, block))
    assert block.optimal is not None, "the rules ask for exactly one form"
    depth = min(block.max_depth or positions or _DEEPEST, block.optimal)
    ranks = len(block.by_rank) if block.by_rank else block.optimal
    return trees.optimal(block.optimal, _vectors(means(depth), ranks, block), depth)


def _vectors(alphas: list[float], ranks: int, block: DraftTree) -> list[tuple[float, ...]]:
    """Returns acceptance by rank for each depth."""
    shares = rank_shares(ranks, block.by_rank)
    found = []
    for alpha in alphas:
        falling = np.minimum.accumulate([alpha, *((1.0 - alpha) * share for share in shares)])
        found.append(tuple(falling.tolist()))
    return found
