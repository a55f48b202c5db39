"""Decoding sequences as columns: the same run as with each of them listed, to the last bit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from replay import compare
from sim_toys import World, drafting
from timeline_worlds import LUCK, differences, policies, requests, sharing, worlds
from trace_worlds import decided, inputs

from specfleet.sim.columns import crowd
from specfleet.sim.columns.crowd import ColumnCrowd
from specfleet.sim.columns.luck import I64, ColumnNotes
from specfleet.sim.errors import Stall
from specfleet.sim.simulation import RunResult, simulate
from specfleet.sim.speculation.policies import POLICIES
from specfleet.sim.speculation.policy import PolicySpec
from specfleet.sim.speculation.replay import NO_MATCH
from specfleet.sim.speculation.spec import AcceptanceSpec

LAWS = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
SEEDS = st.integers(0, 2**32)
LOOPS = ("open", "closed", "capped", "balanced")
RECORDED = "golden/vllm_scheduler"
NEVER = 1 << 60
"""Rows from which columns are used, where they are not to be."""


@pytest.fixture(autouse=True)
def from_the_first_row_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sequence that decodes is a column, and again soon after all were listed."""
    monkeypatch.setattr(crowd, "LEAST_ROWS", 1)
    monkeypatch.setattr(crowd, "MOST_PATIENCE", 2)


def listed(world: World, seed: int, policy: PolicySpec | None) -> RunResult:
    """Steps a world with every sequence listed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crowd, "LEAST_ROWS", NEVER)
        return stepped(world, seed, policy)


def stepped(world: World, seed: int, policy: PolicySpec | None) -> RunResult:
    """Steps a world."""
    scenario = replace(world.scenario(world.classes or {}), policy=policy)
    return simulate(scenario, requests(world), seed, engine="step")


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
    """The same with what no calendar takes: priorities, capped prompts, trimmed drafts, a second pass."""
    world = draw(of)
    engine = replace(
        world.engine,
        policy=draw(st.sampled_from(["fcfs", "priority"])),
        long_prefill_token_threshold=draw(st.sampled_from([0, 0, 3, 20])),
        trims_drafts_to_max_tokens=draw(st.booleans()),
    )
    if engine.speculative is not None:
        speculative = replace(engine.speculative, reroll_on_reject=draw(st.booleans()))
        engine = replace(engine, speculative=speculative)
    return replace(world, engine=engine)


def several(world: World) -> World:
    """The same with drafts for a policy to choose from."""
    speculative = world.engine.speculative
    if speculative is None:
        return world
    more = replace(speculative, num_speculative_tokens=max(speculative.num_speculative_tokens, 3))
    return replace(world, engine=replace(world.engine, speculative=more))


@st.composite
def choices(draw: st.DrawFn) -> PolicySpec:
    """A policy, most of them of those that look at single requests."""
    picky: dict[str, dict[str, object]] = {
        "early_stop": {"threshold": draw(st.sampled_from([0.2, 0.6]))},
        "acceptance_gate": {"window": draw(st.integers(1, 4)), "threshold": 0.6, "cooldown": 3},
        "temperature_gate": {"limit": 0.5},
        "by_class": {"drafts": {"default": draw(st.integers(0, 2)), "other": 1}},
        "slo_budget": {"tpot_s": draw(st.sampled_from([0.001, 0.02])), "budget": draw(st.integers(0, 9))},
        "oracle": {},
    }
    name = draw(st.sampled_from(sorted(picky)))
    return draw(st.sampled_from([PolicySpec(name, picky[name])] * 3 + [draw(policies())]))


@LAWS
@given(odd(st.booleans().flatmap(lambda tight: worlds(LOOPS, 2, tight=tight))), SEEDS)
def test_columns_equal_a_list(world: World, seed: int) -> None:
    prove(world, seed)


@LAWS
@given(odd(worlds(LOOPS, tight=True, crowded=True)), SEEDS)
def test_columns_equal_a_list_where_budget_and_blocks_run_short(world: World, seed: int) -> None:
    prove(world, seed)


@LAWS
@given(odd(st.booleans().flatmap(lambda tight: worlds(LOOPS, tight=tight))), st.integers(0, 4), SEEDS)
def test_columns_equal_a_list_at_the_last_positions(world: World, spare: int, seed: int) -> None:
    most = max(map(sum, zip(world.prompt, world.max_tokens or world.output, strict=True)))
    prove(replace(world, engine=replace(world.engine, max_model_len=most + spare)), seed)


@LAWS
@given(odd(sharing(LOOPS)), SEEDS)
def test_columns_find_and_leave_the_same_prefixes(world: World, seed: int) -> None:
    prove(world, seed)


@LAWS
@given(odd(st.booleans().flatmap(lambda tight: worlds(LOOPS, tight=tight))), choices(), SEEDS)
def test_policies_see_and_choose_the_same(world: World, policy: PolicySpec, seed: int) -> None:
    prove(several(world), seed, policy)


@LAWS
@given(odd(worlds(LOOPS)), st.sampled_from([None, PolicySpec("oracle"), PolicySpec("goodput")]), SEEDS)
def test_recorded_drafts_are_met_at_the_same_places(
    world: World, policy: PolicySpec | None, seed: int
) -> None:
    traces = (bytes([3, 0, 2, NO_MATCH, 1, 4]), bytes([0, 1]), bytes([NO_MATCH, 5]))
    classes = {"a": AcceptanceSpec(replay=traces), "": AcceptanceSpec(conditional_acceptance=0.6)}
    prove(replace(several(world), classes=classes if world.engine.speculative else None), seed, policy)


class OneByOne:
    """A policy of a user's own, who looks at every count of every sequence."""

    def __init__(self, k: int) -> None:
        self.k = k

    def plan(self, batch, waiting, now):  # type: ignore[no-untyped-def]
        """By the sequence's counts."""
        rows = zip(batch.sequences, batch.num_tokens, batch.num_drafts, strict=True)
        return [
            (s.num_computed_tokens + s.num_tokens + s.num_blocks + s.verifications + n + d) % 4
            for s, n, d in rows
        ]

    def observe(self, batch, sampled, seconds):  # type: ignore[no-untyped-def]
        """Moves K by what came of a step."""
        rows = zip(batch.sequences, batch.samples, batch.num_drafts, sampled, strict=True)
        self.k = 1 + sum(s.num_output_tokens + s.chunks + d + n for s, samples, d, n in rows if samples) % 3


@LAWS
@given(odd(worlds(LOOPS)), SEEDS)
def test_a_policy_of_one_s_own_sees_single_requests(world: World, seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(POLICIES, "own", OneByOne)
        prove(several(world), seed, PolicySpec("own"))


@LAWS
@given(inputs())
def test_columns_decide_step_by_step_as_a_list_does(trace: dict[str, object]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crowd, "LEAST_ROWS", NEVER)
        theirs = decided(trace)
    assert not (found := compare(theirs).lines), "\n".join(found)


def test_every_recorded_decision_of_vllm_is_met(shared: Path) -> None:
    files = sorted((shared / RECORDED).glob("*.json"))
    found = {file.stem: compare(json.loads(file.read_text())).lines[:3] for file in files}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.fixture
def boarded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many were aboard when each step was decided."""
    seen: list[int] = []
    serve = ColumnCrowd.serve

    def counted(self: ColumnCrowd) -> None:
        seen.append(self.columns.n)
        serve(self)

    monkeypatch.setattr(ColumnCrowd, "serve", counted)
    yield seen


def test_most_of_those_who_run_are_aboard(boarded: list[int]) -> None:
    world = World([20] * 200, [60] * 200, arrival_s=[0.0] * 200)
    result = simulate(world.scenario({}), requests(world), 0, engine="step")
    running = result.iterations["running"]
    assert np.sum(boarded) > 0.9 * running.sum()


def test_what_the_oracle_has_used_up_goes_along_with_who_is_thrown_out() -> None:
    small = replace(drafting(3), num_gpu_blocks=31, max_num_seqs=8)
    world = World([20] * 30, [60] * 30, engine=small, classes={"": LUCK[0]})
    ran = stepped(world, 0, PolicySpec("oracle"))
    assert ran.requests["preemptions"].sum() > 3
    prove(world, 0, PolicySpec("oracle"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ColumnNotes, "skip_luck", forgetful(ColumnNotes.skip_luck))
        assert differences(stepped(world, 0, PolicySpec("oracle")), ran)


def forgetful(skip: Callable[[ColumnNotes, I64], None]) -> Callable[[ColumnNotes, I64], None]:
    """Returns what passes luck over, and does not say so to whoever leaves."""

    def passed_over(notes: ColumnNotes, places: I64) -> None:
        skip(notes, places)
        notes.skips = False

    return passed_over
