"""The profile of January 2026 decides as the real scheduler of vLLM 0.15.0 on the recorded scenarios."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from replay import compare

from specfleet.experiments.point.build import SCHEDULER_RULES
from specfleet.hardware import catalog

DECISIONS = json.loads((Path(__file__).parent / "vllm_0_15_0" / "decisions.json").read_text())
PROFILE = catalog.engine_profile("vllm-2026-01")
LATER = {"s08b_prefix_multiturn", "s09b_long_prefill_adaptive"}
"""What 0.15.0 has not, or does otherwise and no switch says."""


def trace(shared: Path, name: str, **switches: Any) -> dict[str, Any]:
    """A recorded scenario with 0.15.0's decisions and the profile's switches."""
    scenario = json.loads((shared / f"golden/vllm_scheduler/{name}.json").read_text())
    rules = {rule: getattr(PROFILE, rule) for rule in (*SCHEDULER_RULES, "scheduler_reserve_full_isl")}
    return {**scenario, "steps": DECISIONS[name], "truncated": True, "switches": rules | switches}


def wrong(shared: Path, **switches: Any) -> set[str]:
    return {name for name in {*DECISIONS} - LATER if compare(trace(shared, name, **switches)).decisive}


def test_the_profile_of_january_2026_decides_as_the_real_scheduler(shared: Path) -> None:
    assert len(DECISIONS) >= 25
    assert wrong(shared) == set()


def test_each_switch_that_the_replay_found_is_needed(shared: Path) -> None:
    assert "s07_spec_kv_preempt" in wrong(shared, lookahead_at_admission=True)
    assert "s06b_spec_budget_draft_model" in wrong(shared, charges_draft_slots=True)
    assert "s08d_prefix_spec_ngram" in wrong(shared, pads_one_token_admission=True)
    assert "s08e_prefix_spec_eagle" in wrong(shared, prefix_hash_covers_next_token=True)
    assert "s09_long_prefill_threshold" in wrong(shared, spares_lone_long_prefill=True)


def test_the_profile_of_0_15_has_the_rules_that_were_replayed() -> None:
    own = catalog.engine_profile("vllm-0.15")
    for rule in (*SCHEDULER_RULES, "scheduler_reserve_full_isl", "async_scheduling"):
        assert getattr(own, rule) == getattr(PROFILE, rule)
