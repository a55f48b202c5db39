"""The optional backend, on an engine made of simple numbers."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from specfleet.hardware import catalog
from specfleet.hardware.aiconfigurator import AiconfiguratorCost, Operators
from specfleet.hardware.placement import Placement
from specfleet.hardware.stepcost import TERMS, KernelCost, StepShape

Call = tuple[Any, ...]


class FakeEngine:
    """A row takes 10 us in GEMMs and 1 in norms, a sequence 1 us per 16 tokens of its context."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def decode_step_per_op(self, gen_tokens: int, isl: int, osl: int) -> Operators:
        self.calls.append(("decode", gen_tokens, isl, osl))
        return [
            ("generation_qkv_gemm", 0.01 * gen_tokens, 0.0, "silicon"),
            ("generation_add_norm_1", 0.001 * gen_tokens, 0.0, "empirical"),
            ("generation_attention", 0.001 * gen_tokens * (isl + 1) / 16, 0.0, "silicon"),
            ("generation_logits_gemm", 0.1 * gen_tokens, 0.0, "silicon"),
            ("generation_ar_1", 0.002, 0.0, "silicon"),
            ("generation_p2p", 0.0, 0.0, "silicon"),
        ]

    def run_static_per_op(
        self, *, batch_size: int, isl: int, osl: int, prefix: int, mode: str
    ) -> tuple[Operators, Operators]:
        self.calls.append(("prefill", batch_size, isl, osl, prefix, mode))
        return [("context_attention", 0.5, 0.0, "silicon"), ("context_qkv_gemm", 9.0, 0.0, "silicon")], []


PLACEMENT = Placement.of(
    catalog.model("qwen3-32b"), catalog.accelerator("h100-sxm"), catalog.engine_profile("vllm-2026-01"),
    drafter=catalog.drafter("eagle3-qwen3-32b"), num_speculative_tokens=3, max_num_seqs=64,
    max_num_batched_tokens=2048,
)  # fmt: skip
SHAPE = StepShape(16, 4, 0, 16, 12, 4 * 1000, 4000, 0, 3)


def terms(cost: AiconfiguratorCost, shape: StepShape) -> dict[str, float]:
    columns = {key: np.array([value, value]) for key, value in shape._asdict().items()}
    return {term: float(column[1]) for term, column in cost.terms(columns).items()}


def test_gemms_see_the_tokens_and_attention_the_sequences() -> None:
    engine = FakeEngine()
    parts = terms(AiconfiguratorCost(PLACEMENT, engine), SHAPE)
    assert parts["weights"] == pytest.approx(16 * 0.01e-3 + 16 * 0.1e-3)
    assert parts["compute"] == pytest.approx(16 * 0.001e-3)
    assert parts["communication"] == pytest.approx(0.002e-3)
    assert parts["kv"] == pytest.approx(4 * 63 * 0.001e-3 * (1 + 0.03 * 3))
    assert ("decode", 4, 1007, 2) in engine.calls


def test_host_and_drafter_are_those_of_the_kernel_model() -> None:
    ours = AiconfiguratorCost(PLACEMENT, FakeEngine())
    columns = {key: np.array([value]) for key, value in SHAPE._asdict().items()}
    theirs = KernelCost(PLACEMENT).terms(columns)
    parts = terms(ours, SHAPE)
    assert parts["host"] == theirs["host"][0] and parts["drafter"] == theirs["drafter"][0]
    assert "aiconfigurator tables" in ours.summary()


def test_a_step_is_the_sum_of_its_terms_and_is_looked_up_once() -> None:
    engine = FakeEngine()
    cost = AiconfiguratorCost(PLACEMENT, engine)
    total = 0.0
    for term in TERMS:
        total = total + terms(cost, SHAPE)[term]
    calls = len(engine.calls)
    assert cost.seconds(SHAPE) == total and len(engine.calls) == calls


def test_a_chunk_is_looked_up_with_what_came_before() -> None:
    engine = FakeEngine()
    shape = StepShape(512, 0, 1, 1, 0, 0, 0, 1024 * 512 + 512 * 513 // 2, 0)
    parts = terms(AiconfiguratorCost(PLACEMENT, engine), shape)
    assert ("prefill", 1, 1536, 2, 1024, "static_ctx") in engine.calls
    assert parts["compute"] == pytest.approx(0.5e-3 + 512 * 0.001e-3)
    assert (parts["kv"], parts["launch"]) == (0.0, 0.0), "nobody decodes"


def test_without_the_package_one_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiconfigurator_core", None)
    with pytest.raises(ImportError, match=r"pip install 'specfleet\[measured\]'"):
        AiconfiguratorCost(PLACEMENT)


def test_the_engine_is_compiled_from_our_own_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    class EngineHandle:
        @staticmethod
        def compile(folder: str, system: str, backend: str, **options: Any) -> FakeEngine:
            asked.append({"system": system, "backend": backend, **options})
            if system == "b200_sxm":
                raise ValueError("no such slot")
            return FakeEngine()

    package = ModuleType("aiconfigurator_core.sdk.engine")
    package.EngineHandle = EngineHandle  # type: ignore[attr-defined]
    for name in ("aiconfigurator_core", "aiconfigurator_core.sdk"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "aiconfigurator_core.sdk.engine", package)
    AiconfiguratorCost(replace(PLACEMENT, quantization="fp8"))
    assert asked[0]["gemm_quant_mode"] == "fp8" and asked[0]["kvcache_quant_mode"] == "bfloat16"
    with pytest.raises(ValueError, match="cannot price Qwen/Qwen3-32B on b200_sxm under vllm: no such slot"):
        AiconfiguratorCost(replace(PLACEMENT, accelerator=catalog.accelerator("b200")))


def test_what_the_backend_does_not_price_goes_to_kernels() -> None:
    placement = Placement.of(
        catalog.model("gpt-oss-20b"), catalog.accelerator("h100-sxm"), catalog.engine_profile("vllm-0.33")
    )
    with pytest.raises(ValueError, match="use cost_model kernels"):
        AiconfiguratorCost(placement, FakeEngine())
