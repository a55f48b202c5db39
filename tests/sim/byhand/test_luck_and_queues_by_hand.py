"""Drawn rounds, queues and calendars of one request or two, where each number can be said beforehand."""

from __future__ import annotations

from functools import partial
from itertools import count
from math import inf, sqrt
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from timeline_worlds import LOOKED_UP, LUCK

from specfleet.sim.calendar.kv.holders import Cached, Holder
from specfleet.sim.calendar.kv.pool import Pool
from specfleet.sim.calendar.luck import Luck
from specfleet.sim.calendar.stay import Stay
from specfleet.sim.calendar.stepper import Stepper
from specfleet.sim.calendar.stream import Stream
from specfleet.sim.calendar.trajectories import LifeBatch
from specfleet.sim.listed import ListedCrowd
from specfleet.sim.replica import Replica
from specfleet.sim.sequence import Sequence
from specfleet.sim.speculation.bursts import Burst
from specfleet.sim.speculation.lives import Lives
from specfleet.sim.speculation.replay import NO_MATCH
from specfleet.sim.speculation.spec import AcceptanceSpec
from specfleet.workloads.requests import RequestTable

SPREAD = AcceptanceSpec(conditional_acceptance=0.6, concentration=3.0)
BURSTY = AcceptanceSpec(conditional_acceptance=0.6, burst=Burst(0.5, 0.7))
OUTPUT = np.arange(1, 400)


def luck_of(spec: AcceptanceSpec, k: int = 4) -> tuple[Luck, Lives]:
    table = RequestTable.of(np.full(len(OUTPUT), 50), OUTPUT)
    lives = Lives({"": spec}, table, k, 11)
    drawn = partial(lives.accepted, ahead=True)
    return Luck(table.class_id, [lives.by_class[""]], k, 11, lives.bounds, lives.chain, drawn), lives


@pytest.mark.parametrize("spec", [SPREAD, LUCK[0]])
def test_luck_cut_to_one_draft_is_that_of_each_request_s_own_level(spec: AcceptanceSpec) -> None:
    luck, lives = luck_of(spec, 1)
    ids = np.array([3, 17, 40, 41, 42, 43])
    hashes = (OUTPUT[ids] + 1) // 2
    drawn = np.split(luck.gains(ids, hashes), 2 * np.cumsum(hashes)[:-1])
    for row, gains in zip(ids.tolist(), drawn, strict=True):
        own = np.frombuffer(lives.accepted(row, ahead=True), dtype=np.uint8)
        assert (gains[: len(own)] - 1).tolist() == own.tolist()


def test_rounds_to_draw_are_the_mean_and_two_deviations_and_three() -> None:
    wanted, ids = np.array([1, 2, 5, 100, 1000]), np.arange(5)
    luck, _ = luck_of(AcceptanceSpec(conditional_acceptance=0.5))
    each = [n / 1.9375 for n in wanted.tolist()]
    expected = [int(min(n, m + 2.1 * sqrt(m) + 3)) for n, m in zip(wanted.tolist(), each, strict=True)]
    assert luck.rounds_to_draw(ids, wanted).tolist() == expected == [1, 2, 5, 69, 566]
    sure, _ = luck_of(AcceptanceSpec(conditional_acceptance=1.0))
    assert sure.rounds_to_draw(ids, wanted).tolist() == [1, 2, 5, 32, 232]
    spread, _ = luck_of(SPREAD)
    many = spread.rounds_to_draw(np.arange(300), np.full(300, 1000))
    assert len(set(many.tolist())) > 10, "by the level of each"


@pytest.mark.parametrize("spec", [BURSTY, SPREAD, *LUCK[:1], *LOOKED_UP[:1]])
def test_rounds_drawn_from_the_middle_are_the_rest_of_all(spec: AcceptanceSpec) -> None:
    luck, _ = luck_of(spec)
    ids, whole, skipped = np.array([30, 77, 200]), np.array([15, 9, 9]), np.array([4, 0, 8])
    every = np.split(luck.gains(ids, whole), 2 * np.cumsum(whole)[:-1])
    rest = np.split(luck.gains(ids, whole - skipped, skipped), 2 * np.cumsum(whole - skipped)[:-1])
    for all_, later, past in zip(every, rest, skipped.tolist(), strict=True):
        assert later.tolist() == all_[2 * past :].tolist()


def test_who_has_output_in_flight_is_passed_over_and_remembered() -> None:
    queue, looks = [Sequence(n, 10, 5) for n in range(3)], count()

    class Waiting:
        def __bool__(self) -> bool:
            return bool(queue)

        def head(self) -> Sequence:
            assert next(looks) < 9, "it looks at the same one for ever"
            return queue[0]

        def pop(self) -> Sequence:
            return queue.pop(0)

    queue[0].num_stale_tokens = queue[1].num_stale_tokens = 1
    stale, hit = queue[:2], SimpleNamespace(tokens=4, blocks=[1, 2])
    kv = SimpleNamespace(lookup=lambda sequence: hit, idle=lambda found: 1)
    rules = SimpleNamespace(reserved=lambda tokens: 100 * tokens)
    crowd: Any = SimpleNamespace(waiting=Waiting(), passed_over=[], kv=kv, rules=rules)
    (who, found), *numbers = next(ListedCrowd.in_turn(crowd))
    assert (who.id, numbers) == (2, [10, 4, 2, 1, 1500]) and str(found) == str(hit)
    assert crowd.passed_over == stale and len(queue) == 1


@pytest.mark.parametrize(
    ("other", "turns", "woken"), [(7.0, [1.0, 5.0, 6.0], [8.0]), (6.0, [1.0, 5.0], [6.0])]
)
def test_a_replica_lets_others_have_their_turn_at_the_same_time(
    other: float, turns: list[float], woken: list[float]
) -> None:
    plan, taken, calls = {1.0: 5.0, 5.0: 6.0, 6.0: 8.0}, [], []

    def advance(now: float, until: float) -> float:
        taken.append(now)
        return plan[now]

    replica: Any = SimpleNamespace(
        env=SimpleNamespace(peek=lambda: other, wake=lambda due, waker: calls.append(due)),
        server=SimpleNamespace(advance=advance, answers=lambda: ()),
        outstanding=0,
        _waker=lambda due: None,
        _asleep=False,
    )
    Replica._run(replica, 1.0)
    assert (taken, calls, replica._asleep) == (turns, woken, False)
    plan[1.0] = inf
    Replica._run(replica, 1.0)
    assert replica._asleep


def test_pauses_handed_on_are_between_the_ends_of_their_iterations() -> None:
    told: list[dict[str, Any]] = []
    stream: Any = SimpleNamespace(
        lane=SimpleNamespace(log=SimpleNamespace(odd_gaps=[14, 11, 7, 13, 10, 5, 15, 12, 6])),
        _window=SimpleNamespace(base=10, end_s=np.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])),
        summary=SimpleNamespace(add_gaps=told.append),
    )
    Stream._hand_on_gaps(stream, np.array([7, 6]), np.array([1, 0]))
    (columns,) = told
    assert columns["end_s"].tolist() == [16.0, 32.0]
    assert columns["gap_s"].tolist() == [16.0 - 2.0, 32.0 - 4.0]
    assert columns["counted"].tolist() == [1, 0] and columns["tokens"].tolist() == [1, 1]
    assert stream.lane.log.odd_gaps == [13, 10, 5], "those of who is not over stay"


@pytest.mark.parametrize("flight", [None, SimpleNamespace(noted=True)])
def test_stepping_goes_on_until_a_batch_is_in_flight_whose_rows_are_known(flight: Any) -> None:
    rules = SimpleNamespace(in_flight=1, row_charge=lambda k: 1 + k, max_num_batched_tokens=64)
    stepper: Any = SimpleNamespace(crowd=SimpleNamespace(rules=rules), plans=None)
    engine: Any = SimpleNamespace(scheduler=SimpleNamespace(running=[], waiting=[]), flight=flight)
    assert not Stepper._is_regular(stepper, engine, 0)
    empty = SimpleNamespace(sequences=[], samples=[])
    engine.flight = SimpleNamespace(noted=False, batch=empty)
    assert Stepper._is_regular(stepper, engine, 0)


def test_whoever_leaves_has_the_blocks_without_a_key_that_are_left_of_all() -> None:
    shared, own = Cached(1, 0), Cached(2, 0)
    first, second = Holder(0, [1, 2], [shared, own]), Holder(1, [1], [shared])
    first.private, second.private, second.number = 1, 0, 1
    pool: Any = SimpleNamespace(_leavers={9: [second], 8: [first]})
    twice, kept = Pool.reseat(pool, {0: (20, 9), 1: (30, 4)}, None)
    assert (first.unkeyed, first.until) == (9 - 1 - 2, 20)
    assert (second.unkeyed, second.until) == (4 - 0 - 1, 30)
    assert (twice, kept) == (1, {20: 1}), "the shared one goes with the second"
    assert (shared.until, own.until) == (30, 20)
    assert pool._leavers == {20: [first], 30: [second]} and pool._due == [20, 30]


def test_a_request_that_follows_a_recorded_one_finds_drafts_where_that_did() -> None:
    with_gaps, without = bytes([2, NO_MATCH, 0, 1, NO_MATCH, NO_MATCH]), bytes([3, 0, 1])
    _, lives = luck_of(AcceptanceSpec(replay=(with_gaps, without)))
    replay = lives.by_class[""]
    # tokens written 1: no match; 2: nothing kept; 3: one kept; 5, 6 = 0 again: no match, two kept; 9: one
    assert replay.proposals(0, 10) == bytes([0, 1, 1, 0, 1, 1])
    assert replay.accepted(0, 50, 10) == bytes([0, 1, 2, 1])
    assert replay.proposals(1, 10) is None and replay.proposals(3, 10) is None
    assert replay.accepted(1, 50, 6) == bytes([0, 1, 0, 1])
    assert replay.confidence(0, 50) == (1.0, 0.5, 0.0, 0.0), "from its first place on"
    assert replay.confidence(2, 50) == replay.confidence(0, 50)


def test_a_first_stay_is_its_request_s_part_of_the_block() -> None:
    flat: dict[str, Any] = {
        "row": np.arange(9), "side": np.arange(9) + 20, "footprint": np.arange(9) + 40,
        "gains": np.arange(9, dtype=np.uint8) + 60, "kept": np.array([1, 2]), "starts": np.array([0, 4]),
        "rounds_column": np.array([3, 4]), "prompt": [10, 11], "blocks": [1, 2], "rounds": [3, 4],
        "most": [5, 6], "uses_drafts": [True, False], "final": [14, 16], "start": [0, 4], "end": [4, 9],
        "unused": [-1, 3], "drafts": None, "wants": None, "spared": [], "rows": [],
    }  # fmt: skip
    stay = Stay.fresh(8, LifeBatch(first_place=7, **flat), 1)
    assert (stay.place, stay.prompt, stay.final, stay.most, stay.tokens) == (8, 11, 16, 6, 11)
    assert (stay.blocks, stay.rounds, stay.kept, stay.unused, stay.extra) == (2, 4, 2, 3, -1)
    assert stay.row.tolist() == [4, 5, 6, 7, 8] and stay.last_emission == -1
    assert stay.side is not None and stay.side.tolist() == [24, 25, 26, 27, 28]
    assert stay.footprint is not None and stay.footprint.tolist() == [44, 45, 46, 47, 48]
    assert stay.gains is not None and stay.gains.tolist() == [64, 65, 66, 67]
    bare = LifeBatch(first_place=7, **flat | {"side": None, "footprint": None, "gains": None, "unused": []})
    stay = Stay.fresh(7, bare, 0)
    assert (stay.side, stay.footprint, stay.gains, stay.unused) == (None, None, None, -1)
    assert stay.row.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(("plans", "policy"), [(None, None), (None, 1), (1, None), (1, 1)])
def test_a_policy_is_told_of_steps_only_where_k_is_planned(plans: Any, policy: Any) -> None:
    crowd: Any = SimpleNamespace(footprints=SimpleNamespace(k=3), log=SimpleNamespace())
    own: Any = SimpleNamespace(plan=lambda: None) if policy else None
    nothing: Any = None
    stepper = Stepper(crowd, nothing, 0, nothing, plans, own, nothing)
    assert (stepper.policy is not None) == bool(plans and policy)
    assert len(stepper.recorder.rounds_by_accepted) == 4, "none to three drafts kept"
