"""One engine in time: waiting counted in steps, wasted steps, refusals, what each step is priced at."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim_toys import ENGINE, ToyCost, World, drafting

from specfleet.sim.config import ClientConfig, EngineConfig, LoadConfig
from specfleet.sim.engine import Engine, Request
from specfleet.sim.errors import Stall
from specfleet.sim.recorder import FINISHED, REJECTED, Recorder
from specfleet.sim.simulation import RunResult
from specfleet.sim.speculation.acceptance import AcceptanceSpec

ASYNC = replace(ENGINE, async_scheduling=True)
S, P = 0.02, 0.05
"""A step, and a step that carries a prefill, seconds."""
CLIENT = ClientConfig(send_s=0.008, receive_s=0.0025, turn_s=0.0015, send_serial_s=0.0, chunk_s=0.0)


def ttft_s(result: RunResult) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """What the client measured, a value a request."""
    return np.asarray(result.requests["first_chunk_s"] - result.requests["sent_s"], dtype=np.float64)


def column(result: RunResult, name: str) -> list[int]:
    """A column of iterations."""
    return [int(value) for value in result.iterations[name]]


@settings(max_examples=25, deadline=None)
@given(
    send_ms=st.floats(0.1, 45),
    turn_ms=st.floats(0.1, 45),
    asynchronous=st.booleans(),
    k=st.sampled_from([0, 3]),
)
def test_a_newcomer_to_a_busy_engine_waits_for_whole_steps(
    send_ms: float, turn_ms: float, asynchronous: bool, k: int
) -> None:
    client = replace(CLIENT, send_s=send_ms / 1e3, turn_s=turn_ms / 1e3)
    delay = client.receive_s + client.turn_s + client.send_s
    if abs(delay / S - round(delay / S)) < 1e-6:
        return  # reaches the engine just as a step ends
    result = World(
        [10] * 8,
        [400, *[6] * 7],  # one keeps the engine busy, the other user sends one short request after another
        engine=replace(drafting(k), async_scheduling=asynchronous),
        cost=ToyCost(step_s=S, prefill_s=P - S),
        acceptance=AcceptanceSpec(conditional_acceptance=0.0),
        client=client,
        load=LoadConfig(max_concurrency=2),
    ).run()
    steps = math.ceil(delay / S) + asynchronous
    assert ttft_s(result)[2:] == pytest.approx(steps * S + P - client.turn_s)


@pytest.mark.parametrize("engine", [ENGINE, ASYNC], ids=["sync", "async"])
def test_alone_a_request_waits_for_its_own_prefill_only(engine: EngineConfig) -> None:
    cost = ToyCost(step_s=S, prefill_s=P - S)
    result = World([10] * 4, [6] * 4, engine=engine, cost=cost, client=CLIENT, load=LoadConfig(1)).run()
    assert ttft_s(result) == pytest.approx(CLIENT.send_s + P + CLIENT.receive_s)
    assert len(result.iterations["end_s"]) == 4 * 6, (
        "no step is wasted where max_tokens makes the end certain"
    )


def test_alone_an_unforeseen_stop_costs_one_step_and_the_next_request_waits_for_it() -> None:
    stops = {"prompt": [10] * 4, "output": [6] * 4, "max_tokens": [60] * 4, "load": LoadConfig(1)}
    cost = ToyCost(step_s=S, prefill_s=P - S)
    wasted = World(**stops, engine=ASYNC, cost=cost, client=CLIENT).run()  # type: ignore[arg-type]
    assert len(wasted.iterations["end_s"]) == 4 * 7
    assert ttft_s(wasted)[1:] == pytest.approx(S + P - CLIENT.turn_s)
    foreseen = World(**stops, engine=ENGINE, cost=cost, client=CLIENT).run()  # type: ignore[arg-type]
    assert len(foreseen.iterations["end_s"]) == 4 * 6
    assert ttft_s(foreseen)[1:] == pytest.approx(CLIENT.send_s + P + CLIENT.receive_s)


def test_with_drafts_a_step_is_wasted_unless_the_cap_is_one_token_away() -> None:
    alpha, k, n = 0.6, 2, 1500
    engine = replace(drafting(k), async_scheduling=True)
    spec = AcceptanceSpec(conditional_acceptance=alpha)
    result = World([10] * n, [40] * n, engine=engine, acceptance=spec, load=LoadConfig(1)).run(seed=3)
    wasted = sum(chunks == 0 for chunks in column(result, "chunks")) / n
    expected = 1 - 1 / (1 + alpha + alpha**2)
    assert wasted == pytest.approx(expected, abs=4 * math.sqrt(expected * (1 - expected) / n))


def test_a_wasted_step_is_no_verification() -> None:
    engine = replace(drafting(3), async_scheduling=True)
    spec = AcceptanceSpec(conditional_acceptance=1.0)
    result = World([10], [9], engine=engine, acceptance=spec).run()
    assert column(result, "output_tokens") == [1, 4, 4, 0]
    assert result.rounds_by_accepted == (0, 0, 0, 2)
    assert int(result.requests["verifications"][0]) == 2


def test_an_engine_that_stands_still_says_why() -> None:
    engine = Engine(replace(ENGINE, num_gpu_blocks=4), ToyCost(), Recorder(1, 1))
    request = Request(0, prompt_tokens=100, max_tokens=10)
    assert engine.refusal(request) is not None
    engine.inbox.append(request)
    with pytest.raises(
        Stall, match=r"stands still at .*3 of 3 KV blocks free; first in line: request 0 with 100"
    ):
        engine.turn(0.0)


def test_requests_that_can_never_fit_are_refused_with_a_reason_and_the_others_served() -> None:
    engine = replace(ENGINE, num_gpu_blocks=11, max_model_len=300)
    result = World([50, 400, 160, 50], [10] * 4, engine=engine, load=LoadConfig(1), client=CLIENT).run()
    assert result.requests["status"].tolist() == [FINISHED, REJECTED, REJECTED, FINISHED]
    assert sum(result.refusals.values()) == 2
    long, large = result.refusals
    assert "exceeds max_model_len 300" in long
    assert "the pool has 160" in large
    assert np.isnan(result.requests["first_token_s"][1:3]).all()


@settings(max_examples=40, deadline=None)
@given(
    k=st.integers(0, 5),
    block_size=st.sampled_from([1, 4, 16]),
    prompt=st.integers(1, 40),
    output=st.integers(1, 30),
    asynchronous=st.booleans(),
    method=st.sampled_from(["eagle3", "draft_model", "ngram"]),
)
def test_what_just_fits_is_served_to_the_end(
    k: int, block_size: int, prompt: int, output: int, asynchronous: bool, method: str
) -> None:
    engine = replace(drafting(k, method), block_size=block_size, async_scheduling=asynchronous)
    request = Request(0, prompt, output)
    pools = (replace(engine, num_gpu_blocks=blocks) for blocks in range(2, 1000))
    least = next(p for p in pools if Engine(p, ToyCost(), Recorder(1, 1)).refusal(request) is None)
    spec = AcceptanceSpec(conditional_acceptance=0.5)
    result = World([prompt] * 3, [output] * 3, engine=least, acceptance=spec).run()
    assert result.requests["output_tokens"].tolist() == [output] * 3


@pytest.mark.parametrize("asynchronous", [False, True])
def test_past_its_positions_the_drafter_stays_out_and_leaves_void_drafts(asynchronous: bool) -> None:
    k, limit, prompt = 3, 40, 20
    engine = replace(drafting(k, drafter_max_model_len=limit), async_scheduling=asynchronous)
    spec = AcceptanceSpec(conditional_acceptance=1.0)
    result = World([prompt], [60], engine=engine, acceptance=spec, cost=ToyCost(pass_s=0.001)).run()
    passes, kept = column(result, "draft_passes"), column(result, "output_tokens")
    drafts, kv = column(result, "draft_tokens"), column(result, "kv_tokens")
    off = [tokens + k > limit for tokens in kv]
    off[0] = prompt + k > limit
    assert 0 < sum(off) == result.steps_without_drafter
    assert all((n == 0) == without for n, without in zip(passes, off, strict=True))
    later = [i for i in range(1, len(kept)) if off[i - 1] and kept[i]]
    assert later and all(kept[i] == 1 and drafts[i] == k for i in later), "verified, and accepted by nobody"
    assert all(kept[i] == 1 + k for i in range(1, len(kept) - 1) if not off[i - 1] and kept[i + 1])


@given(st.integers(0, 2**32))
@settings(max_examples=15, deadline=None)
def test_a_reroll_prices_a_second_pass_exactly_where_a_draft_was_rejected(seed: int) -> None:
    cost = ToyCost(step_s=0.01, token_s=0.001, pass_s=0.002)
    spec = AcceptanceSpec(conditional_acceptance=0.7)
    plain_world = World([5] * 3, [40] * 3, engine=drafting(3), cost=cost, acceptance=spec)
    plain = plain_world.run(seed)
    result = replace(plain_world, engine=drafting(3, reroll_on_reject=True)).run(seed)
    rows = {name: result.iterations[name].tolist() for name in result.iterations}
    assert column(result, "tokens") == column(plain, "tokens")
    accepted = np.array(column(result, "output_tokens")) - np.array(column(result, "chunks"))
    assert 0 < sum(rows["reroll"]) < len(rows["reroll"])
    for i, reroll in enumerate(rows["reroll"]):
        target = cost.step_s + cost.token_s * rows["tokens"][i]
        seconds = rows["end_s"][i] - rows["start_s"][i]
        assert seconds == pytest.approx(target * (1 + reroll) + cost.pass_s * rows["draft_passes"][i])
        if rows["running"][i + 1 :][:1] == [3]:  # nobody ends here: surplus would hide acceptances
            assert reroll == (accepted[i] < rows["draft_tokens"][i])


@given(st.integers(0, 2**32), st.booleans(), st.integers(1, 5), st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_priced_kv_is_the_true_context_also_where_counts_run_ahead(
    seed: int, asynchronous: bool, k: int, users: int
) -> None:
    engine = replace(drafting(k), async_scheduling=asynchronous)
    spec = AcceptanceSpec(conditional_acceptance=0.6)
    output = 30
    result = World([7] * users, [output] * users, engine=engine, acceptance=spec).run(seed)
    known, checked = 7 * users, 0
    for i, emitted in enumerate(column(result, "output_tokens")):
        if i and result.iterations["decode_sequences"][i] == users and known < users * (7 + output - k - 1):
            # the token sampled last is computed now, and the drafts with it
            assert result.iterations["kv_tokens"][i] == known + users * k
            checked += 1
        known += emitted
    assert users > 1 or checked > 2


@given(st.integers(0, 2**32), st.integers(1, 5))
@settings(max_examples=20, deadline=None)
def test_asynchronous_steps_read_the_same_kv_as_synchronous_ones(seed: int, k: int) -> None:
    spec = AcceptanceSpec(conditional_acceptance=0.6)
    runs = [
        World([7], [50], engine=replace(drafting(k), async_scheduling=a), acceptance=spec).run(seed)
        for a in (False, True)
    ]
    sync, ahead = (column(run, "kv_tokens") for run in runs)
    assert ahead[: len(sync)] == sync
    assert len(ahead) - len(sync) in (0, 1)


def test_a_lookup_that_finds_nothing_drafts_nothing() -> None:
    spec = AcceptanceSpec(conditional_acceptance=1.0, proposal_probability=0.5)
    result = World([7], [200], engine=drafting(3, "ngram"), acceptance=spec).run()
    drafts, kept = column(result, "draft_tokens"), column(result, "output_tokens")
    assert set(drafts[1:-1]) == {0, 3}
    assert all(tokens == 1 + d for tokens, d in zip(kept[1:-1], drafts[1:-1], strict=True))
    assert column(result, "draft_passes") == [0] * len(drafts)


@pytest.mark.parametrize(("parallel", "passes"), [(False, 4), (True, 1)])
def test_a_parallel_drafter_runs_once_and_a_chain_k_times(parallel: bool, passes: int) -> None:
    engine = drafting(4, "draft_model", parallel_drafting=parallel)
    result = World([7], [30], engine=engine, acceptance=AcceptanceSpec(conditional_acceptance=0.5)).run()
    assert set(column(result, "draft_passes")) == {passes}


def test_no_drafter_pass_follows_a_step_whose_drafts_nobody_could_use() -> None:
    engine = replace(drafting(3), max_num_batched_tokens=16)
    result = World([40], [1], engine=engine, acceptance=AcceptanceSpec(conditional_acceptance=0.5)).run()
    assert column(result, "tokens") == [16, 16, 8]
    assert column(result, "draft_passes") == [1, 1, 1], "one pass keeps the drafter's KV in step"


def test_a_step_is_described_by_sums_over_its_rows() -> None:
    engine = replace(drafting(2), max_num_batched_tokens=20)
    spec = AcceptanceSpec(conditional_acceptance=0.0)
    result = World([10, 30], [9, 9], arrival_s=[0.0, 0.01], engine=engine, acceptance=spec).run()
    rows = result.iterations
    names = ["tokens", "decode_sequences", "prefill_sequences", "logit_rows", "draft_tokens", "kv_tokens"]
    shapes = [[int(rows[name][i]) for name in [*names, "prefill_pairs"]] for i in range(4)]
    assert shapes == [
        [10, 0, 1, 1, 0, 0, 10 * 11 // 2],
        [20, 1, 1, 4, 2, 10 + 3, 17 * 18 // 2],
        [16, 1, 1, 4, 2, 11 + 3, 17 * 13 + 13 * 14 // 2],
        [6, 2, 0, 6, 4, 12 + 3 + 30 + 3, 0],
    ]
