"""The fast path equals stepping, to the last bit, wherever it applies; and the proof can fail."""

from __future__ import annotations

import inspect
import sys
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import FunctionType, ModuleType

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sim_toys import ENGINE, World, drafting
from timeline_worlds import LOOKED_UP, LUCK, both, differences, policies, requests, worlds

from specfleet.sim.calendar import (
    quiet,
)
from specfleet.sim.calendar.luck import Luck
from specfleet.sim.calendar.packing import Packing
from specfleet.sim.config import DeploymentConfig
from specfleet.sim.errors import Stall
from specfleet.sim.simulation import simulate
from specfleet.sim.speculation.bursts import Burst
from specfleet.sim.speculation.lives import Lives
from specfleet.sim.speculation.policy import PolicySpec
from specfleet.sim.speculation.spec import AcceptanceSpec
from specfleet.workloads.requests import RequestTable

LAWS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
HUNT = settings(
    max_examples=3000,
    deadline=None,
    database=None,
    derandomize=True,
    report_multiple_bugs=False,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
SEEDS = st.integers(0, 2**32)
GATE = {"window": 2, "threshold": 0.6, "cooldown": 3}
DRAFTS_OF_REQUESTS = (None, PolicySpec("acceptance_gate", GATE))
"""No policy, and one that gives each request drafts of its own."""
SMALL = {
    "LEAST_STEPS": 1,
    "LEAST_REACH": 2,
    "BLOCK": 5,
    "LONGEST_WINDOW": 40,
    "WINDOW": 3,
    "SHORTEST_CALENDAR": 0,
}


@pytest.fixture(autouse=True)
def small_windows_and_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of a few iterations, blocks of a few requests and short calendars, so that small worlds
    cross all their borders."""
    for name, module in list(sys.modules.items()):
        for constant in SMALL.keys() & vars(module).keys() if name.startswith("specfleet.sim.") else ():
            monkeypatch.setattr(module, constant, SMALL[constant])
    monkeypatch.setattr(quiet.Quiet, "reach", 12)


def prove(world: World, seed: int, policy: PolicySpec | None = None) -> None:
    """Fails where the two ways differ."""
    try:
        ours, theirs = both(world, seed, policy)
    except Stall:
        return  # an engine too small for what it was given says so: the fast path leaves that to stepping
    assert not (found := differences(ours, theirs)), "\n".join(found)


def choosing(world: World) -> World:
    """The same with drafts for a policy to choose from, if it drafts."""
    speculative = world.engine.speculative
    if speculative is None:
        return world
    more = replace(speculative, num_speculative_tokens=max(speculative.num_speculative_tokens, 3))
    return replace(world, engine=replace(world.engine, speculative=more))


def roomy(world: World) -> World:
    """The same with a pool that holds everybody."""
    world = choosing(world)
    return replace(world, engine=replace(world.engine, num_gpu_blocks=50_000))


@LAWS
@given(worlds(("open", "open", "sparse")), SEEDS)
def test_an_open_loop_equals_stepping(world: World, seed: int) -> None:
    prove(world, seed)


@LAWS
@given(worlds(("open", "closed", "balanced"), 2, tight=True), SEEDS)
def test_running_out_of_blocks_equals_stepping(world: World, seed: int) -> None:
    prove(world, seed)


@LAWS
@given(worlds(("closed", "capped")), SEEDS)
def test_closed_and_capped_loops_equal_stepping(world: World, seed: int) -> None:
    prove(world, seed)


@LAWS
@given(worlds(("open", "balanced", "closed", "capped"), replicas=3), SEEDS)
def test_a_fleet_equals_stepping(world: World, seed: int) -> None:
    prove(world, seed)


@st.composite
def seen_kv(draw: st.DrawFn) -> World:
    """Replicas behind a router that asks each how much of its KV is in use."""
    world = draw(
        worlds(("open", "sparse", "closed", "capped"), tight=draw(st.booleans()), crowded=draw(st.booleans()))
    )
    return replace(world, deployment=DeploymentConfig(draw(st.integers(2, 4)), "least_kv"))


@LAWS
@given(seen_kv(), SEEDS)
def test_lanes_show_the_kv_that_engines_show(world: World, seed: int) -> None:
    prove(world, seed)


@LAWS
@given(worlds(("balanced",), replicas=2), st.sampled_from(DRAFTS_OF_REQUESTS), SEEDS)
def test_lanes_that_run_ahead_of_who_arrives_equal_stepping(
    world: World, policy: PolicySpec | None, seed: int
) -> None:
    prove(choosing(world), seed, policy)


@LAWS
@given(worlds(("open", "balanced", "closed", "capped"), 2), policies(), SEEDS)
def test_k_by_batch_size_or_queue_equals_stepping(world: World, policy: PolicySpec, seed: int) -> None:
    prove(roomy(world), seed, policy)


@LAWS
@given(
    st.booleans().flatmap(
        lambda tight: worlds(("open", "balanced", "closed", "capped"), 2, tight=tight, crowded=True)
    ),
    SEEDS,
)
def test_a_budget_that_runs_short_equals_stepping(world: World, seed: int) -> None:
    prove(world, seed)


@LAWS
@given(worlds(("open", "balanced", "closed", "capped"), 2, tight=True), policies(), SEEDS)
def test_a_policy_without_room_equals_stepping(world: World, policy: PolicySpec, seed: int) -> None:
    prove(choosing(world), seed, policy)


def test_most_runs_short_of_blocks_under_a_policy_stay_on_the_calendar() -> None:
    preempted: list[float] = []

    @settings(LAWS, derandomize=True)
    @given(worlds(("open", "closed"), tight=True), policies(), SEEDS)
    def run(world: World, policy: PolicySpec, seed: int) -> None:
        engine = replace(choosing(world).engine, enable_prefix_caching=False, max_model_len=4096)
        scenario = replace(world, engine=engine).scenario(world.classes or {})
        with suppress(Stall):
            ran = simulate(replace(scenario, policy=policy), requests(world), seed)
            if ran.requests["preemptions"].any():
                preempted.append(ran.stepped_share)

    run()
    assert len(preempted) >= 10
    assert np.mean(np.array(preempted) < 0.5) > 0.5


@LAWS
@given(st.booleans().flatmap(lambda tight: worlds(("open", "closed", "balanced"), 2, tight)), SEEDS)
def test_a_second_pass_after_a_rejection_equals_stepping(world: World, seed: int) -> None:
    speculative = choosing(world).engine.speculative
    if speculative is not None:
        again = replace(speculative, reroll_on_reject=True)
        world = replace(world, engine=replace(world.engine, speculative=again))
    prove(world, seed)


def plant(patch: pytest.MonkeyPatch, module: ModuleType, old: str, new: str) -> None:
    """Replaces a piece of a module's source, and puts the functions that come of it in place everywhere."""
    source = inspect.getsource(module)
    assert source.count(old) == 1, f"{old!r} stands {source.count(old)} times in {module.__name__}"
    spoilt = dict(vars(module))
    exec(compile(source.replace(old, new), str(module.__file__), "exec"), spoilt)
    for name, thing in list(vars(module).items()):
        if getattr(thing, "__module__", None) != module.__name__:
            spoilt[name] = thing
            continue
        if isinstance(thing, FunctionType):
            for user in [user for user in sys.modules.values() if vars(user).get(name) is thing]:
                patch.setattr(user, name, spoilt[name])
        elif isinstance(thing, type):
            for attribute, value in vars(spoilt[name]).items():
                if "__class__" in getattr(getattr(value, "__code__", None), "co_freevars", ()):
                    continue  # `super()` would look for the spoilt class
                if isinstance(value, FunctionType | classmethod | staticmethod):
                    patch.setattr(thing, attribute, value)
            spoilt[name] = thing


@pytest.mark.parametrize(
    "spec", [*LUCK, AcceptanceSpec(conditional_acceptance=0.6, burst=Burst(0.5, 0.7)), *LOOKED_UP]
)
def test_luck_drawn_together_is_each_request_s_own(spec: AcceptanceSpec) -> None:
    output = np.arange(1, 40)
    table = RequestTable.of(np.full(39, 50), output)
    lives = Lives({"": spec}, table, 4, 11)
    luck = Luck(
        table.class_id,
        [lives.by_class[""]],
        4,
        11,
        lives.bounds,
        lives.chain,
        partial(lives.accepted, ahead=True),
    )
    ids = np.array([0, 3, 4, 17, 38])
    hashes = (output[ids] + 1) // 2
    gains = np.split(luck.gains(ids, hashes), 2 * np.cumsum(hashes)[:-1])
    cut = np.split(luck.at(2).gains(ids, hashes), 2 * np.cumsum(hashes)[:-1])
    for row, drawn, shallow in zip(ids.tolist(), gains, cut, strict=True):
        own = np.frombuffer(lives.accepted(row, ahead=True), dtype=np.uint8)
        assert (drawn[: len(own)] - 1).tolist() == own.tolist()
        assert (shallow[: len(own)] - 1).tolist() == np.minimum(own, 2).tolist()


def test_counts_that_do_not_fit_in_one_integer_are_stepped() -> None:
    assert Packing.of(ENGINE, 10, 100_000) is not None
    huge = replace(ENGINE, num_gpu_blocks=1 << 26, max_num_seqs=1 << 20)
    assert Packing.of(huge, 10, 100_000) is None
    world = World([5000, 6], [700, 8], engine=huge)
    ours, _ = both(world, 0)
    assert ours.stepped_share == 1.0


def test_it_says_what_it_cannot_do_and_steps() -> None:
    cases = {
        "priority scheduling": World(
            [5, 5], [5, 5], engine=replace(ENGINE, policy="priority", num_gpu_blocks=2)
        ),
        "long_prefill_token_threshold": World(
            [5], [5], engine=replace(ENGINE, long_prefill_token_threshold=9)
        ),
        "drafts that are not proposed every step": World(
            [5],
            [5],
            engine=drafting(2, "ngram"),
            classes={"": replace(LUCK[0], proposal_probability=0.5, burst=Burst(0.5, 0.7))},
        ),
    }
    for obstacle, world in cases.items():
        ours, theirs = both(world, 0)
        assert (ours.stepped_because, ours.stepped_share) == (obstacle, 1.0)
        assert not differences(ours, theirs)


@pytest.mark.parametrize("policy", [None, PolicySpec("goodput")])
@pytest.mark.parametrize("luck", LOOKED_UP)
def test_look_ups_that_find_nothing_stay_on_the_calendar_where_steps_are_scheduled_ahead(
    luck: AcceptanceSpec, policy: PolicySpec | None
) -> None:
    ngram = replace(drafting(3, "ngram"), async_scheduling=True)
    world = World([20] * 40, [60] * 40, engine=ngram, classes={"": luck})
    ours, theirs = both(world, 0, policy)
    assert ours.stepped_share == 0.0
    verified = ours.requests["verifications"].sum()
    assert 0 < ours.requests["accepted_tokens"].sum() < 1.5 * verified, "some find nothing"
    assert not differences(ours, theirs)


def test_a_budget_below_all_rows_is_stepped_as_long_as_it_lasts() -> None:
    arrival_s = [0.0] * 4 + [0.3] * 8 + [1.5] * 4
    for lag in (False, True):
        tight = replace(drafting(4), max_num_batched_tokens=26, max_num_seqs=8, async_scheduling=lag)
        world = World([2] * 16, [90] * 16, arrival_s=arrival_s, engine=tight, classes={"": LUCK[0]})
        ours, theirs = both(world, 0)
        assert 0.2 < ours.stepped_share < 0.8
        assert not differences(ours, theirs)


def test_kv_short_under_a_policy_stays_on_the_calendar() -> None:
    small = replace(drafting(3), num_gpu_blocks=31, max_num_seqs=8)
    arrival_s = (np.arange(60) * 0.04 + (np.arange(60) // 20) * 3.0).tolist()
    world = World([20] * 60, [60] * 60, arrival_s=arrival_s, engine=small, classes={"": LUCK[0]})
    ours, theirs = both(world, 0, PolicySpec("goodput"))
    assert ours.stepped_share == 0.0
    assert ours.requests["preemptions"].sum() > 0
    assert not differences(ours, theirs)


def test_who_has_ended_behind_a_victim_under_a_policy_is_booked() -> None:
    small = replace(drafting(3), num_gpu_blocks=12, max_num_seqs=8)
    world = World([20] * 4, [60, 60, 60, 3], engine=small, classes={"": LUCK[0]})
    ours, theirs = both(world, 0, PolicySpec("batch_size", {"schedule": ((1, 8, 3),)}))
    assert ours.stepped_share == 0.0
    thrown_out, ended = ours.requests["preemptions"] > 0, ours.requests["finished_s"]
    assert thrown_out.any()
    assert ended[3] < ended[thrown_out].min()
    assert not thrown_out[3]
    assert not differences(ours, theirs)


def test_those_thrown_out_find_their_own_blocks_again() -> None:
    small = replace(ENGINE, num_gpu_blocks=25, max_num_seqs=6, max_model_len=4096)
    computed = {}
    for caches in (False, True):
        world = World([40] * 12, [60] * 12, engine=replace(small, enable_prefix_caching=caches))
        ours, theirs = both(world, 0)
        assert ours.stepped_share == 0.0
        assert ours.requests["preemptions"].sum() > 0
        assert not differences(ours, theirs)
        computed[caches] = int(ours.iterations["tokens"].sum())
    assert computed[True] < computed[False]


def test_ample_runs_are_not_stepped_at_all() -> None:
    for k in (0, 4):
        ours, _ = both(World([10] * 8, [30] * 8, engine=drafting(k), classes={"": LUCK[0]} if k else None), 0)
        assert ours.stepped_share == 0.0
