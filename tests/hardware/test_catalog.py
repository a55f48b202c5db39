"""Names, ids, aliases and inline mappings, and what the user reads when one is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from specfleet.hardware import catalog
from specfleet.hardware.catalog import CatalogError

INLINE_MODEL: dict[str, Any] = {
    "name": "tiny",
    "num_layers": 2,
    "hidden_size": 256,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 64,
    "intermediate_size": 512,
    "vocab_size": 1024,
    "tie_word_embeddings": True,
    "max_position_embeddings": 2048,
}


@pytest.mark.parametrize("kind", ["accelerators", "models", "drafters", "engines"])
def test_every_name_finds_its_own_record_whatever_the_case(kind: str) -> None:
    finders: dict[str, Callable[[str], Any]] = {
        "accelerators": catalog.accelerator,
        "models": catalog.model,
        "drafters": catalog.drafter,
        "engines": catalog.engine_profile,
    }
    find = finders[kind]
    for name in catalog.names(kind):
        record = find(name)
        assert record.name == name
        assert find(name.upper()) == record
        assert all(find(alias) == record for alias in record.aliases)


def test_a_hugging_face_id_finds_its_model() -> None:
    assert catalog.model("meta-llama/Llama-3.3-70B-Instruct") is catalog.model("llama-3.3-70b")


def test_any_model_can_draft() -> None:
    drafter = catalog.drafter("Qwen/Qwen3-1.7B")
    assert (drafter.method, drafter.model) == ("draft_model", catalog.model("qwen3-1.7b"))
    assert catalog.drafter("ngram").model is None


def test_an_unknown_name_suggests_the_closest() -> None:
    with pytest.raises(CatalogError) as error:
        catalog.accelerator("h100-sxn")
    assert str(error.value).startswith("unknown accelerator 'h100-sxn'; did you mean 'h100-sxm'")
    with pytest.raises(CatalogError, match="did you mean 'qwen3-32b'"):
        catalog.model("qwen-32b")
    with pytest.raises(CatalogError, match="unknown drafter"):
        catalog.drafter("eagle9-nothing")
    with pytest.raises(CatalogError, match="did you mean 'models'"):
        catalog.names("model")


def test_a_name_like_no_other_lists_what_is_known() -> None:
    with pytest.raises(CatalogError, match=r"known: .*sglang.*trtllm.*vllm-0\.11.*vllm-0\.33"):
        catalog.engine_profile("zzz")


def test_an_unknown_hugging_face_id_is_told_about_hf_config() -> None:
    with pytest.raises(CatalogError, match=r"Any other model: hf_config: PATH of its config\.json"):
        catalog.model("acme/NewModel-9B")
    with pytest.raises(CatalogError, match=r"Any other head: \{eagle3_for: MODEL\}"):
        catalog.drafter("acme/EAGLE3-NewModel-9B")


@pytest.mark.parametrize(
    "name",
    [
        *("llama-3.2-1b", "llama-3.2-3b", "llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b", "llama-3.3-70b"),
        *("qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3-8b", "qwen3-14b", "qwen3-32b", "mistral-small-24b"),
        *("qwen3-30b-a3b", "qwen3-235b-a22b", "mixtral-8x7b", "gpt-oss-20b", "gpt-oss-120b"),
        *("deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-R1", "Qwen/Qwen2.5-72B-Instruct"),
    ],
)
def test_every_promised_model_is_there_as_target_and_as_drafter(name: str) -> None:
    assert catalog.drafter(name).model == catalog.model(name)


@pytest.mark.parametrize(
    "name", ["h100-sxm", "h100-94gb", "h100-pcie", "h100-nvl", "h200", "a100", "l40s", "b200"]
)
def test_every_promised_gpu_has_a_dated_price_and_a_source_for_every_value(name: str) -> None:
    gpu = catalog.accelerator(name)
    assert gpu.price_per_hour_usd and gpu.price_date == "2026-11"
    values = {"hbm_bytes", "hbm_bytes_per_s", "flops_per_s", "sms", "p2p", "link", "constants", "attention"}
    more = {"l2_bytes", "compute_capability", "price_per_hour_usd", "network_bytes_per_s", "tdp_w"}
    assert set(gpu.source) == values | more


def test_a_record_made_from_another_keeps_its_own_names_only() -> None:
    assert catalog.model("qwen3-8b").checkpoint_quantization is None
    quantized = catalog.model("Qwen/Qwen3-8B-FP8")
    assert (quantized.checkpoint_quantization, quantized.aliases) == ("fp8", ("qwen3-8b-fp8",))
    old = catalog.engine_profile("vllm-0.11")
    assert old.source["arithmetic_rate"] == catalog.engine_profile("vllm-2026-01").source["arithmetic_rate"]


def test_a_base_with_overrides_changes_only_these() -> None:
    gpu = catalog.accelerator({"base": "h100-94gb", "hbm_bytes_per_s": 2.33e12, "p2p": False})
    assert gpu == catalog.accelerator("h100-94gb").override(hbm_bytes_per_s=2.33e12, p2p=False)
    host = catalog.engine_profile({"base": "vllm-0.33", "host_sync_s": 0.9e-3})
    assert host.host_sync_s == 0.9e-3
    assert host.host_async_s == catalog.engine_profile("vllm-0.33").host_async_s
    assert catalog.model({"base": "qwen3-32b", "num_layers": 32}).num_layers == 32


def test_an_inline_model_works_without_an_id_or_a_source() -> None:
    model = catalog.model(INLINE_MODEL)
    assert (model.hf_id, model.source, model.kv_bytes_per_token("auto", 1)) == ("", "given inline", 1024)
    assert catalog.drafter(INLINE_MODEL).model == model


def test_an_inline_drafter_names_its_model() -> None:
    drafter = catalog.drafter(
        {
            "name": "head",
            "method": "eagle3",
            "model": {**INLINE_MODEL, "qkv_input_multiple": 2},
            "fc_input_multiple": 3,
            "target_hidden_size": 256,
            "draft_vocab_size": 1024,
        }
    )
    assert drafter.model is not None and drafter.model.qkv_input_multiple == 2
    assert catalog.drafter({"base": "eagle3-qwen3-32b", "own_embedding": False}).own_embedding is False


def test_an_inline_accelerator_is_complete_or_refused() -> None:
    full = {
        "name": "mine",
        "hbm_bytes": 8e10,
        "hbm_bytes_per_s": 3e12,
        "flops_per_s": {"bfloat16": 9e14},
        "sms": 132,
        "p2p": True,
        "constants": "h100_sxm",
        "l2_bytes": 50_000_000,
    }
    assert catalog.accelerator(full).hbm_bytes == 80_000_000_000
    with pytest.raises(CatalogError, match="accelerator: missing hbm_bytes_per_s"):
        catalog.accelerator({key: value for key, value in full.items() if key != "hbm_bytes_per_s"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_layer": 2}, "model: unknown key 'num_layer'; did you mean 'num_layers'"),
        ({"num_layers": "two"}, "model.num_layers is 'two'; expected a whole number"),
        ({"num_layers": 2.5}, "model.num_layers is 2.5; expected a whole number"),
        ({"num_layers": True}, "model.num_layers is True; expected a whole number"),
        ({"tie_word_embeddings": 1}, "model.tie_word_embeddings is 1; expected true or false"),
        ({"num_layers": -1}, "model tiny: num_layers is -1; it must be positive"),
    ],
)
def test_a_wrong_inline_key_or_value_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CatalogError) as error:
        catalog.model({**INLINE_MODEL, **change})
    assert message in str(error.value)


def test_a_wrong_override_is_named() -> None:
    with pytest.raises(CatalogError, match="'hbm_bytes_per_sec' cannot be overridden"):
        catalog.accelerator({"base": "h100-sxm", "hbm_bytes_per_sec": 1.0})
    with pytest.raises(CatalogError, match=r"accelerator\.p2p is 'no'; expected true or false"):
        catalog.accelerator({"base": "h100-sxm", "p2p": "no"})
