"""Wrong variants of the calendar, for the replay of recorded decisions to find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from specfleet.sim.calendar.footprints import Footprints
from specfleet.sim.calendar.kv.counted import CountedKV
from specfleet.sim.calendar.luck import Luck
from specfleet.sim.calendar.position import Position
from specfleet.sim.calendar.quiet import Quiet
from specfleet.sim.calendar.stay import Stay

Plant = Callable[[pytest.MonkeyPatch], None]


def with_rules(patch: pytest.MonkeyPatch, **changed: Any) -> None:
    original = Footprints.of

    def of(*args: Any, **kwargs: Any) -> Footprints | None:
        footprints = original(*args, **kwargs)
        if footprints is None:
            return None
        rules = replace(footprints.scheduler, **changed)
        return replace(footprints, scheduler=rules, lag=rules.in_flight)

    patch.setattr(Footprints, "of", of)


def no_watermark(patch: pytest.MonkeyPatch) -> None:
    with_rules(patch, watermark_blocks=0)


def no_reserve(patch: pytest.MonkeyPatch) -> None:
    with_rules(patch, reserves_all=False)


def no_draft_slot(patch: pytest.MonkeyPatch) -> None:
    with_rules(patch, draft_slots=0)


def no_lookahead(patch: pytest.MonkeyPatch) -> None:
    with_rules(patch, lookahead=0, lookahead_at_admission=0)


def one_block_too_few_at_admission(patch: pytest.MonkeyPatch) -> None:
    with_rules(patch, lookahead_at_admission=-4)


def next_outcome_known_too_early(patch: pytest.MonkeyPatch) -> None:
    with_rules(patch, in_flight=0)


def luck_begins_a_round_late(patch: pytest.MonkeyPatch) -> None:
    original = Luck._one_by_one

    def one_by_one(self: Luck, ids: Any, hashes: Any, skipped: Any) -> Any:
        gains = original(self, ids, hashes, skipped)
        gains[1:] = gains[:-1].copy()
        return gains

    patch.setattr(Luck, "_one_by_one", one_by_one)


def last_token_is_not_computed_again(patch: pytest.MonkeyPatch) -> None:
    original = Stay.rest

    def rest(self: Stay, done: int, rules: Footprints, last_emission: int) -> Stay:
        stay = original(self, done, rules, last_emission)
        return replace(stay, tokens=stay.tokens - 1)

    patch.setattr(Stay, "rest", rest)


def victims_queue_behind_each_other(patch: pytest.MonkeyPatch) -> None:
    original = CountedKV.make_room

    def make_room(self: CountedKV, acc: int, it: int, i: int) -> int:
        queue = self.crowd.waiting.preempted
        before = len(queue)
        acc = original(self, acc, it, i)
        queue[before:] = reversed(queue[before:])
        return acc

    patch.setattr(CountedKV, "make_room", make_room)


def quiet_stretches_forget_a_block(patch: pytest.MonkeyPatch) -> None:
    original = Quiet.run

    def run(self: Quiet, at: Position, limit: float, step_s: float) -> None:
        first = len(self.log.sums)
        original(self, at, limit, step_s)
        for it in range(first, len(self.log.sums)):
            self.log.sums[it] -= 1 << self.footprints.packing.blocks

    patch.setattr(Quiet, "run", run)


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
