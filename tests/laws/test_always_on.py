"""Laws are always on: a run that breaks one ends in a breach that names law, request and time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sim_toys import ENGINE, SPREAD, ToyCost, World, drafting
from timeline_worlds import requests, worlds

from specfleet.hardware import catalog
from specfleet.hardware.leastwork import LeastWork
from specfleet.hardware.placement import Placement
from specfleet.hardware.roofline import RooflineCost
from specfleet.hardware.stepcost import TERMS, KernelCost, StepShape, shape_fields
from specfleet.sim.calendar.lane import Lane
from specfleet.sim.config import NO_CLIENT, ClientConfig, LoadConfig
from specfleet.sim.errors import Breach, Stall
from specfleet.sim.kvcache import KVCache
from specfleet.sim.laws import names
from specfleet.sim.laws.whole import Totals, check_run
from specfleet.sim.metrics import latency
from specfleet.sim.recorder import FINISHED, REJECTED
from specfleet.sim.scenario import RunResult, Scenario
from specfleet.sim.simulation import simulate
from specfleet.sim.summarise import summarise

RUN = World(
    [20, 30, 40, 2000, 25, 35] * 3,
    [12, 9, 17, 4, 30, 1] * 3,
    arrival_s=[0.013 * row for row in range(18)],
    engine=replace(drafting(3), max_num_seqs=4, max_model_len=500),
    cost=ToyCost(0.01, 0.002, 0.0001, 0.0005),
    acceptance=SPREAD,
    client=ClientConfig(),
    load=LoadConfig(num_warmups=2),
)
"""Drafts, a queue, warm-ups, and requests that are refused."""
CLOSED = replace(RUN, arrival_s=[0.0] * 18, load=LoadConfig(3), client=NO_CLIENT)


def column(table: str, name: str, row: int, change: float) -> Callable[[RunResult], RunResult]:
    """Returns what adds something to one value of a run's columns."""

    def spoil(result: RunResult) -> RunResult:
        columns = dict(getattr(result, table))
        columns[name] = columns[name].copy()
        columns[name][row] += change
        return replace(result, **{table: columns})  # type: ignore[arg-type]

    return spoil


def setting(name: str, value: object) -> Callable[[RunResult], RunResult]:
    """Returns what puts a value in the place of one of a run."""
    return lambda result: replace(result, **{name: value})  # type: ignore[arg-type]


SPOILT: dict[str, tuple[str, Callable[[RunResult], RunResult], int | None]] = {
    "it never ended": (names.ENDS_ONCE, column("requests", "finished_s", 4, np.nan), 4),
    "refused and served": (names.ENDS_ONCE, column("requests", "status", 4, REJECTED - FINISHED), 4),
    "a third way to end": (names.ENDS_ONCE, column("requests", "status", 3, 7), 3),
    "a refusal without a reason": (names.ENDS_ONCE, setting("refusals", {}), None),
    "sent before it is due": (names.CAUSES, column("requests", "sent_s", 5, -1e-6), 5),
    "admitted before it arrived": (names.CAUSES, column("requests", "admitted_s", 2, -1.0), 2),
    "ended before it began": (names.CAUSES, column("requests", "first_token_s", 2, 9.0), 2),
    "seen before it was emitted": (names.CAUSES, column("requests", "first_chunk_s", 2, -0.1), 2),
    "a token too many": (names.TOKENS, column("requests", "output_tokens", 7, 1), 7),
    "a token of somebody refused": (names.TOKENS, column("requests", "output_tokens", 3, 1), 3),
    "found more than it had": (names.TOKENS, column("requests", "cached_tokens", 7, 999), 7),
    "accepted more than drafted": (names.TOKENS, column("requests", "accepted_tokens", 7, 999), 7),
    "drafted more than K": (names.TOKENS, column("requests", "draft_tokens", 7, 999), 7),
    "chunks that gave nothing": (names.TOKENS, column("requests", "chunks", 7, 9), 7),
    "an iteration emitted one less": (names.TOKENS, column("iterations", "output_tokens", 9, -1), None),
    "a chunk went missing": (names.TOKENS, column("iterations", "gaps_by_tokens", 9, 1), None),
    "a token computed by nobody": (names.TOKENS, column("iterations", "tokens", 9, 2), None),
    "a verification not counted": (names.TOKENS, setting("rounds_by_accepted", (1, 2, 3, 4)), None),
    "a block too many": (names.BLOCKS, column("iterations", "kv_blocks_used", 5, 1e6), 0),
    "a block below none": (names.BLOCKS, column("iterations", "kv_blocks_used", 5, -1e6), 0),
    "a seat too many": (names.LIMITS, column("iterations", "running", 5, 9), 0),
    "a budget overdrawn": (names.LIMITS, column("iterations", "tokens", 5, 5000), 0),
    "who does not run decodes": (names.LIMITS, column("iterations", "running", 5, -1), 0),
    "more drafts than K": (names.LIMITS, column("iterations", "draft_tokens", 5, 99), 0),
    "two batches at a time": (names.ONE_BATCH, column("iterations", "start_s", 5, -0.005), 0),
    "a step that takes less than nothing": (names.ONE_BATCH, column("iterations", "end_s", 5, -0.5), 0),
    "somebody waits who is not there": (names.LITTLE, column("iterations", "waiting", 5, 1), None),
}


@pytest.mark.parametrize("fault", SPOILT)
@pytest.mark.parametrize("engine", ["auto", "step"])
def test_a_breach_names_its_law_and_whose_it_is(fault: str, engine: str) -> None:
    law, spoil, request = SPOILT[fault]
    result, table = RUN.run(engine=engine), requests(RUN)
    check_run(result, table)
    with pytest.raises(Breach) as found:
        check_run(spoil(result), table)
    assert (found.value.law, found.value.request) == (law, request)
    assert str(found.value).startswith(f"law broken: {law}: ")
    if request is not None:
        assert f"request {request}" in str(found.value)
        assert found.value.time_s is not None and f"at {found.value.time_s:.6f} s" in str(found.value)


def test_a_request_sent_beside_too_many_is_named() -> None:
    result, table = CLOSED.run(), requests(CLOSED)
    sent = result.requests["sent_s"].copy()
    sent[9:] -= 0.5 * (sent[9] - sent[8] + 0.01)
    spoilt = replace(result, requests={**result.requests, "sent_s": np.maximum(sent, 0.0)})
    with pytest.raises(Breach, match=names.IN_FLIGHT):
        check_run(spoilt, table)


def test_every_law_is_said_and_broken_by_some_test() -> None:
    elsewhere = {names.IN_FLIGHT, names.BUSY, names.DATASHEET, names.PARTS, names.BOTH_WAYS}
    elsewhere |= {names.SCALING, names.HANDOVER}
    assert {law for law, _, _ in SPOILT.values()} | elsewhere == set(names.LAWS)
    assert all(said.strip() for said in names.LAWS.values())


def test_a_gpu_busy_for_longer_than_the_run_is_a_breach() -> None:
    scenario, totals = RUN.scenario({}), Totals(served=1, start_s=0.0, end_s=1.0, busy_s=1.001)
    with pytest.raises(Breach, match=names.BUSY):
        totals.check(scenario, {}, (0, 0, 0, 0))


@dataclass(frozen=True)
class Odd(ToyCost):
    """A price that is wrong for steps of one size."""

    at: int = 5
    seconds_then: float = -1.0

    def seconds(self, shape: StepShape) -> float:
        """Seconds of one step."""
        return self.seconds_then if shape.tokens == self.at else super().seconds(shape)


@pytest.mark.parametrize("wrong", [-1.0, float("nan")])
@pytest.mark.parametrize("engine", ["auto", "step"])
def test_a_price_that_is_no_time_is_a_breach(wrong: float, engine: str) -> None:
    world = World([5], [3], engine=ENGINE, cost=Odd(seconds_then=wrong))
    with pytest.raises(Breach) as found:
        world.run(engine=engine)
    assert found.value.law in (names.ENDS_ONCE, names.ONE_BATCH, names.CAUSES)
    assert found.value.request == 0


def test_a_block_that_is_lost_is_a_breach_at_the_end_and_at_once_where_every_turn_is_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free = KVCache.free

    def lose(self: KVCache, sequence: Any) -> None:
        free(self, sequence)
        if sequence.id == 2:
            self.free_blocks -= 1

    monkeypatch.setattr(KVCache, "free", lose)
    with pytest.raises(Breach, match=names.BLOCKS) as late:
        RUN.run(engine="step")
    scenario, table = RUN.scenario({"": SPREAD}), requests(RUN)
    with pytest.raises(Breach, match=names.BLOCKS) as early:
        simulate(scenario, table, 0, "step", every_turn=True)
    assert early.value.time_s is not None and late.value.time_s is not None
    assert early.value.time_s < late.value.time_s


def test_every_turn_finds_what_the_calendar_does_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, scenario = requests(RUN), RUN.scenario({"": SPREAD})
    assert simulate(scenario, plain, 0, every_turn=True).stepped_share == 0.0
    monkeypatch.setattr(Lane, "__init__", _slower(Lane.__init__))
    simulate(scenario, plain, 0)
    with pytest.raises(Breach, match=names.BOTH_WAYS) as found:
        simulate(scenario, plain, 0, every_turn=True)
    assert found.value.request is not None and found.value.time_s is not None


def _slower(begin: Callable[..., None]) -> Callable[..., None]:
    """Lanes priced a little higher."""

    def slower(self: Lane, cost: ToyCost, *rest: Any) -> None:
        begin(self, replace(cost, step_s=cost.step_s * 1.001), *rest)

    return slower


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(worlds(("open", "closed", "capped", "balanced"), 3), st.integers(0, 2**32))
def test_every_turn_of_a_sound_run_is_sound_and_changes_nothing(world: World, seed: int) -> None:
    scenario, table = world.scenario(world.classes or {}), requests(world)
    try:
        plain, checked = simulate(scenario, table, seed), simulate(scenario, table, seed, every_turn=True)
    except Stall:
        return
    assert plain.stepped_because == checked.stepped_because
    for name, values in plain.requests.items():
        assert values.tobytes() == checked.requests[name].tobytes()


def streamed() -> tuple[Scenario, Any]:
    """A run that is summed up while its requests are forgotten."""
    world = World(
        [20, 30] * 40,
        [12, 9] * 40,
        arrival_s=[0.02 * row for row in range(80)],
        engine=drafting(3),
        acceptance=SPREAD,
    )
    return world.scenario({"": SPREAD}), requests(world)


def test_a_summary_checks_its_laws_too() -> None:
    scenario, table = streamed()
    assert summarise(scenario, table, 0, portion=16).whole is None
    assert summarise(scenario, table, 0, portion=16, every_turn=True).whole is None
    with pytest.raises(Breach) as found:
        summarise(replace(scenario, cost=Odd(at=20)), table, 0, portion=16)
    assert found.value.law in (names.ONE_BATCH, names.CAUSES)


def placed(model: str, drafter: str | None, k: int, scale: float = 1.0) -> Placement:
    """A placement on an H100 whose kernels take a share of their time."""
    profile = replace(catalog.engine_profile("vllm-0.33"), kernel_time_scale=scale)
    return Placement.of(
        catalog.model(model),
        catalog.accelerator("h100-sxm"),
        profile,
        drafter=catalog.drafter(drafter) if drafter else None,
        num_speculative_tokens=k,
    )


PLACED = {
    "plain": placed("llama-3.1-8b", None, 0),
    "drafting": placed("llama-3.1-8b", "eagle3-llama3.1-instruct-8b", 4),
    "experts": placed("qwen3-30b-a3b", None, 0),
    "windows": placed("gpt-oss-20b", None, 0),
    "latent": placed("deepseek-v2-lite-chat", None, 0),
}


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(PLACED)), st.integers(1, 256), st.integers(1, 30_000), st.integers(0, 6000))
def test_no_price_beats_the_datasheet(name: str, decodes: int, context: int, chunk: int) -> None:
    place = PLACED[name]
    drafts, prompts = decodes * place.num_speculative_tokens, int(chunk > 0)
    seen = min(context, place.model.sliding_window or context)
    fields = shape_fields(
        *(decodes, drafts, decodes * context, decodes * seen),
        *(prompts, chunk, chunk * (chunk + 1) // 2, place.num_speculative_tokens),
    )
    columns = {key: np.array([value]) for key, value in zip(StepShape._fields, fields, strict=True)}
    least = LeastWork(place)
    for cost in (KernelCost(place), RooflineCost(place)):
        terms = cost.terms(columns)
        seconds = sum(float(terms[term][0]) for term in TERMS) * (1.0 + 1e-12)
        assert float(least.bytes_s(columns)[0]) <= seconds
        assert float(least.flop_s(columns)[0]) <= seconds


def test_kernels_faster_than_the_datasheet_are_a_breach() -> None:
    for scale in (0.95, 0.1):
        cost = KernelCost(placed("llama-3.1-8b", None, 0, scale))
        world = World([400] * 8, [30] * 8, engine=ENGINE, cost=cost)  # type: ignore[arg-type]
        if scale > 0.9:
            world.run()
            continue
        with pytest.raises(Breach, match=r"takes 0\.1 of every kernel's time \(request 0 on") as found:
            world.run()
        assert found.value.law == names.DATASHEET


def test_parts_that_do_not_sum_to_the_whole_are_a_breach() -> None:
    place = placed("llama-3.1-8b", None, 0)
    world = World([40] * 4, [9] * 4, cost=KernelCost(place))  # type: ignore[arg-type]
    result = world.run()
    assert latency.latency_split(result, KernelCost(place)).keys() == latency.PARTS.keys()
    faulty = replace(result.scenario, cost=KernelCost(placed("llama-3.1-8b", None, 0, 1.01)))
    with pytest.raises(Breach, match=names.PARTS) as found:
        latency.latency_split(replace(result, scenario=faulty), KernelCost(place))
    assert found.value.request == 0 and found.value.time_s is not None


def test_a_breach_survives_the_way_between_processes() -> None:
    import pickle

    breach = Breach(names.TOKENS, "13 of 12", 17, 3.204, 1)
    again = pickle.loads(pickle.dumps(breach))
    assert str(again) == str(breach)
    assert str(breach) == (
        "law broken: tokens are conserved: 13 of 12 (request 17 on replica 1, at 3.204000 s)"
    )
