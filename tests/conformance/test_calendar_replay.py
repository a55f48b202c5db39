"""The calendar decides as vLLM 0.33.0 was recorded to, and the comparison would notice if it did not."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from calendar_engine import NotTaken, Price, Recording
from calendar_replay import Compared, compare
from hypothesis import HealthCheck, assume, given, settings
from replay import engine_config, main
from trace_worlds import decided, inputs

from specfleet.sim.calendar import quiet
from specfleet.sim.calendar.admission import Admission
from specfleet.sim.calendar.lane import Lane
from specfleet.sim.calendar.luck import Luck
from specfleet.sim.calendar.quiet import Quiet, Walk
from specfleet.sim.calendar.seat import Seat
from specfleet.sim.calendar.trajectories import Rules

Trace = dict[str, Any]
Plant = Callable[[pytest.MonkeyPatch], None]

SCENARIOS = Path(__file__).parent / "scenarios"
RECORDED = "golden/vllm_scheduler"
LAWS = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
TIGHT_POOL = {"num_gpu_blocks": 16, "enable_prefix_caching": False}
ROOMY_CACHE = {"num_gpu_blocks": 400, "enable_prefix_caching": True}
TIGHT_BUDGET = {"max_num_batched_tokens": 12, "num_speculative_tokens": 3, "enable_prefix_caching": False}


@pytest.fixture(autouse=True)
def short_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Quiet stretches of a few iterations are priced at once, so that short traces have some."""
    monkeypatch.setattr(quiet, "WINDOW", 3)
    monkeypatch.setattr(quiet, "LONGEST_WINDOW", 40)
    monkeypatch.setattr(Lane, "reach", 12)


def replayed(trace: Trace) -> Compared:
    """A trace through the calendar."""
    return compare(trace, engine_config(trace))


def taken(folder: Path) -> dict[str, Compared]:
    """The traces of a folder that the calendar takes, by name."""
    found = {}
    for file in sorted(folder.glob("*.json")):
        try:
            found[file.stem] = replayed(json.loads(file.read_text()))
        except NotTaken:
            continue
    return found


def prove(trace: Trace) -> Compared:
    """Fails where the calendar decides otherwise than the scheduler that lists who decodes."""
    try:
        Recording(trace, engine_config(trace)).lane(Price())
    except NotTaken:
        assume(False)
    compared = replayed(decided(trace))
    assert not compared.found.lines, "\n".join(compared.found.lines)
    return compared


@LAWS
@given(inputs())
def test_both_crowds_decide_the_same_step_by_step(trace: Trace) -> None:
    prove(trace)


@LAWS
@given(inputs(TIGHT_POOL))
def test_both_crowds_preempt_the_same(trace: Trace) -> None:
    prove(trace)


@LAWS
@given(inputs(TIGHT_BUDGET))
def test_both_crowds_cut_drafts_to_the_budget_alike(trace: Trace) -> None:
    prove(trace)


@LAWS
@given(inputs(ROOMY_CACHE))
def test_both_crowds_find_the_same_prefixes(trace: Trace) -> None:
    prove(trace)


def test_every_recording_that_the_calendar_takes_is_decided_alike(shared: Path) -> None:
    found = taken(shared / RECORDED)
    assert {name: one.found.lines[:3] for name, one in found.items() if one.found.lines} == {}


def test_the_calendar_takes_its_share_of_the_recordings(shared: Path) -> None:
    found = taken(shared / RECORDED)
    assert len(found) >= 22
    assert sum(one.found.steps for one in found.values()) >= 1691
    assert [name for name, one in found.items() if one.obstacle] == ["s08c_prefix_preempt"]
    assert sum(one.stepped for one in found.values()) >= 4


def test_every_scenario_that_the_calendar_takes_is_decided_alike() -> None:
    found = taken(SCENARIOS)
    assert {name: one.found.lines for name, one in found.items() if one.found.lines} == {}
    assert len(found) >= 30


def scenario(name: str) -> Trace:
    """A trace written by hand."""
    trace: Trace = json.loads((SCENARIOS / f"{name}.json").read_text())
    return trace


def test_a_wrong_record_is_noticed() -> None:
    trace = scenario("surplus_is_dropped")
    trace["steps"][1]["rows"][0][4] += 1
    assert replayed(trace).found.wrong == {"rows": 1, "output": 1}
    trace = scenario("async_output_in_flight_is_delivered")
    trace["steps"].pop()
    trace["truncated"] = False
    assert replayed(trace).found.wrong["truncated"]


def test_what_the_calendar_refuses_says_why() -> None:
    with pytest.raises(NotTaken, match="priority scheduling"):
        replayed(scenario("priority_orders_the_queue_only"))
    with pytest.raises(NotTaken, match="another request's output"):
        replayed(scenario("output_blocks_are_cached"))


def test_the_command_line_says_what_each_crowd_found(capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(SCENARIOS)
    assert main([folder, "--strict"]) == 0
    both = capsys.readouterr().out.splitlines()
    assert main([folder, "--strict", "--crowd", "listed"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert main([folder, "--strict", "--crowd", "calendar"]) == 0
    calendar = capsys.readouterr().out.splitlines()
    assert both == listed + calendar
    assert len(listed) == 2
    assert calendar[0].startswith("calendar: files 30, steps 95 (7 stepped), mismatches 0")
    assert "calendar: not taken: priority_orders_the_queue_only.json: priority scheduling" in calendar


def test_a_difference_of_the_calendar_alone_decides_the_exit_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    no_watermark(monkeypatch)
    file = str(SCENARIOS / "watermark_keeps_blocks_free.json")
    assert main([file, "--crowd", "listed"]) == 0
    assert main([file]) == 1
    assert "watermark_keeps_blocks_free.json: step" in capsys.readouterr().out


def set_to(name: str, value: int) -> property:
    """An attribute of a lane that is always `value`."""
    return property(lambda self: value, lambda self, given: None)


def no_watermark(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Admission, "watermark", set_to("watermark", 0), raising=False)


def no_reserve(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Admission, "_reserve", lambda self, seat: 0)


def no_draft_slot(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Admission, "slots", set_to("slots", 0), raising=False)


def with_rules(patch: pytest.MonkeyPatch, **changed: Any) -> None:
    original = Rules.of

    def of(*args: Any, **kwargs: Any) -> Rules | None:
        rules = original(*args, **kwargs)
        return None if rules is None else replace(rules, **changed)

    patch.setattr(Rules, "of", of)


def no_lookahead(patch: pytest.MonkeyPatch) -> None:
    with_rules(patch, lookahead=0, at_admission=0)


def one_block_too_few_at_admission(patch: pytest.MonkeyPatch) -> None:
    with_rules(patch, at_admission=-4)


def next_outcome_known_too_early(patch: pytest.MonkeyPatch) -> None:
    with_rules(patch, lag=0)


def luck_begins_a_round_late(patch: pytest.MonkeyPatch) -> None:
    original = Luck._one_by_one

    def one_by_one(self: Luck, ids: Any, hashes: Any, skipped: Any) -> Any:
        gains = original(self, ids, hashes, skipped)
        gains[1:] = gains[:-1].copy()
        return gains

    patch.setattr(Luck, "_one_by_one", one_by_one)


def last_token_is_not_computed_again(patch: pytest.MonkeyPatch) -> None:
    original = Seat.rest

    def rest(self: Seat, done: int, rules: Rules, last_emission: int) -> Seat:
        seat = original(self, done, rules, last_emission)
        return replace(seat, tokens=seat.tokens - 1)

    patch.setattr(Seat, "rest", rest)


def victims_queue_behind_each_other(patch: pytest.MonkeyPatch) -> None:
    original = Lane._make_room

    def make_room(self: Lane, acc: int, it: int, i: int) -> int:
        before = len(self.back)
        acc = original(self, acc, it, i)
        self.back[before:] = reversed(self.back[before:])
        return acc

    patch.setattr(Lane, "_make_room", make_room)


def quiet_stretches_forget_a_block(patch: pytest.MonkeyPatch) -> None:
    original = Quiet._quiet

    def walk(self: Quiet, walk: Walk, limit: float, step_s: float, k: int, edge: int) -> Walk:
        first = len(self.log.sums)
        after = original(self, walk, limit, step_s, k, edge)
        for it in range(first, len(self.log.sums)):
            self.log.sums[it] -= 1 << self.rules.packing.blocks
        return after

    patch.setattr(Quiet, "_quiet", walk)


FAULTS: dict[Plant, tuple[str | None, str]] = {
    no_watermark: ("watermark_keeps_blocks_free", "s04c_kv_watermark"),
    no_reserve: ("admission_needs_the_whole_sequence", "r01_random_plain"),
    no_draft_slot: ("draft_model_slot_shortens_a_prompt", "s06b_spec_budget_draft_model"),
    no_lookahead: ("eagle_holds_lookahead", "s07_spec_kv_preempt"),
    one_block_too_few_at_admission: ("head_of_line_blocks", "s04_kv_preempt"),
    next_outcome_known_too_early: ("async_surplus_end_is_overrun", "s13_async_plain"),
    luck_begins_a_round_late: (None, "s05_spec_ngram_k3"),
    last_token_is_not_computed_again: ("victim_is_last_and_goes_first", "s04_kv_preempt"),
    victims_queue_behind_each_other: ("victims_of_one_step_keep_their_order", "r01_random_plain"),
    quiet_stretches_forget_a_block: ("eagle_holds_lookahead", "s01_plain_decode"),
}
"""Wrong variants, and the scenario (if there is one) and the recorded trace that notice each."""


def notices(file: Path) -> bool:
    """Whether a trace ends in a difference, or in a broken invariant on the way."""
    try:
        return bool(replayed(json.loads(file.read_text())).found.lines)
    except (AssertionError, KeyError, IndexError):
        return True


@pytest.mark.parametrize(
    "plant", [plant for plant in FAULTS if FAULTS[plant][0]], ids=lambda plant: str(plant.__name__)
)
def test_a_planted_fault_is_noticed_by_its_scenario(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    file = SCENARIOS / f"{FAULTS[plant][0]}.json"
    assert not notices(file)
    plant(monkeypatch)
    assert notices(file)


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: str(plant.__name__))
def test_a_planted_fault_is_noticed_by_a_recording(
    plant: Plant, monkeypatch: pytest.MonkeyPatch, shared: Path
) -> None:
    file = shared / RECORDED / f"{FAULTS[plant][1]}.json"
    assert not notices(file)
    plant(monkeypatch)
    assert notices(file)
