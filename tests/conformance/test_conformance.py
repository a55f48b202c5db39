"""Our scheduler decides as vLLM 0.33.0 does, and the comparison would notice if it did not.

`conformance/scenarios` holds small traces written by hand, a statement about vLLM's scheduler each.
The recorded traces of the real scheduler are larger and lie in the folder of measurements.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from replay import compare, engine_config, main

from specfleet.sim.config import EngineConfig, SpeculativeConfig
from specfleet.sim.errors import Breach
from specfleet.sim.kvcache import Hit, KVCache, PrefixCache
from specfleet.sim.rules import SchedulerRules
from specfleet.sim.sequence import Batch, Sequence
from specfleet.sim.waiting import FcfsQueue

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.json"))
Plant = Callable[[pytest.MonkeyPatch], None]


def mismatches(file: Path) -> list[str]:
    """The differences of one trace, state and order included."""
    return compare(json.loads(file.read_text())).lines


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda file: str(file.stem))
def test_the_scheduler_follows_vllm(scenario: Path) -> None:
    assert mismatches(scenario) == [], json.loads(scenario.read_text())["claim"]


def test_every_recorded_decision_is_ours(shared: Path) -> None:
    files = sorted((shared / "golden/vllm_scheduler").glob("*.json"))
    assert len(files) >= 39
    assert {file.stem: mismatches(file)[:3] for file in files if mismatches(file)} == {}


def test_the_command_line_counts_mismatches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = SCENARIOS[0].parent
    assert main([str(folder), "--strict"]) == 0
    assert f"files {len(SCENARIOS)}" in capsys.readouterr().out
    trace = json.loads((folder / "surplus_is_dropped.json").read_text())
    trace["steps"][1]["rows"][0][4] += 1
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps(trace))
    assert main([str(wrong)]) == 1
    assert "mismatches 1" in capsys.readouterr().out
    assert main([str(tmp_path / "absent.json")]) == 2


def no_lookahead(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SpeculativeConfig, "num_lookahead_tokens", 0)


def no_draft_slot(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SpeculativeConfig, "draft_slots", 0)


def no_padding(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SchedulerRules, "pads", lambda self, beside_rows, computed: False)


def no_reserve(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SchedulerRules, "blocks_reserved", lambda self, known: 0)


def no_watermark(patch: pytest.MonkeyPatch) -> None:
    original = SchedulerRules.of
    patch.setattr(SchedulerRules, "of", lambda config: replace(original(config), watermark_blocks=0))


def free_order_not_reversed(patch: pytest.MonkeyPatch) -> None:
    original = PrefixCache.free

    def free(self: PrefixCache, sequence: Sequence) -> None:
        self._held.get(sequence.id, []).reverse()
        original(self, sequence)

    patch.setattr(PrefixCache, "free", free)


def drafts_all_or_none(patch: pytest.MonkeyPatch) -> None:
    original = Batch.place

    def place(self: Batch, sequence: Sequence, num_tokens: int, num_drafts: int) -> None:
        if 0 < num_drafts < 3 and num_tokens == 1 + num_drafts:
            num_tokens, num_drafts = 1, 0
        original(self, sequence, num_tokens, num_drafts)

    patch.setattr(Batch, "place", place)


def budget_not_handed_back(patch: pytest.MonkeyPatch) -> None:
    original = Batch.withdraw

    def withdraw(self: Batch, sequence: Sequence) -> int | None:
        return None if original(self, sequence) is None else 0

    patch.setattr(Batch, "withdraw", withdraw)


def last_token_recompute_missing(patch: pytest.MonkeyPatch) -> None:
    def lookup(self: PrefixCache, sequence: Sequence) -> Hit:
        sequence.num_tokens += 1
        hit = original(self, sequence)
        sequence.num_tokens -= 1
        return hit

    original = PrefixCache.lookup
    patch.setattr(PrefixCache, "lookup", lookup)


def victim_goes_to_the_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FcfsQueue, "put_back", FcfsQueue.add)


def null_block_handed_out(patch: pytest.MonkeyPatch) -> None:
    original = KVCache.__init__

    def init(self: KVCache, num_gpu_blocks: int, block_size: int) -> None:
        original(self, num_gpu_blocks + 1, block_size)

    patch.setattr(KVCache, "__init__", init)


FAULTS: dict[Plant, tuple[str, str]] = {
    no_lookahead: ("eagle_holds_lookahead", "s07_spec_kv_preempt"),
    no_draft_slot: ("draft_model_costs_a_budget_token", "s06b_spec_budget_draft_model"),
    no_padding: ("one_token_admission_is_padded", "s06c_spec_budget_prefill_mix"),
    no_reserve: ("admission_needs_the_whole_sequence", "r01_random_plain"),
    no_watermark: ("watermark_keeps_blocks_free", "s04c_kv_watermark"),
    free_order_not_reversed: ("freed_blocks_go_tail_first", "s08c_prefix_preempt"),
    drafts_all_or_none: ("drafts_first_come_first_served", "s06_spec_budget"),
    budget_not_handed_back: ("priority_victim_hands_its_budget_back", "s10d_priority_budget_restore"),
    last_token_recompute_missing: ("prefix_hit_leaves_one_token", "s08_prefix_cache"),
    victim_goes_to_the_end: ("victim_is_last_and_goes_first", "s04_kv_preempt"),
    null_block_handed_out: ("one_block_is_the_null_block", "s04_kv_preempt"),
}
"""Wrong variants, and the scenario and the recorded trace that notice each."""


def notices(file: Path) -> bool:
    """Whether a trace ends in a difference, or in a broken invariant on the way."""
    try:
        return bool(mismatches(file))
    except (AssertionError, Breach, KeyError, IndexError):
        return True


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: str(plant.__name__))
def test_a_planted_fault_is_noticed_by_its_scenario(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = SCENARIOS[0].parent / f"{FAULTS[plant][0]}.json"
    assert not notices(scenario)
    plant(monkeypatch)
    assert notices(scenario)


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: str(plant.__name__))
def test_a_planted_fault_is_noticed_by_a_recording(
    plant: Plant, monkeypatch: pytest.MonkeyPatch, shared: Path
) -> None:
    recording = shared / f"golden/vllm_scheduler/{FAULTS[plant][1]}.json"
    assert not notices(recording)
    plant(monkeypatch)
    assert notices(recording)


OLDER_BUILDS: dict[str, dict[str, Any]] = {
    "surplus_is_dropped": {"trims_drafts_to_max_tokens": True},
    "eagle_holds_lookahead": {"lookahead_at_admission": False},
    "one_token_admission_is_padded": {"pads_one_token_admission": False},
    "eagle_prefix_hit_drops_no_block": {"prefix_hash_covers_next_token": False},
    "long_prefill_cap_spares_the_lone_request": {"spares_lone_long_prefill": False},
}


@pytest.mark.parametrize("name", OLDER_BUILDS)
def test_an_older_build_decides_differently(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def older(trace: dict[str, Any]) -> EngineConfig:
        return replace(newest(trace), **OLDER_BUILDS[name])

    newest = engine_config
    monkeypatch.setattr("replay.engine_config", older)
    assert mismatches(SCENARIOS[0].parent / f"{name}.json")
