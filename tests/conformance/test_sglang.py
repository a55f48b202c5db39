"""Our second rule set decides as SGLang 0.5.23 does, and the comparison would notice if it did not.

The traces lie in the folder of measurements; `sim/sglang` saw nothing of them but their inputs.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sglang_calendar
from calendar_engine import NotTaken
from replay import main
from sglang_replay import compare

from specfleet.sim.calendar.sglang import lane
from specfleet.sim.errors import Stall
from specfleet.sim.sequence import Sequence
from specfleet.sim.sglang import adder, queue, rules
from specfleet.sim.sglang.adder import PrefillAdder
from specfleet.sim.sglang.batch import SglangBatch
from specfleet.sim.sglang.pool import TokenPool
from specfleet.sim.sglang.queue import SglangQueue
from specfleet.sim.sglang.radix import RadixTree
from specfleet.sim.sglang.rules import NewTokenRatio, SglangRules
from specfleet.sim.sglang.scheduler import SglangScheduler

Plant = Callable[[pytest.MonkeyPatch], None]


def files(shared: Path) -> list[Path]:
    """The recorded traces."""
    return sorted((shared / "golden/sglang_scheduler").glob("*.json"))


def wrong(file: Path) -> list[str]:
    """The differences of one trace, in every field that it has."""
    return compare(json.loads(file.read_text())).lines


def test_every_recorded_decision_of_sglang_is_ours(shared: Path) -> None:
    assert len(files(shared)) >= 43
    assert {file.stem: wrong(file)[:3] for file in files(shared) if wrong(file)} == {}


def test_the_command_line_replays_both_engines(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = str(shared / "golden/sglang_scheduler/s05_eagle3.json")
    assert main([one, "--strict"]) == 0
    said = capsys.readouterr().out
    assert "files 1" in said
    assert "calendar: files 1" in said


def on_the_calendar(shared: Path) -> tuple[int, int, list[str]]:
    """How many recordings the calendar takes, how many of their turns, and the differences."""
    taken, turns, lines = 0, 0, list[str]()
    for file in files(shared):
        with contextlib.suppress(NotTaken):
            found, _ = sglang_calendar.compare(json.loads(file.read_text()))
            taken, turns = taken + 1, turns + found.steps
            lines += found.lines
    return taken, turns, lines


def test_the_calendar_decides_what_it_takes_as_recorded(shared: Path) -> None:
    taken, turns, lines = on_the_calendar(shared)
    assert lines == []
    assert taken >= 39
    assert turns >= 3300


@pytest.mark.parametrize("planted", ["fall", "reset", "tokens_to_decode", "max_new_tokens_each", "admit"])
def test_a_fault_in_what_both_read_shows_on_the_calendar(
    planted: str, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if planted in ("fall", "reset"):
        monkeypatch.setattr(NewTokenRatio, planted, lambda self: None)
    elif planted == "tokens_to_decode":
        less = SglangRules.tokens_to_decode
        monkeypatch.setattr(SglangRules, planted, lambda self, committed: less(self, committed - 1))
    elif planted == "max_new_tokens_each":
        monkeypatch.setattr(SglangRules, planted, lambda self, prompt, asked: np.maximum(asked - 1, 0))
    else:
        lets_in = adder.admit

        def one_more(
            batch: Any, waiting: Any, full: bool, places: Callable[[], int], match: Any, room: Any
        ) -> bool:
            return lets_in(batch, waiting, full, lambda: places() + 1, match, room)

        monkeypatch.setattr(lane, planted, one_more)
    assert on_the_calendar(shared)[2]


def no_clip(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rules, "CLIP_MAX_NEW_TOKENS", 1 << 40)


def output_not_cut_to_the_pool(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SglangRules, "max_new_tokens", lambda self, prompt, asked: asked)


def no_page_of_overhead(patch: pytest.MonkeyPatch) -> None:
    def charge(self: PrefillAdder[Sequence], tokens: int, output: int) -> None:
        whole = self.rules.ceil_page(tokens)
        self.taken += whole
        self.promised += whole + output
        self.input_left -= whole
        self.chunk_left -= whole

    patch.setattr(PrefillAdder, "_charge", charge)


def newcomers_are_discounted_too(patch: pytest.MonkeyPatch) -> None:
    original = rules.left_to_write
    patch.setattr(adder, "left_to_write", lambda sequence: original(sequence) // 2)


def runners_are_not_discounted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rules, "expected", lambda sequence, ratio: float(rules.left_to_write(sequence)))


def the_ratio_never_falls(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NewTokenRatio, "fall", lambda self: None)


def no_reset_when_idle(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NewTokenRatio, "reset", lambda self: None)


def the_last_is_retracted_first(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SglangScheduler, "_keeps", lambda self, sequence: (0,))


def the_longest_output_is_retracted_first(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SglangScheduler, "_keeps", lambda self, s: (-s.num_output_tokens, s.prompt_tokens))


def retracted_ones_go_to_the_front(patch: pytest.MonkeyPatch) -> None:
    def add(self: SglangQueue[Sequence], sequence: Sequence) -> None:
        sequence.arrival = self._entries
        self._entries += 1
        self.queue.insert(0 if sequence.num_preemptions else len(self.queue), sequence)

    patch.setattr(SglangQueue, "add", add)


def half_the_reserve(patch: pytest.MonkeyPatch) -> None:
    original = rules.reserve_per_decode
    patch.setattr(rules, "reserve_per_decode", lambda *given: original(*given) // 2)


def branches_share_pages(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rules, "reserve_per_decode", lambda page, steps, topk, width: 2 * max(steps * topk, width))


def branches_cost_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rules, "reserve_per_decode", lambda page, steps, topk, width: 2 * max(steps, width))


def nobody_is_left_out_for_ending(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SglangRules, "is_sure_to_end", lambda self, sequence: False)


def no_empty_turn(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SglangScheduler, "_somebody_ends", lambda self: False)


def a_batch_shares_at_once(patch: pytest.MonkeyPatch) -> None:
    original = SglangScheduler._compute

    def compute(self: SglangScheduler, adder: PrefillAdder[Sequence], batch: SglangBatch) -> None:
        original(self, adder, batch)
        for piece in adder.pieces:
            self.pool.keep(piece.sequence, piece.start + piece.tokens)

    patch.setattr(SglangScheduler, "_compute", compute)


def pairs_are_not_asked_for(patch: pytest.MonkeyPatch) -> None:
    original = RadixTree.__init__
    patch.setattr(RadixTree, "__init__", lambda self, page, by_pairs: original(self, page, False))


def outputs_are_not_apart(patch: pytest.MonkeyPatch) -> None:
    original = RadixTree.insert
    patch.setattr(RadixTree, "insert", lambda self, key, prompt, path: original(self, key, 1 << 40, path))


def the_queue_is_never_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(queue, "REFRESH_PASSES", 1 << 40)


def nobody_is_put_behind_a_twin(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(queue, "IN_BATCH_DEPRIORITIZE", 1 << 40)


def the_oldest_leaf_stays(patch: pytest.MonkeyPatch) -> None:
    original = RadixTree.evict

    def evict(self: RadixTree, tokens: int) -> int:
        for node in self._leaves:
            node.used = -node.used
        return original(self, tokens)

    patch.setattr(RadixTree, "evict", evict)


def matches_are_not_locked(patch: pytest.MonkeyPatch) -> None:
    original = PrefillAdder._select

    def select(self: PrefillAdder[Sequence], missing: int, output: int, start: int) -> object:
        self.promised -= start
        found = original(self, missing, output, start)
        self.promised += start
        return found

    patch.setattr(PrefillAdder, "_select", select)


PLANTS: list[Plant] = [
    no_clip,
    output_not_cut_to_the_pool,
    no_page_of_overhead,
    newcomers_are_discounted_too,
    runners_are_not_discounted,
    the_ratio_never_falls,
    no_reset_when_idle,
    the_last_is_retracted_first,
    the_longest_output_is_retracted_first,
    retracted_ones_go_to_the_front,
    half_the_reserve,
    branches_share_pages,
    branches_cost_nothing,
    nobody_is_left_out_for_ending,
    no_empty_turn,
    a_batch_shares_at_once,
    pairs_are_not_asked_for,
    outputs_are_not_apart,
    the_queue_is_never_looked_at,
    nobody_is_put_behind_a_twin,
    the_oldest_leaf_stays,
    matches_are_not_locked,
]


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: str(plant.__name__))
def test_a_planted_fault_is_found(plant: Plant, shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for file in files(shared):
        try:
            found = wrong(file)
        except (AssertionError, Stall):
            return
        if found:
            return
    pytest.fail("every recorded decision came out right all the same")


def test_kv_that_was_never_promised_is_a_stall_and_no_crash() -> None:
    pool = TokenPool(4, 16, radix=False, by_pairs=False)
    sequence = Sequence(0, 80, 1)
    holding = pool.hold(sequence, pool.match(sequence))
    with pytest.raises(Stall, match="80 KV tokens are needed, 64 are free"):
        pool.grow(holding, 80)
