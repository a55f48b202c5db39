"""Priorities where nobody is thrown out: on the calendar the same run as stepped, bit by bit."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from patient_worlds import impatient
from sim_toys import World, drafting
from test_timeline import DRAFTS_OF_REQUESTS, HUNT, LAWS, SEEDS, plant, prove, small_windows_and_blocks
from timeline_worlds import LUCK, both, differences, requests, sharing, worlds

from specfleet.sim.calendar import waiting
from specfleet.sim.errors import Breach, Stall
from specfleet.sim.fleet.patience import PatienceConfig
from specfleet.sim.recorder import GAVE_UP
from specfleet.sim.simulation import simulate
from specfleet.sim.speculation.policy import PolicySpec
from specfleet.workloads.pauses import FixedPause

__all__ = ["small_windows_and_blocks"]

LOOPS = ("open", "balanced", "closed", "capped")


@st.composite
def ranked(draw: st.DrawFn, of: st.SearchStrategy[World]) -> World:
    """The same with priorities, few seats, and KV for whoever has one."""
    world = draw(of)
    seats = draw(st.integers(1, 3))
    longest = max(map(sum, zip(world.prompt, world.output, strict=True))) + 48
    blocks = seats * (longest // world.engine.block_size + 4) + draw(st.integers(0, 4))
    engine = replace(world.engine, policy="priority", max_num_seqs=seats, num_gpu_blocks=blocks)
    return replace(world, engine=engine)


@LAWS
@given(ranked(worlds(LOOPS, 2) | sharing(LOOPS, 2)), st.sampled_from(DRAFTS_OF_REQUESTS), SEEDS)
def test_priorities_equal_stepping(world: World, policy: PolicySpec | None, seed: int) -> None:
    prove(world, seed, policy)


def test_most_of_these_worlds_are_not_stepped_and_let_others_in_first() -> None:
    seen: Counter[str] = Counter()

    @settings(HUNT, max_examples=60)
    @given(ranked(worlds(LOOPS, 2) | sharing(LOOPS, 2)), SEEDS)
    def look(world: World, seed: int) -> None:
        with suppress(Stall):
            table = requests(world)
            ours = simulate(world.scenario(world.classes or {}), table, seed)
            plain = replace(world, engine=replace(world.engine, policy="fcfs"))
            theirs = simulate(plain.scenario(world.classes or {}), table, seed)
            seen[ours.stepped_because] += 1
            seen["other order"] += bool((ours.requests["admitted_s"] != theirs.requests["admitted_s"]).any())

    look()
    assert seen[""] > 25, seen
    assert seen["other order"] > 10, seen


def busy(seats: int, **engine: Any) -> World:
    """Sixty requests that are all there at once, for a few seats."""
    config = replace(drafting(3), policy="priority", max_num_seqs=seats, num_gpu_blocks=400)
    return World([30] * 60, [40] * 60, engine=replace(config, **engine), classes={"": LUCK[0]})


@pytest.mark.parametrize("ahead", [False, True])
def test_who_matters_more_is_let_in_first_without_a_step(ahead: bool) -> None:
    world = busy(4, async_scheduling=ahead)
    ours, theirs = both(world, 0)
    assert (ours.stepped_share, ours.stepped_because) == (0.0, "")
    order = requests(world).priority[ours.requests["admitted_s"].argsort(kind="stable")]
    assert (order[1:] >= order[:-1]).all() and order[0] < order[-1]
    assert not differences(ours, theirs)


def test_where_kv_may_be_short_priorities_are_stepped() -> None:
    ours, theirs = both(busy(12, num_gpu_blocks=40), 0)
    assert ours.requests["preemptions"].sum() > 0
    assert ours.stepped_because == "priority scheduling"
    assert not differences(ours, theirs)


def test_a_queue_in_order_of_priorities_that_clients_may_leave_is_stepped() -> None:
    patient = PatienceConfig(ttft_timeout_s=FixedPause(0.05))
    ours, theirs = both(impatient(busy(4), patient), 0)
    assert (ours.requests["status"] == GAVE_UP).any()
    assert ours.stepped_because == "priority scheduling"
    assert not differences(ours, theirs)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("bisect_right(ranks, rank, self.head)", "self.head"),
        ("bisect_right(ranks, rank, self.head)", "bisect_right(ranks, rank)"),
        ("inbox.insert(goal, place)", "inbox.insert(index, place)"),
    ],
)
def test_a_fault_in_the_order_is_found(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, waiting, old, new)

    @settings(HUNT, max_examples=300)
    @given(ranked(worlds(LOOPS, 2)), SEEDS)
    def hunt(world: World, run: int) -> None:
        prove(world, run)

    with pytest.raises((AssertionError, Breach, KeyError, IndexError)):
        hunt()
