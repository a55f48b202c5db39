"""Prompts that share blocks, and too few of them: on the calendar the same run as stepped, bit by bit."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim_toys import World, drafting
from test_timeline import HUNT, LAWS, SEEDS, plant, prove, small_windows_and_blocks
from timeline_worlds import LUCK, both, differences, requests, sharing

from specfleet.sim.calendar.kv import pool, shared
from specfleet.sim.errors import Breach, Stall
from specfleet.sim.simulation import simulate

__all__ = ["small_windows_and_blocks"]

LOOPS = ("open", "balanced", "closed", "capped")


@st.composite
def short(draw: st.DrawFn, of: st.SearchStrategy[World]) -> World:
    """The same short of blocks."""
    world = draw(of)
    engine, longest = world.engine, max(map(sum, zip(world.prompt, world.output, strict=True))) + 24
    share = draw(st.sampled_from([0.3, 0.5, 0.7]))
    blocks = int(share * longest * max(engine.max_num_seqs, 2)) // engine.block_size
    least = longest // engine.block_size + 4
    return replace(world, engine=replace(engine, num_gpu_blocks=max(blocks, least)))


@LAWS
@given(short(sharing(LOOPS, 2)), SEEDS)
def test_who_is_thrown_out_of_shared_blocks_equals_stepping(world: World, seed: int) -> None:
    prove(world, seed)


def test_most_of_these_worlds_throw_out_and_are_not_stepped() -> None:
    seen: Counter[str] = Counter()

    @settings(HUNT, max_examples=150)
    @given(short(sharing(("open", "closed"))), SEEDS)
    def look(world: World, seed: int) -> None:
        seen["worlds"] += 1
        with suppress(Stall):
            ours = simulate(world.scenario(world.classes or {}), requests(world), seed)
            if ours.requests["preemptions"].any():
                seen["short"] += 1
                seen["found again"] += bool(ours.requests["cached_tokens"].any())
                seen[ours.stepped_because] += 1

    look()
    assert seen["short"] > 0.05 * seen["worlds"]
    assert seen["found again"] > 0
    assert seen[""] > 0.5 * seen["short"], seen


@pytest.mark.parametrize("ahead", [False, True])
def test_shared_prompts_with_kv_short_stay_on_the_calendar(ahead: bool) -> None:
    engine = replace(
        drafting(3), num_gpu_blocks=50, max_num_seqs=10, enable_prefix_caching=True, async_scheduling=ahead
    )
    prompts = [((-1 - row % 3, 32), (row, 20)) for row in range(60)]
    world = World([52] * 60, [60] * 60, engine=engine, classes={"": LUCK[0]}, prompts=prompts)
    ours, theirs = both(world, 0)
    assert ours.requests["preemptions"].sum() > 5
    assert (ours.stepped_share, ours.stepped_because) == (0.0, "")
    assert not differences(ours, theirs)


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        (pool, "if block.users > 1 and block.until == until:", "if False:"),
        (pool, "block.until = at\n                    kept[at]", "kept[at]"),
        (pool, "self._idle[run] = own", "self._idle[Cached(NOBODYS, 0)] = own"),
        (shared, "if who.past and stay.place not in log.preemptions:", "if who.past:"),
    ],
)
def test_a_fault_in_what_who_is_thrown_out_leaves_is_found(
    module: object, old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, module, old, new)  # type: ignore[arg-type]

    @HUNT
    @given(short(sharing(("open", "closed"))), SEEDS)
    def hunt(world: World, seed: int) -> None:
        prove(world, seed)

    with pytest.raises((AssertionError, Breach, KeyError)):
        hunt()
