"""Clients that give up, on the calendar: the same run as stepped, bit by bit, wherever a request stands."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from patient_worlds import PATIENT, impatient
from sim_toys import ENGINE, ToyCost, World, drafting
from test_timeline import HUNT, LAWS, SEEDS, choosing, plant, small_windows_and_blocks
from timeline_worlds import LUCK, both, differences, policies, requests, sharing, worlds

from specfleet.sim import scheduler
from specfleet.sim.calendar import watch
from specfleet.sim.calendar.books import books
from specfleet.sim.calendar.kv import shared, victims
from specfleet.sim.calendar.patience import harvest, leaving
from specfleet.sim.calendar.patience.lanes import PatientLanes
from specfleet.sim.calendar.patience.leaving import Leaving
from specfleet.sim.calendar.patience.refused import GIVEN_UP
from specfleet.sim.calendar.stay import StayRef
from specfleet.sim.errors import Breach, Stall
from specfleet.sim.fleet.patience import PatienceConfig
from specfleet.sim.recorder import GAVE_UP, Columns
from specfleet.sim.scenario import RunResult
from specfleet.sim.simulation import simulate
from specfleet.sim.speculation.policy import PolicySpec
from specfleet.workloads.pauses import FixedPause

__all__ = ["small_windows_and_blocks"]

LOOPS = ("open", "closed", "capped", "balanced")
SHORT = worlds(LOOPS, 2, tight=True)
ANY = st.one_of(worlds(LOOPS, 2), SHORT, worlds(LOOPS, 2, crowded=True), sharing(LOOPS, 2))


def tries_differ(ours: Columns, theirs: Columns) -> list[str]:
    """Returns the columns of attempts that are not the same to the last bit."""
    return [
        name
        for name in sorted(ours.keys() | theirs.keys())
        if name not in ours
        or name not in theirs
        or not np.array_equal(ours[name], theirs[name], equal_nan=ours[name].dtype.kind == "f")
    ]


def prove(
    world: World, patience: PatienceConfig, seed: int, policy: PolicySpec | None = None
) -> RunResult | None:
    """Fails where the two ways differ; returns the run where an engine is not too small for it."""
    try:
        ours, theirs = both(impatient(world, patience), seed, policy)
    except Stall:
        return None
    assert not (found := differences(ours, theirs)), "\n".join(found)
    assert not (odd := tries_differ(ours.attempts, theirs.attempts)), odd
    return ours


@LAWS
@given(worlds(LOOPS, 2), PATIENT, SEEDS)
def test_who_gives_up_leaves_as_when_stepped(world: World, patience: PatienceConfig, seed: int) -> None:
    prove(world, patience, seed)


@LAWS
@given(SHORT, PATIENT, SEEDS)
def test_who_gives_up_where_kv_is_short_leaves_as_when_stepped(
    world: World, patience: PatienceConfig, seed: int
) -> None:
    prove(world, patience, seed)


@LAWS
@given(worlds(LOOPS, 2, crowded=True), PATIENT, SEEDS)
def test_who_gives_up_with_a_prompt_in_pieces_leaves_as_when_stepped(
    world: World, patience: PatienceConfig, seed: int
) -> None:
    prove(world, patience, seed)


@LAWS
@given(sharing(LOOPS, 2), PATIENT, SEEDS)
def test_what_somebody_shared_who_gives_up_stays_with_the_others(
    world: World, patience: PatienceConfig, seed: int
) -> None:
    prove(world, patience, seed)


@LAWS
@given(st.one_of(worlds(LOOPS, 2), SHORT).map(choosing), PATIENT, SEEDS, policies())
def test_who_gives_up_where_k_changes_leaves_as_when_stepped(
    world: World, patience: PatienceConfig, seed: int, policy: PolicySpec
) -> None:
    prove(world, patience, seed, policy)


@LAWS
@given(st.one_of(worlds(LOOPS, 2), SHORT).map(choosing), PATIENT, SEEDS)
def test_who_gives_up_behind_a_short_drafter_leaves_as_when_stepped(
    world: World, patience: PatienceConfig, seed: int
) -> None:
    speculative = world.engine.speculative
    if speculative is not None:
        short = replace(speculative, drafter_max_model_len=60)
        world = replace(world, engine=replace(world.engine, speculative=short))
    prove(world, patience, seed)


def test_these_worlds_give_up_a_third_and_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: Counter[str] = Counter()
    decoding, prompting = Leaving._stop_decoding, Leaving._stop_prompt
    thrown_out, unqueue, anew = Leaving._was_thrown_out, Leaving._unqueue, PatientLanes.begins_anew

    def stop_decoding(self: Leaving, ref: StayRef, known: int) -> None:
        at = self.lane.at
        ahead = self.lane.rules.lag and not at.flying
        seen["landed" if ahead else "ending" if ref[0] < at.it else "decoding"] += 1
        seen["without a token"] += ref[1] > known
        decoding(self, ref, known)

    def stop_prompt(self: Leaving) -> None:
        seen["prompting"] += 1
        prompting(self)

    def was_thrown_out(self: Leaving, place: int, known: int) -> bool:
        ref, it = self._crowd.evicted.get(place), self._crowd.evicted_in
        found = thrown_out(self, place, known)
        seen["thrown out"] += found
        seen["thrown out in flight"] += found and ref is not None and it - 1 > known
        return found

    def unqueued(self: Leaving, index: int) -> None:
        seen["waiting" if index < self._waiting.visible else "not read"] += 1
        unqueue(self, index)

    def begins_anew(self: PatientLanes, row: int) -> None:
        seen["over"] += 1
        anew(self, row)

    monkeypatch.setattr(Leaving, "_stop_decoding", stop_decoding)
    monkeypatch.setattr(Leaving, "_stop_prompt", stop_prompt)
    monkeypatch.setattr(Leaving, "_was_thrown_out", was_thrown_out)
    monkeypatch.setattr(Leaving, "_unqueue", unqueued)
    monkeypatch.setattr(PatientLanes, "begins_anew", begins_anew)

    @settings(HUNT, max_examples=500)
    @given(ANY, PATIENT, SEEDS)
    def look(world: World, patience: PatienceConfig, seed: int) -> None:
        seen["worlds"] += 1
        try:
            scenario = impatient(world, patience).scenario(world.classes or {})
            ours = simulate(scenario, requests(world), seed)
        except Stall:
            return
        seen["lanes"] += ours.stepped_share == 0.0
        seen["requests"] += len(ours.requests["status"])
        seen["gave up"] += int((ours.requests["status"] == GAVE_UP).sum())

    look()
    assert seen["lanes"] > 0.6 * seen["worlds"]
    assert seen["gave up"] > seen["requests"] / 3
    places = ("landed", "ending", "decoding", "without a token", "prompting", "thrown out")
    for where in (*places, "thrown out in flight", "waiting", "not read", "over"):
        assert seen[where], (where, seen)


FAULTS: dict[str, tuple[ModuleType, str, str]] = {
    "what the batch that ended sampled counts": (
        leaving,
        "max(known - first, -1)\n        landed",
        "max(known - first + 1, -1)\n        landed",
    ),
    "it gives more blocks than it held": (
        leaving,
        "crowd.calendar.row[at.i] -= share",
        "crowd.calendar.row[at.i] -= share + (1 << crowd.pack.blocks)",
    ),
    "a prompt in pieces gives less": (
        leaving,
        "crowd.footprints.prefilling(begun.held)",
        "crowd.footprints.prefilling(begun.held - 1)",
    ),
    "its luck is counted": (
        books,
        "self._book(stay, first, max(kept, 0), 1)",
        "self._book(stay, first, had, 1)",
    ),
    "it ends all the same": (
        watch,
        "if end is not None and self._far.pop(place, None) is None:",
        "if False:",
    ),
    "it talks on": (watch, "self._leaves.setdefault(last, []).append(order)", "pass"),
    "a step in vain reads what was sampled beyond the end": (
        scheduler,
        "if ends and fresh:",
        "if ends and fresh and sequence.state != FINISHED:",
    ),
    "blocks that others hold are free": (
        shared,
        "pool.leave(holder, keyed, held, self._begun)",
        "0 * pool.leave(holder, keyed, held, self._begun)",
    ),
    "keys of tokens that were thrown away": (victims, "- query + 1\n", "- query + 9\n"),
    "it leaves at once": (
        harvest,
        'columns["finished_s"][places] = [left_s for _, left_s in left]',
        'columns["finished_s"][places] = 0.0',
    ),
    "wasted tokens are output": (harvest, '+ columns["accepted_tokens"][places]', ""),
}
"""What goes wrong, where, what stands there, and what is planted."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, old, new = FAULTS[fault]
    plant(monkeypatch, module, old, new)

    caches = module in (shared, victims)

    @seed(1 if fault == "what the batch that ended sampled counts" else 0)  # others find it, too, but later
    @HUNT
    @given(sharing(LOOPS, 2) if caches else ANY, PATIENT, SEEDS)
    def hunt(world: World, patience: PatienceConfig, run: int) -> None:
        prove(world, patience, run)

    with pytest.raises((AssertionError, Breach, KeyError, ValueError, IndexError)):
        hunt()


def test_who_leaves_makes_room_in_the_same_turn_for_who_waits() -> None:
    """Steps of 10 ms, one seat: the first leaves at 40 ms, and the second is computed from then on."""
    engine = replace(ENGINE, max_num_seqs=1)
    world = World([20, 20], [30, 3], arrival_s=[0.0, 0.01], engine=engine, cost=ToyCost(0.01))
    run = impatient(world, PatienceConfig(timeout_s=FixedPause(0.035), retries=0)).run()
    assert run.stepped_share == 0.0
    assert run.requests["finished_s"].tolist() == pytest.approx([0.04, 0.05])
    assert run.requests["chunks"].tolist() == [3, 0]
    patient = impatient(world, PatienceConfig(ttft_timeout_s=FixedPause(0.05), timeout_s=FixedPause(0.35)))
    assert patient.run().requests["chunks"].tolist() == [30, 0]


def test_who_is_sent_again_finds_what_was_computed_of_its_prompt() -> None:
    world = World([64] * 4, [30] * 4, arrival_s=[0.0] * 4, cost=ToyCost(0.01))
    caches = replace(world, engine=replace(ENGINE, enable_prefix_caching=True, block_size=16))
    patience = PatienceConfig(timeout_s=FixedPause(0.035), retries=1, backoff_s=0.0)
    run = prove(caches, patience, 0)
    assert run is not None
    assert run.stepped_share == 0.0
    assert run.attempts["cached_tokens"].tolist() == [0] * 4 + [48] * 4


def test_what_is_stepped_where_clients_give_up_says_so() -> None:
    world = World([20] * 4, [30] * 4, arrival_s=[0.0] * 4, engine=drafting(3), cost=ToyCost(0.01))
    world = impatient(world, PatienceConfig(timeout_s=FixedPause(0.035)))
    world = replace(world, classes={"": LUCK[0]})
    assert both(world, 0)[0].stepped_share == 0.0
    ours, theirs = both(world, 0, PolicySpec("goodput"))
    assert ours.stepped_because.startswith(GIVEN_UP)
    assert not differences(ours, theirs)


def test_limits_that_nobody_reaches_change_nothing_of_what_is_known_of_a_run() -> None:
    world = World([20] * 30, [30] * 30, arrival_s=np.linspace(0, 1, 30).tolist(), cost=ToyCost(0.01))
    ours = impatient(world, PatienceConfig(timeout_s=FixedPause(1e6))).run()
    theirs = world.run()
    assert all(np.array_equal(ours.requests[name], column, True) for name, column in theirs.requests.items())
    assert all(np.array_equal(ours.iterations[name], column) for name, column in theirs.iterations.items())
    assert not ours.attempts
