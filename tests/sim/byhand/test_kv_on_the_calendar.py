"""KV that a price or a policy reads, on the calendar: by hand for one request, as stepped for many."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from sim_toys import SPREAD, ToyCost, World, drafting

from specfleet.hardware.stepcost import StepShape
from specfleet.sim.simulation import RunResult, simulate
from specfleet.sim.speculation.policy import PolicySpec
from specfleet.workloads.requests import RequestTable

SEEN = ("start_s", "end_s", "tokens", "kv_tokens", "kv_tokens_in_window", "draft_tokens")


@dataclass(frozen=True)
class Reads(ToyCost):
    """Reads the KV of windowed and of full layers, and pays for each token by what it attends to."""

    window_s: float = 1e-4
    full_s: float = 1e-6
    pair_s: float = 0.0

    def seconds(self, shape: StepShape) -> float:
        read = self.window_s * shape.kv_tokens_in_window + self.full_s * shape.kv_tokens
        return 0.01 + read + self.pair_s * shape.tokens * shape.kv_tokens


def same(fast: RunResult, stepped: RunResult) -> None:
    assert fast.stepped_share == 0.0 and stepped.stepped_share == 1.0
    for name in SEEN:
        assert np.array_equal(fast.iterations[name], stepped.iterations[name]), name


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_windowed_layer_reads_what_is_known_up_to_its_window(asynchronous: bool) -> None:
    engine = replace(drafting(0), sliding_window=20, async_scheduling=asynchronous)
    for prompt in (5, 17, 30):
        world = World([prompt], [8], engine=engine, cost=Reads())
        fast = world.run()
        same(fast, world.run(engine="step"))
        context = prompt + 1 + np.arange(7)
        decode = fast.iterations["decode_sequences"] == 1
        took = (fast.iterations["end_s"] - fast.iterations["start_s"])[decode][:7]
        assert took == pytest.approx(0.01 + 1e-4 * np.minimum(context, 20) + 1e-6 * context)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("gap_s", [0.0, 0.11], ids=["at once", "one by one"])
@pytest.mark.parametrize(("k", "budget"), [(0, 4096), (3, 4096), (0, 24), (3, 33)])
def test_so_do_many_with_drafts_and_prompts_in_pieces(
    k: int, budget: int, gap_s: float, asynchronous: bool
) -> None:
    """Pieces of one token among them, which count as decode rows."""
    engine = replace(
        drafting(k),
        sliding_window=20,
        async_scheduling=asynchronous,
        max_num_seqs=5,
        max_num_batched_tokens=budget,
    )
    prompts, outputs = [2 + 7 * i % 60 for i in range(24)], [1 + 5 * i % 30 for i in range(24)]
    arrival_s = [gap_s * i for i in range(24)]
    world = World(prompts, outputs, arrival_s=arrival_s, engine=engine, cost=Reads(), acceptance=SPREAD)
    same(world.run(), world.run(engine="step"))


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("window", [0, 16])
def test_a_policy_is_told_the_kv_that_the_scheduler_holds(window: int, asynchronous: bool) -> None:
    """A draft is dearer the more KV there is, so goodput shortens K step by step."""
    engine = replace(drafting(4), async_scheduling=asynchronous, sliding_window=window)
    world = World([20] * 6, [60] * 6, engine=engine, cost=Reads(pair_s=1.2e-5), acceptance=SPREAD)
    scenario = replace(world.scenario({"": SPREAD}), policy=PolicySpec("goodput"))
    table = RequestTable.of([20] * 6, [60] * 6)
    fast, stepped = (simulate(scenario, table, 0, way) for way in ("auto", "step"))
    drafts = fast.iterations["draft_tokens"] / np.maximum(fast.iterations["decode_sequences"], 1)
    assert len(np.unique(drafts)) >= 3
    same(fast, stepped)
