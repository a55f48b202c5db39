"""A run without its requests has the figures of a run that keeps them, whatever its portions."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sim_toys import ToyCost, World, drafting
from test_timeline import HUNT, plant
from timeline_worlds import LUCK, worlds

from specfleet.sim import summarise as summarise_module
from specfleet.sim.calendar import chunk_times, stream, window
from specfleet.sim.calendar.books import ledger
from specfleet.sim.calendar.slots import Slots
from specfleet.sim.config import NO_CLIENT, DeploymentConfig, LoadConfig, Slo
from specfleet.sim.errors import Breach, SimulationError, Stall
from specfleet.sim.forgetful import counted as counted_module
from specfleet.sim.metrics.columns import benchmark, by_class, by_replica, engine_load
from specfleet.sim.metrics.seconds import Seconds
from specfleet.sim.metrics.summary import Summary
from specfleet.sim.metrics.sums import Counted
from specfleet.sim.metrics.tally import ERROR, LEAST, Tally
from specfleet.sim.recorder import Columns
from specfleet.sim.simulation import Scenario, simulate
from specfleet.sim.summarise import summarise
from specfleet.workloads.requests import RequestTable

SEEDS = st.integers(0, 2**32)
PACES = st.sampled_from([1.0, 8.0, 30.0])
"""From all requests at once to a few at a time."""


@st.composite
def crowded(draw: st.DrawFn) -> World:
    """Engines short of blocks; some compute what was lost in pieces."""
    world = draw(worlds(("open",), 2, tight=True))
    if draw(st.booleans()):
        return world
    return replace(world, engine=replace(world.engine, max_num_batched_tokens=40, max_num_seqs=4))


SLO = Slo(ttft_s=0.3, tpot_s=0.02, e2el_s=3.0)
PERCENTILES = ("median", "p90", "p95", "p99")
LAWS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few requests and windows of a few iterations, so that small worlds cross all borders."""
    small = {"BLOCK": 5, "LONGEST_WINDOW": 40, "WINDOW": 3, "SHORTEST_CALENDAR": 0, "SHARE": 2, "LONG": 6}
    for name, module in list(sys.modules.items()):
        for constant in small.keys() & vars(module).keys() if name.startswith("specfleet.sim.") else ():
            monkeypatch.setattr(module, constant, small[constant])


def posed(world: World, times: int = 1, slower: float = 1.0) -> tuple[Scenario, RequestTable]:
    """A world's scenario, and its requests, over and over, coming at another pace."""
    n = len(world.prompt)
    arrival = np.asarray(world.arrival_s) * slower
    last = float(arrival[-1])
    table = RequestTable.of(
        np.tile(world.prompt, times),
        np.tile(world.output, times),
        max_tokens=np.tile(world.max_tokens or world.output, times),
        arrival_s=np.concatenate([arrival + i * last for i in range(times)]),
        class_id=np.arange(n * times) % 2,
        class_names=("a", "b"),
    )
    return world.scenario(world.classes or {}), table


def same(ours: Mapping[str, object], theirs: Mapping[str, object]) -> list[str]:
    """What differs between figures: counts at all, means beyond rounding, percentiles beyond their bound."""
    assert ours.keys() == theirs.keys()
    wrong = []
    for name, mine in ours.items():
        value = theirs[name]
        bound = 2 * ERROR if name.startswith(PERCENTILES) else 1e-9
        if isinstance(value, float) and isinstance(mine, float | int):
            least = 1e-5 if name.startswith("std") else 1e-6  # ms: rounding of equal values
            good = math.isclose(mine, value, rel_tol=bound, abs_tol=least)
        else:
            good = mine == value
        if not good:
            wrong.append(f"{name}: {mine}, not {value}")
    return wrong


def prove(scenario: Scenario, table: RequestTable, seed: int, portion: int) -> Summary:
    """Fails where the figures of both ways differ."""
    result = simulate(scenario, table, seed)
    summary = summarise(scenario, table, seed, SLO, portion=portion)
    wrong = same(summary.benchmark().as_dict(), benchmark(result, SLO).as_dict())
    ours, whole = summary.engine_load(), engine_load(result)
    assert (ours is None) == (whole is None)
    if ours is not None and whole is not None:
        wrong += same(ours.as_dict(), whole.as_dict())
    for name, figures in by_class(result, table.class_names, SLO).items():
        wrong += same(summary.by_class()[name].as_dict(), figures.as_dict())
    for mine, theirs in zip(summary.by_replica(), by_replica(result), strict=True):
        wrong += same(mine.as_dict(), theirs.as_dict())
    assert not wrong, "\n".join(wrong)
    assert summary.steps == len(result.iterations["end_s"])
    assert summary.refusals == result.refusals
    assert tuple(summary.rounds_by_accepted) == result.rounds_by_accepted
    return summary


@LAWS
@given(worlds(("open", "open", "sparse"), 3), SEEDS, st.integers(1, 40))
def test_a_summary_has_the_figures_of_the_whole_run(world: World, seed: int, portion: int) -> None:
    try:
        prove(*posed(world, 3), seed, portion)
    except Stall:
        return


@LAWS
@given(crowded(), PACES, SEEDS, st.integers(1, 40))
def test_a_summary_knows_who_was_preempted(world: World, pace: float, seed: int, portion: int) -> None:
    try:
        prove(*posed(world, 4, pace), seed, portion)
    except Stall:
        return


COUNTING = ("least_outstanding", "power_of_two")


@st.composite
def counted(draw: st.DrawFn) -> World:
    """Several replicas behind a router that counts who is inside; some short of blocks."""
    world = draw(worlds(("open", "sparse"), tight=draw(st.booleans())))
    return replace(
        world, deployment=DeploymentConfig(draw(st.integers(2, 5)), draw(st.sampled_from(COUNTING)))
    )


@LAWS
@given(counted(), PACES, SEEDS, st.integers(1, 40))
def test_a_summary_behind_a_router_that_counts_has_the_figures_of_the_whole_run(
    world: World, pace: float, seed: int, portion: int
) -> None:
    try:
        prove(*posed(world, 4, pace), seed, portion)
    except Stall:
        return


@LAWS
@given(worlds(("open",), 3), SEEDS, st.integers(1, 40), st.integers(41, 200))
def test_portions_change_nothing(world: World, seed: int, small: int, large: int) -> None:
    scenario, table = posed(replace(world, deployment=replace(world.deployment, router="random")), 3)
    try:
        ours, theirs = (summarise(scenario, table, seed, SLO, portion=size) for size in (small, large))
    except Stall:
        return
    mine, other = ours.benchmark().as_dict(), theirs.benchmark().as_dict()
    rounded = {name for name in mine if name.startswith(("mean", "std"))}
    assert {k: v for k, v in mine.items() if k not in rounded} == {
        k: v for k, v in other.items() if k not in rounded
    }
    assert not same(mine, other)


FAULTS = {
    "an iteration is closed while somebody may still be thrown out of it": (
        stream,
        "until = min(until, int(known.min(initial=until)))",
        "pass",
    ),
    "rounds stay where they were when the window moves": (
        ledger,
        "planes[:, : self._capacity - over] = planes[:, over:].copy()",
        "pass",
    ),
    "a request is over while its last chunk can still be lost": (
        stream,
        "over = finish < self._window.until - (0 if last else IN_FLIGHT)",
        "over = first < self._window.until - (0 if last else IN_FLIGHT)",
    ),
    "rounds before a preemption count to the end": (
        stream,
        "last[i] = first[i] + cut.pop(int(places[i]))",
        "cut.pop(int(places[i]))",
    ),
    "stays after a preemption are ranked too early": (
        chunk_times,
        "stay.newcomers <= self._over]",
        "stay.newcomers <= self._over + 3]",
    ),
    "a lane keeps what it ran ahead of a request": (
        counted_module,
        "self.lane.quiet.take_back(self.lane.at, now)",
        "pass",
    ),
    "an engine's rounds are booked from another's first iteration on": (
        ledger,
        "origin -= np.array(self.base)[lane]",
        "origin -= self.base[0]",
    ),
    "a scheduled step is due when it starts": (window, "turn_s[wakes] = start_s[wakes]", "pass"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, old, new = FAULTS[fault]
    plant(monkeypatch, module, old, new)
    tight = worlds(("open",), tight=True)
    shows = tight if "preemption" in fault else st.one_of(worlds(("open", "sparse"), 2), tight)
    if fault.startswith(("a lane", "an engine")):
        shows = counted()

    @HUNT
    @given(shows, SEEDS, st.integers(1, 9))
    def hunt(world: World, seed: int, portion: int) -> None:
        with suppress(Stall):
            prove(*posed(world, 4), seed, portion)

    with pytest.raises((AssertionError, Breach, IndexError, KeyError, ValueError)):
        hunt()


def small_run(n: int = 60, **changes: object) -> tuple[Scenario, RequestTable]:
    """Requests that come one after another in front of an engine that drafts."""
    world = World(
        [20] * n,
        [12] * n,
        arrival_s=(0.05 * np.arange(n)).tolist(),
        engine=drafting(3),
        classes={"": LUCK[0]},
        **changes,  # type: ignore[arg-type]
    )
    return posed(world)


def test_places_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Slots] = []
    original = Slots.__init__

    def kept(self: Slots, capacity: int) -> None:
        original(self, capacity)
        built.append(self)

    monkeypatch.setattr(Slots, "__init__", kept)
    summary = prove(*small_run(2000), 1, 50)
    assert summary.whole is None
    assert built[0].blocks < 40, "blocks of 5, for 2,000 requests"


@pytest.mark.parametrize("router", COUNTING)
def test_places_are_used_again_behind_a_router_that_counts(
    router: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[Slots] = []
    original = Slots.__init__

    def kept(self: Slots, capacity: int) -> None:
        original(self, capacity)
        built.append(self)

    monkeypatch.setattr(Slots, "__init__", kept)
    summary = prove(*small_run(2000, deployment=DeploymentConfig(4, router)), 1, 50)
    assert summary.whole is None and summary.shares == 1
    assert [slots.blocks < 40 for slots in built] == [True], "blocks of 5, for 2,000 requests, once"


def test_what_cannot_be_forgotten_is_held_and_says_why() -> None:
    scenario, table = small_run()
    closed = replace(scenario, load=LoadConfig(max_concurrency=4))
    summary = prove(closed, table, 0, 10)
    assert summary.whole is not None and "max_concurrency" in summary.whole
    weighed = replace(scenario, deployment=DeploymentConfig(2, "least_tokens"))
    assert "least_tokens" in str(prove(weighed, table, 0, 10).whole)


def test_a_queue_without_end_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summarise_module, "PLACES", 40)
    scenario, table = small_run(400)
    crowd = replace(table, arrival_s=np.zeros(400))
    assert "requests wait" in str(prove(scenario, crowd, 0, 100).whole)


def test_what_can_neither_be_forgotten_nor_held_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summarise_module, "FITS", 50)
    scenario, table = small_run()
    with pytest.raises(SimulationError, match="max_concurrency"):
        summarise(replace(scenario, load=LoadConfig(max_concurrency=4)), table, 0)
    monkeypatch.setattr(summarise_module, "FITS", len(table))
    held = summarise(replace(scenario, load=LoadConfig(max_concurrency=4)), table, 0)
    assert held.whole is not None, "just as many as can be"


def test_every_iteration_is_shown_once() -> None:
    scenario, table = small_run(deployment=DeploymentConfig(2))
    seen: list[Columns] = []
    summarise(scenario, table, 0, watch=lambda: seen.append, portion=7)
    rows = simulate(scenario, table, 0).iterations
    for replica in (0, 1):
        parts = [part for part in seen if part["replica"][0] == replica]
        mine = rows["replica"] == replica
        for name in ("tokens", "kv_tokens", "running", "start_s", "end_s", "gaps_by_tokens"):
            assert np.array_equal(np.concatenate([part[name] for part in parts]), rows[name][mine]), name


def test_a_run_that_has_to_begin_again_is_shown_from_its_beginning() -> None:
    engine = replace(drafting(3), max_num_seqs=40, max_num_batched_tokens=41)
    arrival_s = np.concatenate([np.arange(300) * 0.4, 120.0 + np.arange(300) * 0.001])
    table = RequestTable.of(np.full(600, 3), np.full(600, 60), arrival_s=arrival_s)
    scenario = Scenario(engine, ToyCost(), {"": LUCK[0]}, client=NO_CLIENT)
    tries: list[list[int]] = []

    def watch() -> Callable[[Columns], None]:
        tries.append([])
        return lambda part: tries[-1].append(len(part["tokens"]))

    summary = summarise(scenario, table, 0, watch=watch, portion=32)
    assert len(tries) == 2 and tries[0], "the obstacle comes up in the middle"
    assert sum(tries[1]) == summary.steps


@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 4)), min_size=1, max_size=60),
    st.integers(1, 60),
)
@example([(1.0, 0), (0.0, 1), (0.0, 1), (0.0078125, 1)], 60)
def test_a_tally_knows_percentiles_within_its_error(pairs: list[tuple[float, int]], cut: int) -> None:
    values, weights = np.array([v for v, _ in pairs]), np.array([w for _, w in pairs])
    weights[0] += 1
    tally = Tally()
    for part in (slice(0, cut), slice(cut, None)):
        tally.add(values[part], weights[part])
    out = np.repeat(values, weights)
    assert tally.count == len(out)
    assert tally.mean() == pytest.approx(out.mean(), rel=1e-12)
    assert tally.std() == pytest.approx(out.std(), rel=1e-6, abs=1e-6 * out.max())
    percents = [0.0, 37.0, 50.0, 99.0, 100.0]
    exact = np.percentile(out, percents)  # between a value below `LEAST` and one above, both errors add up
    assert (np.abs(tally.percentiles(percents) - exact) <= 1.001 * ERROR * exact + 2 * LEAST).all()
    assert tally.percentiles([0.0, 100.0])[1] <= out.max()


def sent(times: list[tuple[float, float, float]]) -> Counted:
    """Requests by their send, and the seconds from it to the first and on to the last chunk."""
    sent_s, ttft_s, rest_s = np.array(sorted(times)).T
    tokens = np.full(len(times), 2)
    return Counted(sent_s, ttft_s, ttft_s + rest_s, rest_s, tokens, tokens, 0 * tokens)


def some(requests: Counted, rows: slice) -> Counted:
    """Some of the requests."""
    return Counted(**{field.name: getattr(requests, field.name)[rows] for field in fields(Counted)})


@given(
    st.lists(st.tuples(st.floats(0, 50), st.floats(0, 9), st.floats(0, 2000)), min_size=1, max_size=40),
    st.lists(st.floats(0, 500), max_size=40),
    st.integers(1, 7),
)
def test_seconds_that_are_over_leave_their_peaks(
    times: list[tuple[float, float, float]], chunks: list[float], portions: int
) -> None:
    requests = sent(times)
    start = float(requests.sent_s[0])
    whole, forgetful = Seconds(start, 0.25), Seconds(start, 0.25)
    end_s = np.sort(np.array(chunks)) + start
    whole.add_requests(requests)
    whole.add_iterations(end_s, np.ones(len(end_s), dtype=np.int64))
    for low, high in itertools.pairwise(np.linspace(0, len(times), portions + 1).astype(int)):
        forgetful.add_requests(some(requests, slice(low, high)))
        until = float(requests.sent_s[high]) if high < len(times) else math.inf
        seen, end_s = end_s[end_s < until], end_s[end_s >= until]
        forgetful.add_iterations(seen, np.ones(len(seen), dtype=np.int64))
        if until < math.inf:
            forgetful.close(until)
    assert forgetful.peaks() == whole.peaks()


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0, 9), st.floats(0, 60)), min_size=1, max_size=40))
def test_peaks_are_those_counted_second_by_second(times: list[tuple[float, float, float]]) -> None:
    requests = sent(times)
    seconds = Seconds(float(requests.sent_s[0]))
    seconds.add_requests(requests)
    after = [requests.sent_s, requests.sent_s + requests.ttft_s, requests.last_s]
    begun, first, last = (np.floor(t - requests.sent_s[0]) for t in after)
    every = range(int(last.max()) + 1)
    chunks = max(int((first == second).sum()) for second in every)
    present = max(int(((begun <= second) & (last >= second)).sum()) for second in every)
    assert seconds.peaks() == (chunks, present)
