"""Recorded luck, free drafts, the best K and the least tree, worked by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from specfleet.hardware.stepcost import StepShape
from specfleet.sim.speculation.families import EAGLE, LOOK_UP
from specfleet.sim.speculation.oracle import FreeDrafts
from specfleet.sim.speculation.policies_learning import Goodput
from specfleet.sim.speculation.replay import placed, rounds_of
from specfleet.sim.speculation.trees import ConfidenceTree


def test_a_trace_is_repeated_to_the_last_position_and_no_further() -> None:
    assert [placed(b"abc", n) for n in (0, 2, 3, 6)] == [b"a", b"abc", b"abca", b"abcabca"]
    assert rounds_of(bytes([9, 1, 0, 2]), 4, 5) == bytes([1, 2]), "the prefill writes one"
    assert rounds_of(bytes([9, 1, 0, 2]), 4, 5, start=0) == bytes([4])


def test_an_interval_of_a_family_has_two_degrees_more_than_drafters() -> None:
    assert (EAGLE.degrees, LOOK_UP.degrees) == (8.0, 3.0)


def test_steps_of_the_oracle_cost_what_they_would_without_drafts() -> None:
    asked: list[Any] = []
    cost: Any = SimpleNamespace(seconds=asked.append, terms=asked.append)
    shape = StepShape(12, 3, 0, 12, 9, 500, 500, 0, 3)
    free = FreeDrafts(cost)
    free.seconds(shape)
    free.terms({name: np.array([value, value]) for name, value in shape._asdict().items()})
    single, columns = asked
    assert single == StepShape(3, 3, 0, 3, 0, 491, 491, 0, 0)
    assert {name: column.tolist() for name, column in columns.items()} == {
        name: [value] * 2 for name, value in single._asdict().items()
    }


def test_goodput_is_the_most_expected_tokens_a_second_of_whole_rows() -> None:
    asked: list[StepShape] = []

    def seconds(shape: StepShape) -> float:
        asked.append(shape)
        return 1.0 + 0.05 * shape.draft_tokens / shape.decode_sequences

    policy = Goodput(3, SimpleNamespace(seconds=seconds))
    rates = [(1 + sum(0.7**i for i in range(1, k + 1))) / (1 + 0.05 * k) for k in range(4)]
    assert policy.choose(5, 900, 0) == int(np.argmax(rates)) == 3
    assert asked == [StepShape(5 * (1 + k), 5, 0, 5 * (1 + k), 5 * k, 900, 900, 0, k or 1) for k in range(4)]
    assert policy.choose(0, 0, 0) == 3
    dear = Goodput(3, SimpleNamespace(seconds=lambda shape: float(shape.tokens)))
    assert dear.choose(5, 900, 0) == 0


@pytest.mark.parametrize("numbers", [(0, 2, 4), (3, 0, 4), (3, 2, 1), (3, 2, 0)])
def test_a_tree_has_a_pass_a_branch_and_a_draft_at_least(numbers: tuple[int, int, int]) -> None:
    assert ConfidenceTree(3, 2, 2, 0.5).num_draft_tokens == 2
    with pytest.raises(ValueError, match="must be positive"):
        ConfidenceTree(3, 2, 2, 0.0)
    with pytest.raises(ValueError, match="must be positive"):
        ConfidenceTree(*numbers)
