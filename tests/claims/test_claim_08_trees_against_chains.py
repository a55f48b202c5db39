"""Claim 8: trees accept more than chains, and pay at small batches only."""

from __future__ import annotations

from pathlib import Path

import pytest
from claim_runs import Outcome, outcome

PRESET = "claim-08-trees-pay-at-small-batches-only"
CHAIN, TREE, WIDE = {"shape": (1, 1, 1)}, {"optimal": 5}, {"optimal": 21}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The preset's run."""
    return outcome(PRESET, tmp_path_factory.mktemp("trees"))


def at(found: Outcome, figure: str, batch: int, tree: object) -> float:
    """A figure of a tree at a batch."""
    return found.figure(figure, max_concurrency=batch, draft_tree=tree, num_speculative_tokens=None)


def test_the_claim_holds(found: Outcome) -> None:
    assert found.missed == []


def test_a_larger_tree_always_accepts_more(found: Outcome) -> None:
    for batch in (1, 8, 16, 64):
        lengths = [at(found, "acceptance_length", batch, tree) for tree in (CHAIN, TREE, WIDE)]
        assert lengths == sorted(lengths)


def test_the_gain_of_a_tree_shrinks_with_the_batch_from_8_sequences_on(found: Outcome) -> None:
    one, *more = [
        at(found, "output_throughput", batch, TREE) / at(found, "output_throughput", batch, CHAIN)
        for batch in (1, 8, 16, 64)
    ]
    assert one == pytest.approx(more[0], rel=0.01)
    assert more == sorted(more, reverse=True) and more[0] > 1.06 > 1 > more[-1]


@pytest.mark.parametrize("alpha", [0.65, 0.8])
def test_of_four_nodes_a_chain_accepts_and_delivers_as_much_as_a_tree(tmp_path: Path, alpha: float) -> None:
    run = outcome(
        PRESET,
        tmp_path,
        "claim=null",
        f"acceptance={{conditional_acceptance: {alpha}, concentration: 50}}",
        "sweep.axes.workload.max_concurrency=[1, 16]",
        "sweep.axes.serve.draft_tree=[{shape: [1, 1, 1, 1]}, {shape: [2, 1]}]",
    )
    for batch in (1, 16):
        chain, tree = (at(run, "acceptance_length", batch, {"shape": s}) for s in ((1, 1, 1, 1), (2, 1)))
        assert chain >= tree
