"""What goes together on one engine, and what the user reads when it does not."""

from __future__ import annotations

from typing import Any

import pytest

from specfleet.hardware import catalog
from specfleet.hardware.placement import Placement

PROFILE = catalog.engine_profile("vllm-0.33")
H100 = catalog.accelerator("h100-sxm")


def place(model: str = "qwen3-32b", drafter: str | None = None, **options: Any) -> Placement:
    head = catalog.drafter(drafter) if drafter else None
    return Placement.of(catalog.model(model), H100, PROFILE, drafter=head, **options)


def test_what_is_not_given_comes_from_the_profile() -> None:
    placement = place()
    assert placement.max_num_seqs == PROFILE.max_num_seqs
    assert placement.max_num_batched_tokens == PROFILE.max_num_batched_tokens
    assert placement.gpu_memory_utilization == PROFILE.gpu_memory_utilization
    assert placement.async_scheduling
    assert place(max_num_seqs=8, async_scheduling=False).async_scheduling is False


def test_the_drafter_runs_on_as_many_gpus_as_the_target() -> None:
    placement = place("llama-3.3-70b", "llama-3.2-1b", num_speculative_tokens=3, tensor_parallel_size=4)
    assert placement.draft_tensor_parallel_size == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tensor_parallel_size": 3}, "tensor_parallel_size 3 does not divide num_heads 64"),
        ({"tensor_parallel_size": 0}, "tensor_parallel_size is 0"),
        ({"max_num_seqs": 0}, "max_num_seqs is 0; it must be at least 1"),
        ({"max_num_batched_tokens": 16}, "raise the one or lower the other"),
        ({"gpu_memory_utilization": 1.2}, "use a share in"),
        ({"c_q": -0.1}, "c_q is -0.1"),
        ({"quantization": "awq"}, "quantization is 'awq'; use one of None, fp8"),
        ({"dtype": "float32"}, "dtype is 'float32'; use one of bfloat16, float16"),
        ({"kv_cache_dtype": "int4"}, "kv_cache_dtype is 'int4'"),
        ({"attention": "warm"}, "attention is 'warm'; use one of all, cold"),
        ({"num_speculative_tokens": 3}, "num_speculative_tokens is 3 with no drafter"),
        ({"drafter": "eagle3-qwen3-32b"}, "num_speculative_tokens is 0 with a drafter"),
        ({"tensor_parallel_size": 16}, "no measured all-reduce among 16 GPUs"),
        (
            {"drafter": "eagle3-llama-3.3-70b", "num_speculative_tokens": 3},
            "choose the head trained for this model",
        ),
        ({"drafter": "llama-3.2-1b", "num_speculative_tokens": 3}, "a draft model must share it"),
        (
            {"drafter": "qwen3-1.7b", "num_speculative_tokens": 3, "draft_tensor_parallel_size": 2},
            "it must be 1 or the target's 1",
        ),
    ],
)
def test_parts_that_do_not_go_together_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as error:
        place(**arguments)
    assert message in str(error.value)


def test_a_gpu_without_fp8_kernels_cannot_run_fp8_weights() -> None:
    gpu = catalog.accelerator(
        {
            "name": "a100",
            "hbm_bytes": 85_000_000_000,
            "hbm_bytes_per_s": 2.0e12,
            "flops_per_s": {"bfloat16": 3.12e14},
            "sms": 108,
            "p2p": True,
            "constants": "a100_sxm",
            "l2_bytes": 41_943_040,
        }
    )
    with pytest.raises(ValueError, match="a100 has no measured fp8 GEMM"):
        Placement.of(catalog.model("llama-3.1-8b"), gpu, PROFILE, quantization="fp8")


def test_the_ladder_is_made_for_the_query_length() -> None:
    placement = place(drafter="eagle3-qwen3-32b", num_speculative_tokens=2)
    assert placement.query_len == 3
    assert all(size % 3 == 0 for size in placement.uniform_capture_sizes[3])
    assert {2, 3, 4, 6, 8} < set(placement.capture_sizes)
