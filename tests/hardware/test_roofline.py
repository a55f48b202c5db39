"""The naive roofline."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specfleet.hardware import catalog
from specfleet.hardware.placement import Placement
from specfleet.hardware.roofline import RooflineCost
from specfleet.hardware.stepcost import TERMS, KernelCost, StepCost, StepShape

PLAIN = Placement.of(
    catalog.model("llama-3.1-8b"), catalog.accelerator("h100-sxm"), catalog.engine_profile("vllm-0.33")
)
DRAFTING = Placement.of(
    catalog.model("qwen3-32b"),
    catalog.accelerator("h100-94gb"),
    catalog.engine_profile("vllm-0.33"),
    drafter=catalog.drafter("eagle3-qwen3-32b"),
    num_speculative_tokens=3,
)
COSTS: dict[str, StepCost] = {
    placement.model.name: RooflineCost(placement) for placement in (PLAIN, DRAFTING)
}
LINEAR = 32 * (6144 * 4096 + 4096 * 4096 + 3 * 14_336 * 4096)
HEAD = 128_256 * 4096


def decode(batch: int, context: int) -> StepShape:
    return StepShape(batch, batch, 0, batch, 0, batch * context, 0, 0, 0)


@given(
    name=st.sampled_from(sorted(COSTS)),
    decode_sequences=st.integers(0, 200),
    prefill=st.integers(0, 4),
    kv_tokens=st.integers(0, 10**6),
    passes=st.integers(0, 4),
)
def test_the_scalar_path_equals_the_terms_to_the_last_bit(
    name: str, decode_sequences: int, prefill: int, kv_tokens: int, passes: int
) -> None:
    shape = StepShape(
        4 * decode_sequences + 100 * prefill, decode_sequences, prefill, 4 * decode_sequences + prefill,
        3 * decode_sequences, kv_tokens, 0, 5050 * prefill, passes,
    )  # fmt: skip
    terms = COSTS[name].terms({key: np.array([value]) for key, value in shape._asdict().items()})
    assert tuple(terms) == TERMS
    total = 0.0
    for term in TERMS:
        total = total + float(terms[term][0])
    assert COSTS[name].seconds(shape) == total


def test_a_small_batch_streams_weights_and_kv() -> None:
    expected = (2 * (LINEAR + HEAD) + 1024 * 131_072) / 3.35e12
    assert COSTS[PLAIN.model.name].seconds(decode(1, 1024)) == pytest.approx(expected)


def test_a_large_batch_is_arithmetic() -> None:
    expected = 2 * 8192 * (LINEAR + HEAD) / 989e12
    assert COSTS[PLAIN.model.name].seconds(decode(8192, 1)) == pytest.approx(expected)


def test_the_datasheet_is_far_below_the_kernels() -> None:
    kernels = KernelCost(PLAIN)
    assert COSTS[PLAIN.model.name].seconds(decode(1, 1024)) < 0.75 * kernels.seconds(decode(1, 1024))


def test_the_summary_names_the_model() -> None:
    assert "Llama-3.1-8B" in COSTS[PLAIN.model.name].summary()
