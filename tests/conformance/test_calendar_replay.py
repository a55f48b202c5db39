"""The calendar decides as vLLM 0.33.0 was recorded to, and the comparison would notice if it did not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from calendar_engine import NotTaken, Price, Recording
from calendar_faults import FAULTS, Plant, no_watermark
from calendar_replay import Compared, compare
from hypothesis import HealthCheck, assume, given, settings
from replay import Replay, engine_config, main
from trace_worlds import decided, inputs

from specfleet.sim.calendar import quiet
from specfleet.sim.errors import Breach

Trace = dict[str, Any]

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
    monkeypatch.setattr(quiet.Quiet, "reach", 12)


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


def in_pairs(ends: list[dict[str, int]]) -> Trace:
    """Prompts of two tokens that arrive together, and whose rows do not all fit into the second step."""
    same: Trace = {"prompt_len": 2, "priority": 0, "accept": [0], "arrival_step": 0}
    requests = [same | {"id": i, "prompt": [[f"{i}/in", 2]]} | end for i, end in enumerate(ends)]
    config = scenario("async_free_blocks_lag")["config"] | {
        "max_num_batched_tokens": 9,
        "num_gpu_blocks": 16,
        "spec_method": "draft_model",
        "num_speculative_tokens": 3,
    }
    return {"config": config, "requests": requests, "truncated": False}


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


def test_rows_in_vain_behind_a_step_that_ends_everybody_are_compared() -> None:
    """Two batches are in flight when everybody ends: the second is stepped, and read two turns later."""
    ends = [{"output_len": 1}, {"output_len": 2, "stop_at": 1}, {"output_len": 2, "stop_at": 1}]
    trace = in_pairs(ends)
    compared = replayed(trace | {"steps": list(Replay(trace).steps())})
    assert compared.found.lines == []
    assert compared.stepped == 1


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
    early = scenario("output_blocks_are_cached")
    early["requests"][1]["arrival_step"] = 4
    with pytest.raises(NotTaken, match="not written to its end"):
        replayed(early)


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
    assert calendar[0].startswith("calendar: files 31, steps 101 (7 stepped), mismatches 0")
    assert "calendar: not taken: priority_orders_the_queue_only.json: priority scheduling" in calendar


def test_a_difference_of_the_calendar_alone_decides_the_exit_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    no_watermark(monkeypatch)
    file = str(SCENARIOS / "watermark_keeps_blocks_free.json")
    assert main([file, "--crowd", "listed"]) == 0
    assert main([file]) == 1
    assert "watermark_keeps_blocks_free.json: step" in capsys.readouterr().out


def notices(file: Path) -> bool:
    """Whether a trace ends in a difference, or in a broken invariant on the way."""
    try:
        return bool(replayed(json.loads(file.read_text())).found.lines)
    except (AssertionError, Breach, KeyError, IndexError):
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
