"""Any accelerator with any engine profile: which constants run, and what is said about it."""

from __future__ import annotations

from typing import Any

import pytest

from specfleet.hardware import catalog
from specfleet.hardware.constants import kernel_constants
from specfleet.hardware.placement import Placement
from specfleet.hardware.stepcost import KernelCost, StepShape

GPUS = ("h100-sxm", "h100-94gb", "h100-pcie", "h100-nvl", "h200", "a100-80gb", "l40s", "b200")
ENGINES = catalog.names("engines")


def place(gpu: Any = "h100-sxm", engine: str = "vllm-0.33", **options: Any) -> Placement:
    return Placement.of(
        catalog.model("qwen3-0.6b"), catalog.accelerator(gpu), catalog.engine_profile(engine),
        max_num_batched_tokens=256, max_num_seqs=64, **options,
    )  # fmt: skip


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("engine", ENGINES)
def test_every_pair_prices_a_step(gpu: str, engine: str) -> None:
    cost = KernelCost(place(gpu, engine))
    seconds = cost.seconds(StepShape(8, 8, 0, 8, 0, 8000, 8000, 0, 0))
    assert 0.0005 < seconds < 0.05


def test_a_pair_that_was_not_measured_says_whose_constants_it_takes() -> None:
    assert place().notes == place("h100-sxm", "trtllm").notes == ()
    for gpu, said in (("h200", "GEMM as in vllm 0.24.0"), ("a100", "GEMM and all-reduce as in vllm 0.14.0")):
        (note,) = place(gpu, "sglang").notes
        assert said in note and "sglang 0.5.14 on h100_sxm, scaled by bandwidth and peak" in note
        assert note in KernelCost(place(gpu, "sglang")).summary()


def test_a_mixed_pair_takes_gemms_from_the_gpu_and_attention_from_the_engine() -> None:
    mixed, own, engine = (
        kernel_constants("b200_sxm", "trtllm"), kernel_constants("b200_sxm"),
        kernel_constants("h100_sxm", "trtllm"),
    )  # fmt: skip
    assert mixed.gemm == own.gemm and mixed.all_reduce == own.all_reduce
    assert mixed.decode == engine.decode and mixed.prefill == engine.prefill
    assert kernel_constants("h200_sxm", "trtllm").all_reduce == engine.all_reduce


def test_small_caches_take_the_cold_attention_constants() -> None:
    assert place("l40s").attention == place("a100").attention == "cold"
    assert place("h100-sxm").attention == "all"
    assert place("l40s", attention="all").attention == "all"


def test_gpus_beyond_the_bridge_talk_through_the_host() -> None:
    pair, four = (place("h100-nvl", tensor_parallel_size=tp) for tp in (2, 4))
    assert pair.notes == () and "do not reach each other" in four.notes[0]
    two, more = pair.all_reduce_law(2), four.all_reduce_law(4)
    assert two is not None and more is not None and more.alpha_s > 3 * two.alpha_s
    assert place().all_reduce_law(1) is None


def test_a_gpu_without_attention_on_fp8_kv_says_so() -> None:
    with pytest.raises(ValueError, match="a100-80gb has no measured attention on fp8 KV"):
        place("a100", kv_cache_dtype="fp8")


def test_sglang_and_tensorrt_llm_capture_sequences_and_vllm_tokens() -> None:
    drafter = catalog.drafter({"eagle3_for": "qwen3-0.6b"})
    options: dict[str, Any] = {"drafter": drafter, "num_speculative_tokens": 3}
    assert place(engine="sglang", **options).capture_sizes[:5] == (4, 8, 12, 16, 20)
    assert place(engine="vllm-0.11", **options).capture_sizes[:5] == (1, 2, 4, 8, 16)
    assert place(engine="vllm-2026-01", **options).capture_sizes[:4] == (4, 8, 16, 24)
    assert place(engine="vllm-0.33", **options).capture_sizes[:4] == (1, 2, 4, 8)
    assert place(engine="vllm-0.33", **options).uniform_capture_sizes[4][:4] == (4, 8, 16, 24)


def test_the_2025_build_captures_67_sizes_and_schedules_synchronously() -> None:
    old = catalog.engine_profile("vllm-0.11")
    assert len(old.capture_sizes(1024, 8192, 1)) == 67
    assert len(catalog.engine_profile("vllm-2026-01").capture_sizes(1024, 8192, 1)) == 51
    assert not old.schedules_async(None) and old.trims_drafts_to_max_tokens
    assert not old.lookahead_at_admission and not old.scheduler_reserve_full_isl
