"""Rules about `serve.draft_tree`."""

from __future__ import annotations

from collections.abc import Iterator

from specfleet.experiments.load.rules.base import Conflict
from specfleet.experiments.point.draft_trees import resolved_tree
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.blocks.serve import Serve, SpeculativeConfig
from specfleet.sim.config import ON_HOST

_BLOCK = "serve.draft_tree"

_WHOLE_OR_NOTHING = ("disable_above_queue", "acceptance_gate", "temperature_gate")
"""Policies that draft all of a tree or none of it."""


def positions_needed(serve: Serve) -> int:
    """Returns the positions that `by_position` must give: K, or of a tree its depth."""
    if serve.draft_tree is not None and serve.draft_tree.paths is not None:
        return max(map(len, serve.draft_tree.paths))
    return (serve.speculative_config.num_speculative_tokens or 0) if serve.speculative_config else 0


def tree_conflicts(config: Experiment) -> Iterator[Conflict]:
    """Everything wrong with the tree of a filled point."""
    serve = config.serve
    block, speculative = serve.draft_tree, serve.speculative_config
    if block is None or speculative is None:
        return
    if len(block.given) != 1:
        yield Conflict.at("must be exactly one of shape, paths, optimal and sglang", _BLOCK)
        return
    if block.max_depth is not None and block.optimal is None:
        yield Conflict.at("belongs to optimal; remove it", f"{_BLOCK}.max_depth")
    try:
        tree = resolved_tree(block, config.acceptance)
    except ValueError as error:
        yield Conflict.at(str(error), _BLOCK, "acceptance")
        return
    if speculative.num_speculative_tokens != tree.num_nodes:
        yield Conflict.at(
            f"{speculative.num_speculative_tokens} are not the {tree.num_nodes} nodes of the tree; leave it "
            "out, or sweep draft_tree instead (0 still means no drafter)",
            "serve.speculative_config.num_speculative_tokens",
            _BLOCK,
        )
    yield from _together(serve, speculative)


def _together(serve: Serve, speculative: SpeculativeConfig) -> Iterator[Conflict]:
    """What a tree cannot be combined with."""
    if speculative.method in ON_HOST or speculative.parallel_drafting:
        how = "parallel drafting" if speculative.parallel_drafting else f"method {speculative.method}"
        yield Conflict.at(f"{how} drafts chains; remove the tree", _BLOCK, "serve.speculative_config")
    if speculative.rejection_sample_method == "synthetic":
        message = "synthetic acceptance is one of chains; give acceptance: instead, or remove the tree"
        yield Conflict.at(message, _BLOCK, "serve.speculative_config.rejection_sample_method")
    chosen = serve.draft_policy.chosen if serve.draft_policy else None
    schedule = speculative.num_speculative_tokens_per_batch_size
    if (chosen and chosen[0] not in _WHOLE_OR_NOTHING) or schedule is not None:
        message = f"a tree is drafted whole or not at all; use {', '.join(_WHOLE_OR_NOTHING)}, or no policy"
        yield Conflict.at(message, "serve.draft_policy", _BLOCK)
