"""Parts of a price and of memory worked by hand, each term of a sum by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from specfleet.hardware import catalog, constants
from specfleet.hardware.accelerator import MOST as MOST_OF_A_GPU
from specfleet.hardware.attentioncost import _add_prefill
from specfleet.hardware.constants import DecodeConstants, LatentConstants
from specfleet.hardware.forward import layer_stack, linear, rows_up_to
from specfleet.hardware.heads import _block_drafter, medusa_for, mtp_for
from specfleet.hardware.kernels import (
    NO_PREFILL,
    AttentionShape,
    DecodeAttention,
    LatentShape,
    PrefillAttention,
    Rates,
    decode_attention,
    elementwise_s,
    latent_decode_attention,
)
from specfleet.hardware.layers.recurrent import GatedDelta
from specfleet.hardware.leastwork import LeastWork
from specfleet.hardware.mixture.experts import expert_gemms
from specfleet.hardware.model import ModelSpec
from specfleet.hardware.placement import Placement
from specfleet.hardware.roofline import RooflineCost, active_parameters, experts_s, pass_parameters
from specfleet.hardware.stepcost import KernelCost, StepShape


def placed(model: str, drafter: str | None = None, **options: Any) -> Placement:
    drafts = catalog.drafter(drafter) if drafter else None
    gpu, profile = catalog.accelerator("h100-sxm"), catalog.engine_profile("vllm-0.33")
    return Placement.of(catalog.model(model), gpu, profile, drafter=drafts, **options)


PLAIN = placed("llama-3.1-8b", tensor_parallel_size=2)
EXPERTS = placed("qwen3-30b-a3b", tensor_parallel_size=2)
WINDOWED = placed("gpt-oss-120b", tensor_parallel_size=2)
DRAFTING = placed(
    "llama-3.1-8b", "eagle3-llama3.1-instruct-8b", num_speculative_tokens=3, tensor_parallel_size=2
)
PLACES = {"plain": PLAIN, "experts": EXPERTS, "windowed": WINDOWED, "drafting": DRAFTING}
BYTES_S, FLOP_S = 3.35e12, 989.4e12
HEAD = 128_256 // 2 * 4096
LINEAR = 32 * (3072 * 4096 + 4096 * 2048 + 3 * 7168 * 4096)


def one(**fields: int) -> StepShape:
    """A step in which all else is 0."""
    return StepShape(**{**dict.fromkeys(StepShape._fields, 0), **fields})


def columns(shape: StepShape) -> dict[str, Any]:
    return {name: np.array([value]) for name, value in shape._asdict().items()}


def test_the_least_work_of_a_dense_model_term_by_term() -> None:
    least = LeastWork(PLAIN)
    assert PLAIN.accelerator.hbm_bytes_per_s == BYTES_S

    def moved(**fields: int) -> float:
        return float(least.bytes_s(columns(one(**fields)))[0]) * BYTES_S

    def worked(**fields: int) -> float:
        peak = PLAIN.accelerator.flops_per_s["bfloat16"]
        return float(least.flop_s(columns(one(**fields)))[0]) * peak

    assert moved() == pytest.approx(2 * (LINEAR + HEAD), rel=1e-12)
    assert moved(kv_tokens=1000) - moved() == pytest.approx(1000 * 32 * 2 * 4 * 128 * 2, rel=1e-9)
    assert moved(draft_passes=2) == moved()
    assert worked(tokens=7) == pytest.approx(7 * 2 * LINEAR, rel=1e-12)
    assert worked(logit_rows=5) == pytest.approx(5 * 2 * HEAD, rel=1e-12)
    assert worked(prefill_pairs=11) == pytest.approx(11 * 32 * 4 * 16 * 128, rel=1e-12)


def test_the_least_work_of_a_drafter_is_its_weights_and_its_head_a_pass() -> None:
    least, own = LeastWork(DRAFTING), DRAFTING.drafter
    assert own is not None and own.model is not None and DRAFTING.draft_tensor_parallel_size == 2
    pass_s = [float(least.bytes_s(columns(one(draft_passes=n)))[0]) for n in (0, 1, 3)]
    head = 2 * (own.draft_vocab_size // 2) * 4096
    weights = (own.model.linear_bytes(None, 2) + head) / BYTES_S
    assert pass_s[1] - pass_s[0] == pytest.approx(weights, rel=1e-9)
    assert pass_s[2] - pass_s[0] == pytest.approx(3 * weights, rel=1e-9)


def test_a_model_with_windows_reads_them_apart_from_what_sees_all() -> None:
    least = LeastWork(WINDOWED)
    per_layer = 2 * 4 * 64 * 2
    base = float(least.bytes_s(columns(one()))[0])
    whole = float(least.bytes_s(columns(one(kv_tokens=1000)))[0]) - base
    near = float(least.bytes_s(columns(one(kv_tokens_in_window=1000)))[0]) - base
    assert whole * BYTES_S == pytest.approx(1000 * 18 * per_layer, rel=1e-6)
    assert near * BYTES_S == pytest.approx(1000 * 18 * per_layer, rel=1e-6)


def test_weights_that_a_token_passes_through_are_those_of_its_experts() -> None:
    model = EXPERTS.model
    assert (model.num_layers, model.num_experts_per_tok) == (48, 8)
    assert model.routed_parameters(2) == 48 * 8 * 3 * 2048 * 768 / 2
    assert active_parameters(model, 2) == model.linear_parameters(2) + model.routed_parameters(2)


def test_elementwise_work_of_a_mixture_is_that_of_the_experts_a_token_visits() -> None:
    stack = layer_stack(EXPERTS, EXPERTS.model, 2, None, 64)
    (group,) = EXPERTS.model.layer_groups(2, None)
    rows = rows_up_to(64)
    doubled = layer_stack(EXPERTS, EXPERTS.model, 1, None, 64)
    activations = elementwise_s(6.0 * (8 * 768 // 2) * rows, BYTES_S)
    norms = 2 * elementwise_s(8.0 * 2048 * rows, BYTES_S)
    parts = [
        linear(EXPERTS, rows, n, k, kind) for (n, k), kind in zip(group.gemms, group.formats, strict=True)
    ]
    parts.append(linear(EXPERTS, rows, 128, 2048))
    parts.append(expert_gemms(EXPERTS, EXPERTS.model, 2, group, rows, 0))
    extra = sum(part.extra_s for part in parts) + activations + norms
    assert stack.extra_s[1:] == pytest.approx(48 * extra, rel=1e-9)
    assert stack.stream_s[1:] == pytest.approx(48 * sum(part.stream_s for part in parts), rel=1e-9)
    assert (doubled.extra_s[1:] > stack.extra_s[1:]).all()
    assert stack.extra_s[0] == stack.stream_s[0] == 0.0


def test_the_roofline_term_by_term() -> None:
    cost = RooflineCost(PLAIN)
    peak = PLAIN.accelerator.flops_per_s["bfloat16"]
    weights = 2 * (LINEAR + HEAD) / BYTES_S
    assert cost.seconds(one(tokens=1)) == pytest.approx(weights, rel=1e-12)
    kv = 10**6 * 32 * 2 * 4 * 128 * 2 / BYTES_S
    assert cost.seconds(one(tokens=1, kv_tokens=10**6)) == pytest.approx(weights + kv, rel=1e-9)
    busy = one(tokens=4096, logit_rows=3000, prefill_pairs=10**8)
    arithmetic = (4096 * 2 * LINEAR + 3000 * 2 * HEAD + 10**8 * 32 * 4 * 16 * 128) / peak
    assert cost.seconds(busy) == pytest.approx(arithmetic, rel=1e-9)
    assert (
        cost.summary().startswith("roofline: ") and f"weights {1e3 * weights:.2f} ms a pass" in cost.summary()
    )
    assert "on 2 x h100-sxm" in cost.summary()


def test_what_a_pass_of_a_mixture_reads_is_said_with_the_experts_of_a_token() -> None:
    cost = RooflineCost(EXPERTS)
    alone = cost.seconds(one(tokens=1))
    assert alone - cost.seconds(one()) == pytest.approx(experts_s(EXPERTS)[1])
    assert f"weights {1e3 * alone:.2f} ms a pass" in cost.summary()


def test_a_drafter_on_the_roofline_streams_its_weights_each_pass() -> None:
    cost, own = RooflineCost(DRAFTING), DRAFTING.drafter
    assert own is not None and own.model is not None
    fc = own.fc_gemm(2) or (0, 0)
    weights = active_parameters(own.model, 2) + fc[0] * fc[1] + own.draft_vocab_size // 2 * 4096
    assert pass_parameters(own, 2, 3) == weights
    plain = cost.seconds(one(tokens=4, decode_sequences=1))
    three = cost.seconds(one(tokens=4, decode_sequences=1, draft_passes=3))
    assert three - plain == pytest.approx(3 * 2 * weights / BYTES_S, rel=1e-9)


@pytest.mark.parametrize(("tp", "drafts"), [(1, 1), (1, 3), (2, 5)])
def test_heads_of_medusa_are_a_square_layer_and_an_lm_head_a_draft(tp: int, drafts: int) -> None:
    own = medusa_for(catalog.model("llama-3.1-8b"))
    assert pass_parameters(own, tp, drafts) == drafts * (4096**2 + 128_256 // tp * 4096)


@pytest.mark.parametrize("place", ["windowed", "plain"])
def test_the_kv_of_many_queries_is_priced_alike_by_step_and_by_column(place: str) -> None:
    """Up to where the arithmetic of queries, not the bytes of KV, is what takes time."""
    cost = KernelCost(PLACES[place])
    for queries in (1, 8, 64, 256):
        drafts = (queries - 1) * 2
        kv = 2 * 100_000
        shape = one(tokens=2 * queries, decode_sequences=2, logit_rows=2 * queries, draft_tokens=drafts,
                    kv_tokens=kv, kv_tokens_in_window=2 * 128)  # fmt: skip
        total = sum(float(term[0]) for term in cost.terms(columns(shape)).values())
        assert cost.seconds(shape) == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize("draft_tokens", [0, 3])
def test_the_arithmetic_of_windowed_layers_is_that_of_each_query(draft_tokens: int) -> None:
    cost = KernelCost(WINDOWED)
    queries = 1 + draft_tokens
    cost._window_pair_s = 1e-12
    cost._kv_token_s = cost._window_token_s = cost._query_token_s = cost._sequence_s = cost._pair_s = 0.0
    cost._c_q, window = 0.0, 10**9
    shape = one(tokens=queries, decode_sequences=1, logit_rows=queries, draft_tokens=draft_tokens,
                kv_tokens_in_window=window)  # fmt: skip
    kv = float(cost.terms(columns(shape))["kv"][0])
    assert kv == pytest.approx(window * queries * cost._window_pair_s)


def test_two_kinds_of_prefill_are_weighted_by_their_arithmetic() -> None:
    one_ = PrefillAttention(1.0, 3.0, 10.0, 100.0, 7.0, 11.0, 0.2, 5)
    other = PrefillAttention(2.0, 1.0, 20.0, 200.0, 14.0, 22.0, 0.4, 10)
    both = _add_prefill(one_, other)
    assert (both.floor_s, both.pair_s, both.query_token_s, both.kv_token_s) == (3.0, 4.0, 21.0, 33.0)
    assert both.full_tiles == pytest.approx(0.75 * 10.0 + 0.25 * 20.0)
    assert both.half_length == pytest.approx(0.75 * 100.0 + 0.25 * 200.0)
    assert both.windowed_share == pytest.approx(0.75 * 0.2 + 0.25 * 0.4)
    assert both.window == 10
    states = [NO_PREFILL._replace(floor_s=n, query_token_s=5.0 * n, full_tiles=9.0) for n in (1.0, 2.0)]
    assert _add_prefill(*states) == states[0]._replace(floor_s=3.0, query_token_s=15.0)


def test_sizes_of_a_gpu_may_be_as_large_as_the_limit_and_no_larger() -> None:
    gpu = catalog.accelerator("h100-sxm")
    assert replace(gpu, sms=1).sms == 1
    for value, said in ((0, "must be positive"), (-1, "must be positive")):
        with pytest.raises(ValueError, match=said):
            replace(gpu, sms=value)
    largest = int(MOST_OF_A_GPU)
    assert replace(gpu, l2_bytes=largest).l2_bytes == largest
    with pytest.raises(ValueError, match="at most"):
        replace(gpu, l2_bytes=2 * largest)


def test_decode_attention_term_by_term() -> None:
    rates = Rates(bytes_per_s=1e12, flops_per_s=1e15, sms=100)
    grouped = decode_attention(
        AttentionShape(7, heads=12, kv_heads=3, head_dim=10, kv_bytes=2, windowed=2, window=50),
        DecodeConstants(floor_s=1e-6, sequence_head_s=2e-9, bandwidth_share=0.5),
        rates.bytes_per_s,
    )
    assert grouped == pytest.approx(
        DecodeAttention(
            floor_s=7e-6,
            sequence_s=7 * 3 * 2e-9,
            kv_token_s=5 * (2 * 3 * 10 * 2) / 5e11,
            query_token_s=7 * (2 * 12 * 10 * 2) / 5e11,
            window_token_s=2 * (2 * 3 * 10 * 2) / 5e11,
        ),
        rel=1e-12,
    )
    latent = latent_decode_attention(
        LatentShape(7, heads=12, latent=20, rope=4, kv_bytes=2, windowed=2),
        LatentConstants(3e-6, 4e-9, 0.5, 0.25, 0.9),
        rates,
    )
    assert latent == pytest.approx(
        DecodeAttention(
            floor_s=7 * 3e-6,
            sequence_s=7 * 4e-9,
            kv_token_s=5 * 24 * 2 / 5e11,
            query_token_s=7 * 12 * 44 * 2 / 5e11,
            window_token_s=2 * 24 * 2 / 5e11,
            pair_s=5 * 2 * 12 * 44 / 2.5e14,
            window_pair_s=2 * 2 * 12 * 44 / 2.5e14,
        ),
        rel=1e-12,
    )


def test_a_constant_that_no_kernel_has_is_refused() -> None:
    with pytest.raises(ValueError, match=r"attn_decode\.fp8"):
        constants._check_numbers({"attn_decode": {"fp8": dict.fromkeys(constants._POSITIVE, 0)}}, "")
    constants._check_numbers({"attn_decode": {"fp8": dict.fromkeys(constants._POSITIVE, 1e-9)}}, "")
    for most in (constants._MOST, -constants._MOST):
        constants._check_numbers({"x": most}, "")
        with pytest.raises(ValueError, match="x is"):
            constants._check_numbers({"x": 2 * most}, "")


def test_windowed_layers_are_the_first_ones_whatever_feeds_them() -> None:
    model = ModelSpec(
        name="m", hf_id="", num_layers=6, hidden_size=8, num_heads=2, num_kv_heads=1, head_dim=4,
        intermediate_size=16, vocab_size=64, max_position_embeddings=64, num_experts=4,
        num_experts_per_tok=1, moe_intermediate_size=8, num_dense_layers=2, sliding_window=9,
        num_windowed_layers=3, tie_word_embeddings=False, source="",
    )  # fmt: skip
    found = [(run.layers, run.mixers[0].reach, bool(run.experts)) for run in model.runs]
    assert found == [(2, 9, False), (1, 9, True), (3, 0, True)]


def test_layers_hold_their_weights_norms_routers_and_small_ones() -> None:
    model = catalog.model("qwen3-30b-a3b")
    routers = 2 * 48 * 128 * 2048
    experts = 48 * 128 * 3 * 2048 * 768 * 2
    linear = 48 * (2048 * (32 + 2 * 4) * 128 + 2048 * 32 * 128) * 2
    norms, rotary = (2 * 2 * 48 + 2) * 2048, 2 * model.max_position_embeddings * 128
    assert model.layers_bytes(None, 1) == linear + routers + experts + norms + rotary
    hybrid = catalog.model("qwen3-next-80b")
    small = 2 * sum(layers * mixer.small_parameters for mixer, layers in hybrid.mixers.items())
    assert small > 0
    less = int(hybrid.linear_bytes(None, 1)) + sum(hybrid._routed_bytes(None, 1))
    rotary = 2 * hybrid.max_position_embeddings * hybrid.head_dim
    norms = (2 * hybrid._norms + 2) * hybrid.hidden_size
    assert hybrid.layers_bytes(None, 1) == less + norms + rotary + small


def test_experts_on_the_roofline_are_the_distinct_ones_of_all_layers() -> None:
    model = EXPERTS.model
    read = experts_s(EXPERTS)
    one_expert = 3 * 2048 * 768 * 2 / 2
    for tokens in (1, 7, 100):
        distinct = 128 * (1 - (1 - 8 / 128) ** tokens)
        assert read[tokens] == pytest.approx(48 * distinct * one_expert / BYTES_S, rel=1e-9)
    assert (experts_s(PLAIN) == 0.0).all() and model.num_experts == 128


def test_an_mtp_module_is_one_more_layer_of_the_last_kind_behind_twice_the_width() -> None:
    for name in ("deepseek-v3", "qwen3-next-80b", "glm-4.5-air-fp8"):
        target = catalog.model(name)
        made = mtp_for(target)
        assert made.model is not None and made.model.num_layers == 1 and made.model.mtp_layers == 0
        assert sum(run.layers for run in made.model.runs) == 1
        assert made.fc_gemm(1) == (target.hidden_size, 2 * target.hidden_size)
        assert (made.draft_vocab_size, made.own_lm_head) == (target.vocab_size, False)
        attention = [m for run in target.runs for m in run.mixers if not isinstance(m, GatedDelta)][-1]
        assert [m.unwindowed for m in made.model.mixers] == [attention.unwindowed]
        assert bool(made.model.runs[0].experts) == bool(target.runs[-1].experts)


def test_block_drafters_have_five_layers_in_one_pass() -> None:
    target = catalog.model("llama-3.1-8b")
    made = _block_drafter(target, "dflash")
    assert made.model is not None and made.model.num_layers == made.fc_input_multiple == 5
    assert made.parallel_drafting and not made.own_lm_head and made.max_model_len == 131_072
