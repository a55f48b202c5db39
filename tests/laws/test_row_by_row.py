"""Lanes that go row by row: drafts that depend on other rows, or on the time, equal stepping bit by bit."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, seed
from hypothesis import strategies as st
from sim_toys import World, drafting
from test_shared_and_short import short
from test_timeline import HUNT, LAWS, SEEDS, choosing, plant, prove, roomy, small_windows_and_blocks
from timeline_worlds import LUCK, both, differences, sharing, worlds

from specfleet.sim.calendar.rows import crowd, flight, lane, table
from specfleet.sim.errors import Breach
from specfleet.sim.speculation.policy import PolicySpec

__all__ = ["small_windows_and_blocks"]

LOOPS = ("open", "balanced", "closed", "capped")


@st.composite
def of_all_rows(draw: st.DrawFn) -> PolicySpec:
    """A policy by which what a row drafts depends on the other rows of its step, or on the time."""
    each: dict[str, dict[str, object]] = {
        "slo_budget": {
            "tpot_s": draw(st.sampled_from([0.001, 0.01, 0.05])),
            "budget": draw(st.integers(0, 12)),
        },
        "adaptive_verification": {},
        "bandit": {},
    }
    name = draw(st.sampled_from(sorted(each)))
    return PolicySpec(name, each[name])


@LAWS
@given(worlds(LOOPS, 2), of_all_rows(), SEEDS)
def test_drafts_that_depend_on_other_rows_equal_stepping(world: World, policy: PolicySpec, seed: int) -> None:
    prove(roomy(world), seed, policy)


@LAWS
@given(worlds(LOOPS, 2, tight=True), of_all_rows(), SEEDS)
def test_they_do_where_kv_or_budget_run_short(world: World, policy: PolicySpec, seed: int) -> None:
    prove(choosing(world), seed, policy)


@LAWS
@given(sharing(LOOPS, 2) | short(sharing(LOOPS, 2)), of_all_rows(), SEEDS)
def test_they_do_behind_shared_prefixes(world: World, policy: PolicySpec, seed: int) -> None:
    prove(choosing(world), seed, policy)


def many(ahead: bool, **engine: Any) -> World:
    """Sixty requests of ninety tokens, with room for all of them unless it is said otherwise."""
    config = replace(drafting(4), async_scheduling=ahead, num_gpu_blocks=5000)
    return World([30] * 60, [90] * 60, engine=replace(config, **engine), classes={"": LUCK[3]})


POLICIES = {"slo_budget": {"tpot_s": 0.004, "budget": 40}, "adaptive_verification": {}, "bandit": {}}


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("name", POLICIES)
def test_none_of_their_iterations_is_stepped(name: str, ahead: bool) -> None:
    ours, theirs = both(many(ahead), 0, PolicySpec(name, POLICIES[name]))
    assert (ours.stepped_share, ours.stepped_because) == (0.0, "")
    drafts = ours.requests["draft_tokens"]
    assert 0 < drafts.sum() <= 4 * (ours.requests["chunks"] - 1).sum()
    assert not differences(ours, theirs)


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("caches", [False, True])
def test_who_is_thrown_out_comes_back_without_a_step(caches: bool, ahead: bool) -> None:
    world = many(ahead, num_gpu_blocks=61, max_num_seqs=12, enable_prefix_caching=caches)
    if caches:
        prompts = [((-1 - row % 3, 16), (row, 14)) for row in range(60)]
        world = replace(world, prompts=prompts)
    ours, theirs = both(world, 0, PolicySpec("slo_budget", POLICIES["slo_budget"]))
    assert ours.requests["preemptions"].sum() > 5
    assert (ours.stepped_share, ours.stepped_because) == (0.0, "")
    assert not differences(ours, theirs)


SOWN = {
    "self._evict_begun()\n                else:": 14,
    "row.num_blocks = values[BLOCKS]": 21,
    "row.chunks, row.last_iteration = row.chunks + 1, it": 6,
}
"""Seeds with which what shows rarely does so in the first worlds drawn; any other finds it, but later."""


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        (crowd, "needed[over] = held[over]", "pass"),
        (crowd, "sure &= table.assumed[:n] > 0", "sure &= table.assumed[:n] < 0"),
        (crowd, "self._evict_begun()\n                else:", "pass\n                if True:"),
        (flight, "self.vain_context += end", "pass"),
        (flight, "at = at - (at > place)", "pass"),
        (lane, "flight.kept[ended] -= surplus[ended]", "pass"),
        (lane, "row.chunks, row.last_iteration = row.chunks + 1, it", "row.last_iteration = it"),
        (lane, "table.since[place] = row.chunks - it", "table.since[place] = -it"),
        (lane, "table.assumed[sits] += 1", "table.assumed[first] += 1"),
        (lane, "table.verified[which] += drafts > 0 if idle else 1", "table.verified[which] += 1"),
        (table, "row.num_blocks = values[BLOCKS]", "pass"),
    ],
)
def test_a_fault_in_rows_is_found(
    module: ModuleType, old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, module, old, new)

    @seed(SOWN.get(old, 0))
    @HUNT
    @given(
        worlds(LOOPS, 2, tight=True).map(choosing) | short(sharing(LOOPS, 2)).map(choosing),
        of_all_rows(),
        SEEDS,
    )
    def hunt(world: World, policy: PolicySpec, run: int) -> None:
        prove(world, run, policy)

    with pytest.raises((AssertionError, Breach, IndexError, ValueError)):
        hunt()
