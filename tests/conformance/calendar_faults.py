"""Wrong variants of the calendar, for the replay of recorded decisions to find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from specfleet.sim.calendar.admission import Admission
from specfleet.sim.calendar.lane import Lane
from specfleet.sim.calendar.luck import Luck
from specfleet.sim.calendar.quiet import Quiet, Walk
from specfleet.sim.calendar.seat import Seat
from specfleet.sim.calendar.trajectories import Rules

Plant = Callable[[pytest.MonkeyPatch], None]


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
