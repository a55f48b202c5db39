"""Shapes, weight bytes and KV bytes of models and drafters, against what vLLM logged."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware import catalog
from hardware.model import NGRAM, DrafterSpec, ModelSpec, padded_vocabulary

GIB = 2**30
MODELS = [catalog.model(name) for name in catalog.names("models")]


@given(model=st.sampled_from(MODELS), tp=st.sampled_from([2, 4, 8]))
def test_sharding_never_loses_a_weight_and_replicates_only_norms_and_rotary_tables(
    model: ModelSpec, tp: int
) -> None:
    whole, part = model.weight_bytes(None, 1), model.weight_bytes(None, tp)
    replicated = 2 * model.max_position_embeddings * model.head_dim + 2 * model.hidden_size * (
        2 * model.num_layers + 1
    )
    assert tp * (part - replicated) == whole - replicated


@given(model=st.sampled_from(MODELS), tp=st.sampled_from([1, 2, 4, 8]))
def test_fp8_halves_the_linear_layers_and_nothing_else(model: ModelSpec, tp: int) -> None:
    linear = model.num_layers * sum(n * k for n, k in model.layer_gemms(tp))
    assert model.weight_bytes(None, tp) - model.weight_bytes("fp8", tp) == linear


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
    [("qwen3-32b", 262_144), ("qwen3-1.7b", 114_688), ("llama-3.3-70b", 327_680), ("llama-3.2-1b", 32_768)],
)
def test_kv_bytes_per_token_are_the_published_ones(name: str, bytes_per_token: int) -> None:
    assert catalog.model(name).kv_bytes_per_token("auto", 1) == bytes_per_token


@pytest.mark.parametrize("name", catalog.names("drafters"))
def test_an_eagle3_head_adds_one_layer_of_kv(name: str) -> None:
    drafter = catalog.drafter(name)
    assert drafter.kv_bytes_per_token("auto", 1) == 4096
    assert drafter.kv_bytes_per_token("auto", 2) == 2048


def test_an_eagle3_head_with_the_8b_keeps_the_135168_bytes_of_a_public_log() -> None:
    target, drafter = catalog.model("llama-3.1-8b"), catalog.drafter("eagle3-llama-3.1-8b")
    assert target.kv_bytes_per_token("auto", 1) + drafter.kv_bytes_per_token("auto", 1) == 135_168


@pytest.mark.parametrize(
    ("name", "billions"),
    [("llama-3.1-8b", 8.03), ("llama-3.3-70b", 70.55), ("qwen3-32b", 32.76), ("llama-3.2-1b", 1.236)],
)
def test_parameters_are_those_on_the_model_card(name: str, billions: float) -> None:
    assert catalog.model(name).parameters / 1e9 == pytest.approx(billions, rel=1e-3)


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
        replace(MODELS[0], num_kv_heads=7)


def test_a_drafter_without_what_its_method_needs_is_refused() -> None:
    with pytest.raises(ValueError, match="use eagle3, draft_model or ngram"):
        replace(NGRAM, method="medusa")
    with pytest.raises(ValueError, match="needs a model"):
        replace(NGRAM, method="draft_model")
    with pytest.raises(ValueError, match="target_hidden_size"):
        replace(catalog.drafter("eagle3-llama-3.1-8b"), target_hidden_size=0)
    with pytest.raises(ValueError, match="draft_vocab_size"):
        replace(DrafterSpec.from_model(MODELS[0]), draft_vocab_size=0)
