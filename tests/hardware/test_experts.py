"""Mixture of experts, latent attention, sliding windows: laws and hand-worked numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specfleet.hardware import catalog
from specfleet.hardware.attentioncost import decode_coefficients
from specfleet.hardware.forward import layer_stack, rows_up_to
from specfleet.hardware.interconnect import all_reduce_s
from specfleet.hardware.layers.attention import GroupedAttention
from specfleet.hardware.mixture.choosing import choosing_s
from specfleet.hardware.mixture.experts import PEAK_SHARE, ROUTING_KERNELS, expert_gemms, expert_law
from specfleet.hardware.mixture.routing import distinct_experts, effective_tokens
from specfleet.hardware.placement import Placement
from specfleet.hardware.roofline import RooflineCost
from specfleet.hardware.stepcost import TERMS, KernelCost, StepShape

PROFILE = replace(catalog.engine_profile("vllm-2026-01"), cudagraph_max_tokens=0)


def place(model: str, gpu: str = "h200", **options: Any) -> Placement:
    options = {"max_num_seqs": 256, "max_num_batched_tokens": 2048} | options
    return Placement.of(catalog.model(model), catalog.accelerator(gpu), PROFILE, **options)


def drafting(model: str, drafter: str, drafts: int, **options: Any) -> Placement:
    return place(model, drafter=catalog.drafter(drafter), num_speculative_tokens=drafts, **options)


def decode(batch: int, drafts: int = 0, context: int = 1024, window: int = 0) -> StepShape:
    query, seen = 1 + drafts, min(context, window)
    return StepShape(
        batch * query, batch, 0, batch * query, batch * drafts, batch * context, batch * seen, 0, drafts
    )


def terms_of(cost: KernelCost, shape: StepShape) -> dict[str, float]:
    columns = {key: np.array([value]) for key, value in shape._asdict().items()}
    return {key: float(value[0]) for key, value in cost.terms(columns).items()}


PLACEMENTS = {
    "moe": place("qwen3-30b-a3b", "h100-sxm"),
    "moe, drafting": drafting("qwen3-30b-a3b", "eagle3-qwen3-30b-a3b", 3),
    "latent": place("deepseek-v3", tensor_parallel_size=8),
    "mtp": drafting("deepseek-v3", "deepseek-mtp", 1, tensor_parallel_size=8),
    "window": place("gpt-oss-120b", "h100-sxm"),
    "window, drafting": drafting("gpt-oss-120b", "gpt-oss-20b", 2),
    "medusa": drafting("llama-3.1-8b", "medusa-llama-3.1-8b", 4),
}
COSTS: dict[str, KernelCost] = {name: KernelCost(placement) for name, placement in PLACEMENTS.items()}
PASS = ("weights", "compute", "launch")
"""Terms of the target's own kernels."""

ROOFLINES = {name: RooflineCost(placement) for name, placement in PLACEMENTS.items()}


@settings(max_examples=150)
@given(
    name=st.sampled_from(sorted(COSTS)), batch=st.integers(0, 200), drafts=st.integers(0, 4),
    chunk=st.integers(0, 900), past=st.integers(0, 3000), context=st.integers(1, 9000),
    passes=st.integers(0, 4),
)  # fmt: skip
def test_both_paths_agree_to_the_last_bit_for_every_kind_of_layer(
    name: str, batch: int, drafts: int, chunk: int, past: int, context: int, passes: int
) -> None:
    prefills = 1 if chunk or not batch else 0
    chunk = max(chunk, prefills)
    pairs = past * chunk + chunk * (chunk + 1) // 2
    rows = batch * (1 + drafts)
    shape = StepShape(
        rows + chunk, batch, prefills, rows + prefills, batch * drafts, batch * context,
        batch * min(context, 128), pairs, passes,
    )  # fmt: skip
    for cost in (COSTS[name], ROOFLINES[name]):
        columns = {key: np.array([value]) for key, value in shape._asdict().items()}
        found, total = cost.terms(columns), 0.0
        for term in TERMS:
            assert found[term][0] >= 0.0
            total = total + float(found[term][0])
        assert cost.seconds(shape) == total


def test_distinct_experts_by_hand() -> None:
    assert distinct_experts(np.array([1.0, 1e6]), 128, 8) == pytest.approx([8, 128])
    full = {"mixtral-8x7b": 10, "qwen3-235b-a22b": 46, "deepseek-v3": 94, "gpt-oss-120b": 94}
    for name, tokens in full.items():
        model = catalog.model(name)
        share = distinct_experts(np.array([tokens]), model.num_experts, model.num_experts_per_tok)
        assert share[0] / model.num_experts == pytest.approx(0.95, abs=0.01)


@given(tokens=st.floats(0, 1e4), more=st.floats(0, 100), k=st.integers(1, 8))
def test_more_tokens_never_read_fewer_experts_nor_more_than_there_are(
    tokens: float, more: float, k: int
) -> None:
    few, many = distinct_experts(np.array([tokens, tokens + more]), 64, k)
    assert few <= many <= 64


def test_correlated_drafts_count_as_fewer_tokens() -> None:
    assert effective_tokens(np.array([16.0]), 3, 0.3) == pytest.approx(4 * (1 + 0.7 * 3))
    assert effective_tokens(np.array([16.0]), 3, 0.0) == pytest.approx(16)
    assert effective_tokens(np.array([16.0]), 0, 0.9) == pytest.approx(16)
    loose, tight = (
        KernelCost(replace(PLACEMENTS["moe, drafting"], routing_correlation=c)) for c in (0.0, 1.0)
    )
    assert terms_of(tight, decode(4, 3))["weights"] < terms_of(loose, decode(4, 3))["weights"]


def test_one_token_through_the_experts_of_a_30b_by_hand() -> None:
    placement = PLACEMENTS["moe"]
    (group,) = placement.model.layer_groups(1)
    assert group.experts is not None
    one = np.array([1.0])
    law = expert_law(placement, placement.model, 1, group.experts, group.expert_format).parts(one, one)
    rate = 3.35e12 * 0.8585
    moved = 8 * 3 * 2048 * 768 * 2 + 8 * 2 * (2 * 2048 + 4 * 768)
    assert law.stream_s[0] == pytest.approx(moved / rate)
    assert law.extra_s[0] == pytest.approx(8 * 6 * 2048 * 768 / (989e12 * 0.8325 * 0.805 * PEAK_SHARE))
    assert law.floor_s[0] == pytest.approx(2 * 3.3899e-6 + ROUTING_KERNELS * 3e-6)
    priced = expert_gemms(placement, placement.model, 1, group, one, 0)
    priced = priced._replace(floor_s=priced.floor_s - choosing_s(group.experts, 1))
    factors = [part[0] / formula[0] for part, formula in zip(priced, law, strict=True)]
    assert factors == pytest.approx([factors[0]] * 3), "a measured time keeps the formula's shares"


def test_a_verify_step_of_a_mixture_costs_most_at_a_small_batch_least_at_a_middle_one() -> None:
    """MoESD: of few sequences drafts wake more experts, of many all are awake; then there is arithmetic."""
    cost, plain = COSTS["moe, drafting"], KernelCost(place("qwen3-30b-a3b"))

    def ratio(batch: int) -> float:
        verify, alone = terms_of(cost, decode(batch, 3)), terms_of(plain, decode(batch))
        return sum(verify[term] for term in PASS) / sum(alone[term] for term in PASS)

    few, middle, many = ratio(2), ratio(32), ratio(200)
    assert few > 1.5 and many > middle + 0.1 and few > middle + 0.3
    assert middle < 1.25
    assert terms_of(cost, decode(64, 3))["weights"] < 1.2 * terms_of(plain, decode(64))["weights"]


def test_mxfp4_reads_17_bytes_for_32_weights() -> None:
    model, other = catalog.model("gpt-oss-120b"), catalog.model("qwen3-30b-a3b")
    assert model.expert_bytes(model.runs[0], None, 1) == 3 * 2880 * 2880 * 17 / 32
    assert other.expert_bytes(other.runs[0], "fp8", 2) == 3 * 2048 * 768 / 2


def test_windowed_layers_stop_growing_with_the_context() -> None:
    cost = COSTS["window"]
    short, long = (terms_of(cost, decode(64, 0, context, 128))["kv"] for context in (4096, 8192))
    unwindowed = terms_of(cost, decode(64, 0, 8192, 8192))["kv"]
    assert short < long < unwindowed
    full_layers = 18 * 2048 * 64 * 4096 / (3.35e12 * 0.896)
    assert long - short == pytest.approx(full_layers)


def test_prefill_in_windowed_layers_is_linear_in_the_past() -> None:
    cost = COSTS["window"]
    pairs = [past * 512 + 512 * 513 // 2 for past in (4096, 8192)]
    near, far = (terms_of(cost, StepShape(512, 0, 1, 1, 0, 0, 0, p, 0))["compute"] for p in pairs)
    dense = KernelCost(replace(PLACEMENTS["window"], model=replace(PLACEMENTS["window"].model,
                       num_windowed_layers=0)))  # fmt: skip
    full = [terms_of(dense, StepShape(512, 0, 1, 1, 0, 0, 0, p, 0))["compute"] for p in pairs]
    assert far - near == pytest.approx((full[1] - full[0]) / 2, rel=1e-6)


def test_verification_with_latent_attention_becomes_arithmetic() -> None:
    whole = replace(PLACEMENTS["latent"], c_q=0.0)
    cost = KernelCost(whole)
    one, two, eight = (terms_of(cost, decode(64, k, 8192))["kv"] for k in (0, 1, 7))
    assert two == pytest.approx(one, rel=0.01)
    assert eight > 1.1 * one


def test_latent_attention_is_the_engine_s_own() -> None:
    """Floors belong to an engine: vLLM's layer takes four times SGLang's besides its projections."""

    def floor(engine: str, model: str = "deepseek-v3") -> float:
        profile = catalog.engine_profile(engine)
        here = Placement.of(
            catalog.model(model), catalog.accelerator("h200"), profile, tensor_parallel_size=8
        )
        return 1e6 * decode_coefficients(here, here.model, 8).floor_s / here.model.num_layers

    assert floor("vllm-0.33") == pytest.approx(66, abs=6)
    assert floor("sglang") == pytest.approx(17, abs=3)
    assert floor("trtllm") == pytest.approx(33, abs=3)
    assert floor("vllm-0.33", "deepseek-v3.2") > 2 * floor("vllm-0.33"), "an indexer chooses, too"


def test_where_latent_attention_was_not_measured_it_is_said() -> None:
    a100 = place("deepseek-v2-lite", "a100-80gb")
    assert a100.latent_constants(False) is None
    assert "latent attention with the constants of grouped-query attention: not measured" in a100.notes
    assert PLACEMENTS["latent"].latent_constants(False) is not None
    assert not any("latent" in note for note in PLACEMENTS["latent"].notes)


def test_the_summary_says_what_is_assumed() -> None:
    text = COSTS["mtp"].summary()
    for said in (
        "experts as measured in",
        "correlation 0.3 (assumed, 0.2 to 0.5)",
        "c_q 0.03",
        "(0 to 0.15)",
    ):
        assert said in text


def test_a_mixture_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match=r"8 does not divide moe_intermediate_size 2884"):
        Placement.of(
            replace(catalog.model("gpt-oss-20b"), moe_intermediate_size=2884), catalog.accelerator("h100"),
            PROFILE, tensor_parallel_size=8,
        )  # fmt: skip
    with pytest.raises(ValueError, match=r"routing_correlation is 2"):
        replace(PLACEMENTS["moe"], routing_correlation=2.0)


@pytest.mark.parametrize("gpus", [1, 8])
def test_a_norm_over_all_heads_is_one_more_all_reduce_of_two_numbers_a_row(gpus: int) -> None:
    normed = place("minimax-m2.5", tensor_parallel_size=gpus)
    (run,) = normed.model.runs
    (mixer,) = run.mixers
    assert isinstance(mixer, GroupedAttention) and mixer.norm_over_heads
    plain = replace(normed.model, stack=(run._replace(mixers=(replace(mixer, norm_over_heads=False),)),))
    rows = 64
    one, other = (
        layer_stack(normed, model, gpus, normed.quantization, rows) for model in (normed.model, plain)
    )
    law = normed.all_reduce_law(gpus)
    extra = all_reduce_s(8.0 * rows_up_to(rows), law) if law else np.zeros(rows)
    assert (one.communication_s - other.communication_s)[1:] == pytest.approx(62 * extra)
    assert (one.floor_s - other.floor_s)[1:] == pytest.approx(62 * (2 * 3e-6 if gpus > 1 else 0.0))
