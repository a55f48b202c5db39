"""Draft trees: expected tokens, the best tree of N nodes, SGLang's parameters, and trees against chains."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specfleet.sim.speculation.theory import expected_tokens, survival
from specfleet.sim.speculation.trees import (
    MEDUSA_63,
    SEQUOIA_68M,
    ConfidenceTree,
    TreeSpec,
    by_children,
    chain,
    least_nodes_for_a_tree,
    optimal,
    pool_size,
    rank_vector,
    rank_vectors,
    shape,
)

ALPHAS = st.floats(0.05, 0.98)


@st.composite
def falling_vectors(draw: st.DrawFn, most: int = 6) -> tuple[float, ...]:
    """Acceptance by rank: falling, with a sum of at most 1."""
    weights = draw(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=most))
    return tuple(sorted((w / (sum(weights) + 0.05) for w in weights), reverse=True))


@st.composite
def trees(draw: st.DrawFn) -> TreeSpec:
    """A tree of up to 20 nodes: each new node is a next child of one there is."""
    children: dict[tuple[int, ...], int] = {(): 1}
    nodes: list[tuple[int, ...]] = [(), (0,)]
    for _ in range(draw(st.integers(0, 19))):
        parent = draw(st.sampled_from(nodes))
        rank = children.get(parent, 0)
        children[parent] = rank + 1
        nodes.append((*parent, rank))
    return by_children(children)


@given(trees(), ALPHAS)
@settings(deadline=None)
def test_expected_tokens_are_one_and_the_survival_of_every_depth(tree: TreeSpec, alpha: float) -> None:
    vector = rank_vector(alpha, 30)
    survivors = tree.survival(vector)
    assert tree.expected_tokens(vector) == pytest.approx(1 + sum(survivors))
    assert len(survivors) == tree.num_nodes and not any(survivors[tree.depth :])
    assert all(a >= b - 1e-12 for a, b in zip([1.0, *survivors], survivors, strict=False))


@given(trees(), falling_vectors(most=4))
@settings(max_examples=20, deadline=None, derandomize=True)
def test_survival_is_what_walking_the_tree_gives(tree: TreeSpec, vector: tuple[float, ...]) -> None:
    vector = (*vector, *[0.0] * 20)
    ranks = np.searchsorted(
        np.cumsum(vector), np.random.default_rng(0).random((20_000, tree.depth)), side="right"
    )
    nodes = set(tree.paths)
    depths, moved = np.zeros(20_000, dtype=int), 0
    for row, continuation in enumerate(map(tuple, ranks.tolist())):
        while depths[row] < tree.depth and continuation[: depths[row] + 1] in nodes:
            depths[row] += 1
            moved += any(continuation[: depths[row]])
    measured = [np.mean(depths >= d) for d in range(1, tree.num_nodes + 1)]
    assert measured == pytest.approx(tree.survival(vector), abs=0.02)
    assert moved / 20_000 == pytest.approx(tree.kv_moved_tokens(vector), abs=0.06)


@given(ALPHAS, st.integers(1, 12))
@settings(deadline=None)
def test_a_chain_is_the_tree_of_first_ranks(alpha: float, k: int) -> None:
    tree = chain(k)
    assert tree.survival(alpha) == pytest.approx(survival(alpha, k))
    assert tree.expected_tokens(alpha) == pytest.approx(expected_tokens(alpha, k))
    assert (tree.num_nodes, tree.depth, tree.width, tree.kv_moved_tokens(alpha)) == (k, k, 1, 0.0)


def dynamic_programme(nodes: int, vector: tuple[float, ...], max_depth: int) -> float:
    """Sequoia's: the best expected tokens of a tree with `nodes` nodes besides the root."""

    @cache
    def tree(nodes: int, depth: int) -> float:
        return 1.0 + children(nodes, 0, depth)

    @cache
    def children(nodes: int, rank: int, depth: int) -> float:
        """Best value of `nodes` nodes among the children from `rank` on and below them."""
        if nodes == 0:
            return 0.0
        if depth == 0 or rank == len(vector):
            return -math.inf
        return max(
            vector[rank] * tree(taken - 1, depth - 1) + children(nodes - taken, rank + 1, depth)
            for taken in range(1, nodes + 1)
        )

    return tree(nodes, max_depth)


@given(falling_vectors(), st.integers(1, 30), st.integers(2, 30))
@settings(max_examples=40, deadline=None)
def test_best_first_insertion_equals_the_dynamic_programme(
    vector: tuple[float, ...], nodes: int, max_depth: int
) -> None:
    best = dynamic_programme(nodes, vector, max_depth)
    if best == -math.inf:
        with pytest.raises(ValueError, match="allow"):
            optimal(nodes, vector, max_depth)
    else:
        assert optimal(nodes, vector, max_depth).expected_tokens(vector) == pytest.approx(best)


@pytest.mark.parametrize("nodes", [3, 7, 15, 30])
def test_the_best_tree_of_sequoias_vector_equals_the_dynamic_programme(nodes: int) -> None:
    tree = optimal(nodes, SEQUOIA_68M)
    assert tree.num_nodes == nodes
    assert tree.expected_tokens(SEQUOIA_68M) == pytest.approx(dynamic_programme(nodes, SEQUOIA_68M, 30))


@pytest.mark.parametrize(
    ("alpha", "table"),
    [
        (0.5, ((1.88, 1.96), (1.97, 2.19), (2.00, 2.57), (2.00, 3.09), (2.00, 3.58))),
        (0.6, ((2.18, 2.18), (2.38, 2.47), (2.49, 2.90), (2.50, 3.50), (2.50, 4.06))),
        (0.7, ((2.53, 2.53), (2.94, 2.94), (3.27, 3.44), (3.33, 4.14), (3.33, 4.86))),
        (0.8, ((2.95, 2.95), (3.69, 3.69), (4.57, 4.57), (4.98, 5.42), (5.00, 6.32))),
    ],
)
def test_expected_tokens_of_the_best_tree_and_the_chain_at_equal_nodes(
    alpha: float, table: tuple[tuple[float, float], ...]
) -> None:
    for nodes, (of_chain, of_tree) in zip((3, 5, 10, 25, 60), table, strict=True):
        assert chain(nodes).expected_tokens(alpha) == pytest.approx(of_chain, abs=0.005001)
        assert optimal(nodes, alpha).expected_tokens(alpha) == pytest.approx(of_tree, abs=0.005001)


@pytest.mark.parametrize(("acceptance", "nodes"), [(0.5, 3), (0.6, 4), (0.7, 6), (0.8, 12), (SEQUOIA_68M, 5)])
def test_the_published_drafters_need_this_many_nodes_for_a_tree(
    acceptance: float | tuple[float, ...], nodes: int
) -> None:
    assert least_nodes_for_a_tree(acceptance) == nodes


@pytest.mark.parametrize("alpha", [0.3, 0.45, 0.5, 0.6, 0.634, 0.7, 0.77, 0.8, 0.85, 0.9])
def test_a_tree_beats_the_chain_of_as_many_nodes_exactly_from_there_on(alpha: float) -> None:
    least = least_nodes_for_a_tree(alpha)
    for nodes in range(1, 40):
        gain = optimal(nodes, alpha).expected_tokens(alpha) - chain(nodes).expected_tokens(alpha)
        assert (gain > 1e-9) == (nodes >= least)
        assert gain > -1e-9


@pytest.mark.parametrize("nodes", [3, 4, 5])
@pytest.mark.parametrize("alpha", [0.7, 0.8, 0.9])
def test_at_the_nodes_of_a_served_chain_and_alpha_from_070_no_tree_is_better(
    nodes: int, alpha: float
) -> None:
    assert optimal(nodes, alpha) == chain(nodes)


def test_a_sure_draft_or_a_lone_rank_never_needs_a_tree() -> None:
    assert least_nodes_for_a_tree(1.0) == math.inf
    assert least_nodes_for_a_tree([0.5]) == math.inf


VICUNA_HEADS = {
    "7b": ((0.5604, 0.6717, 0.7271, 0.7599, 0.7799), (0.3164, 0.4236, 0.4851, 0.5282, 0.5625),
           (0.2010, 0.2879, 0.3475, 0.3834, 0.4169), (0.1474, 0.2250, 0.2737, 0.3109, 0.3397)),
    "13b": ((0.5939, 0.7053, 0.7578, 0.7925, 0.8161), (0.3397, 0.4400, 0.5068, 0.5465, 0.5803),
            (0.2161, 0.3085, 0.3612, 0.4030, 0.4364), (0.1500, 0.2317, 0.2878, 0.3234, 0.3541)),
    "33b": ((0.6046, 0.7162, 0.7649, 0.7983, 0.8223), (0.3558, 0.4690, 0.5287, 0.5692, 0.5961),
            (0.2246, 0.3197, 0.3785, 0.4210, 0.4462), (0.1596, 0.2488, 0.3073, 0.3480, 0.3755)),
}  # fmt: skip
"""Top-1 to 5 accuracy of four Medusa heads in training (FasterDecoding/Medusa, `assets/medusa_acc.csv`)."""


@pytest.mark.parametrize(
    ("size", "of_chain", "of_tree"), [("7b", 1.78, 2.49), ("13b", 1.85, 2.60), ("33b", 1.88, 2.62)]
)
def test_medusas_heads_give_its_published_lengths_on_its_own_tree(
    size: str, of_chain: float, of_tree: float
) -> None:
    heads = []
    for top in VICUNA_HEADS[size]:
        ranks = np.diff([0.0, *top]).tolist()
        heads.append([*ranks, *(ranks[-1] * 0.8**n for n in range(1, 6))])  # ranks 6 to 10 are not published
    assert (MEDUSA_63.num_nodes, MEDUSA_63.depth) == (63, 4)
    assert MEDUSA_63.expected_tokens(heads) == pytest.approx(of_tree, abs=0.012)
    assert chain(4).expected_tokens(heads) == pytest.approx(of_chain, abs=0.006)


def test_the_tree_222_has_14_nodes_and_widening_passes() -> None:
    tree = shape([2, 2, 2])
    assert (tree.num_nodes, tree.depth, tree.pass_tokens, tree.width) == (14, 3, (1, 2, 4), 4)
    assert tree.paths[:3] == ((0,), (0, 0), (0, 0, 0))
    both = 0.7 + 0.42 * 0.3
    assert tree.survival(0.7) == pytest.approx([both, both**2, both**3] + [0.0] * 11)
    assert tree.kv_moved_tokens(0.7) == pytest.approx(both + both**2 + both**3 - 0.7 - 0.49 - 0.343)


@given(st.integers(1, 5), st.integers(2, 4), ALPHAS, st.data())
@settings(max_examples=60, deadline=None)
def test_sglangs_tree_lies_between_chain_and_best_tree(
    steps: int, topk: int, alpha: float, data: st.DataObject
) -> None:
    nodes = data.draw(st.integers(steps, min(pool_size(steps, topk), 30)))
    tree = ConfidenceTree(steps, topk, nodes + 1).static(alpha)
    assert tree.num_nodes == nodes and tree.depth <= steps
    assert max(tree.pass_tokens) <= topk
    reached = tree.expected_tokens(alpha)
    assert chain(steps).expected_tokens(alpha) - 1e-9 <= reached
    ranks = rank_vector(alpha, topk)
    assert reached <= optimal(nodes, ranks, steps).expected_tokens(ranks) + 1e-9


@pytest.mark.parametrize(
    ("steps", "topk", "num_draft_tokens", "pool"),
    [(5, 4, 8, 68), (3, 1, 4, 3), (1, 1, 2, 1), (6, 10, 60, 510), (8, 10, 60, 710)],
)
def test_sglangs_three_parameters_map_to_nodes_and_a_pool(
    steps: int, topk: int, num_draft_tokens: int, pool: int
) -> None:
    tree = ConfidenceTree(steps, topk, num_draft_tokens)
    assert (tree.num_nodes, tree.depth, tree.width) == (num_draft_tokens - 1, steps, topk)
    assert pool_size(steps, topk) == pool
    assert len(tree.survival(0.7)) == num_draft_tokens - 1


def test_topk_1_is_the_chain_of_as_many_steps() -> None:
    for concentration in (5.0, math.inf):
        tree = ConfidenceTree(3, 1, 4, concentration)
        assert tree.survival(0.7) == pytest.approx(survival(0.7, 3), abs=5e-3)
        assert tree.kv_moved_tokens(0.7) == 0.0


@given(st.floats(0.35, 0.95), st.integers(2, 4))
@settings(max_examples=10, deadline=None, derandomize=True)
def test_with_every_candidate_kept_confidence_changes_nothing(alpha: float, topk: int) -> None:
    everything = pool_size(1, topk) + 1
    for concentration in (2.0, 20.0):
        tree = ConfidenceTree(1, topk, everything, concentration)
        assert tree.expected_tokens(alpha) == pytest.approx(1 + sum(rank_vector(alpha, topk)), abs=2e-3)


@pytest.mark.parametrize("alpha", [0.5, 0.7, 0.8])
def test_the_more_confidence_varies_the_more_a_tree_gains_by_following_it(alpha: float) -> None:
    even, some, much = (
        ConfidenceTree(6, 10, 60, concentration).expected_tokens(alpha)
        for concentration in (math.inf, 18.0, 2.0)
    )
    assert even < some < much < 1.1 * even
    assert even <= optimal(59, alpha, 6).expected_tokens(alpha) + 1e-9


def test_a_confident_tree_that_varies_little_is_the_static_one() -> None:
    varying, static = ConfidenceTree(4, 3, 12, 1e5), ConfidenceTree(4, 3, 12)
    assert varying.survival(0.65) == pytest.approx(static.survival(0.65), abs=0.01)
    assert varying.kv_moved_tokens(0.65) == pytest.approx(static.kv_moved_tokens(0.65), abs=0.02)
    assert varying.survival(0.65) == varying.survival(0.65)


@given(st.floats(0.0, 1.0), st.integers(1, 12))
@settings(deadline=None)
def test_acceptance_by_rank_falls_and_leaves_the_target_a_say(alpha: float, ranks: int) -> None:
    vector = rank_vector(alpha, ranks)
    assert vector[0] == alpha and len(vector) == ranks
    assert list(vector) == sorted(vector, reverse=True) and sum(vector) <= 1.0 + 1e-12
    assert (
        rank_vectors(alpha, 3, ranks)
        == rank_vectors(vector, 3, ranks)
        == rank_vectors([vector] * 3, 3, ranks)
    )


def test_a_tree_given_in_any_order_is_kept_in_preorder() -> None:
    assert TreeSpec(((1,), (0,), (0, 0))) == TreeSpec(((0,), (0, 0), (1,))) == by_children({(): 2, (0,): 1})


@pytest.mark.parametrize(
    ("faulty", "said"),
    [
        (lambda: chain(0), "at least one node"),
        (lambda: TreeSpec(((0,), (0,))), "each node once"),
        (lambda: TreeSpec(((0,), (1, 0))), r"\[1, 0\] has no parent"),
        (lambda: TreeSpec(((-1,),)), "no parent"),
        (lambda: shape([3]).survival([0.6, 0.2]), "2 ranks at depth 1"),
        (lambda: shape([1, 1]).survival([[0.6]]), "1 depths, the tree has 2"),
        (lambda: shape([2]).survival([0.8, 0.4]), "at most one sibling"),
        (lambda: shape([1]).survival([]), "0 depths"),
        (lambda: optimal(3, [0.3, 0.5]), "rises"),
        (lambda: optimal(4, [0.5, 0.2], max_depth=1), "allow 2 nodes, not 4"),
        (lambda: ConfidenceTree(3, 1, 6), "must be steps [+] 1 = 4"),
        (lambda: ConfidenceTree(1, 2, 4), "the 2 candidates of 1 steps"),
        (lambda: ConfidenceTree(0, 2, 4), "positive"),
        (lambda: ConfidenceTree(2, 2, 4, concentration=0.0), "positive"),
        (lambda: ConfidenceTree(2, 3, 4).survival([0.5, 0.2]), "2 ranks, topk is 3"),
    ],
)
def test_an_impossible_tree_is_refused_with_the_reason(faulty: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        faulty()
