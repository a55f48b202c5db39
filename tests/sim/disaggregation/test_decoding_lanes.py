"""Replicas that decode prompts computed elsewhere, on the calendar: what it gives is what stepping gives."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from handover_toys import QUEUE, Split, splits
from hypothesis import given, settings
from hypothesis import strategies as st
from sim_toys import ENGINE, SPREAD, SplitCost, drafting

from specfleet.sim.config import LoadConfig
from specfleet.sim.disaggregation.config import LAYERS, STEPPED, HandoverConfig
from specfleet.sim.disaggregation.remote import FULL
from specfleet.sim.disaggregation.run import why_decoding_is_stepped
from specfleet.sim.errors import ASKED_FOR
from specfleet.sim.laws.everywhere import differences
from specfleet.sim.metrics.handover import handover_figures
from specfleet.sim.recorder import FINISHED
from specfleet.sim.scenario import RunResult
from specfleet.sim.simulation import simulate


def both(split: Split, seed: int = 0) -> tuple[RunResult, RunResult]:
    """A run on the calendar, and stepped."""
    return simulate(split.scenario, split.table, seed), simulate(split.scenario, split.table, seed, "step")


@settings(deadline=None, max_examples=60)
@given(splits(), st.integers(0, 99))
def test_decoding_on_the_calendar_is_stepping(split: Split, seed: int) -> None:
    ours, stepped = both(split, seed)
    assert differences(ours, stepped) == []
    for mine, theirs in zip(ours.parts, stepped.parts, strict=True):
        assert differences(mine, theirs) == []
        for name, column in theirs.standing.items():
            assert mine.standing[name].tolist() == column.tolist()


def busy(**more: object) -> Split:
    """Twelve requests on two prefill and two decode replicas, over a link that is slow."""
    handover = HandoverConfig(block_bytes=100, proxy_s=0.01, setup_s=0.002, router="least_outstanding")
    split = Split([40, 90, 20, 70] * 3, [9, 4, 12, 1] * 3, None, 2, 2, handover, 5000.0, cost=SplitCost())
    return replace(split, **more)  # type: ignore[arg-type] # fields by name


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize(
    "more",
    [
        {"load": LoadConfig(4)},
        {"engine": replace(drafting(3), rebuilds_drafter_kv=True), "acceptance": SPREAD},
        {"engine": replace(ENGINE, num_gpu_blocks=14, watermark=0.1)},
        {
            "engine": drafting(3),
            "acceptance": SPREAD,
            "policy": QUEUE,
        },
        {"engine": replace(ENGINE, max_num_seqs=1)},
    ],
    ids=["users", "rebuilt", "back-pressure", "policy", "one seat"],
)
def test_the_calendar_decodes_and_is_stepping(more: dict[str, object], ahead: bool) -> None:
    split = busy(**more)
    split = replace(split, engine=replace(split.engine, async_scheduling=ahead), prefill_engine=ENGINE)
    ours, stepped = both(split, 3)
    assert ours.stepped_because == STEPPED
    assert ours.parts[0].stepped_share == 1.0
    assert ours.parts[1].stepped_share == 0.0
    assert stepped.stepped_because == ASKED_FOR
    assert (ours.requests["status"] == FINISHED).all()
    assert differences(ours, stepped) == []


def test_what_the_calendar_does_not_decode_is_said_and_stepped() -> None:
    looks = HandoverConfig(router="least_kv")
    for split, said in (
        (busy(handover=looks), "the router least_kv looks into engines"),
        (busy(engine=replace(ENGINE, policy="priority")), "priority scheduling"),
    ):
        assert why_decoding_is_stepped(split.scenario, split.table, 0) == said
        run = split.run()
        assert (run.stepped_share, run.stepped_because) == (1.0, said)
    assert why_decoding_is_stepped(busy().scenario, busy().table, 0) == ""


def test_prompts_whose_kv_fills_the_pool_are_stepped() -> None:
    """Two prompts of three blocks each on the six that there are: the first lacks one more."""
    engine = replace(drafting(3), num_gpu_blocks=7)
    split = Split([48, 48], [4, 4], engine=engine, prefill_engine=ENGINE, acceptance=SPREAD)
    run = split.run()
    assert run.stepped_because == FULL
    assert (run.requests["status"] == FINISHED).all()
    assert run.requests["preemptions"].sum() == 1
    figures = handover_figures(run)
    assert figures is not None
    assert figures.kv_given_up == 1


def test_the_only_one_that_runs_does_not_begin_again_for_good() -> None:
    """Behind prompts that hold blocks and wait for its seat it cannot grow past its first block, and is
    thrown out by itself each time: one of them gives its KV up."""
    engine = replace(drafting(3), num_gpu_blocks=12, max_num_seqs=1, max_num_batched_tokens=16)
    prompts, outputs = [83, 87, 86, 18, 46, 39, 40, 5], [17, 12, 12, 13, 7, 15, 9, 20]
    handover = HandoverConfig(LAYERS, router="least_outstanding", setup_s=0.003, block_bytes=62)
    split = Split(
        prompts, outputs, [0.1 * row for row in range(8)], 3, 1, handover, 3e4, engine, cost=SplitCost()
    )
    split = replace(split, acceptance=SPREAD, policy=QUEUE, load=LoadConfig(5))
    ours, stepped = both(split, 61)
    assert (ours.requests["status"] == FINISHED).all()
    assert ours.stepped_because == FULL
    assert ours.requests["kv_given_up"].sum() > 0
    assert differences(ours, stepped) == []


def test_a_request_that_prefill_replicas_refuse_leaves_no_trace_where_it_is_not_decoded() -> None:
    split = busy(prefill_engine=replace(ENGINE, max_model_len=80))
    ours, stepped = both(split)
    assert ours.refusals == stepped.refusals != {}
    assert np.isin(ours.requests["status"], (FINISHED,)).sum() == 9
    assert differences(ours, stepped) == []
