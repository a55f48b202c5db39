"""Prompts that share blocks, and too few of them: on the calendar the same run as stepped, bit by bit."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim_toys import World, drafting
from test_own_drafts import own_drafts
from test_timeline import HUNT, LAWS, SEEDS, choosing, plant, prove, small_windows_and_blocks
from timeline_worlds import LUCK, both, differences, policies, requests, sharing

from specfleet.sim.calendar import crowd, quiet
from specfleet.sim.calendar.books import members
from specfleet.sim.calendar.kv import placeholders, pool, shared, victims
from specfleet.sim.errors import Breach, Stall
from specfleet.sim.simulation import simulate
from specfleet.sim.speculation.policy import PolicySpec

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


@LAWS
@given(short(sharing(LOOPS, 2, chosen=True)), policies() | own_drafts(), SEEDS)
def test_they_do_where_drafts_are_chosen(world: World, policy: PolicySpec, seed: int) -> None:
    prove(choosing(world), seed, policy)


@LAWS
@given(sharing(LOOPS, 2) | short(sharing(LOOPS, 2)), st.sampled_from([6, 20, 40, 60, 90]), SEEDS)
def test_they_do_where_some_outgrow_the_drafter(world: World, positions: int, seed: int) -> None:
    prove(reaching(choosing(world), positions), seed)


def reaching(world: World, positions: int) -> World:
    """The same with a drafter of so many positions, if it drafts."""
    if world.engine.speculative is None:
        return world
    speculative = replace(world.engine.speculative, drafter_max_model_len=positions)
    return replace(world, engine=replace(world.engine, speculative=speculative))


CHOOSERS: dict[str, dict[str, object]] = {
    "batch_size": {"schedule": ((1, 4, 3), (5, 7, 1), (8, 20, 2))},
    "adaptive_tiers": {"tiers": (1, 2, 3), "warmup": 0, "interval": 2},
    "acceptance_gate": {"window": 3, "threshold": 0.5, "cooldown": 4},
    "": {},
}


def groups(name: str, ahead: bool, size: int) -> World:
    """Twelve users in three groups whose prompts begin alike, and too few blocks; where nobody chooses the
    drafts, a drafter that some outgrow. A few prompts are found to their last token."""
    engine = replace(
        drafting(3),
        num_gpu_blocks=400 // size,
        block_size=size,
        max_num_seqs=12,
        max_num_batched_tokens=100,
        enable_prefix_caching=True,
        async_scheduling=ahead,
        prefix_hash_covers_next_token=True,
    )
    prompts = [
        ((-1 - row % 3, 25), (row, row % 5 * 7)) if row % 5 else ((-1 - row % 3, 25),) for row in range(60)
    ]
    lengths, outputs = (
        [sum(n for _, n in prompt) for prompt in prompts],
        [20 + row % 7 * 6 for row in range(60)],
    )
    world = World(lengths, outputs, engine=engine, classes={"": LUCK[0]}, prompts=prompts)
    return world if name else reaching(world, 62)


def alone(name: str, ahead: bool, size: int) -> World:
    """The same prompt of three blocks and a token, one at a time, with a drafter that ends there."""
    engine = replace(
        drafting(3),
        num_gpu_blocks=200,
        block_size=8,
        max_num_seqs=1,
        enable_prefix_caching=True,
        async_scheduling=ahead,
        prefix_hash_covers_next_token=True,
    )
    world = World([25] * 21, [6, 6, 1] * 7, engine=engine, classes={"": LUCK[0]}, prompts=[((-1, 25),)] * 21)
    return reaching(world, size)


@pytest.mark.parametrize("ahead", [False, True])
def test_placeholders_of_a_prompt_outgrow_the_drafter_too(ahead: bool) -> None:
    for positions in range(27, 40):
        ours, theirs = both(alone("", ahead, positions), 0)
        assert (ours.stepped_share, ours.stepped_because) == (0.0, "")
        assert not differences(ours, theirs)


@pytest.mark.parametrize("size", [4, 8])
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("name", CHOOSERS)
def test_who_is_thrown_out_of_shared_blocks_comes_back_whoever_chooses_the_drafts(
    name: str, ahead: bool, size: int
) -> None:
    ours, theirs = both(groups(name, ahead, size), 0, PolicySpec(name, CHOOSERS[name]) if name else None)
    assert ours.requests["preemptions"].sum() > 5
    assert (ours.steps_without_drafter > 0) == (not name)
    assert (ours.stepped_share, ours.stepped_because) == (0.0, "")
    assert not differences(ours, theirs)


def test_what_stands_behind_a_shortage_is_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks that nobody will get there do not fit their field: the rows beside it mean nothing."""
    monkeypatch.setattr(quiet.Quiet, "reach", 256)
    monkeypatch.setattr(quiet, "LONGEST_WINDOW", 4096)
    engine = replace(
        drafting(3),
        num_gpu_blocks=80,
        block_size=1,
        max_num_seqs=4,
        max_num_batched_tokens=60,
        async_scheduling=True,
        enable_prefix_caching=True,
    )
    prompts = [((-1, 5), (row, (10, 9, 8, 9)[row % 4])) for row in range(16)]
    world = World(
        [15, 14, 13, 14] * 4, [31, 27, 29, 24] * 4, engine=engine, classes={"": LUCK[0]}, prompts=prompts
    )
    by_batch = PolicySpec("batch_size", {"schedule": ((1, 1, 3), (2, 2, 1), (3, 3, 2), (4, 4, 0))})
    ours, theirs = both(world, 0, by_batch)
    assert ours.stepped_because == "" and not differences(ours, theirs)


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


OF_NOW = "crowd.lives.now.rules, crowd.pack\n    assert stay.footprint is not None\n    held = "
BLOCKS_HELD = (
    "(int(stay.footprint[done - 1]) >> pack.blocks) & pack.blocks_mask if done else stay.blocks"
    "\n    # keys are"
)


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        (members, "had <= term.rounds + rules.lag", "had <= term.rounds + 99"),
        (members, "term.footprint[at - 1] >> pack.blocks", "term.footprint[at] >> pack.blocks"),
        (victims, "rules.keyed_blocks(stay.earlier, stay.earlier + 1)", "rules.keyed_blocks(0, 1)"),
        (
            victims,
            OF_NOW + BLOCKS_HELD,
            OF_NOW.replace("crowd.lives.now.rules", "crowd.footprints") + BLOCKS_HELD,
        ),
        (members, "asked = source.tokens + source.padded", "asked = source.tokens"),
        (placeholders, "stay.spared, _, _ =", "_, _, _ ="),
        (crowd, "self._check_drafter(done + drafts)", "self._check_drafter(done)"),
        (crowd, "not lives.by_k[0].rules.k", "True"),
    ],
)
def test_a_fault_in_who_goes_and_what_it_leaves_is_found(
    module: ModuleType, old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, module, old, new)

    def found(world: World, policy: PolicySpec | None, luck: int) -> bool:
        try:
            return bool(differences(*both(world, luck, policy)))
        except (AssertionError, Breach, IndexError, KeyError):
            return True

    lone = (found(alone("", ahead, size), None, 0) for size in range(27, 40) for ahead in (False, True))
    chosen = ((name, PolicySpec(name, CHOOSERS[name])) for name in ("batch_size", "adaptive_tiers"))
    many = (
        found(groups(name, ahead, size), policy, luck)
        for name, policy in chosen
        for luck in range(6)
        for ahead in (False, True)
        for size in (4, 8)
    )
    assert any(lone) or any(many)
