"""The scheduler's arithmetic and the budget of a step, which both crowds share."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sim_toys import ToyCost, World, drafting
from timeline_worlds import LUCK, both, differences, engines, requests, worlds

from specfleet.sim.calendar.fleet import Fleet
from specfleet.sim.calendar.lane import Lane
from specfleet.sim.calendar.plan import CalendarRun
from specfleet.sim.config import EngineConfig
from specfleet.sim.kvlayout import KvLayout
from specfleet.sim.rules import (
    SchedulerRules,
    blocks_for,
    findable_blocks,
    leaves_drafts_unused,
    reaches_max_tokens,
    usable_hit,
)
from specfleet.sim.scenario import Scenario
from specfleet.sim.simulation import simulate
from specfleet.sim.speculation.lives import Lives
from specfleet.sim.speculation.policy import PolicySpec
from specfleet.sim.step import Admission, Candidate, Life, Step
from specfleet.workloads.requests import RequestTable

CONFIGS = st.sampled_from([0, 1, 4, 7]).flatmap(engines)
ADMISSIONS = Step.admissions
TOKENS = st.lists(st.integers(1, 3000), min_size=1, max_size=20)


@given(CONFIGS, TOKENS)
def test_many_at_once_hold_the_blocks_that_each_holds(config: EngineConfig, ends: list[int]) -> None:
    rules = SchedulerRules.of(replace(config, max_model_len=10_000))
    columns = np.array(ends)

    assert rules.blocks_each(columns).tolist() == [rules.blocks(end) for end in ends]
    assert rules.blocks_at_admission_each(columns).tolist() == [
        rules.blocks_at_admission(end) for end in ends
    ]


LAYOUTS = st.sampled_from([None, KvLayout(512, 700, 0), KvLayout(0, 0, 48), KvLayout(128, 300, 16)])


@given(CONFIGS, TOKENS, LAYOUTS, st.booleans(), st.integers(0, 500))
def test_many_at_once_hold_at_admission_what_each_holds(
    config: EngineConfig, ends: list[int], layout: KvLayout | None, reserves: bool, outputs: int
) -> None:
    """Where max_tokens are reserved, those; whatever layers of several kinds hold."""
    config = replace(config, max_model_len=10_000, kv_layout=layout, reserves_max_tokens=reserves)
    rules, columns = SchedulerRules.of(config), np.array(ends)
    totals = [end + outputs for end in ends]
    assert rules.held_at_admission_each(columns, np.array(totals)).tolist() == [
        max(rules.blocks_at_admission(end), rules.reserved(total))
        for end, total in zip(ends, totals, strict=True)
    ]
    assert rules.blocks_each(columns).tolist() == [rules.blocks(end) for end in ends]
    assert all(rules.reserved(total) > 0 for total in totals) == reserves
    assert reserves or not any(rules.reserved(total) for total in totals)


@given(st.integers(1, 10**6), st.sampled_from([1, 3, 16, 48]))
def test_blocks_hold_their_tokens_and_none_is_spare(tokens: int, size: int) -> None:
    blocks = blocks_for(tokens, size)

    assert (blocks - 1) * size < tokens <= blocks * size


@given(st.integers(0, 50), st.integers(0, 1), st.integers(1, 50))
def test_drafts_are_in_vain_exactly_one_token_before_the_end_is_sure(
    known: int, in_flight: int, most: int
) -> None:
    assert leaves_drafts_unused(known, in_flight, most) == reaches_max_tokens(known + 1, in_flight, most)
    assert leaves_drafts_unused(np.array([known]), in_flight, np.array([most])).tolist() == [
        leaves_drafts_unused(known, in_flight, most)
    ]


@given(st.integers(1, 500), st.sampled_from([1, 4, 16]), st.booleans())
def test_a_hit_leaves_a_token_to_compute(known: int, size: int, drops_last: bool) -> None:
    found = findable_blocks(known, size)

    assert usable_hit(found, drops_last) * size < known
    assert found - usable_hit(found, drops_last) == (drops_last and found > 0)


@st.composite
def waiting(draw: st.DrawFn) -> list[Candidate[int]]:
    """Those who wait: a number, known and computed tokens, blocks found, and of these idle ones."""
    queue: list[Candidate[int]] = []
    for number in range(draw(st.integers(0, 12))):
        known = draw(st.integers(1, 80))
        found = draw(st.integers(0, findable_blocks(known, 4)))
        queue.append((number, known, 4 * found, found, draw(st.integers(0, found)), 0))
    return queue


@st.composite
def steps(draw: st.DrawFn) -> Step:
    """A step that has something left to give."""
    config = replace(draw(CONFIGS), block_size=4)
    step = Step(SchedulerRules.of(config))
    rows = draw(st.integers(0, 4))
    step.begin(draw(st.integers(0, 120)), draw(st.integers(0, 6)), draw(st.integers(0, 40)), rows)
    step.pads, step.beside = draw(st.booleans()), rows > 0
    return step


@settings(max_examples=300)
@given(steps(), waiting())
def test_a_step_gives_no_more_than_it_has(step: Step, queue: list[Candidate[int]]) -> None:
    tokens, seats, free = step.given
    slots = step.rules.draft_slots

    admitted = list(step.admissions(iter(queue)))

    assert [life for life, *_ in admitted] == list(range(len(admitted))), "in turn"
    assert sum(piece + slots for _, piece, _, _ in admitted) == tokens - step.tokens <= max(tokens, 0)
    assert len(admitted) == seats - step.seats <= seats
    idle = sum(candidate[4] for candidate in queue[: len(admitted)])
    assert sum(blocks for _, _, blocks, _ in admitted) + idle == free - step.free_blocks <= free
    assert step.chunk == sum(piece for _, piece, _, _ in admitted)
    for (_, tokens, _, drafts), (_, known, computed, _, _, _) in zip(admitted, queue, strict=False):
        assert 0 < tokens <= known - computed + drafts
        assert not drafts or tokens == 1 + drafts


@settings(max_examples=300)
@given(steps(), waiting())
def test_whoever_waits_lacks_a_seat_a_token_or_a_block(step: Step, queue: list[Candidate[int]]) -> None:
    rules = step.rules
    admitted = list(step.admissions(iter(queue)))
    assume(len(admitted) < len(queue))
    _, known, computed, found, idle, _ = queue[len(admitted)]
    room = step.tokens - rules.draft_slots
    if step.seats <= 0 or room <= 0:
        return

    whole = known - computed
    needs_all = not rules.chunks_prompts or (whole == 1 and step.pads)
    short_of_budget = needs_all and room < whole + rules.placeholders
    piece = min(whole, room)
    blocks = max(rules.blocks_at_admission(computed + piece), rules.blocks_reserved(known))
    left = step.free_blocks - rules.watermark_blocks

    assert short_of_budget or blocks - found + idle + rules.placeholders > left


@given(steps(), st.integers(2, 80), st.integers(0, 20))
def test_a_piece_that_finds_no_blocks_changes_nothing(step: Step, known: int, held: int) -> None:
    computed = min(4 * held, known - 1)
    assume(step.tokens > step.rules.draft_slots)
    before = step.tokens, step.free_blocks, step.pieces, step.pairs

    piece = step.next_piece(known, computed, held)

    if piece is None:
        assert (step.tokens, step.free_blocks, step.pieces, step.pairs) == before
    else:
        assert piece.tokens <= known - computed
        assert step.rules.blocks(computed + piece.tokens) <= held + piece.blocks
        assert step.free_blocks == before[1] - piece.blocks >= 0


def midway(policy: PolicySpec | None, asynchronous: bool, until: float) -> Lane:
    """An engine on the calendar in the middle of its work."""
    n = 12
    engine = replace(drafting(3), async_scheduling=asynchronous, num_gpu_blocks=24, max_num_seqs=6)
    engine = replace(engine, num_gpu_blocks=400) if policy is not None else engine
    table = RequestTable.of(np.full(n, 30), np.full(n, 40), arrival_s=np.arange(n) * 0.01)
    scenario = Scenario(engine, ToyCost(), {"": LUCK[0]}, policy=policy)
    run = CalendarRun(scenario, table, 3, Lives(scenario.acceptance, table, 3, 3))
    rules = run.rules()
    assert rules is not None
    lane = Fleet(run, rules, run.served).lane(range(n), array("d", table.arrival_s.tolist()), 0)
    walk = lane.run()
    next(walk)
    walk.send(until)
    return lane


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("policy", [None, PolicySpec("goodput")])
def test_whoever_runs_is_listed_without_being_touched(policy: PolicySpec | None, asynchronous: bool) -> None:
    lane = midway(policy, asynchronous, 0.3)
    crowd, books = lane.crowd, lane.books
    before = deepcopy((books.log.cut, books.log.stays, books.log.totals))

    listed = crowd.listed(lane.at.it)

    assert (books.log.cut, books.log.stays, books.log.totals) == before
    assert crowd.listed(lane.at.it) == listed
    left = crowd.leave(lane.at.it)
    assert [sequence._replace(counts=row.counts) for sequence, row in zip(listed, left, strict=True)] == left
    assert len(left) > 2


def one_at_most(self: Step, waiting: Iterable[Candidate[Life]]) -> Iterator[Admission[Life]]:
    """`Step.admissions` with a switch of one's own: it lets in one request a step."""
    for admission in ADMISSIONS(self, waiting):
        yield admission
        if self.given[1] - self.seats >= 1:
            return


@settings(max_examples=60, deadline=None)
@given(worlds(loops=("open", "closed"), crowded=True), st.integers(0, 2**32))
def test_a_rule_put_into_the_budget_of_a_step_is_obeyed_by_both_crowds(world: World, seed: int) -> None:
    scenario = world.scenario(world.classes or {})
    assume(simulate(scenario, requests(world), seed).stepped_share == 0.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Step, "admissions", one_at_most)
        ours, theirs = both(world, seed)
    assume(ours.stepped_share == 0.0)  # others run together now, perhaps more than the budget has rows for
    assert not differences(ours, theirs)
    admitted_s = ours.requests["admitted_s"][ours.requests["preemptions"] == 0]
    if world.engine.max_num_seqs > 1 and not world.engine.async_scheduling and world.deployment.replicas == 1:
        assert len(np.unique(admitted_s)) == len(admitted_s)
