"""The price of a step: bit-equal paths, laws, closed forms."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specfleet.hardware import catalog, stepcost
from specfleet.hardware.constants import kernel_constants
from specfleet.hardware.placement import Placement
from specfleet.hardware.stepcost import TERMS, KernelCost, StepShape, shape_fields

PROFILE = catalog.engine_profile("vllm-2026-01")


def place(model: str, gpu: str | dict[str, Any], drafter: str | None = None, **options: Any) -> Placement:
    head = catalog.drafter(drafter) if drafter else None
    profile = options.pop("profile", PROFILE)
    return Placement.of(catalog.model(model), catalog.accelerator(gpu), profile, drafter=head, **options)


def decode(batch: int, drafts: int = 0, context: int = 1024, passes: int | None = None) -> StepShape:
    query = 1 + drafts
    passes = drafts if passes is None else passes
    return StepShape(batch * query, batch, 0, batch * query, batch * drafts, batch * context, 0, 0, passes)


def terms_of(cost: KernelCost, shape: StepShape) -> dict[str, float]:
    columns = {key: np.array([value]) for key, value in shape._asdict().items()}
    return {key: float(value[0]) for key, value in cost.terms(columns).items()}


PLAIN = place("llama-3.1-8b", "h100-sxm", max_num_batched_tokens=2048, max_num_seqs=256)
PLACEMENTS = {
    "plain": PLAIN,
    "law alone": replace(PLAIN, profile=replace(PROFILE, bf16_gemm_table=False)),
    "fp8": replace(PLAIN, quantization="fp8", kv_cache_dtype="fp8"),
    "cold": replace(PLAIN, attention="cold", c_q=0.15),
    "eagle3": place("qwen3-32b", "h100-94gb", "eagle3-qwen3-32b", num_speculative_tokens=3, max_num_seqs=256,
                    max_num_batched_tokens=2048),
    "draft model": place("llama-3.3-70b", "h100-pcie", "llama-3.2-1b", num_speculative_tokens=5,
                         tensor_parallel_size=2, max_num_seqs=256, max_num_batched_tokens=2048),
    "two ladders": place("llama-3.1-8b", "h100-sxm", "eagle3-llama-3.1-8b", num_speculative_tokens=3,
                         draft_tiers=((4, 16), (3, 64), (1, 256)), max_num_seqs=256,
                         max_num_batched_tokens=2048, profile=catalog.engine_profile("vllm-0.33")),
}  # fmt: skip
COSTS: dict[str, KernelCost] = {name: KernelCost(placement) for name, placement in PLACEMENTS.items()}


@st.composite
def shapes(draw: st.DrawFn) -> StepShape:
    """Any step of up to 2,048 tokens: decodes with 0 to 5 drafts each, prompt chunks, drafting or not."""
    drafts = draw(st.lists(st.integers(0, 5), max_size=60))
    chunks = draw(st.lists(st.tuples(st.integers(1, 400), st.integers(0, 4000)), max_size=4))
    decode_rows, prefill_rows = len(drafts), len(chunks)
    pairs = sum(past * n + n * (n + 1) // 2 for n, past in chunks)
    tokens = decode_rows + sum(drafts) + sum(n for n, _ in chunks)
    logits = decode_rows + sum(drafts) + prefill_rows
    kv = draw(st.integers(0, 10**6)) if drafts else 0
    passes = draw(st.integers(0, 5))
    return StepShape(tokens, decode_rows, prefill_rows, logits, sum(drafts), kv, 0, pairs, passes)


@settings(max_examples=200)
@given(name=st.sampled_from(sorted(COSTS)), batch=st.lists(shapes(), min_size=1, max_size=5))
def test_the_scalar_path_equals_the_terms_to_the_last_bit(name: str, batch: list[StepShape]) -> None:
    cost = COSTS[name]
    columns = {
        key: np.array([getattr(shape, key) for shape in batch], dtype=np.int64) for key in StepShape._fields
    }
    terms = cost.terms(columns)
    assert tuple(terms) == TERMS
    for row, shape in enumerate(batch):
        total = 0.0
        for term in TERMS:
            total = total + float(terms[term][row])
        assert cost.seconds(shape) == total


@given(name=st.sampled_from(sorted(COSTS)), shape=shapes())
def test_no_term_is_negative(name: str, shape: StepShape) -> None:
    assert all(value >= 0.0 for value in terms_of(COSTS[name], shape).values())


@given(batch=st.integers(1, 200), drafts=st.integers(0, 4), context=st.integers(1, 8000))
def test_more_context_never_costs_less(batch: int, drafts: int, context: int) -> None:
    cost = COSTS["eagle3"]
    assert cost.seconds(decode(batch, drafts, context)) < cost.seconds(decode(batch, drafts, context + 100))


def test_padding_prices_all_batches_up_to_a_graph_alike() -> None:
    cost = COSTS["plain"]
    floors = [cost._layers.floor_s[cost.padded_tokens(decode(tokens))] for tokens in (17, 24)]
    assert floors[0] == floors[1]
    stream = [cost._layers.stream_s[cost.padded_tokens(decode(tokens))] for tokens in (17, 24, 25)]
    assert stream[0] == stream[1] < stream[2]


def test_above_the_last_graph_nothing_is_padded() -> None:
    stream = COSTS["plain"]._layers.stream_s[COSTS["plain"]._padded]
    assert stream[513] < stream[514]
    weights = [
        terms_of(KernelCost(replace(PLAIN, profile=replace(PROFILE, cudagraph_max_tokens=0))), decode(n))[
            "weights"
        ]
        for n in (17, 18)
    ]
    assert weights[0] < weights[1]


def test_kv_is_read_once_a_sequence_not_once_a_query() -> None:
    cost = KernelCost(replace(PLAIN, c_q=0.0))
    one, four = (terms_of(cost, decode(64, drafts, 2048))["kv"] for drafts in (0, 3))
    assert four < 1.01 * one
    unpacked = KernelCost(replace(PLAIN, c_q=1.0))
    assert terms_of(unpacked, decode(64, 3, 2048))["kv"] > 4 * one


def test_one_more_query_adds_c_q_of_the_attention_time() -> None:
    cost = KernelCost(replace(PLAIN, c_q=0.5))
    law = kernel_constants("h100_sxm").decode["bfloat16", "all"]
    rate = 3.35e12 * law.bandwidth_share
    read = 32 * (8 * 8 * law.sequence_head_s + 8 * 1000 * 4096 / rate + 8 * 3 * 4 * 32 * 128 / rate)
    expected = read + 0.5 * 2 * (read + 32 * law.floor_s)
    assert terms_of(cost, decode(8, 2, 1000))["kv"] == pytest.approx(expected)


def test_launch_is_the_floors_of_every_kernel() -> None:
    constants = kernel_constants("h100_sxm")
    gemm, attention = constants.gemm["bfloat16"].floor_s, constants.decode["bfloat16", "all"].floor_s
    expected = 32 * (4 * gemm + 3 * 3e-6 + attention) + gemm
    assert terms_of(COSTS["law alone"], decode(8))["launch"] == pytest.approx(expected)


def test_weights_are_the_bytes_at_the_measured_share_of_the_bandwidth() -> None:
    model = PLAIN.model
    matrices = [(n, k) for n, k in model.layer_groups(1)[0].gemms] * 32 + [(128_256, 4096)]
    moved = sum(2 * (n * k + k + n) for n, k in matrices)
    assert terms_of(COSTS["law alone"], decode(1))["weights"] == pytest.approx(moved / (3.35e12 * 0.8585))


def test_two_gpus_without_peer_to_peer_pay_160_all_reduces_and_a_gather() -> None:
    placement = replace(PLACEMENTS["draft model"], drafter=None, num_speculative_tokens=0)
    hidden, logits = 16 * 8192 * 2, 16 * 64_128 * 2
    expected = 160 * (18.4e-6 + 46.7e-12 * hidden) + 18.4e-6 + 46.7e-12 * logits
    assert terms_of(KernelCost(placement), decode(16))["communication"] == pytest.approx(expected)
    assert terms_of(COSTS["plain"], decode(16))["communication"] == 0.0


def test_host_time_follows_the_scheduling_not_the_method() -> None:
    sync = KernelCost(replace(PLAIN, async_scheduling=False))
    assert terms_of(COSTS["plain"], decode(10))["host"] == pytest.approx(0.35e-3 + 10 * 9.6e-6)
    assert terms_of(sync, decode(10))["host"] == pytest.approx(2.14e-3 + 10 * 28e-6)


def test_a_prompt_chunk_by_hand() -> None:
    shape = StepShape(1000, 0, 1, 1, 0, 0, 0, 2000 * 1000 + 1000 * 1001 // 2, 0)
    law = kernel_constants("h100_sxm").prefill
    flops = 4 * 32 * 128 * shape.prefill_pairs / (989e12 * law.peak_share)
    moved = law.memory_multiple * (1000 * 2 * 32 * 128 * 2 + 3000 * 4096) / 3.35e12
    plain = shape._replace(prefill_pairs=0)
    cost = COSTS["plain"]
    no_pairs = law.memory_multiple * (1000 * 2 * 32 * 128 * 2 + 499.5 * 4096) / 3.35e12
    difference = terms_of(cost, shape)["compute"] - terms_of(cost, plain)["compute"]
    assert difference == pytest.approx(32 * (flops + moved - no_pairs))
    assert terms_of(cost, shape)["kv"] == 0.0


def test_splitting_a_prompt_into_chunks_never_makes_it_cheaper() -> None:
    cost = COSTS["plain"]
    whole = cost.seconds(StepShape(2000, 0, 1, 1, 0, 0, 0, 2000 * 2001 // 2, 0))
    first = cost.seconds(StepShape(1000, 0, 1, 1, 0, 0, 0, 1000 * 1001 // 2, 0))
    second = cost.seconds(StepShape(1000, 0, 1, 1, 0, 0, 0, 1000 * 1000 + 1000 * 1001 // 2, 0))
    assert first + second > whole


def test_fp8_is_faster_at_one_sequence_and_has_a_cliff_above_128_tokens() -> None:
    cost = KernelCost(replace(PLACEMENTS["fp8"], profile=replace(PROFILE, cudagraph_max_tokens=0)))
    assert cost.seconds(decode(1)) < COSTS["plain"].seconds(decode(1))
    smooth = KernelCost(
        replace(PLACEMENTS["fp8"], profile=replace(PROFILE, cudagraph_max_tokens=0, fp8_gemm_table=False))
    )
    ratio = [cost.seconds(decode(m)) / smooth.seconds(decode(m)) for m in (128, 160)]
    assert ratio[0] < 1.0 < 1.05 < ratio[1]


def test_shapes_beyond_the_token_budget_are_refused() -> None:
    with pytest.raises(IndexError):
        COSTS["plain"].seconds(StepShape(2049, 1, 1, 2, 0, 10, 0, 10, 0))


def test_the_summary_shows_every_term() -> None:
    text = COSTS["eagle3"].summary()
    assert "Qwen/Qwen3-32B on 1 x h100-94gb" in text and "3 draft tokens" in text
    assert all(f"{term} " in text for term in TERMS)


@pytest.mark.perf
def test_a_price_takes_under_three_microseconds() -> None:
    cost, shape = COSTS["eagle3"], decode(64, 3)
    start = time.perf_counter()
    for _ in range(20_000):
        cost.seconds(shape)
    assert (time.perf_counter() - start) / 20_000 < 3e-6


def test_what_is_kept_of_prices_is_bounded_and_changes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stepcost, "MOST_KEPT", 4)
    shapes = [decode(batch, drafts=batch, context=300 + batch) for batch in range(1, 12)]
    once, again = (KernelCost(PLACEMENTS["eagle3"]) for _ in range(2))
    prices = [once.seconds(shape) for shape in shapes + shapes]
    assert len(once._decodes) <= 4
    assert prices == [again.seconds(shape) for shape in reversed(shapes)][::-1] * 2


def test_a_calibrated_scale_multiplies_everything_but_the_host() -> None:
    place = PLAIN
    twice = KernelCost(replace(place, profile=replace(place.profile, kernel_time_scale=2.0)))
    once, shape = KernelCost(place), StepShape(40, 8, 1, 9, 0, 4000, 0, 3000, 0)
    columns = {key: np.array([value]) for key, value in shape._asdict().items()}
    for term, seconds in once.terms(columns).items():
        factor = 1.0 if term == "host" else 2.0
        assert twice.terms(columns)[term] == pytest.approx(factor * seconds), term


@given(
    decodes=st.integers(1, 120),
    drafts=st.integers(0, 360),
    prompts=st.integers(0, 2),
    chunk=st.integers(2, 300),
)
def test_one_step_and_columns_of_steps_are_padded_alike(
    decodes: int, drafts: int, prompts: int, chunk: int
) -> None:
    cost = COSTS["two ladders"]
    drafts = min(drafts, 3 * decodes)
    fields = shape_fields(decodes, drafts, 900, 900, prompts, prompts * chunk, prompts * chunk, 3)
    shape = StepShape(*fields)
    columns = {name: np.array([value], dtype=np.int64) for name, value in shape._asdict().items()}
    assert cost.padded_column(columns)[0] == cost.padded_tokens(shape)
    run = cost.padded_tokens(shape)
    if not prompts and drafts in (0, 2 * decodes, 3 * decodes):
        assert run % (1 + drafts // decodes) == 0 or run == shape.tokens > 512
    else:
        assert run == cost._padded[shape.tokens]
