"""A run without its requests has the figures of a run that keeps them, whatever its portions."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sim_toys import World
from timeline_worlds import worlds

from sim import (
    summarise as summarise_module,
)
from sim import (
    timeline_admission,
    timeline_lane,
    timeline_ledger,
    timeline_slots,
    timeline_stream,
    timeline_tail,
    timeline_trajectories,
)
from sim.config import Slo
from sim.errors import Stall
from sim.metrics import benchmark, by_class, by_replica, engine_load
from sim.simulation import Scenario, simulate
from sim.summarise import summarise
from sim.summary import Summary
from sim.tally import ERROR
from workloads.requests import RequestTable

SEEDS = st.integers(0, 2**32)
SLO = Slo(ttft_s=0.3, tpot_s=0.02, e2el_s=3.0)
PERCENTILES = ("median", "p90", "p95", "p99")
LAWS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few requests and windows of a few iterations, so that small worlds cross all borders."""
    modules = (
        timeline_admission,
        timeline_ledger,
        timeline_tail,
        timeline_trajectories,
        timeline_slots,
        timeline_stream,
        summarise_module,
    )
    for module in modules:
        monkeypatch.setattr(module, "BLOCK", 5)
    for module in (timeline_admission, timeline_lane):
        monkeypatch.setattr(module, "LONGEST_WINDOW", 40)
    monkeypatch.setattr(timeline_lane, "WINDOW", 3)
    monkeypatch.setattr(timeline_admission, "SHORTEST_CALENDAR", 0)


def posed(world: World, times: int = 1) -> tuple[Scenario, RequestTable]:
    """A world's scenario, and its requests, over and over."""
    n = len(world.prompt)
    arrival = np.asarray(world.arrival_s)
    last = float(arrival[-1])
    table = RequestTable.of(
        np.tile(world.prompt, times),
        np.tile(world.output, times),
        max_tokens=np.tile(world.max_tokens or world.output, times),
        arrival_s=np.concatenate([arrival + i * last for i in range(times)]),
        class_id=np.arange(n * times) % 2,
        class_names=("a", "b"),
    )
    return world.scenario(world.classes or {}), table


def same(ours: Mapping[str, object], theirs: Mapping[str, object]) -> list[str]:
    """What differs between figures: counts at all, means beyond rounding, percentiles beyond their bound."""
    assert ours.keys() == theirs.keys()
    wrong = []
    for name, mine in ours.items():
        value = theirs[name]
        bound = 2 * ERROR if name.startswith(PERCENTILES) else 1e-9
        if isinstance(value, float) and isinstance(mine, float | int):
            least = 1e-5 if name.startswith("std") else 1e-6  # ms: rounding of equal values
            good = math.isclose(mine, value, rel_tol=bound, abs_tol=least)
        else:
            good = mine == value
        if not good:
            wrong.append(f"{name}: {mine}, not {value}")
    return wrong


def prove(scenario: Scenario, table: RequestTable, seed: int, portion: int) -> Summary:
    """Fails where the figures of both ways differ."""
    result = simulate(scenario, table, seed)
    summary = summarise(scenario, table, seed, SLO, portion=portion)
    wrong = same(summary.benchmark(), benchmark(result, SLO)) + same(
        summary.engine_load(), engine_load(result)
    )
    for name, figures in by_class(result, table.class_names).items():
        wrong += same(summary.by_class()[name], figures)
    for mine, theirs in zip(summary.by_replica(), by_replica(result), strict=True):
        wrong += same(mine, theirs)
    assert not wrong, "\n".join(wrong)
    assert summary.steps == len(result.iterations["end_s"])
    assert summary.refusals == result.refusals
    assert tuple(summary.rounds_by_accepted) == result.rounds_by_accepted
    return summary


@LAWS
@given(worlds(("open", "open", "sparse"), 3), SEEDS, st.integers(1, 40))
def test_a_summary_has_the_figures_of_the_whole_run(world: World, seed: int, portion: int) -> None:
    try:
        prove(*posed(world, 3), seed, portion)
    except Stall:
        return


@LAWS
@given(worlds(("open",), 2, tight=True), SEEDS, st.integers(1, 40))
def test_a_summary_knows_who_was_preempted(world: World, seed: int, portion: int) -> None:
    try:
        prove(*posed(world, 4), seed, portion)
    except Stall:
        return
