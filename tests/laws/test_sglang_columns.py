"""Who runs under SGLang's rules as columns: the same run as with everybody listed, to the last bit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sglang_replay import compare
from sglang_worlds import (
    displacing_sglang_worlds,
    retracting_sglang_worlds,
    sglang_worlds,
    sharing_sglang_worlds,
)
from sim_toys import World
from test_columns import OneByOne, choices, several
from test_timeline import HUNT, plant
from test_timeline_sglang import SGLANG
from timeline_worlds import differences, requests

from specfleet.sim.errors import Breach, Stall
from specfleet.sim.sequence import Sequence
from specfleet.sim.sglang.aboard import crew, head, luck, scheduler
from specfleet.sim.sglang.batch import DECODE, SglangBatch
from specfleet.sim.simulation import RunResult, simulate
from specfleet.sim.speculation.policies import POLICIES
from specfleet.sim.speculation.policy import PolicySpec
from specfleet.sim.speculation.replay import NO_MATCH
from specfleet.sim.speculation.spec import AcceptanceSpec

LAWS = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
SEEDS = st.integers(0, 2**32)
NEVER = 1 << 60
"""Rows from which columns are used, where they are not to be."""


@pytest.fixture(autouse=True)
def from_the_first_row_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """One who runs is a column."""
    monkeypatch.setattr(scheduler, "LEAST_ROWS", 1)


def stepped(world: World, seed: int, policy: PolicySpec | None) -> RunResult:
    """Steps a world."""
    scenario = replace(world.scenario(world.classes or {}), policy=policy)
    return simulate(scenario, requests(world), seed, engine="step")


def listed(world: World, seed: int, policy: PolicySpec | None) -> RunResult:
    """Steps a world with everybody listed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler, "LEAST_ROWS", NEVER)
        return stepped(world, seed, policy)


def prove(world: World, seed: int, policy: PolicySpec | None = None) -> None:
    """Fails where the two ways differ."""
    try:
        theirs = listed(world, seed, policy)
    except Stall:
        with pytest.raises(Stall):
            stepped(world, seed, policy)
        return
    found = differences(stepped(world, seed, policy), theirs)
    assert not found, "\n".join(found)


@st.composite
def odd(draw: st.DrawFn, of: st.SearchStrategy[World]) -> World:
    """The same with what no calendar takes: mixed batches, windows, a second pass."""
    world = draw(of)
    assert world.engine.sglang is not None
    mixed = replace(world.engine.sglang, enable_mixed_chunk=draw(st.booleans()))
    engine = replace(world.engine, sglang=mixed, sliding_window=draw(st.sampled_from([0, 0, 20])))
    if engine.speculative is not None:
        again = replace(engine.speculative, reroll_on_reject=draw(st.booleans()))
        engine = replace(engine, speculative=again)
    return replace(world, engine=engine)


EVERY = st.one_of(
    sglang_worlds(),
    sglang_worlds(crowded=True),
    sharing_sglang_worlds(),
    retracting_sglang_worlds(),
    displacing_sglang_worlds(),
)


@LAWS
@given(odd(st.one_of(sglang_worlds(), sglang_worlds(crowded=True))), SEEDS)
def test_columns_equal_a_list(world: World, seed: int) -> None:
    prove(world, seed)


@LAWS
@given(odd(sharing_sglang_worlds()), SEEDS)
def test_columns_leave_the_same_texts_in_the_tree(world: World, seed: int) -> None:
    prove(world, seed)


@LAWS
@given(odd(retracting_sglang_worlds()), SEEDS)
def test_columns_equal_a_list_where_requests_are_retracted(world: World, seed: int) -> None:
    prove(world, seed)


@LAWS
@given(odd(displacing_sglang_worlds()), SEEDS)
def test_columns_equal_a_list_where_requests_are_displaced(world: World, seed: int) -> None:
    prove(world, seed)


@LAWS
@given(odd(EVERY), choices(), SEEDS)
def test_policies_see_and_choose_the_same(world: World, policy: PolicySpec, seed: int) -> None:
    prove(several(world), seed, policy)


@LAWS
@given(odd(EVERY), st.sampled_from([None, PolicySpec("oracle"), PolicySpec("goodput")]), SEEDS)
def test_recorded_drafts_are_met_at_the_same_places(
    world: World, policy: PolicySpec | None, seed: int
) -> None:
    traces = (bytes([3, 0, 2, NO_MATCH, 1, 4]), bytes([0, 1]), bytes([NO_MATCH, 5]))
    classes = {"a": AcceptanceSpec(replay=traces), "": AcceptanceSpec(conditional_acceptance=0.6)}
    prove(replace(several(world), classes=classes if world.engine.speculative else None), seed, policy)


@LAWS
@given(odd(EVERY), SEEDS)
def test_a_policy_of_one_s_own_sees_single_requests(world: World, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(POLICIES, "own", OneByOne)
        prove(several(world), seed, PolicySpec("own"))


FAULTS = {
    "a round takes no luck": (luck, "columns.verified[berths] = nth + verifies", "pass"),
    "rows in vain take luck": (luck, "verifies &= ~idle", "pass"),
    "a pause is none": (luck, "late = latest != current - 1", "late = latest < -9"),
    "what a listed row brought is forgotten": (crew, "in self._landed:", "in ():"),
    "who rode along has computed nothing": (
        scheduler,
        "if self.rules.reserve and head.kind == MIXED:",
        "if False:",
    ),
    "luck in flight is lost where all are listed": (
        head,
        "self.listed = self.new.tolist()",
        "self.listed = [1] * self.n",
    ),
    "pages without a reserve": (
        scheduler,
        "rules.pages_to_decode(committed), held",
        "rules.pages(committed), held",
    ),
    "an end in vain is another": (scheduler, "ended &= ~head.stale", "pass"),
    "a first row in vain reads too little": (
        scheduler,
        "head.ends = committed + (1 + head.drafts)",
        "head.ends = committed + 1",
    ),
}
"""What went wrong, where, what stands there, and what is planted."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, *FAULTS[fault])

    @HUNT
    @given(odd(EVERY), SEEDS)
    def hunt(world: World, seed: int) -> None:
        prove(world, seed)

    with pytest.raises((AssertionError, Breach, KeyError, IndexError, Stall)):
        hunt()


def test_most_of_those_who_run_are_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, listed_rows = list[int](), SglangBatch.row

    def counted(self: SglangBatch, sequence: Sequence, kind: str, tokens: int, drafts: int) -> None:
        seen.append(kind == DECODE)
        listed_rows(self, sequence, kind, tokens, drafts)

    monkeypatch.setattr(SglangBatch, "row", counted)
    world = World([20] * 200, [60] * 200, arrival_s=[0.0] * 200, engine=SGLANG)
    rows = stepped(world, 0, None).iterations["decode_sequences"].sum()
    assert sum(seen) < 0.1 * rows


def test_every_recorded_decision_of_sglang_is_met(shared: Path) -> None:
    files = sorted((shared / "golden/sglang_scheduler").glob("*.json"))
    found = {file.stem: compare(json.loads(file.read_text())).lines[:3] for file in files}
    assert len(found) >= 43
    assert {name: lines for name, lines in found.items() if lines} == {}
