"""Drafters made for a model: sizes as published, passes as the engines run them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from specfleet.hardware import catalog
from specfleet.hardware.catalog import CatalogError
from specfleet.hardware.draftercost import drafter_tables
from specfleet.hardware.model import SUFFIX
from specfleet.hardware.placement import Placement
from specfleet.hardware.stepcost import KernelCost, StepShape

PROFILE = catalog.engine_profile("vllm-2026-01")


def place(
    drafter: Any, drafts: int = 3, model: str = "llama-3.1-8b", gpu: str = "h100-sxm", **options: Any
) -> Placement:
    return Placement.of(
        catalog.model(model), catalog.accelerator(gpu), PROFILE, drafter=catalog.drafter(drafter),
        num_speculative_tokens=drafts, max_num_seqs=64, max_num_batched_tokens=1024, **options,
    )  # fmt: skip


def drafter_s(placement: Placement, batch: int, passes: int) -> float:
    query = placement.query_len
    shape = StepShape(batch * query, batch, 0, batch * query, batch * (query - 1), batch * 1000, 0, 0, passes)
    columns = {key: np.array([value]) for key, value in shape._asdict().items()}
    cost = KernelCost(placement)
    assert cost.drafter_s(shape) == cost.terms(columns)["drafter"][0]
    return cost.drafter_s(shape)


@pytest.mark.parametrize(
    ("drafter", "gigabytes", "kv_bytes"),
    [
        ({"eagle3_for": "llama-3.1-8b"}, 0.88, 4096),
        ({"eagle3_for": "qwen3-32b", "own_embedding": True}, 3.13, 4096),
        ({"eagle3_for": "gpt-oss-120b"}, 0.63, 2048),
        ({"eagle3_for": "deepseek-v3"}, 3.0, 4096),
        ("yuhuili/EAGLE-LLaMA3.1-Instruct-8B", 0.54, 4096),
        ("deepseek-mtp", 11.7, 1152),
        ({"medusa_for": "llama-3.1-8b"}, 4.34, 0),
        ({"medusa_for": "llama-3.1-8b", "draft_vocab_size": 32_000}, 1.18, 0),
        ("ngram", 0.0, 0),
        ("suffix", 0.0, 0),
    ],
)
def test_drafters_weigh_and_cache_what_is_published(drafter: Any, gigabytes: float, kv_bytes: int) -> None:
    spec = catalog.drafter(drafter)
    assert spec.weight_bytes(1) / 1e9 == pytest.approx(gigabytes, rel=0.01)
    assert spec.kv_bytes_per_token("auto", 1) == kv_bytes


def test_a_generic_head_equals_the_measured_one_of_the_32b() -> None:
    made = catalog.drafter({"eagle3_for": "qwen3-32b", "own_embedding": True})
    assert made.weight_bytes(1) == catalog.drafter("eagle3-qwen3-32b").weight_bytes(1)


def test_an_inline_form_takes_changes_and_refuses_wrong_ones() -> None:
    assert catalog.drafter({"eagle3_for": "qwen3-8b", "draft_vocab_size": 64_000}).draft_vocab_size == 64_000
    with pytest.raises(CatalogError, match="unknown key 'draft_vocabulary'"):
        catalog.drafter({"eagle3_for": "qwen3-8b", "draft_vocabulary": 1})
    with pytest.raises(CatalogError, match="did you mean 'qwen3-8b'"):
        catalog.drafter({"eagle3_for": "qwen3-8"})


def test_an_eagle1_pass_reads_the_targets_whole_head_and_its_fc_every_time() -> None:
    one, three = place("eagle-llama-3.1-8b"), place({"eagle3_for": "llama-3.1-8b"})
    first, later = drafter_tables(one), drafter_tables(three)
    assert first is not None and later is not None
    assert first.later_s[1] == first.first_s[1]
    assert later.later_s[1] < later.first_s[1]
    assert first.each_s[1] - later.each_s[1] > 2 * (128_256 - 32_000) * 4096 / 3.35e12


def test_medusa_reads_a_head_a_draft_in_one_pass_and_no_kv() -> None:
    placement = place({"medusa_for": "llama-3.1-8b"})
    per_head = 2 * (4096 * 4096 + 128_256 * 4096) / (3.35e12 * 0.8585)
    assert drafter_s(placement, 1, 1) > 3 * per_head + PROFILE.draft_launch_s
    tables = drafter_tables(placement)
    assert tables is not None and tables.kv_token_s == 0.0
    with pytest.raises(ValueError, match="has 4 heads; ask for at most one draft a head"):
        place({"medusa_for": "llama-3.1-8b"}, drafts=5)


def test_host_methods_cost_the_gpu_nothing() -> None:
    for name in ("ngram", "suffix"):
        assert drafter_tables(place(name)) is None
        assert drafter_s(place(name), 8, 3) == 0.0
    assert SUFFIX.kv_bytes_per_token("auto", 1) == 0


def test_an_mtp_module_routes_like_its_target() -> None:
    placement = place("deepseek-mtp", 1, model="deepseek-v3", gpu="h200", tensor_parallel_size=8)
    assert placement.drafter is not None and placement.drafter.dtype == "fp8"
    few, many = drafter_s(placement, 1, 1), drafter_s(placement, 64, 1)
    expert = 3 * 7168 * 2048 / 8 / 4.8e12
    assert many - few > 100 * expert


def test_launching_a_pass_costs_what_the_engine_says() -> None:
    launches = {name: catalog.engine_profile(name).draft_launch_s for name in ("vllm-0.11", "sglang")}
    assert launches == {"vllm-0.11": 1.02e-3, "sglang": 36e-6}
    assert catalog.engine_profile("vllm-0.33").draft_launch_s == PROFILE.draft_launch_s == 0.25e-3


def test_a_head_for_another_width_is_refused() -> None:
    for form in ("eagle3_for", "eagle_for", "medusa_for"):
        with pytest.raises(ValueError, match="choose the head trained for this model"):
            place({form: "qwen3-32b"})


def test_an_fp8_drafter_needs_fp8_kernels() -> None:
    with pytest.raises(ValueError, match="no measured fp8 GEMM; Qwen/Qwen3-0\\.6B-FP8 is published"):
        place("qwen3-0.6b-fp8", model="qwen3-8b", gpu="a100")
    assert replace(catalog.drafter("qwen3-0.6b-fp8"), max_model_len=1).dtype == "fp8"
