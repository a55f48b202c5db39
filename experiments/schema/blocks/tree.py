"""The `serve.draft_tree:` block: a tree of drafts in place of a chain. Not vLLM V1's, which drafts chains."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import Field

from specfleet.experiments.schema.blocks.base import MOST_DRAFTS, Block, Drafts

_Rank: TypeAlias = Annotated[int, Field(ge=0, lt=MOST_DRAFTS)]


class SglangTree(Block):
    """SGLang's three parameters."""

    steps: Annotated[int, Field(ge=1, le=64)]
    """speculative_num_steps: draft passes."""
    topk: Annotated[int, Field(ge=1, le=64)]
    """speculative_eagle_topk: candidates of a node, and nodes that grow further in a pass."""
    num_draft_tokens: Annotated[int, Field(ge=2, le=MOST_DRAFTS)]
    """speculative_num_draft_tokens: tokens verified, the last known one included."""


class DraftTree(Block):
    """Which nodes are verified: exactly one of `shape`, `paths`, `optimal` and `sglang`.

    A tree is static. What SGLang and EAGLE-2 choose round by round is taken as the tree they keep at mean
    confidence.
    """

    shape: Annotated[tuple[Drafts, ...], Field(min_length=1, max_length=MOST_DRAFTS)] | None = None
    """Children of every node, depth by depth: [2, 2, 2] has 14 nodes."""
    paths: Annotated[tuple[tuple[_Rank, ...], ...], Field(min_length=1, max_length=MOST_DRAFTS)] | None = None
    """Nodes as paths of ranks from the root: [[0], [1], [0, 0]] has 3."""
    optimal: Drafts | None = None
    """So many nodes, chosen for the most expected tokens at the mean acceptance."""
    max_depth: Drafts | None = None
    """Of `optimal`: draft passes at most; the positions of the acceptance, or 8, if left out."""
    sglang: SglangTree | None = None
    by_rank: Annotated[tuple[Annotated[float, Field(ge=0, le=1)], ...], Field(min_length=1)] | None = None
    """P(the draft of rank 1, 2, .. is accepted, its parent was); an assumed law if left out: the second
    accepts 0.42 of what the first rejects, each further half of the one before."""

    @property
    def given(self) -> list[str]:
        """Forms that are given; exactly one may be."""
        return [key for key in ("shape", "paths", "optimal", "sglang") if getattr(self, key) is not None]
