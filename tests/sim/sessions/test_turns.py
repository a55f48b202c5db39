"""Sessions: turns wait for answers, and find what was computed and written for them before."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from session_worlds import Sessions, Turn, sessions, table_of
from sglang_worlds import under_sglang
from sim_toys import ENGINE, ToyCost, World, drafting
from test_timeline import HUNT, LAWS, SEEDS, plant, small_windows_and_blocks
from timeline_worlds import differences, policies

from specfleet.sim.calendar.kv import pool, prompts, shared
from specfleet.sim.config import ClientConfig, LoadConfig, SglangConfig
from specfleet.sim.errors import Breach, Stall
from specfleet.sim.recorder import ABORTED, FINISHED, REJECTED
from specfleet.sim.simulation import simulate
from specfleet.sim.speculation.policy import PolicySpec
from specfleet.sim.speculation.spec import AcceptanceSpec
from specfleet.sim.summarise import summarise
from specfleet.workloads.requests import RequestTable

__all__ = ["small_windows_and_blocks"]


def prove(drawn: Sessions, seed: int, policy: PolicySpec | None = None) -> None:
    """Fails where the two ways differ, or a turn is sent before it is due."""
    scenario = replace(drawn.scenario, policy=policy)
    try:
        ours = simulate(scenario, drawn.table, seed)
    except Stall:
        return
    theirs = simulate(scenario, drawn.table, seed, engine="step")
    assert not (found := differences(ours, theirs)), "\n".join(found)
    requests = ours.requests
    given_up = {ABORTED} if scenario.engine.sglang is not None else set()
    assert set(requests["status"].tolist()) <= {FINISHED, REJECTED, *given_up}
    later = np.flatnonzero(drawn.table.turn > 0)
    later = later[requests["status"][later - 1] == FINISHED]
    assert drawn.table.think_s is not None
    due = requests["last_chunk_s"][later - 1] + scenario.client.turn_s + drawn.table.think_s[later]
    assert (requests["sent_s"][later] >= due).all()


@LAWS
@given(sessions(), SEEDS)
def test_sessions_on_the_calendar_equal_stepping(drawn: Sessions, seed: int) -> None:
    prove(drawn, seed)


@LAWS
@given(sessions(3), SEEDS)
def test_sessions_before_a_fleet_equal_stepping(drawn: Sessions, seed: int) -> None:
    prove(drawn, seed)


@LAWS
@given(sessions(2, chosen=True), policies(), SEEDS)
def test_sessions_under_a_policy_equal_stepping(drawn: Sessions, policy: PolicySpec, seed: int) -> None:
    prove(drawn, seed, policy)


@LAWS
@given(sessions(2, short=True), SEEDS)
def test_sessions_whose_blocks_run_short_equal_stepping(drawn: Sessions, seed: int) -> None:
    prove(drawn, seed)


@LAWS
@given(sessions(2, caching=False, short=True), SEEDS)
def test_sessions_without_a_cache_equal_stepping(drawn: Sessions, seed: int) -> None:
    prove(drawn, seed)


@st.composite
def sglang_sessions(draw: st.DrawFn) -> Sessions:
    """Sessions in front of SGLang's scheduler, whose pool holds little more than is needed at once."""
    drawn = draw(sessions(2))
    world = draw(under_sglang(drawn.world, False, False))
    page, largest = world.engine.block_size, int((drawn.table.prompt_tokens + drawn.table.max_tokens).max())
    tokens = int(largest * draw(st.sampled_from([1.2, 2.0, 5.0]))) + 60
    engine = replace(world.engine, num_gpu_blocks=tokens // page + 2, enable_prefix_caching=True)
    return Sessions(replace(world, engine=replace(engine, max_model_len=4096)), drawn.table)


@LAWS
@given(sglang_sessions(), SEEDS)
def test_sessions_under_sglang_equal_stepping(drawn: Sessions, seed: int) -> None:
    prove(drawn, seed)


def test_most_of_these_sessions_have_hits_on_answers_and_are_not_stepped() -> None:
    seen: Counter[str] = Counter()

    @settings(HUNT, max_examples=60)
    @given(sessions(2), SEEDS)
    def look(drawn: Sessions, seed: int) -> None:
        ours = drawn.run(seed)
        prompts_alone = replace(drawn.table, output_stream=None)
        without = simulate(drawn.scenario, prompts_alone, seed)
        seen["worlds"] += 1
        seen["fast"] += ours.stepped_share == 0.0
        found, less = (run.requests["cached_tokens"].sum() for run in (ours, without))
        seen["hits on answers"] += bool(found > less)

    look()
    assert seen["fast"] > 0.7 * seen["worlds"], seen
    assert seen["hits on answers"] > 0.3 * seen["worlds"], seen


def test_drafts_are_accepted_by_the_turn_as_stated() -> None:
    sessions = [(0.0, conversation(-1 - number, [(8, 60)] * 4)) for number in range(60)]
    spec = AcceptanceSpec(conditional_acceptance=0.8, turn_multiplier=((0.0, 1.0), (2.0, 0.5)))
    world = World([1], [1], engine=drafting(1), cost=ToyCost(1.0))
    table = table_of(sessions)
    requests = simulate(world.scenario({"": spec}), table, 1).requests
    for turn, expected in enumerate((0.8, 0.6, 0.4, 0.4)):
        mine = {
            name: requests[name][table.turn == turn].sum() for name in ("accepted_tokens", "draft_tokens")
        }
        assert mine["accepted_tokens"] / mine["draft_tokens"] == pytest.approx(expected, abs=0.03)


FAULTS = {
    "an answer is forgotten": (pool, "holder.keys[known : known + holder.private]", "[]"),
    "an answer is freed from its beginning": (pool, "for key in reversed(written):", "for key in written:"),
    "the last token has a key": (
        shared,
        "rules.keyed_blocks(stay.final, stay.final + 1)",
        "(stay.final + 1) // rules.block_size",
    ),
    "every answer goes on": (
        prompts,
        "goes_on = streams[ends] == table.output_stream",
        "goes_on = ends >= 0",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_planted_in_sessions_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, *FAULTS[fault])

    @seed(58)  # where the rarest shows in the first ten worlds
    @HUNT
    @given(sessions(), SEEDS)
    def hunt(drawn: Sessions, luck: int) -> None:
        prove(drawn, luck)

    with pytest.raises((AssertionError, Breach, IndexError)):
        hunt()


def conversation(stream: int, lengths: list[tuple[int, int]], think_s: float = 0.0) -> list[Turn]:
    """Turns that add (new tokens, output) to one context, each but the first after a pause."""
    turns: list[Turn] = []
    context = 0
    for new, output in lengths:
        context += new
        turns.append(Turn(((stream, context),), output, think_s if turns else 0.0))
        context += output
    return turns


def test_a_turn_comes_a_pause_after_the_answer_and_finds_prompt_and_answer() -> None:
    table = table_of([(2.0, conversation(-1, [(40, 10), (6, 5), (100, 1)], 3.0))])
    client = ClientConfig(0.25, 0.125, 0.0625, 0.0, 0.0)
    world = World(
        [1], [1], engine=replace(ENGINE, enable_prefix_caching=True), cost=ToyCost(1.0), client=client
    )
    result = Sessions(world, table).run()
    assert result.stepped_share == 0.0
    requests = result.requests
    assert requests["prompt_tokens"].tolist() == [40, 56, 161]
    # a step a token; .25 s to the engine, .1875 s back and round, 3 s of thought
    assert requests["finished_s"].tolist() == [12.25, 20.6875, 25.125]
    assert requests["sent_s"].tolist() == [2.0, 15.4375, 23.875]
    # of 49 and 60 tokens computed, whole blocks of 16
    assert requests["cached_tokens"].tolist() == [0, 48, 48]


def test_a_cap_counts_sessions_that_are_under_way() -> None:
    sessions = [(0.0, conversation(-1 - number, [(8, 4)] * 3, 5.0)) for number in range(4)]
    world = World([1], [1], cost=ToyCost(1.0), load=LoadConfig(2))
    requests = Sessions(world, table_of(sessions)).run().requests
    sent, over = requests["sent_s"].reshape(4, 3), requests["last_chunk_s"].reshape(4, 3)
    assert sent[:2, 0].tolist() == [0.0, 0.0]
    assert (sent[2:, 0] == over[:2, 2]).all()
    assert (sent[:, 1:] == over[:, :2] + 5.0).all()


def test_users_who_think_load_one_server_as_machine_repair_says() -> None:
    users, turns, service_s, think_s = 4, 1500, 1.0, 3.0
    rng = np.random.default_rng(5)
    outputs = rng.geometric(0.02, (users, turns))
    pauses = rng.exponential(think_s, (users, turns))
    asked = [
        [Turn(((-1, 1),), n, s) for n, s in zip(*each, strict=True)]
        for each in zip(outputs.tolist(), pauses.tolist(), strict=True)
    ]
    engine = replace(ENGINE, max_num_seqs=1, async_scheduling=False)
    world = World([1], [1], engine=engine, cost=ToyCost(service_s / 50.0))
    result = Sessions(world, table_of([(0.0, session) for session in asked])).run()
    assert result.stepped_share == 0.0
    # M/M/1 with a finite population: P(n at the server) ~ users! / (users - n)! (service / think)^n
    weights = np.cumprod([1.0, *((users - n) * service_s / think_s for n in range(users))])
    throughput = (1.0 - weights[0] / weights.sum()) / service_s
    requests = result.requests
    assert users * turns / requests["last_chunk_s"].max() == pytest.approx(throughput, rel=0.03)
    response_s = (requests["last_chunk_s"] - requests["sent_s"]).mean()
    assert response_s == pytest.approx(users / throughput - think_s, rel=0.05)


def test_users_of_a_closed_loop_think_before_the_next_request() -> None:
    users, service_s, think_s = 4, 1.0, 3.0
    rng = np.random.default_rng(7)
    output = rng.geometric(0.02, 6000)
    table = replace(RequestTable.of([1] * 6000, output), think_s=rng.exponential(think_s, 6000))
    engine = replace(ENGINE, max_num_seqs=1, async_scheduling=False)
    world = World([1], [1], engine=engine, cost=ToyCost(service_s / 50.0), load=LoadConfig(users))
    result = simulate(world.scenario({}), table, 0)
    assert result.stepped_share == 0.0
    assert not differences(result, simulate(world.scenario({}), table, 0, engine="step"))
    # machine repair, as above
    weights = np.cumprod([1.0, *((users - n) * service_s / think_s for n in range(users))])
    throughput = (1.0 - weights[0] / weights.sum()) / service_s
    assert 6000 / result.requests["last_chunk_s"].max() == pytest.approx(throughput, rel=0.03)


def test_a_session_goes_on_after_a_turn_that_was_refused() -> None:
    table = table_of([(0.0, conversation(-1, [(40, 10), (60, 5), (100, 1)], 3.0))])
    world = World([1], [1], engine=replace(ENGINE, max_model_len=100), cost=ToyCost(1.0))
    for engine in ("auto", "step"):
        result = Sessions(world, table).run(engine=engine)
        assert result.requests["status"].tolist() == [FINISHED, REJECTED, REJECTED]
        assert sum(result.refusals.values()) == 2


def test_a_run_without_its_requests_holds_sessions_whole_and_says_so() -> None:
    drawn = Sessions(World([1], [1]), table_of([(0.0, conversation(-1, [(8, 4)] * 3, 5.0))]))
    summary = summarise(drawn.scenario, drawn.table, 0)
    assert summary.whole is not None and "next turn" in summary.whole
    assert summary.all.completed == 3


def test_under_sglang_answers_are_found_in_the_radix_tree() -> None:
    table = table_of([(0.0, conversation(-1, [(40, 10), (6, 5), (100, 1)]))])
    engine = replace(ENGINE, sglang=SglangConfig(), enable_prefix_caching=True, block_size=1)
    world = World([1], [1], engine=engine, cost=ToyCost(1.0))
    result = Sessions(world, table).run()
    assert not result.stepped_because
    assert result.requests["cached_tokens"].tolist() == [0, 49, 60]


@pytest.mark.parametrize(
    ("column", "values", "said"),
    [
        ("think_s", [0.0, -1.0, 0.0], "think_s is negative"),
        ("turn", [0, 2, 3], "turn does not follow the turn before it"),
        ("session_id", [0, 1, 1], "turn does not follow the turn before it"),
        ("arrival_s", [0.0, 1.0, 1.0], "not that of its session's first turn"),
        ("output_stream", [0, 1], "output_stream has 2 rows"),
    ],
)
def test_a_table_of_sessions_is_checked(column: str, values: list[float], said: str) -> None:
    table = table_of([(0.0, conversation(-1, [(8, 4)] * 3))])
    with pytest.raises(ValueError, match=said):
        replace(table, **{column: np.array(values)}).validate()  # type: ignore[arg-type]


def test_the_head_of_a_table_keeps_what_its_sessions_are() -> None:
    table = table_of([(0.0, conversation(-1, [(8, 4)] * 3, 2.0)), (1.0, conversation(-2, [(8, 4)] * 2))])
    head = table.head(4)
    head.validate()
    assert head.think_s is not None and head.output_stream is not None
    assert head.think_s.tolist() == [0.0, 2.0, 2.0, 0.0]
    assert head.output_stream.tolist() == [-1, -1, -1, -2]
