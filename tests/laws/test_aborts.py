"""Requests that are aborted inside an engine: wherever they stand, they leave at its next turn, whole."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sglang_worlds import sglang_worlds, sharing_sglang_worlds
from sim_toys import ENGINE, SPREAD, ToyCost, World, drafting
from test_columns import NEVER, choices, odd, several
from timeline_worlds import requests, sharing, worlds

from specfleet.sim.columns import crowd
from specfleet.sim.engine import Engine, Request
from specfleet.sim.errors import Stall
from specfleet.sim.pipeline import engine_of
from specfleet.sim.recorder import Columns, Recorder
from specfleet.sim.requests import RequestMaker
from specfleet.sim.speculation.lives import Lives
from specfleet.sim.speculation.oracle import foreseen
from specfleet.sim.speculation.policies import asks_for_confidence, make_policy
from specfleet.sim.speculation.policy import PolicySpec
from specfleet.workloads.requests import RequestTable

LAWS = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
SEEDS = st.integers(0, 2**32)
PATIENCE = st.lists(st.sampled_from([None, None, 0.0, 0.004, 0.03, 0.1]) | st.floats(0.0, 0.5), min_size=1)


@dataclass
class Played:
    """What became of requests in front of one engine.

    Attributes:
        requests: of the engine, by row. ended: how each ended, and when: "finished" or "left".
        asked: when each was aborted. iterations: columns. histogram: verifications by drafts accepted.
    """

    requests: dict[int, Request]
    ended: dict[int, tuple[str, float]]
    asked: dict[int, float]
    iterations: Columns
    histogram: list[int]


def play(
    world: World, patience: list[float | None], seed: int, policy: PolicySpec | None = None
) -> tuple[Played, RequestTable]:
    """Runs a world's requests through one engine; each is aborted so many seconds after it came, or never."""
    table = requests(world)
    scenario = foreseen(replace(world.scenario(world.classes or {}), policy=policy))
    k, ahead = scenario.engine.num_speculative_tokens, scenario.engine.async_scheduling
    lives = Lives(scenario.acceptance, table, k, seed) if k and scenario.acceptance else None
    make = RequestMaker(table, lives, 0, asks_for_confidence(scenario.policy), ahead)
    recorder = Recorder(len(table), k + 1)
    chosen = make_policy(scenario.policy, k, scenario.cost) if k else None
    engine = engine_of(scenario.engine, scenario.cost, recorder, 0, chosen)
    due, ended, asked, made = inf, dict[int, tuple[str, float]](), dict[int, float](), dict[int, Request]()
    for time, _, row, what in _events(table, patience):
        while due < time:
            due = _turn(engine, due, ended)
        if what == "come":
            made[row] = request = make.request(row)
            if engine.refusal(request) is not None:
                ended[row] = "refused", time
                continue
            request.arrived_s = time
            engine.inbox.append(request)
            due = min(due, time) if due == inf else due
        elif row not in ended:
            asked[row] = time
            engine.abort(row)
    while due < inf:
        due = _turn(engine, due, ended)
    assert engine.idle
    kv = engine.scheduler.kv
    assert kv.free_blocks == kv.total_blocks, "nobody is left, and blocks are held"
    played = Played(made, ended, asked, recorder.iterations(), recorder.rounds_by_accepted)
    return played, table


def _events(table: RequestTable, patience: list[float | None]) -> list[tuple[float, int, int, str]]:
    """Returns who comes when, and is aborted when, in order of time."""
    found = []
    for row, time in enumerate(table.arrival_s.tolist()):
        found.append((time, 0, row, "come"))
        wait = patience[row % len(patience)]
        if wait is not None:
            found.append((time + wait, 1, row, "abort"))
    return sorted(found)


def _turn(engine: Engine, now: float, ended: dict[int, tuple[str, float]]) -> float:
    """Takes a turn, checks what must hold after each, and notes who has ended."""
    due = engine.turn(now)
    engine.scheduler.check()
    for how, rows in (
        ("left", [request.id for request in engine.left]),
        ("finished", [request.id for request, _ in engine.finished]),
        ("failed", [request.id for request in engine.aborted]),
    ):
        for row in rows:
            assert row not in ended, f"request {row} ended twice"
            ended[row] = how, now
    engine.left, engine.finished, engine.aborted = [], [], []
    return due


def check(played: Played, table: RequestTable) -> None:
    """Every request ends once, what all emitted is what the steps did, and luck not used is not counted."""
    assert played.ended.keys() == set(range(len(table)))
    begun = [played.requests[row] for row, (how, _) in played.ended.items() if how != "refused"]
    rows = played.iterations
    assert sum(request.num_output_tokens for request in begun) == rows["output_tokens"].sum()
    assert sum(request.chunks for request in begun) == rows["chunks"].sum()
    counts = np.array(played.histogram)
    assert counts.sum() == sum(request.verifications for request in begun)
    assert counts @ np.arange(len(counts)) == sum(request.accepted_tokens for request in begun)
    for row, (how, _) in played.ended.items():
        request = played.requests[row]
        if how == "left":
            assert row in played.asked
            assert request.num_output_tokens < table.max_tokens[row]
        elif how == "finished" and row not in played.asked:
            assert request.num_output_tokens == min(table.output_tokens[row], request.max_tokens)


def prove(world: World, patience: list[float | None], seed: int, policy: PolicySpec | None = None) -> None:
    """Fails where a law does not hold, or columns differ from a list."""
    try:
        ours, table = play(world, patience, seed, policy)
    except Stall:
        return  # an engine too small for what it was given says so
    check(ours, table)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crowd, "LEAST_ROWS", NEVER)
        theirs, _ = play(world, patience, seed, policy)
    assert ours.ended == theirs.ended
    assert ours.histogram == theirs.histogram
    for name, column in ours.iterations.items():
        assert np.array_equal(column, theirs.iterations[name]), name


@pytest.fixture(autouse=True)
def from_the_first_row_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sequence that decodes is a column, and again soon after all were listed."""
    monkeypatch.setattr(crowd, "LEAST_ROWS", 1)
    monkeypatch.setattr(crowd, "MOST_PATIENCE", 2)


@LAWS
@given(odd(st.booleans().flatmap(lambda tight: worlds(("open",), tight=tight))), PATIENCE, SEEDS)
def test_who_is_aborted_leaves_once_and_whole(world: World, patience: list[float | None], seed: int) -> None:
    prove(world, patience, seed)


@LAWS
@given(odd(sharing()), PATIENCE, SEEDS)
def test_what_an_aborted_request_shares_stays_with_the_others(
    world: World, patience: list[float | None], seed: int
) -> None:
    prove(world, patience, seed)


@LAWS
@given(odd(worlds(("open",), crowded=True)), choices(), PATIENCE, SEEDS)
def test_policies_do_not_miss_who_is_aborted(
    world: World, policy: PolicySpec, patience: list[float | None], seed: int
) -> None:
    prove(several(world), patience, seed, policy)


@LAWS
@given(sglang_worlds(("open",), 1) | sharing_sglang_worlds(("open",), 1), PATIENCE, SEEDS)
def test_under_sglang_who_is_aborted_leaves_once_and_whole(
    world: World, patience: list[float | None], seed: int
) -> None:
    prove(world, patience, seed)


def one(abort_s: float, asynchronous: bool = False, others: int = 0) -> Played:
    """One request of 30 tokens at steps of 10 ms, with the first at 0, which is aborted."""
    engine = replace(ENGINE, async_scheduling=asynchronous)
    rows = 1 + others
    world = World([20] * rows, [30] * rows, arrival_s=[0.0] * rows, engine=engine, cost=ToyCost(0.01))
    return play(world, [abort_s, *[None] * others], 0)[0]


def left_at(played: Played, row: int) -> float:
    """When an aborted request was let go, s."""
    how, when_s = played.ended[row]
    assert how == "left"
    return when_s


def test_the_step_that_ends_when_an_abort_is_read_is_thrown_away() -> None:
    played = one(0.035)
    assert left_at(played, 0) == pytest.approx(0.04)
    assert played.requests[0].chunks == 3, "of four steps"
    assert len(played.iterations["end_s"]) == 4


def test_a_step_scheduled_ahead_computes_an_aborted_request_in_vain() -> None:
    played = one(0.035, asynchronous=True)
    assert left_at(played, 0) == pytest.approx(0.04)
    assert played.requests[0].chunks == 3
    assert len(played.iterations["end_s"]) == 5, "the fifth had been decided"
    assert played.iterations["chunks"].tolist() == [1, 1, 1, 0, 0]


def test_a_step_in_vain_reads_what_the_drafts_before_it_really_left() -> None:
    engine = replace(drafting(4), async_scheduling=True)
    world = World([20], [200], arrival_s=[0.0], engine=engine, cost=ToyCost(0.01), classes={"": SPREAD})
    ours, theirs = (play(world, [wait], 3)[0] for wait in (0.055, None))
    assert ours.requests[0].verifications == ours.requests[0].chunks - 1, "luck not used is not counted"
    aborted, whole = ours.iterations, theirs.iterations
    assert len(aborted["end_s"]) == 7
    for name in ("kv_tokens", "tokens", "draft_tokens", "kv_blocks_used"):
        assert aborted[name].tolist() == whole[name][:7].tolist(), name
    assert aborted["kv_tokens"][-1] < 20 + 7 * 5, "some drafts were rejected"


def test_who_stays_is_not_disturbed() -> None:
    with_it, without = one(0.035, others=3), one(inf, others=3)
    assert {row: with_it.ended[row] for row in (1, 2, 3)} == {row: without.ended[row] for row in (1, 2, 3)}


def test_who_never_got_a_turn_leaves_without_one() -> None:
    busy = World([20, 20], [30, 5], arrival_s=[0.0, 0.012], cost=ToyCost(0.01))
    played, _ = play(busy, [None, 0.003], 0)
    assert left_at(played, 1) == pytest.approx(0.02)
    assert played.iterations["waiting"].sum() == 0
