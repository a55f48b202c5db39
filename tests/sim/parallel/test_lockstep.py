"""Data-parallel ranks that step together: steps by hand, against one engine, and against free replicas."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim_toys import ENGINE, SPREAD, ToyCost, World, drafting

from specfleet.hardware.stepcost import StepShape
from specfleet.sim.config import DeploymentConfig, LoadConfig
from specfleet.sim.lockstep import group_seconds, padding
from specfleet.sim.scenario import RunResult

COST = ToyCost(step_s=0.01, token_s=0.001)
"""10 ms and 1 ms a token."""


def together(ranks: int, **changes: object) -> World:
    """A world of ranks in lockstep, one request after another to each."""
    deployment = DeploymentConfig(ranks, "round_robin", ranks)
    return World(**{"cost": COST, "deployment": deployment, **changes})  # type: ignore[arg-type]


def steps(result: RunResult, replica: int) -> list[float]:
    """Start, end and tokens of a replica's steps, one after another."""
    rows = result.iterations
    mine = rows["replica"] == replica
    columns = np.array([rows[name][mine] for name in ("start_s", "end_s", "tokens")])
    return columns.T.ravel().tolist()


def shape(tokens: int, decodes: int = 0) -> StepShape:
    return StepShape(tokens, decodes, 0, decodes, 0, 100 * decodes, 0, 0, 0)


def test_a_step_lasts_as_long_as_the_slowest_rank_at_the_padded_size() -> None:
    assert group_seconds(COST, [shape(4)]) == pytest.approx(0.014)
    assert group_seconds(COST, [shape(4), shape(40)]) == pytest.approx(0.050)

    class Attending(ToyCost):
        """Each decoding row takes 20 ms of attention."""

        def seconds(self, step: StepShape) -> float:
            return super().seconds(step) + 0.02 * step.decode_sequences

    cost = Attending(step_s=0.01, token_s=0.001)
    # 3 rows that attend, padded from 3 to 40 tokens: 10 + 40 + 3 x 20 ms; the prompt alone 10 + 40
    assert group_seconds(cost, [shape(3, 3), shape(40)]) == pytest.approx(0.110)
    assert padding(40, 2) == StepShape(40, 0, 0, 0, 0, 0, 0, 0, 2)


def test_by_hand_a_short_prompt_waits_for_the_other_rank_s_long_one() -> None:
    result = together(2, prompt=[100, 10], output=[3, 2], arrival_s=[0.0, 0.0]).run()
    # prompts: 10 + 100 ms on both; then 10 + 1 ms a token, the last one on rank 0 alone
    assert steps(result, 0) == pytest.approx([0.0, 0.11, 100, 0.11, 0.121, 1, 0.121, 0.132, 1])
    assert steps(result, 1) == pytest.approx([0.0, 0.11, 10, 0.11, 0.121, 1])
    assert "lockstep" in result.stepped_because


def test_by_hand_who_comes_in_the_middle_of_a_step_waits_for_its_end() -> None:
    result = together(2, prompt=[100, 20], output=[1, 1], arrival_s=[0.0, 0.05]).run()
    assert steps(result, 0) == pytest.approx([0.0, 0.11, 100])
    assert steps(result, 1) == pytest.approx([0.11, 0.14, 20])
    assert result.requests["admitted_s"][1] == pytest.approx(0.11)
    free = replace(
        together(2, prompt=[100, 20], output=[1, 1], arrival_s=[0.0, 0.05]),
        deployment=DeploymentConfig(2, "round_robin"),
    ).run()
    assert steps(free, 1) == pytest.approx([0.05, 0.08, 20]), "replicas wait for nobody"


def test_equal_ranks_are_as_fast_as_one_and_idle_ranks_cost_nothing_more() -> None:
    alone = World(prompt=[50], output=[20], cost=COST).run()
    both = together(2, prompt=[50, 50], output=[20, 20]).run()
    one = together(2, prompt=[50], output=[20]).run()
    for result, rows in ((both, 2), (one, 1)):
        ends = result.requests["finished_s"]
        assert ends == pytest.approx(np.full(rows, alone.requests["finished_s"][0]))


@settings(max_examples=40, deadline=None)
@given(
    prompts=st.lists(st.integers(1, 300), min_size=2, max_size=12),
    ranks=st.sampled_from([2, 4]),
    k=st.integers(0, 3),
    ahead=st.booleans(),
    users=st.none() | st.integers(1, 8),
)
def test_ranks_begin_and_end_together_lose_no_token_and_are_no_faster_than_replicas_of_a_burst(
    prompts: list[int], ranks: int, k: int, ahead: bool, users: int | None
) -> None:
    world = together(
        ranks,
        prompt=prompts,
        output=[1 + prompt % 9 for prompt in prompts],
        arrival_s=[0.013 * row for row in range(len(prompts))],
        engine=replace(drafting(k, engine=ENGINE), async_scheduling=ahead),
        acceptance=SPREAD if k else None,
        load=LoadConfig(users),
    )
    result = world.run()
    rows = result.iterations
    ends: dict[float, float] = {}
    for start, end in zip(rows["start_s"].tolist(), rows["end_s"].tolist(), strict=True):
        assert ends.setdefault(start, end) == end, "all who begin at a time end at one"
    for start, end in ends.items():
        assert not [other for other in ends if start < other < end], "nobody begins in the middle of a step"
    assert result.requests["output_tokens"].tolist() == list(world.output)
    # Who comes while steps run may just miss one of a replica's and meet a later one of the ranks', so only
    # where all are there from the start are the batches the same, and each lasts at least as long.
    world = replace(world, arrival_s=[0.0] * len(prompts), load=LoadConfig(None))
    free = replace(world, deployment=DeploymentConfig(ranks, "round_robin")).run()
    assert (world.run().requests["finished_s"] >= free.requests["finished_s"] - 1e-12).all()
