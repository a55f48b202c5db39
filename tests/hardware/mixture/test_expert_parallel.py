"""Experts spread over GPUs, and data-parallel attention beside them: prices and memory by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from specfleet.hardware import catalog
from specfleet.hardware.forward import exchange_s, layer_stack
from specfleet.hardware.interconnect import GATHER, SCATTER, collective_s
from specfleet.hardware.memorypeak import drafter_weight_bytes, weight_bytes
from specfleet.hardware.mixture.experts import expert_gemms
from specfleet.hardware.placement import Placement
from specfleet.hardware.roofline import experts_s
from specfleet.hardware.stepcost import KernelCost, StepShape

PROFILE = replace(catalog.engine_profile("vllm-0.33"), cudagraph_max_tokens=0, arithmetic_rate=1.0)


def place(tp: int = 8, dp: int = 1, ep: int = 1, model: str = "deepseek-v3", **options: Any) -> Placement:
    return Placement.of(
        catalog.model(model), catalog.accelerator("h200"), PROFILE, tensor_parallel_size=tp,
        data_parallel_size=dp, expert_parallel_size=ep, max_num_seqs=256, max_num_batched_tokens=1024,
        **options,
    )  # fmt: skip


def moe_layer(placement: Placement, rows: float) -> float:
    """Seconds of the grouped GEMMs of one layer."""
    tp = placement.tensor_parallel_size
    group = next(group for group in placement.model.layer_groups(tp) if group.experts)
    return float(
        sum(part[0] for part in expert_gemms(placement, placement.model, tp, group, np.array([rows]), 0))
    )


def test_ranks_send_their_tokens_together_to_the_experts() -> None:
    """One group of eight GPUs with 128 tokens has the experts of eight ranks with 16 tokens each."""
    assert moe_layer(place(8, 1, 8), 128.0) == pytest.approx(moe_layer(place(1, 8, 8), 16.0))
    assert moe_layer(place(8, 1, 1), 128.0) == pytest.approx(moe_layer(place(1, 8, 1), 16.0))
    assert moe_layer(place(8, 1, 8), 128.0) != pytest.approx(moe_layer(place(8, 1, 1), 128.0))


def test_the_exchange_is_a_gather_and_a_scatter_of_all_hidden_states() -> None:
    ranks = place(1, 8, 8)
    rows = np.array([64.0])
    moved = 64 * 8 * 7168 * 2.0
    both = sum(collective_s("h200_sxm", name, 8, np.array([moved]))[0] for name in (GATHER, SCATTER))
    assert exchange_s(ranks, 1, rows, 7168)[0] == pytest.approx(both)
    assert exchange_s(place(8, 1, 8), 8, rows, 7168)[0] == 0.0, "one group's all-reduce sums the experts"
    stack = layer_stack(ranks, ranks.model, 1, None, 64)
    assert stack.communication_s[64] == pytest.approx(58 * both), "58 of 61 layers have experts"


def test_a_step_of_data_parallel_ranks_by_hand() -> None:
    """A rank's step beside that of one GPU with all the experts: experts of all, and the exchange."""
    ranks = place(1, 8, 8)
    shape = StepShape(32, 32, 0, 32, 0, 32 * 500, 0, 0, 0)
    cost = KernelCost(ranks)
    columns = {key: np.array([value]) for key, value in shape._asdict().items()}
    terms = cost.terms(columns)
    assert terms["communication"][0] == pytest.approx(58 * exchange_s(ranks, 1, np.array([32.0]), 7168)[0])
    dense = replace(ranks, data_parallel_size=1, expert_parallel_size=1)
    other = KernelCost(dense)
    same = other.terms(columns)
    assert terms["kv"][0] == same["kv"][0], "attention is the rank's own"
    assert terms["host"][0] == same["host"][0]
    passes = ("weights", "compute", "launch")
    more = 58 * (moe_layer(ranks, 32.0) - moe_layer(dense, 32.0))
    assert sum(terms[t][0] - same[t][0] for t in passes) == pytest.approx(more, rel=1e-6)


def test_ranks_hold_all_but_the_experts_which_are_spread() -> None:
    model = catalog.model("deepseek-v3")
    whole, spread, cut = place(1, 8, 8), place(1, 8, 1), place(8, 1, 8)
    routed = model.routed_bytes(None, 1)
    assert weight_bytes(whole) == weight_bytes(spread)
    alone = replace(whole, data_parallel_size=1, expert_parallel_size=1)
    assert weight_bytes(alone) - weight_bytes(whole) == routed - routed // 8
    assert weight_bytes(cut) < weight_bytes(whole), "attention is not cut among ranks"
    mtp = catalog.drafter("deepseek-v3-mtp")
    drafted = place(1, 8, 8, drafter=mtp, num_speculative_tokens=1)
    assert drafter_weight_bytes(drafted) < mtp.weight_bytes(1) / 2, "an MTP layer's experts are spread, too"


def test_an_mtp_layer_sends_its_tokens_to_shared_experts_too() -> None:
    mtp = catalog.drafter("deepseek-v3-mtp")
    drafted = KernelCost(place(1, 8, 8, drafter=mtp, num_speculative_tokens=1))
    shape = StepShape(64, 32, 0, 64, 32, 32 * 500, 0, 0, 1)
    exchange = exchange_s(drafted.placement, 1, np.array([64.0]), 7168)[0]
    assert drafted.drafter_s(shape) > exchange > 0.0


def test_the_roofline_reads_the_busiest_rank_s_experts() -> None:
    one, ranks = experts_s(place(8, 1, 1)), experts_s(place(8, 1, 8))
    assert one[1000] == pytest.approx(ranks[1000], rel=1e-3), "all experts are read either way"
    assert ranks[2] > 1.5 * one[2], "few tokens: one rank has more than its share"


def test_what_cannot_be_spread_is_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match="as many replicas"):
        place(1, 2, 1, model="llama-3.1-8b")
    with pytest.raises(ValueError, match="must divide the 8 GPUs and the 256 experts"):
        place(8, 1, 3)
    with pytest.raises(ValueError, match="in one server of at most 8"):
        place(8, 2, 16)
    with pytest.raises(ValueError, match="no measured gather among 2 GPUs of a100"):
        Placement.of(
            catalog.model("qwen3-30b-a3b"), catalog.accelerator("a100-80gb"), PROFILE, data_parallel_size=2
        )
    with pytest.raises(ValueError, match="do not reach each other"):
        Placement.of(
            catalog.model("qwen3-30b-a3b"), catalog.accelerator("h100-pcie"), PROFILE, data_parallel_size=4
        )
    odd = replace(catalog.model("gpt-oss-20b"), moe_intermediate_size=2884)
    gpu = catalog.accelerator("h200")
    with pytest.raises(ValueError, match="does not divide moe_intermediate_size 2884"):
        Placement.of(odd, gpu, PROFILE, tensor_parallel_size=8)
    whole = Placement.of(odd, gpu, PROFILE, tensor_parallel_size=8, expert_parallel_size=8)
    assert whole.expert_split(8) == (1, 8), "whole experts need not divide"


def test_collectives_grow_with_the_bytes_and_beyond_the_table_in_proportion() -> None:
    sizes = np.array([0.0, 1e4, 1e6, 1e8, 5e8, 1e9, 2e9])
    for gpu in ("h100_sxm", "h200_sxm", "b200_sxm"):
        for name in (GATHER, SCATTER):
            times = collective_s(gpu, name, 8, sizes)
            assert (np.diff(times) >= 0).all()
            assert times[-1] == pytest.approx(2 * times[-2], rel=1e-9)
            assert times[-1] > 2e9 * 7 / 8 / 900e9, "no link is faster than NVLink"
