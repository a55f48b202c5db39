"""Draft trees: which nodes are verified, and how deep the target follows them.

A node is a path of ranks from the root, the last known token: `(0, 1)` is the second candidate after
the first candidate. A node is accepted if the target's own token is that candidate and its parent was
accepted, so with p(r) the acceptance of rank r after an accepted node

    P(node) = product of p(r) along its path,     P(A >= d) = sum of P over the nodes at depth d,
    expected tokens = 1 + sum of P over all nodes  (Medusa, Cai et al. 2024; Sequoia, Chen et al. 2024).

A chain is the tree of first ranks. Where p falls with the rank, the best tree of N nodes is the N
likeliest paths: a parent is never less likely than its child, so they are a tree, and no other N nodes
have a larger sum.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from specfleet.sim.speculation.spread import beta_quantiles

F64 = npt.NDArray[np.float64]
Path = tuple[int, ...]

RankAcceptance = float | Sequence[float] | Sequence[Sequence[float]]
"""Acceptance by rank: alpha of the first (`rank_vector` gives the others), one vector for every depth,
or one a depth (Medusa's heads)."""

SEQUOIA_68M = (0.634, 0.108, 0.057, 0.022, 0.019, 0.015)
"""Acceptance of the first six ranks in the vector Sequoia ships for a 68M drafter (Chen et al. 2024)."""

_DRAWS = 2048


def rank_vector(alpha: float, ranks: int) -> tuple[float, ...]:
    """Returns acceptance by rank, shape `(ranks,)`: alpha, 0.42 (1 - alpha), and half as much at each next.

    An assumed law for where only alpha is known, on the generous side: the second rank of `SEQUOIA_68M`
    has 0.30 (1 - alpha), that of Medusa's first head 0.25. No rank exceeds the one before.
    """
    second = min(alpha, 0.42 * (1.0 - alpha))
    return (alpha, *(second / 2.0**rank for rank in range(ranks - 1)))


def rank_vectors(acceptance: RankAcceptance, depth: int, ranks: int) -> list[tuple[float, ...]]:
    """Returns a vector for each of `depth` depths; those derived from an alpha have `ranks` ranks.

    Raises:
        ValueError: if a vector leaves [0, 1], sums to more than 1, or is missing.
    """
    if isinstance(acceptance, (int, float)):
        vectors = [rank_vector(acceptance, ranks)] * depth
    else:
        alike = tuple(row for row in acceptance if isinstance(row, (int, float)))
        vectors = [alike] * depth if alike else _by_depth(acceptance)
    if len(vectors) < depth:
        raise ValueError(f"acceptance is given for {len(vectors)} depths, the tree has {depth}")
    for vector in vectors:
        if not vector or min(vector) < 0.0 or sum(vector) > 1.0 + 1e-9:
            raise ValueError(
                f"acceptance by rank {list(vector)} must lie in [0, 1] and sum to at most 1: "
                "at most one sibling is accepted"
            )
    return vectors[:depth]


def _falling(acceptance: RankAcceptance, depth: int, ranks: int) -> list[tuple[float, ...]]:
    """Returns `rank_vectors`, which must fall from rank to rank: the best nodes are then a tree."""
    vectors = rank_vectors(acceptance, depth, ranks)
    for vector in vectors:
        if list(vector) != sorted(vector, reverse=True):
            raise ValueError(f"acceptance by rank {list(vector)} rises; order the ranks by acceptance")
    return vectors


def _by_depth(acceptance: RankAcceptance) -> list[tuple[float, ...]]:
    """Returns the vectors given depth by depth; none where one serves all depths."""
    rows = () if isinstance(acceptance, (int, float)) else acceptance
    return [tuple(row) for row in rows if not isinstance(row, (int, float))]


@dataclass(frozen=True, slots=True)
class TreeSpec:
    """A static tree.

    Args:
        paths: its nodes besides the root, ranks from 0; kept in preorder, the chain of first ranks first,
            which is also the order of their KV slots.

    Raises:
        ValueError: if there is no node, a node twice, or one without its parent.
    """

    paths: tuple[Path, ...]

    def __post_init__(self) -> None:
        nodes = set(self.paths)
        if not nodes or len(nodes) < len(self.paths) or () in nodes:
            raise ValueError("a tree needs at least one node besides its root, and each node once")
        for path in nodes:
            if min(path) < 0 or (len(path) > 1 and path[:-1] not in nodes):
                raise ValueError(f"node {list(path)} has no parent in the tree; ranks count from 0")
        object.__setattr__(self, "paths", tuple(sorted(nodes)))

    @property
    def num_nodes(self) -> int:
        """Tokens verified besides the last known one: vLLM's K, SGLang's num_draft_tokens - 1."""
        return len(self.paths)

    @property
    def depth(self) -> int:
        """Draft passes of an autoregressive drafter, and the most drafts accepted."""
        return max(map(len, self.paths))

    @property
    def pass_tokens(self) -> tuple[int, ...]:
        """Tokens a sequence brings into each draft pass: the nodes of a depth that have children."""
        parents = {path[:-1] for path in self.paths}
        return tuple(sum(len(parent) == depth for parent in parents) for depth in range(self.depth))

    @property
    def width(self) -> int:
        """Most tokens a sequence brings into one draft pass."""
        return max(self.pass_tokens)

    def node_acceptance(self, acceptance: RankAcceptance) -> list[float]:
        """Returns P(accepted) of each node, in the order of `paths`.

        Raises:
            ValueError: if `acceptance` lacks a rank or a depth of the tree.
        """
        ranks = 1 + max(map(max, self.paths))
        vectors = rank_vectors(acceptance, self.depth, ranks)
        chance: dict[Path, float] = {(): 1.0}
        for path in self.paths:
            vector = vectors[len(path) - 1]
            if path[-1] >= len(vector):
                raise ValueError(
                    f"acceptance is given for {len(vector)} ranks at depth {len(path)}, "
                    f"the tree has node {list(path)}"
                )
            chance[path] = chance[path[:-1]] * vector[path[-1]]
        return [chance[path] for path in self.paths]

    def survival(self, acceptance: RankAcceptance) -> list[float]:
        """Returns P(accepted depth >= d) for d = 1 .. num_nodes; 0 below the tree."""
        survivors = [0.0] * self.num_nodes
        for path, chance in zip(self.paths, self.node_acceptance(acceptance), strict=True):
            survivors[len(path) - 1] += chance
        return survivors

    def expected_tokens(self, acceptance: RankAcceptance) -> float:
        """Returns tokens a round: 1 + the sum of the nodes' acceptance."""
        return 1.0 + sum(self.node_acceptance(acceptance))

    def kv_moved_tokens(self, acceptance: RankAcceptance) -> float:
        """Returns accepted nodes a round whose KV must move up: those off the chain of first ranks.

        Each is read and written once, `2 x KV bytes per token`; a chain moves none.
        """
        chances = zip(self.paths, self.node_acceptance(acceptance), strict=True)
        return sum(chance for path, chance in chances if any(path))


def chain(num_speculative_tokens: int) -> TreeSpec:
    """Returns the chain of K drafts."""
    return TreeSpec(tuple((0,) * (depth + 1) for depth in range(num_speculative_tokens)))


def shape(children: Sequence[int]) -> TreeSpec:
    """Returns the tree in which each node at depth d has `children[d]` children: [2, 2, 2] has 14 nodes."""
    level: list[Path] = [()]
    paths: list[Path] = []
    for count in children:
        level = [(*path, rank) for path in level for rank in range(count)]
        paths += level
    return TreeSpec(tuple(paths))


def by_children(children: Mapping[Path, int]) -> TreeSpec:
    """Returns the tree in which each named node, `()` the root, has that many children; the others none."""
    return TreeSpec(tuple((*path, rank) for path, count in children.items() for rank in range(count)))


MEDUSA_63 = by_children(
    {(): 10, (0,): 10, (1,): 7, (2,): 3, (3,): 2}
    | {(rank,): 1 for rank in range(4, 10)}
    | {(0, 0): 10, (0, 1): 3, (0, 2): 2, (1, 0): 2, (2, 0): 1, (0, 0, 0): 2}
    | {(0, rank): 1 for rank in range(3, 8)}
)
"""The topology Medusa ships for Vicuna-7B, as numbers of children: `medusa/model/medusa_choices.py` of
FasterDecoding/Medusa (Apache 2.0)."""


def optimal(num_nodes: int, acceptance: RankAcceptance, max_depth: int | None = None) -> TreeSpec:
    """Returns the tree of `num_nodes` nodes with the most expected tokens, by best-first insertion.

    Args:
        num_nodes: besides the root.
        acceptance: by rank; a node has at most as many children as there are ranks.
        max_depth: draft passes allowed; None is no limit beyond the depths `acceptance` is given for.

    Raises:
        ValueError: if depth and ranks allow fewer nodes, or acceptance rises with the rank.
    """
    depth = max_depth or len(_by_depth(acceptance)) or num_nodes
    vectors = _falling(acceptance, depth, num_nodes)
    frontier: list[tuple[float, Path, float]] = [(-vectors[0][0], (0,), 1.0)]
    paths: list[Path] = []
    while len(paths) < num_nodes:
        if not frontier:
            raise ValueError(f"depth {depth} and the ranks given allow {len(paths)} nodes, not {num_nodes}")
        chance, path, above = heapq.heappop(frontier)
        paths.append(path)
        if len(path) < depth:
            heapq.heappush(frontier, (chance * vectors[len(path)][0], (*path, 0), -chance))
        sibling = path[-1] + 1
        if sibling < len(vectors[len(path) - 1]):
            chance = -above * vectors[len(path) - 1][sibling]
            heapq.heappush(frontier, (chance, (*path[:-1], sibling), above))
    return TreeSpec(tuple(paths))


def least_nodes_for_a_tree(acceptance: float | Sequence[float]) -> float:
    """Returns the fewest nodes with which a tree has more expected tokens than a chain; inf if none.

    The best node off the chain is the root's second candidate, p(2). It beats the chain's N-th node,
    alpha^N, as soon as `N > ln p(2) / ln alpha`. Below that the best tree is the chain.
    """
    alpha, second = (*_falling(acceptance, 1, 2)[0], 0.0)[:2]
    if second == 0.0 or alpha == 1.0:
        return math.inf
    return math.floor(math.log(second) / math.log(alpha)) + 1


def pool_size(steps: int, topk: int) -> int:
    """Returns the candidates of SGLang's three-parameter tree: topk + (steps - 1) topk^2."""
    return topk + (steps - 1) * topk**2


@dataclass(frozen=True, slots=True)
class ConfidenceTree:
    """EAGLE-2's tree in SGLang's parameters: each round keeps the candidates the drafter trusts most.

    The drafter's confidence in a first candidate varies from node to node and is calibrated: it is the
    node's own acceptance, around the mean that `acceptance` gives. Its siblings share the rest in fixed
    proportions. At each depth the `topk` likeliest paths grow `topk` children; of all these,
    `num_draft_tokens - 1` are verified (Li et al., EMNLP 2024).

    Args:
        steps: `speculative_num_steps`, draft passes.
        topk: `speculative_eagle_topk`.
        num_draft_tokens: `speculative_num_draft_tokens`, verified tokens with the root.
        concentration: of the confidence between nodes (a Beta above the least value that keeps the order
            of ranks); inf = every node alike, which is the static tree.

    Raises:
        ValueError: if the parameters fit no tree.
    """

    steps: int
    topk: int
    num_draft_tokens: int
    concentration: float = math.inf

    def __post_init__(self) -> None:
        if min(self.steps, self.topk, self.num_draft_tokens - 1) < 1 or not self.concentration > 0.0:
            raise ValueError("steps, topk, num_draft_tokens - 1 and concentration must be positive")
        pool = pool_size(self.steps, self.topk)
        if self.topk == 1 and self.num_draft_tokens != self.steps + 1:
            raise ValueError(
                f"topk 1 is a chain: num_draft_tokens must be steps + 1 = {self.steps + 1} (SGLang sets it "
                f"itself), not {self.num_draft_tokens}"
            )
        if self.num_draft_tokens - 1 > pool:
            raise ValueError(
                f"num_draft_tokens {self.num_draft_tokens} exceeds the root and the {pool} candidates of "
                f"{self.steps} steps with topk {self.topk}"
            )

    @property
    def num_nodes(self) -> int:
        """Tokens verified besides the last known one."""
        return self.num_draft_tokens - 1

    @property
    def depth(self) -> int:
        """Draft passes."""
        return self.steps

    @property
    def width(self) -> int:
        """Tokens a sequence brings into each draft pass after the first."""
        return self.topk

    def static(self, acceptance: RankAcceptance) -> TreeSpec:
        """Returns the tree kept where every node has the mean confidence of its rank."""
        level: list[tuple[float, Path]] = [(-1.0, ())]
        pool: list[tuple[float, int, Path]] = []
        for vector in self._vectors(acceptance):
            level = [(s * p, (*path, rank)) for s, path in level for rank, p in enumerate(vector)]
            pool += [(score, len(path), path) for score, path in level]
            level = sorted(level)[: self.topk]
        return TreeSpec(tuple(path for _, _, path in sorted(pool)[: self.num_nodes]))

    def survival(self, acceptance: RankAcceptance) -> list[float]:
        """Returns P(accepted depth >= d) for d = 1 .. num_nodes, a mean over 2,048 fixed draws."""
        if math.isinf(self.concentration):
            return self.static(acceptance).survival(acceptance)
        scores, depths, _ = self._kept(acceptance)
        return [float(scores[:, depths == d + 1].sum(axis=1).mean()) for d in range(self.num_nodes)]

    def expected_tokens(self, acceptance: RankAcceptance) -> float:
        """Returns tokens a round."""
        return 1.0 + sum(self.survival(acceptance))

    def kv_moved_tokens(self, acceptance: RankAcceptance) -> float:
        """Returns accepted nodes a round off the chain of first ranks, whose KV must move up."""
        if math.isinf(self.concentration):
            return self.static(acceptance).kv_moved_tokens(acceptance)
        scores, _, first = self._kept(acceptance)
        return float(np.where(first, 0.0, scores).sum(axis=1).mean())

    def _vectors(self, acceptance: RankAcceptance) -> list[tuple[float, ...]]:
        """Returns `topk` ranks for each step."""
        vectors = _falling(acceptance, self.steps, self.topk)
        if min(map(len, vectors)) < self.topk:
            raise ValueError(f"acceptance is given for {min(map(len, vectors))} ranks, topk is {self.topk}")
        return [vector[: self.topk] for vector in vectors]

    def _kept(self, acceptance: RankAcceptance) -> tuple[F64, npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Draws confidences and keeps each draw's best candidates.

        Returns:
            Path acceptance of each candidate, 0 where not kept, shape `(draws, pool)`; its depth, shape
            `(pool,)`; whether it is a first rank all along, shape `(draws, pool)`.
        """
        rng = np.random.default_rng(0)
        score, first = np.ones((_DRAWS, 1)), np.ones((_DRAWS, 1), dtype=bool)
        scores, firsts, depths = [], [], []
        leading = np.arange(self.topk) == 0
        for step, vector in enumerate(self._vectors(acceptance)):
            grown = score[:, :, None] * _confidence(vector, self.concentration, score.shape, rng)
            score = grown.reshape(_DRAWS, -1)
            first = (first[:, :, None] & leading).reshape(_DRAWS, -1)
            scores.append(score)
            firsts.append(first)
            depths += [step + 1] * score.shape[1]
            best = np.argsort(-score, axis=1, kind="stable")[:, : self.topk]
            score, first = np.take_along_axis(score, best, 1), np.take_along_axis(first, best, 1)
        pool = np.concatenate(scores, axis=1)
        rank = np.argsort(np.argsort(-pool, axis=1, kind="stable"), axis=1)
        return np.where(rank < self.num_nodes, pool, 0.0), np.array(depths), np.concatenate(firsts, axis=1)


def _confidence(
    vector: Sequence[float], concentration: float, nodes: tuple[int, ...], rng: np.random.Generator
) -> F64:
    """Draws the acceptance of each node's children, shape `(draws, nodes, ranks)`, with mean `vector`.

    Draws are stratified node by node.
    """
    p = np.array(vector)
    ratio = p / (1.0 - p[0]) if p[0] < 1.0 else np.zeros_like(p)
    second = ratio[1] if len(ratio) > 1 else 0.0
    least = second / (1.0 + second)
    places = rng.permuted(np.tile(np.arange(nodes[0])[:, None], (1, nodes[1])), axis=0)
    u = (places + rng.random(nodes)) / nodes[0]
    first = least + (1.0 - least) * beta_quantiles((p[0] - least) / (1.0 - least), concentration, u)
    children: F64 = (1.0 - first)[:, :, None] * ratio
    children[:, :, 0] = first
    return children
