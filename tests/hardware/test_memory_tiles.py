"""Experts in MXFP4 are loaded in whole tiles of the kernels that multiply them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specfleet.hardware import catalog
from specfleet.hardware.memory import GIB
from specfleet.hardware.memorypeak import padded_expert_bytes, weight_bytes
from specfleet.hardware.placement import Placement


def placed(model: str, gpu: str, tp: int = 1) -> Placement:
    return Placement.of(
        catalog.model(model),
        catalog.accelerator(gpu),
        catalog.engine_profile("vllm-0.19"),
        tensor_parallel_size=tp,
    )


def test_gpt_oss_20b_loads_on_an_a100_what_its_log_says_and_on_an_h100_what_its_file_holds() -> None:
    assert weight_bytes(placed("gpt-oss-20b", "a100-80gb")) / GIB == pytest.approx(13.72, rel=0.005)
    assert weight_bytes(placed("gpt-oss-20b", "h100-sxm")) / GIB == pytest.approx(12.81, rel=0.005)


@pytest.mark.parametrize(
    ("gpu", "tp", "width", "hidden"),
    [
        ("a100-80gb", 1, 2944, 3072),
        ("l40s", 2, 1536, 3072),
        ("h100-sxm", 1, 2880, 2880),
        ("h200", 4, 768, 2880),
        ("b200", 8, 512, 3072),
    ],
)
def test_each_generation_rounds_up_to_its_own_tiles(gpu: str, tp: int, width: int, hidden: int) -> None:
    layers, experts, matrices, byte = 36, 128, 3, 4.25 / 8
    more = width * hidden - 2880 / tp * 2880
    assert padded_expert_bytes(placed("gpt-oss-120b", gpu, tp)) == int(
        layers * experts * matrices * byte * more
    )


@given(
    st.sampled_from(["qwen3-30b-a3b", "glm-4.5-air-fp8", "llama-3.1-8b", "deepseek-v3"]),
    st.sampled_from(["l40s", "h100-sxm", "b200"]),
    st.sampled_from([1, 2, 4, 8]),
)
def test_other_formats_are_loaded_as_they_are(model: str, gpu: str, tp: int) -> None:
    assert padded_expert_bytes(placed(model, gpu, tp)) == 0
