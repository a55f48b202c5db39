"""Whole steps against tabulated kernels and against served benchmarks."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from specfleet.hardware import catalog
from specfleet.hardware.interconnect import all_reduce_law, all_reduce_s
from specfleet.hardware.placement import Placement
from specfleet.hardware.stepcost import KernelCost, StepShape

KERNELS_ONLY = replace(
    catalog.engine_profile("vllm-0.33"),
    host_async_s=0.0,
    host_async_s_per_request=0.0,
    arithmetic_rate=1.0,
    cudagraph_max_tokens=0,
    fp8_gemm_table=False,
)
MODELS = {"70b": "llama-3.1-70b", "8b": "llama-3.1-8b"}


def read(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def kernels_only(model: str, dtype: str, tp: int) -> Placement:
    return Placement.of(
        catalog.model(MODELS[model]), catalog.accelerator("h100-sxm"), KERNELS_ONLY,
        tensor_parallel_size=tp, quantization="fp8" if dtype == "fp8" else None, c_q=0.0,
        max_num_seqs=256, max_num_batched_tokens=2048,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", ["bfloat16", "fp8"])
def test_kernels_alone_reproduce_the_reference_steps(shared: Path, dtype: str) -> None:
    rows = [row for row in read(shared / "hardware/sanity_steps.csv") if row["system"] == "h100_sxm"]
    rows = [row for row in rows if row["backend"] == "vllm" and row["dtype"] == dtype]
    costs = {
        key: KernelCost(kernels_only(key[0], dtype, int(key[1])))
        for key in {(row["model"], row["tp"]) for row in rows}
    }
    errors = []
    for row in rows:
        cost, tp = costs[row["model"], row["tp"]], int(row["tp"])
        batch, drafts, context = int(row["batch"]), int(row["K"]), int(row["ctx"])
        tokens = batch * (1 + drafts)
        seconds = cost.seconds(StepShape(tokens, batch, 0, tokens, batch * drafts, batch * context, 0, 0, 0))
        if tp > 1:
            gather = np.array([2.0 * tokens * (128_256 // tp)])
            seconds -= float(all_reduce_s(gather, all_reduce_law("h100_sxm", tp, True))[0])
        errors.append(abs(1e3 * seconds / float(row["compact_ms"]) - 1))
    assert len(errors) > 200
    assert np.mean(errors) < 0.003 and max(errors) < 0.01


def served_error(rows: Iterable[dict[str, str]], gpu: dict[str, object]) -> list[float]:
    """Relative error of the decode step at the mean batch and context of a run, against its median ITL."""
    costs: dict[tuple[str, str], KernelCost] = {}
    errors = []
    for row in rows:
        drafts, name = int(row["K"]), row["draft_model"]
        if (name, row["K"]) not in costs:
            placement = Placement.of(
                catalog.model(row["target_model"]), catalog.accelerator(gpu),
                catalog.engine_profile("vllm-2026-01"), tensor_parallel_size=int(row["tp"]),
                drafter=catalog.drafter(name) if name else None, num_speculative_tokens=drafts,
                async_scheduling=row["async_scheduling"] == "True",
            )  # fmt: skip
            costs[name, row["K"]] = KernelCost(placement)
        batch = max(1, round(float(row["little_batch"])))
        prompt, output = (float(row[f"mean_{kind}_tokens_per_request"]) for kind in ("input", "output"))
        tokens = batch * (1 + drafts)
        kv_tokens = round(batch * (prompt + output / 2 + 1 + drafts))
        shape = StepShape(tokens, batch, 0, tokens, batch * drafts, kv_tokens, 0, 0, drafts)
        errors.append(1e3 * costs[name, row["K"]].seconds(shape) / float(row["itl_median_ms"]) - 1)
    return errors


def campaign(shared: Path, name: str, largest: int) -> list[dict[str, str]]:
    rows = read(shared / "validation/h100_vllm_specdec.csv")
    rows = [row for row in rows if row["campaign"] == name and row["dataset"] == "InstructCoder"]
    return [row for row in rows if int(row["max_concurrency"]) <= largest and row["quality_flag"] == "ok"]


def test_served_steps_of_the_32b_are_met(shared: Path) -> None:
    rows = campaign(shared, "q32_tp1_lrz", 64)
    errors = served_error(rows, {"base": "h100-94gb", "hbm_bytes_per_s": 2.33e12})
    assert len(errors) >= 70
    assert np.abs(errors).mean() < 0.025 and np.abs(errors).max() < 0.07


def test_served_steps_of_the_70b_without_peer_to_peer_are_met(shared: Path) -> None:
    rows = campaign(shared, "l70_tp2_brev", 16)
    errors = served_error(rows, {"base": "h100-sxm", "hbm_bytes_per_s": 2.07e12, "p2p": False})
    assert len(errors) >= 45
    assert np.abs(errors).mean() < 0.04 and np.abs(errors).max() < 0.08
