"""Drafts that a request alone decides: on the calendar the same run as stepped, to the last bit."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType

import pytest
from hypothesis import given, seed
from hypothesis import strategies as st
from sim_toys import World, drafting
from test_timeline import HUNT, LAWS, SEEDS, choosing, plant, prove, roomy, small_windows_and_blocks
from timeline_worlds import LOOKED_UP, LUCK, both, differences, policies, requests, sharing, worlds

from specfleet.sim.calendar import stay, sums
from specfleet.sim.calendar.books import ledger, own
from specfleet.sim.calendar.drafts import own as drafts_of_lives
from specfleet.sim.calendar.kv import victims
from specfleet.sim.calendar.runs import why_given_up
from specfleet.sim.calendar.taken import may_be_given_up, why_stepped
from specfleet.sim.config import EngineConfig, LoadConfig
from specfleet.sim.errors import Breach
from specfleet.sim.simulation import simulate
from specfleet.sim.speculation.lives import Lives
from specfleet.sim.speculation.policy import PolicySpec
from specfleet.sim.speculation.spec import AcceptanceSpec

__all__ = ["small_windows_and_blocks"]

BOTH = (False, True)
LOOPS = ("open", "balanced", "closed", "capped")


@st.composite
def own_drafts(draw: st.DrawFn) -> PolicySpec:
    """A policy that looks at single requests, and at nothing that others do."""
    each: dict[str, dict[str, object]] = {
        "early_stop": {"threshold": draw(st.sampled_from([0.2, 0.6]))},
        "acceptance_gate": {
            "window": draw(st.integers(1, 4)),
            "threshold": draw(st.sampled_from([0.3, 0.6])),
            "cooldown": draw(st.integers(0, 4)),
        },
        "temperature_gate": {"limit": 0.5},
        "by_class": {"drafts": {"a": draw(st.integers(0, 2))}},
        "oracle": {},
    }
    name = draw(st.sampled_from(sorted(each)))
    return PolicySpec(name, each[name] | draw(st.sampled_from([{}, {}, {"k": 1}])))


def looking_up(world: World, luck: AcceptanceSpec, ahead: bool = False) -> World:
    """The same with look-ups that may find nothing; steps are scheduled ahead or not."""
    speculative = world.engine.speculative
    if speculative is None:
        return world
    engine = replace(world.engine, speculative=replace(speculative, method="ngram"), async_scheduling=ahead)
    return replace(world, engine=engine, classes={"": luck})


@LAWS
@given(worlds(LOOPS, 2), own_drafts(), SEEDS)
def test_drafts_of_single_requests_equal_stepping(world: World, policy: PolicySpec, seed: int) -> None:
    prove(roomy(world), seed, policy)


@LAWS
@given(worlds(LOOPS, 2, tight=True), own_drafts(), SEEDS)
def test_they_do_where_kv_or_budget_run_short(world: World, policy: PolicySpec, seed: int) -> None:
    prove(choosing(world), seed, policy)


@LAWS
@given(
    worlds(LOOPS, 2, tight=True) | sharing(LOOPS, 2),
    st.sampled_from(LOOKED_UP),
    st.booleans(),
    st.sampled_from([None, 0, 2]),
    SEEDS,
)
def test_look_ups_do_where_kv_or_budget_run_short(
    world: World, luck: AcceptanceSpec, ahead: bool, drafts: int | None, seed: int
) -> None:
    by_class = None if drafts is None else PolicySpec("by_class", {"drafts": {"a": drafts}})
    prove(looking_up(choosing(world), luck, ahead), seed, by_class)


@LAWS
@given(worlds(LOOPS, 2, tight=True) | sharing(LOOPS, 2), own_drafts() | policies(), SEEDS)
def test_a_run_that_the_calendar_gives_up_is_foreseen(world: World, policy: PolicySpec, seed: int) -> None:
    world = choosing(world)
    scenario, table = replace(world.scenario(world.classes or {}), policy=policy), requests(world)
    because = simulate(scenario, table, seed).stepped_because
    k = scenario.engine.num_speculative_tokens
    lives = Lives(scenario.acceptance, table, k, seed) if k and scenario.acceptance else None
    if because == "a step preempts and schedules nothing":
        return  # it may come up wherever steps are scheduled ahead; seldom, so it is not looked for
    if because and not why_stepped(scenario, table, seed, lives):
        assert may_be_given_up(scenario, table, seed, lives), because
        assert why_given_up(scenario, table, seed, lives) == because


@LAWS
@given(sharing(LOOPS, 2), own_drafts(), SEEDS)
def test_they_do_behind_shared_prefixes(world: World, policy: PolicySpec, seed: int) -> None:
    prove(roomy(world), seed, policy)


@LAWS
@given(worlds(LOOPS, 2), st.sampled_from(LOOKED_UP), SEEDS)
def test_look_ups_that_find_nothing_equal_stepping(world: World, luck: AcceptanceSpec, seed: int) -> None:
    prove(looking_up(roomy(world), luck), seed)


@LAWS
@given(sharing(LOOPS, 2), st.sampled_from(LOOKED_UP), SEEDS)
def test_they_do_behind_shared_prefixes_too(world: World, luck: AcceptanceSpec, seed: int) -> None:
    prove(looking_up(roomy(world), luck), seed)


@LAWS
@given(
    sharing(LOOPS, 2) | worlds(LOOPS, 2) | worlds(LOOPS, 2, tight=True),
    st.sampled_from(LOOKED_UP),
    st.booleans(),
    st.integers(0, 2),
    SEEDS,
)
def test_look_ups_for_some_classes_alone_equal_stepping(
    world: World, luck: AcceptanceSpec, ahead: bool, drafts: int, seed: int
) -> None:
    looked = looking_up(roomy(world), luck, ahead)
    prove(looked, seed, PolicySpec("by_class", {"drafts": {"a": drafts}}))


def test_a_drafter_runs_for_the_drafts_that_are_wanted_and_not_for_those_that_are_found() -> None:
    """What its rounds will find is not known when the drafter runs: who drafts has all its passes."""
    world = World([9, 8, 7], [1, 9, 4], arrival_s=[0.0, 0.001, 0.002], engine=drafting(3))
    world = replace(world, classes={"a": LUCK[0], "": LOOKED_UP[0]})
    for luck in range(4):
        prove(world, luck, PolicySpec("by_class", {"drafts": {"a": 0}}))


POLICIES: dict[str, dict[str, object]] = {
    "temperature_gate": {"limit": 0.5},
    "early_stop": {"threshold": 0.3},
    "acceptance_gate": {"threshold": 0.4, "cooldown": 8},
    "oracle": {},
}


def many(engine: EngineConfig, luck: AcceptanceSpec, ahead: bool) -> World:
    """Sixty requests of ninety tokens with room for all of them."""
    engine = replace(engine, async_scheduling=ahead, num_gpu_blocks=5000)
    return World([30] * 60, [90] * 60, engine=engine, classes={"": luck})


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("name", [*POLICIES, None])
def test_none_of_their_iterations_is_stepped(name: str | None, ahead: bool) -> None:
    method, luck = ("eagle3", LUCK[3]) if name else ("ngram", LOOKED_UP[0])
    world = many(drafting(4, method), luck, ahead)
    ours, theirs = both(world, 0, PolicySpec(name, POLICIES[name]) if name else None)
    assert (ours.stepped_share, ours.stepped_because) == (0.0, "")
    drafts = ours.requests["draft_tokens"]
    assert 0 < drafts.sum() < 4 * (ours.requests["chunks"] - 1).sum() or (ahead and not name)
    assert not differences(ours, theirs)


CROWDED: dict[str, dict[str, object]] = POLICIES | {
    "acceptance_gate": {"window": 2, "threshold": 0.4, "cooldown": 6},
    "by_class": {"drafts": {"a": 1}},
    "": {},
}


def crowded(name: str, ahead: bool, caches: bool) -> World:
    """Requests of which half are thrown out, and come back in pieces; look-ups where no policy is named."""
    method, luck = ("eagle3", LUCK[3]) if name else ("ngram", LOOKED_UP[0])
    engine = replace(
        drafting(3, method, parallel_drafting=False),
        num_gpu_blocks=61,
        block_size=4,
        max_num_seqs=8,
        max_num_batched_tokens=60,
        async_scheduling=ahead,
        enable_prefix_caching=caches,
        prefix_hash_covers_next_token=True,
    )
    prompt, output = [13 + 7 * row % 17 for row in range(40)], [20 + 11 * row % 29 for row in range(40)]
    return World(prompt, output, engine=engine, classes={"": luck}, load=LoadConfig(None, 8))


@pytest.mark.parametrize("caches", [False, True])
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("name", CROWDED)
def test_who_is_thrown_out_with_drafts_of_its_own_comes_back_on_the_calendar(
    name: str, ahead: bool, caches: bool
) -> None:
    policy = PolicySpec(name, CROWDED[name]) if name else None
    ours, theirs = both(crowded(name, ahead, caches), 0, policy)
    assert ours.requests["preemptions"].sum() > 5
    assert (ours.stepped_share, ours.stepped_because) == (0.0, "")
    assert not differences(ours, theirs)


@pytest.mark.parametrize("size", [6, 7])
def test_a_prompt_found_to_its_last_token_has_the_blocks_of_its_placeholders(size: int) -> None:
    """Its first round has no drafts where a look-up finds nothing, and needs fewer."""
    engine = replace(
        drafting(3, "ngram"), enable_prefix_caching=True, num_gpu_blocks=400, max_num_seqs=4, block_size=2
    )
    prompts = [[(-1, size)]] * 12
    world = World([size] * 12, [9] * 12, engine=engine, classes={"": LOOKED_UP[1]}, prompts=prompts)
    ours, theirs = both(world, 0)
    assert (ours.stepped_share, ours.stepped_because) == (0.0, "")
    assert not differences(ours, theirs)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "2 * hashes)\n        return np.minimum(gains, drafts + np.uint8(1)), drafts",
            "2 * hashes)\n        return gains, drafts",
        ),
        ("useful = np.repeat(before[starts] + wanted - 1,", "useful = np.repeat(before[starts] + wanted,"),
        ("seen.clear()", "pass"),
        ("return gains, self.luck.found(ids, hashes) * np.uint8(self.k)", "return gains, 0 * gains + self.k"),
    ],
)
def test_a_fault_in_whose_drafts_are_how_many_is_found(
    old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, drafts_of_lives, old, new)

    @seed(0 if old == "seen.clear()" else 15)  # where the rarest show in the first ten worlds
    @HUNT
    @given(worlds(("open", "closed")), own_drafts(), st.sampled_from([None, *LOOKED_UP]), SEEDS)
    def hunt(world: World, policy: PolicySpec, luck: AcceptanceSpec, run: int) -> None:
        world = roomy(world)
        if luck is not None:
            prove(looking_up(world, luck), run)
        else:
            prove(world, run, policy)

    with pytest.raises((AssertionError, Breach)):
        hunt()


FAULTS: dict[str, list[tuple[ModuleType, str, str]]] = {
    "oracle": [
        (drafts_of_lives, "used=past.used + done + int(not drafts[done])", "used=past.used + done"),
    ],
    "": [
        (drafts_of_lives, "sampled=past.sampled + 1 + done", "sampled=past.sampled + done"),
        (drafts_of_lives, "[found][past.used :]", "[found]"),
        (ledger, "self.accepted[1] -= rounds", "pass"),
        (
            own,
            "return int(np.count_nonzero(drafts)), int(drafts.sum())",
            "return len(drafts), int(drafts.sum())",
        ),
        (
            victims,
            "footprints.query if stay.drafts is None else int(stay.drafts[latest])",
            "footprints.query if stay else int(stay.drafts[latest])",
        ),
    ],
    "acceptance_gate": [
        (drafts_of_lives, "shut, seen = past.shut, deque(past.seen", "shut, seen = past.shut, deque(()"),
        (drafts_of_lives, "past._replace(shut=max(past.shut - 1, 0))", "past"),
        (drafts_of_lives, "(done if step == done else", "(done - 1 if step == done else"),
        (stay, "drafts[rows:] = 0", "pass"),
        (sums, "self.wants[i : i + len(wants)] &=", "wants &="),
        (sums, "self.drafts[i : i + len(drafts)] -= drafts", "pass"),
        (victims, "(change + half >> bit)", "(change >> bit)"),
    ],
}


@pytest.mark.parametrize(
    ("name", "fault"), [(name, fault) for name, faults in FAULTS.items() for fault in range(len(faults))]
)
def test_a_fault_in_how_somebody_comes_back_is_found(
    name: str, fault: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, *FAULTS[name][fault])
    policy = PolicySpec(name, CROWDED[name]) if name else None

    def found(ahead: bool, caches: bool, luck: int) -> bool:
        try:
            return bool(differences(*both(crowded(name, ahead, caches), luck, policy)))
        except (AssertionError, Breach):
            return True

    assert any(found(ahead, caches, luck) for ahead in BOTH for caches in BOTH for luck in range(4))


def test_a_gate_that_knows_a_round_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, drafts_of_lives, "known = step - 1 - self.lag", "known = step - 1")
    world, policy = (
        many(drafting(4), LUCK[3], True),
        PolicySpec("acceptance_gate", POLICIES["acceptance_gate"]),
    )
    assert differences(*both(world, 0, policy))


@pytest.mark.parametrize("ahead", [False, True])
def test_look_ups_by_class_are_on_the_calendar_and_a_miss_that_drafts_is_found(
    ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = many(drafting(4, "ngram"), LOOKED_UP[0], ahead)
    policy = PolicySpec("by_class", {"drafts": {"default": 2}})
    ours, theirs = both(world, 0, policy)
    assert (ours.stepped_share, ours.stepped_because) == (0.0, "") and not differences(ours, theirs)
    plant(
        monkeypatch,
        drafts_of_lives,
        "np.repeat(self._each(ids), 2 * hashes) * self.luck.found(ids, hashes)",
        "np.repeat(self._each(ids), 2 * hashes)",
    )
    assert bool(differences(*both(world, 0, policy))) != ahead
