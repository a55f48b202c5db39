"""SGLang under the laws: none is let off because SGLang cuts outputs, retracts requests and gives them up."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sim_toys import SPREAD, ToyCost, World, drafting
from timeline_worlds import requests

from specfleet.sim.config import NO_CLIENT, EngineConfig, LoadConfig, SglangConfig
from specfleet.sim.errors import Breach, Stall
from specfleet.sim.laws import names
from specfleet.sim.laws.whole import check_run
from specfleet.sim.recorder import ABORTED, FINISHED, REJECTED
from specfleet.sim.sglang.scheduler import SglangScheduler
from specfleet.sim.simulation import RunResult, simulate
from specfleet.sim.speculation.acceptance import AcceptanceSpec

ENGINE = EngineConfig(
    max_num_seqs=16,
    max_num_batched_tokens=1 << 20,
    num_gpu_blocks=151,
    block_size=1,
    max_model_len=4096,
    async_scheduling=False,
    sglang=SglangConfig(schedule_conservativeness=0.02),
)
"""A pool of 150 tokens, and promises too bold."""


def world(engine: EngineConfig, prompts: list[int], outputs: list[int], **more: object) -> World:
    """Requests together in front of it, a ms a token."""
    luck = SPREAD if engine.speculative else None
    cost = ToyCost(0.01, token_s=0.001)
    return World(prompts, outputs, engine=engine, acceptance=luck, cost=cost, client=NO_CLIENT, **more)  # type: ignore[arg-type]


def drafts(engine: EngineConfig = ENGINE, topk: int = 1) -> EngineConfig:
    """With three drafts, of which each of `topk` branches reserves KV."""
    assert engine.sglang is not None
    return replace(drafting(3, engine=engine), sglang=replace(engine.sglang, speculative_eagle_topk=topk))


DRAWN = 200
"""Worlds that are counted."""

ALONE = world(drafts(topk=8), [111], [30])
"""Alone in the pool, and its reserve of 48 tokens does not fit: as in a recorded run of SGLang."""


def test_an_output_is_cut_to_what_the_pool_holds_and_the_run_is_sound() -> None:
    result = world(ENGINE, [100, 20], [500, 5], max_tokens=[900, 9]).run()
    # context or pool less 1, the prompt and one; the pool less prompt, page and one
    assert result.requests["output_tokens"].tolist() == [48, 5]
    assert result.requests["status"].tolist() == [FINISHED, FINISHED]


def test_one_given_up_is_named_with_what_it_had() -> None:
    result = ALONE.run()
    assert result.requests["status"].tolist() == [ABORTED]
    assert sum(result.refusals.values()) == 1
    assert result.requests["output_tokens"][0] == result.iterations["output_tokens"].sum() == 1
    assert result.requests["finished_s"][0] == result.iterations["end_s"][-1]
    assert np.isnan(result.requests["last_chunk_s"][0])


def test_who_is_given_up_frees_its_user() -> None:
    result = replace(ALONE, prompt=[111, 10], output=[30, 2], arrival_s=[0.0, 0.0], load=LoadConfig(1)).run()
    assert result.requests["status"].tolist() == [ABORTED, FINISHED]
    assert result.requests["sent_s"][1] == result.requests["finished_s"][0]


def _spoil(result: RunResult, name: str, change: int) -> RunResult:
    column = result.requests[name].copy()
    column[0] += change
    return replace(result, requests={**result.requests, name: column})


@pytest.mark.parametrize(
    ("begun", "name", "change"),
    [
        (world(ENGINE, [100, 20], [500, 5]), "output_tokens", -1),
        (world(ENGINE, [100, 20], [500, 5]), "chunks", 1),
        (world(ENGINE, [150, 20], [30, 5]), "output_tokens", 1),
        (ALONE, "output_tokens", 1),
        (ALONE, "output_tokens", 29),
        (ALONE, "status", FINISHED - ABORTED),
        (ALONE, "status", REJECTED - ABORTED),
        (ALONE, "chunks", -1),
        (ALONE, "verifications", 1),
    ],
)
def test_a_token_more_or_less_is_a_breach(begun: World, name: str, change: int) -> None:
    result, table = begun.run(), requests(begun)
    check_run(result, table)
    with pytest.raises(Breach):
        check_run(_spoil(result, name, change), table)


def test_vllm_gives_nobody_up() -> None:
    plain = World([10], [3])
    result = plain.run()
    with pytest.raises(Breach, match=names.ENDS_ONCE):
        check_run(_spoil(result, "status", ABORTED - FINISHED), requests(plain))


def test_one_that_ends_a_token_early_is_a_breach(monkeypatch: pytest.MonkeyPatch) -> None:
    add = SglangScheduler.add

    def shorter(self: SglangScheduler, sequence: object) -> None:
        add(self, sequence)  # type: ignore[arg-type]
        sequence.max_tokens -= 1  # type: ignore[attr-defined]

    monkeypatch.setattr(SglangScheduler, "add", shorter)
    with pytest.raises(Breach, match=names.TOKENS) as found:
        world(ENGINE, [20], [9]).run(engine="step")
    assert found.value.request == 0


def drawn_from(
    of: Callable[[Sequence[Any]], Any],
    whole: Callable[[int, int], int],
    number: Callable[[float, float], float],
) -> World:
    """Requests in a pool that is often too small, all of SGLang's switches drawn.

    Args:
        of: draws one of a list.
        whole, number: draw a number between two.
    """
    n, page, k = whole(1, 14), of([1, 1, 4, 16]), of([0, 0, 3])
    sglang = SglangConfig(
        chunked_prefill_size=of([-1, 16, 64]),
        max_prefill_tokens=of([40, 16384]),
        prefill_max_requests=of([None, 1, 3]),
        enable_mixed_chunk=of([False, True]),
        schedule_policy=of(["fcfs", "lpm"]),
        schedule_conservativeness=of([0.02, 0.3, 1.0]),
        speculative_eagle_topk=of([1, 1, 4]),
    )
    engine = replace(
        drafting(k, engine=ENGINE),
        max_num_seqs=of([1, 3, 16]),
        num_gpu_blocks=of([60, 150, 300, 2000]) // page + 1,
        block_size=page,
        max_model_len=of([80, 4096]),
        enable_prefix_caching=of([False, True]),
        async_scheduling=of([False, True]),
        sglang=sglang,
    )
    output = [whole(1, 120) for _ in range(n)]
    return world(
        engine,
        [whole(1, 90) for _ in range(n)],
        output,
        max_tokens=[tokens + of([0, 0, 7]) for tokens in output],
        arrival_s=np.cumsum([number(0.0, 0.3) for _ in range(n)]).tolist(),
        load=LoadConfig(of([None, 2, 5]), whole(0, n)),
    )


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """The same by hypothesis."""
    return drawn_from(
        lambda values: draw(st.sampled_from(values)),
        lambda low, high: draw(st.integers(low, high)),
        lambda low, high: draw(st.floats(low, high)),
    )


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(worlds(), st.integers(0, 2**32))
def test_every_run_of_sglang_is_sound_after_every_turn(drawn: World, seed: int) -> None:
    try:
        result = simulate(drawn.scenario({"": SPREAD}), requests(drawn), seed, every_turn=True)
    except Stall:
        return
    status = result.requests["status"]
    assert (status == REJECTED).sum() + (status == ABORTED).sum() == sum(result.refusals.values())


def test_the_draws_retract_cut_and_give_up() -> None:
    seen = Counter[str]()
    for seed in range(DRAWN):
        chance = random.Random(seed)
        drawn = drawn_from(chance.choice, chance.randint, chance.uniform)
        try:
            result = drawn.run()
        except Stall:
            seen["stalled"] += 1
            continue
        rows = result.requests
        served = rows["status"] == FINISHED
        seen["cut"] += bool((served & (rows["output_tokens"] < np.array(drawn.output))).any())
        seen["retracted"] += bool(rows["preemptions"].any())
        seen["given up"] += bool((rows["status"] == ABORTED).any())
        seen["refused"] += bool((rows["status"] == REJECTED).any())
    assert min(seen[name] for name in ("cut", "retracted", "given up", "refused")) >= DRAWN // 20, seen
    assert seen["stalled"] < DRAWN // 10, seen


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("conditional", "accepted"), [(1.0, 3.0), (0.0, 0.0), (0.7, 0.7 + 0.7**2 + 0.7**3)])
def test_what_is_accepted_is_what_was_asked_for(overlap: bool, conditional: float, accepted: float) -> None:
    engine = replace(drafts(), num_gpu_blocks=100_001, async_scheduling=overlap)
    n = 60
    many = replace(
        world(engine, [20] * n, [120] * n), acceptance=AcceptanceSpec(conditional_acceptance=conditional)
    )
    rows = many.run().requests
    rounds = rows["verifications"].sum()
    assert rows["accepted_tokens"].sum() / rounds == pytest.approx(accepted, rel=0.03)
    assert rounds >= n * 119 // 4
