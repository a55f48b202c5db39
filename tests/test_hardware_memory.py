"""The KV pool: the rule, its bypasses, and the pools that real servers logged."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware import catalog
from hardware.memory import (
    GIB,
    DoesNotFit,
    activation_bytes,
    cudagraph_bytes,
    kv_budget,
    kv_bytes_per_token,
)
from hardware.placement import Placement

OLD, NEW = catalog.engine_profile("vllm-2026-01"), catalog.engine_profile("vllm-0.33")
CAMPAIGNS = {"q32_tp1_lrz": "h100-94gb", "l70_tp2_brev": "h100-pcie", "q32_bs1_brev": "h100-sxm"}


def place(model: str = "llama-3.1-8b", gpu: str = "h100-sxm", **options: Any) -> Placement:
    profile = options.pop("profile", OLD)
    return Placement.of(catalog.model(model), catalog.accelerator(gpu), profile, **options)


@given(
    utilization=st.floats(0.5, 1.0),
    block=st.sampled_from([1, 16, 128]),
    seqs=st.integers(1, 1024),
    kv=st.sampled_from(["auto", "fp8"]),
)
def test_what_is_used_adds_up_and_the_pool_is_whole_blocks(
    utilization: float, block: int, seqs: int, kv: str
) -> None:
    budget = kv_budget(
        place(gpu_memory_utilization=utilization, block_size=block, max_num_seqs=seqs, kv_cache_dtype=kv)
    )
    usable, *used = (value for _, value in budget.lines)
    assert usable == sum(used)
    left = used[-1] - budget.tokens * budget.bytes_per_token
    assert 0 <= left < budget.block_size * budget.bytes_per_token
    assert budget.tokens == budget.num_gpu_blocks * block


def test_every_logged_pool_is_met_within_two_percent(shared: Path) -> None:
    with (shared / "validation/h100_vllm_specdec.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["kv_pool_tokens"]]
    servers = {(row["campaign"], row["target_model"], row["method"], row["K"]): row for row in rows}
    assert len(servers) >= 28
    for (campaign, model, method, drafts), row in servers.items():
        placement = place(
            model,
            CAMPAIGNS[campaign],
            tensor_parallel_size=int(row["tp"]),
            drafter=None if method == "none" else catalog.drafter(row["draft_model"]),
            num_speculative_tokens=int(drafts),
            max_num_seqs=int(row["max_num_seqs"]),
            max_num_batched_tokens=int(float(row["max_num_batched_tokens"])),
        )
        logged = float(row["kv_pool_tokens"])
        assert kv_budget(placement).tokens == pytest.approx(logged, rel=0.02), row["config_id"]
        weights = dict(kv_budget(placement).lines)
        loaded = (weights["weights"] + weights.get("drafter weights", 0)) / GIB
        assert loaded == pytest.approx(float(row["loaded_weights_gib_per_gpu"]), abs=0.012), row["config_id"]


def test_a_drafter_takes_weights_kv_and_sampler_copies_from_the_pool() -> None:
    options: dict[str, Any] = {"model": "qwen3-32b", "gpu": "h100-94gb"}
    plain = place(**options)
    speculating = place(
        **options, drafter=catalog.drafter("eagle3-qwen3-32b"), num_speculative_tokens=3, block_size=16
    )
    assert kv_bytes_per_token(speculating) - kv_bytes_per_token(plain) == 4096
    more = activation_bytes(speculating) - activation_bytes(plain)
    assert more == pytest.approx(4 * (13.2 - 9.3) * 1024 * 151_936, rel=1e-6)
    assert kv_budget(speculating).tokens < kv_budget(plain).tokens


def test_activations_by_hand() -> None:
    forward = place("qwen3-32b", "h100-94gb", max_num_seqs=1, max_num_batched_tokens=5000)
    assert activation_bytes(forward) - OLD.base_bytes(1) == 2 * 5000 * (5 * 25_600 + 5120)
    sampler = place("qwen3-32b", "h100-94gb")
    assert activation_bytes(sampler) - OLD.base_bytes(1) == round(4 * 9.3 * 1024 * 151_936)


def test_only_the_new_build_pays_for_cuda_graphs() -> None:
    labels = [[label for label, _ in kv_budget(place(profile=p)).lines] for p in (OLD, NEW)]
    assert ["CUDA graphs (estimate)" in names for names in labels] == [False, True]


def test_graph_memory_reproduces_the_logged_70b_and_stays_in_range_for_the_8b() -> None:
    big = place("llama-3.3-70b", "h100-pcie", tensor_parallel_size=2, max_num_seqs=256)
    assert cudagraph_bytes(big) / GIB == pytest.approx(3.46, abs=0.01)
    assert 0.51 < cudagraph_bytes(place(profile=NEW)) / GIB < 1.85


def test_an_override_sets_the_blocks_and_memory_bytes_set_the_pool() -> None:
    assert kv_budget(place(), num_gpu_blocks_override=100).num_gpu_blocks == 100
    one_gib = kv_budget(place(), kv_cache_memory_bytes=GIB)
    assert one_gib.tokens == 8192
    assert one_gib.max_concurrency(8192) == 1.0


def test_a_model_that_does_not_fit_shows_the_budget_and_what_to_change() -> None:
    with pytest.raises(DoesNotFit) as error:
        kv_budget(place("llama-3.3-70b"))
    assert "no KV block is left" in str(error.value)
    assert "Use more GPUs" in str(error.value)
    assert "weights" in str(error.value) and "GPU KV cache size: 0 tokens" in str(error.value)


def test_the_budget_prints_vllms_own_lines() -> None:
    text = kv_budget(place(), kv_cache_memory_bytes=GIB).render(max_model_len=2048)
    assert "GPU KV cache size: 8,192 tokens" in text
    assert "Maximum concurrency for 2,048 tokens per request: 4.00x" in text


def test_full_length_requests_are_counted_in_blocks() -> None:
    budget = kv_budget(place(block_size=128), num_gpu_blocks_override=1444)
    assert round(budget.max_concurrency(16_000), 2) == 11.55
