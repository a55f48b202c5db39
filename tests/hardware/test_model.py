"""Shapes, weight bytes and KV bytes of models and drafters, against what vLLM logged."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specfleet.hardware import catalog
from specfleet.hardware.model import NGRAM, DrafterSpec, ModelSpec, padded_vocabulary

GIB = 2**30
MODELS = [model for name in catalog.names("models") if not (model := catalog.model(name)).stack]
"""Whose layers the plain fields say; the other kinds have their own laws in `test_layers`."""
SMALL_TP = [model for model in MODELS if model.num_heads % 8 == 0]


@given(model=st.sampled_from(SMALL_TP), tp=st.sampled_from([2, 4, 8]))
def test_sharding_never_loses_a_weight_and_replicates_norms_rotary_tables_routers_latents_and_kv_heads(
    model: ModelSpec, tp: int
) -> None:
    whole, part = model.weight_bytes(None, 1), model.weight_bytes(None, tp)
    rotary = model.max_position_embeddings * (model.qk_rope_head_dim or model.head_dim)
    replicated: float = 2 * (rotary + model.hidden_size * (2 * model.num_layers + 1))
    replicated += 2 * model.num_routed_layers * model.num_experts * model.hidden_size
    per_weight = model.linear_bytes(None, 1) / model.linear_parameters(1)
    if model.kv_lora_rank:
        latent = model.kv_lora_rank + model.qk_rope_head_dim + model.q_lora_rank
        replicated += model.num_layers * latent * model.hidden_size * per_weight
    copies = max(1, tp // model.num_kv_heads) - 1
    kv = 2 * copies * model.num_kv_heads * model.head_dim * model.hidden_size * model.num_layers
    assert tp * (part - replicated) == pytest.approx(whole - replicated + kv * per_weight, abs=2 * tp)


@given(
    model=st.sampled_from([m for m in MODELS if not m.checkpoint_quantization]),
    tp=st.sampled_from([1, 2, 4, 8]),
)
def test_fp8_halves_the_linear_layers_and_nothing_else(model: ModelSpec, tp: int) -> None:
    each = 3 * model.hidden_size * model.moe_intermediate_size
    experts = model.num_routed_layers * model.num_experts * each // tp
    halved = model.linear_parameters(tp) + experts
    assert model.weight_bytes(None, tp) - model.weight_bytes("fp8", tp) == halved


@given(model=st.sampled_from(MODELS), tp=st.sampled_from([1, 2, 4, 8]))
def test_fp8_kv_halves_the_cache(model: ModelSpec, tp: int) -> None:
    assert model.kv_bytes_per_token("auto", tp) == 2 * model.kv_bytes_per_token("fp8", tp)


def test_kv_heads_are_replicated_beyond_their_number() -> None:
    model = catalog.model("qwen3-32b")
    assert model.kv_heads(8) == model.kv_heads(16) == 1


@pytest.mark.parametrize(
    ("name", "quantization", "tp", "logged_gib"),
    [
        ("Qwen/Qwen3-32B", None, 1, 61.03),
        ("Qwen/Qwen3-1.7B", None, 1, 3.22),
        ("meta-llama/Llama-3.3-70B-Instruct", None, 2, 65.74),
        ("meta-llama/Llama-3.2-1B", None, 2, 1.17),
        ("meta-llama/Llama-3.1-8B-Instruct", None, 1, 14.99),
        ("meta-llama/Llama-3.1-8B-Instruct", None, 2, 7.51),
        ("meta-llama/Llama-3.1-8B-Instruct", None, 4, 3.77),
        ("meta-llama/Llama-3.1-8B-Instruct", "fp8", 1, 8.49),
    ],
)
def test_weights_are_those_in_the_start_up_log(
    name: str, quantization: str | None, tp: int, logged_gib: float
) -> None:
    assert catalog.model(name).weight_bytes(quantization, tp) / GIB == pytest.approx(logged_gib, abs=0.006)


@pytest.mark.parametrize(
    ("name", "tp", "logged_gib"),
    [
        ("RedHatAI/Qwen3-32B-speculator.eagle3", 1, 2.91),
        ("yuhuili/EAGLE3-LLaMA3.3-Instruct-70B", 2, 1.61),
        ("Qwen/Qwen3-1.7B", 1, 3.21),
        ("meta-llama/Llama-3.2-1B", 2, 1.17),
    ],
)
def test_drafter_weights_are_those_in_the_start_up_log(name: str, tp: int, logged_gib: float) -> None:
    assert catalog.drafter(name).weight_bytes(tp) / GIB == pytest.approx(logged_gib, abs=0.011)


def test_the_8b_eagle3_head_is_0_85_gb_without_an_embedding() -> None:
    assert catalog.drafter("eagle3-llama-3.1-8b").weight_bytes(1) / 1e9 == pytest.approx(0.85, abs=0.005)


@pytest.mark.parametrize(
    ("name", "bytes_per_token"),
    [
        ("qwen3-32b", 262_144),
        ("qwen3-1.7b", 114_688),
        ("qwen3-0.6b", 114_688),
        ("qwen3-4b", 147_456),
        ("qwen3-14b", 163_840),
        ("qwen2.5-7b", 57_344),
        ("llama-3.3-70b", 327_680),
        ("llama-3.2-1b", 32_768),
        ("mistral-small-3.2-24b", 163_840),
        ("deepseek-v3", 576 * 2 * 61),
    ],
)
def test_kv_bytes_per_token_are_the_published_ones(name: str, bytes_per_token: int) -> None:
    assert catalog.model(name).kv_bytes_per_token("auto", 1) == bytes_per_token


def test_every_gpu_holds_the_whole_latent() -> None:
    model = catalog.model("deepseek-r1")
    assert model.kv_bytes_per_token("auto", 8) == model.kv_bytes_per_token("auto", 1)


@pytest.mark.parametrize("name", ["eagle3-llama-3.1-8b", "eagle3-llama-3.3-70b", "eagle3-qwen3-32b"])
def test_an_eagle3_head_adds_one_layer_of_kv(name: str) -> None:
    drafter = catalog.drafter(name)
    assert drafter.kv_bytes_per_token("auto", 1) == 4096
    assert drafter.kv_bytes_per_token("auto", 2) == 2048


def test_an_eagle3_head_with_the_8b_keeps_the_135168_bytes_of_a_public_log() -> None:
    target, drafter = catalog.model("llama-3.1-8b"), catalog.drafter("eagle3-llama-3.1-8b")
    assert target.kv_bytes_per_token("auto", 1) + drafter.kv_bytes_per_token("auto", 1) == 135_168


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama-3.1-8b", 8.03),
        ("llama-3.3-70b", 70.55),
        ("llama-3.1-405b", 405.85),
        ("qwen3-32b", 32.76),
        ("qwen3-14b", 14.77),
        ("llama-3.2-1b", 1.236),
        ("qwen2.5-72b", 72.71),
        ("mistral-small-24b", 23.57),
        ("mixtral-8x7b", 46.70),
        ("qwen3-30b-a3b", 30.53),
        ("qwen3-235b-a22b", 235.09),
        ("gpt-oss-20b", 20.91),
        ("gpt-oss-120b", 116.8),
        ("deepseek-v3", 671.03),
    ],
)
def test_parameters_are_those_on_the_model_card(name: str, billions: float) -> None:
    assert catalog.model(name).parameters / 1e9 == pytest.approx(billions, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "billions"),
    [("mixtral-8x7b", 12.9), ("qwen3-30b-a3b", 3.35), ("qwen3-235b-a22b", 22.2), ("deepseek-v3", 37.5)],
)
def test_active_parameters_are_those_on_the_model_card(name: str, billions: float) -> None:
    assert catalog.model(name).active_parameters / 1e9 == pytest.approx(billions, rel=5e-3)


def test_gpt_oss_counts_its_active_parameters_without_the_embedding() -> None:
    model = catalog.model("gpt-oss-120b")
    active = model.active_parameters - model.vocab_size * model.hidden_size
    assert active / 1e9 == pytest.approx(5.13, rel=5e-3)


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [("gpt-oss-120b", 65.2), ("gpt-oss-20b", 13.8), ("deepseek-v3", 673), ("qwen3-8b-fp8", 9.4)],
)
def test_checkpoints_are_as_large_as_published(name: str, gigabytes: float) -> None:
    assert catalog.model(name).weight_bytes(None, 1) / 1e9 == pytest.approx(gigabytes, rel=0.01)


def test_a_tied_head_is_stored_once() -> None:
    tied = catalog.model("llama-3.2-1b")
    untied = replace(tied, tie_word_embeddings=False)
    assert untied.weight_bytes(None, 1) - tied.weight_bytes(None, 1) == tied.embedding_bytes(1)


def test_vocabularies_are_padded_to_64() -> None:
    assert padded_vocabulary(128_256) == 128_256
    assert padded_vocabulary(32_001) == 32_064


def test_an_ngram_drafter_holds_nothing() -> None:
    assert NGRAM.weight_bytes(1) == NGRAM.kv_bytes_per_token("auto", 1) == 0
    assert NGRAM.fc_gemm(1) is None


def test_a_sharded_fc_is_smaller_than_a_replicated_one() -> None:
    head = catalog.drafter("eagle3-llama-3.3-70b")
    assert head.fc_gemm(2) == (6144, 24_576)
    assert replace(head, fc_replicated=False).fc_gemm(2) == (3072, 24_576)


def test_a_model_that_cannot_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="num_layers is 0"):
        replace(MODELS[0], num_layers=0)
    with pytest.raises(ValueError, match="no multiple of num_kv_heads"):
        replace(MODELS[0], num_heads=16, num_kv_heads=7)
    with pytest.raises(ValueError, match="num_experts_per_tok is 0"):
        replace(catalog.model("qwen3-8b"), num_experts=8)
    with pytest.raises(ValueError, match="num_experts_per_tok is 9; use 0 to 8"):
        replace(catalog.model("mixtral-8x7b"), num_experts_per_tok=9)
    with pytest.raises(ValueError, match="sliding_window is 0"):
        replace(catalog.model("qwen3-8b"), num_windowed_layers=4)
    with pytest.raises(ValueError, match="checkpoint_quantization: weights stored as 'awq': use one of fp8"):
        replace(catalog.model("qwen3-8b"), checkpoint_quantization="awq")


def test_a_drafter_without_what_its_method_needs_is_refused() -> None:
    with pytest.raises(ValueError, match="use one of eagle, eagle3, medusa"):
        replace(NGRAM, method="tree")
    with pytest.raises(ValueError, match="needs a model"):
        replace(NGRAM, method="draft_model")
    with pytest.raises(ValueError, match="target_hidden_size"):
        replace(catalog.drafter("eagle3-llama-3.1-8b"), target_hidden_size=0)
    with pytest.raises(ValueError, match="draft_vocab_size"):
        replace(DrafterSpec.from_model(MODELS[0]), draft_vocab_size=0)
    with pytest.raises(ValueError, match="needs medusa_heads"):
        replace(catalog.drafter("medusa-llama-3.1-8b"), medusa_heads=0)
