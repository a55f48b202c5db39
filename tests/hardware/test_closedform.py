"""The closed form of TPOT: by hand, and against served benchmarks without speculation."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from specfleet.hardware import catalog
from specfleet.hardware.closedform import closed_form_tpot
from specfleet.hardware.placement import Placement
from specfleet.hardware.stepcost import KernelCost, StepShape

GPUS = {"h100_sxm": "h100-sxm", "h200_sxm": "h200", "b200_sxm": "b200"}
GROUPS = [
    ("h100_sxm", "vllm", "auto", 0.9, 27, 4.7),
    ("b200_sxm", "vllm", "fp8", 0.9, 59, 7.0),
    ("h200_sxm", "trtllm", "fp8", 0.9, 68, 4.4),
    ("h100_sxm", "trtllm", "auto", 1.0, 87, 6.0),
]
"""GPU, engine, KV type, share of the nominal lengths, points, bar in percent."""


def served(model: str, gpu: str, engine: str, tp: int, quantization: str | None, kv: str) -> KernelCost:
    profile = catalog.engine_profile({"vllm": "vllm-0.11"}.get(engine, engine))
    return KernelCost(
        Placement.of(
            catalog.model(model), catalog.accelerator(GPUS[gpu]), profile, tensor_parallel_size=tp,
            quantization=quantization, kv_cache_dtype=kv, async_scheduling=True,
        )
    )  # fmt: skip


@pytest.mark.parametrize(("gpu", "engine", "kv", "lengths", "points", "bar"), GROUPS)
def test_served_tpot_is_met_with_one_host_set_an_engine(
    shared: Path, gpu: str, engine: str, kv: str, lengths: float, points: int, bar: float
) -> None:
    with (shared / "validation/served_tpot.csv").open() as file:
        rows = [r for r in csv.DictReader(file) if (r["system"], r["backend"]) == (gpu, engine)]
    costs: dict[str, KernelCost] = {}
    errors = []
    for row in rows:
        tp = row["tensor_parallel_size"]
        quantization = "fp8" if row["dtype"] == "fp8" else None
        cost = costs.setdefault(tp, served(row["model"], gpu, engine, int(tp), quantization, kv))
        tpot = closed_form_tpot(
            cost, int(row["max_concurrency"]), lengths * float(row["input_len"]),
            lengths * float(row["output_len"]),
        )  # fmt: skip
        errors.append(abs(1e3 * tpot / float(row["measured_tpot_ms"]) - 1))
    assert len(errors) == points
    assert 100 * np.mean(errors) <= bar


COST = served("llama-3.1-8b", "h100_sxm", "vllm", 1, None, "auto")


def test_one_request_alone_is_a_decode_step_at_its_mean_context() -> None:
    step = COST.seconds(StepShape(1, 1, 0, 1, 0, 1150, 1150, 0, 0))
    assert closed_form_tpot(COST, 1, 1000, 300) == step


def test_each_of_the_other_prompts_is_seen_once() -> None:
    decode = COST.seconds(StepShape(8, 8, 0, 8, 0, 8 * 1150, 8 * 1150, 0, 0))
    mixed = COST.seconds(StepShape(1008, 8, 1, 9, 0, 8 * 1150, 8 * 1150, 500_500, 0))
    assert closed_form_tpot(COST, 8, 1000, 300) == pytest.approx(decode + 7 / 300 * (mixed - decode))


def test_a_long_prompt_comes_in_chunks_that_pay_for_what_came_before() -> None:
    decode = COST.seconds(StepShape(8, 8, 0, 8, 0, 8 * 1650, 8 * 1650, 0, 0))
    first = COST.seconds(StepShape(1024, 8, 1, 9, 0, 8 * 1650, 8 * 1650, 1016 * 1017 // 2, 0))
    pairs = 1016 * 484 + 484 * 485 // 2
    second = COST.seconds(StepShape(492, 8, 1, 9, 0, 8 * 1650, 8 * 1650, pairs, 0))
    expected = decode + 7 / 300 * (first + second - 2 * decode)
    assert closed_form_tpot(COST, 8, 1500, 300, max_num_batched_tokens=1024) == pytest.approx(expected)


def test_a_batch_that_fills_the_budget_is_refused() -> None:
    with pytest.raises(ValueError, match="64 sequences fill the budget of 64 tokens"):
        closed_form_tpot(COST, 64, 1000, 300, max_num_batched_tokens=64)


def test_each_piece_of_a_prompt_attends_to_all_before_it() -> None:
    """Of 250 tokens with room for 100 beside two decodes: pieces behind 0, 100 and 200 tokens."""
    asked: list[StepShape] = []

    class Noted:
        def seconds(self, shape: StepShape) -> float:
            asked.append(shape)
            return 1.0 + shape.prefill_pairs

    tpot = closed_form_tpot(Noted(), 2, 250, 10, 102)  # type: ignore[arg-type]
    pieces = [(shape.tokens - 2, shape.prefill_pairs) for shape in asked[1:]]
    pairs = [100 * 101 // 2, 100 * 100 + 100 * 101 // 2, 200 * 50 + 50 * 51 // 2]
    assert pieces == [*zip((100, 100, 50), pairs, strict=True)] and sum(pairs) == 250 * 251 // 2
    assert tpot == pytest.approx(1.0 + 1 / 10 * sum(pairs))
