"""What a drafter adds to a step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from specfleet.hardware import catalog
from specfleet.hardware.draftercost import TREE_KV_MOVE_S, drafter_tables
from specfleet.hardware.placement import Placement
from specfleet.hardware.stepcost import KernelCost, StepShape

PROFILE = replace(catalog.engine_profile("vllm-2026-01"), cudagraph_max_tokens=0)


def place(drafter: str, drafts: int = 3, **options: Any) -> Placement:
    options = {"max_num_seqs": 64, "max_num_batched_tokens": 1024} | options
    return Placement.of(
        catalog.model("qwen3-32b"), catalog.accelerator("h100-94gb"), PROFILE,
        drafter=catalog.drafter(drafter), num_speculative_tokens=drafts, **options,
    )  # fmt: skip


def drafter_s(cost: KernelCost, shape: StepShape) -> float:
    columns = {key: np.array([value]) for key, value in shape._asdict().items()}
    return float(cost.terms(columns)["drafter"][0])


def verify(batch: int, drafts: int, passes: int, context: int = 500) -> StepShape:
    query = 1 + drafts
    return StepShape(batch * query, batch, 0, batch * query, batch * drafts, batch * context, 0, 0, passes)


@pytest.mark.parametrize(("name", "extra"), [("eagle3-qwen3-32b", 0), ("qwen3-1.7b", 1)])
def test_drafting_is_a_first_pass_over_the_targets_tokens_and_then_one_a_draft(name: str, extra: int) -> None:
    cost, tables = KernelCost(place(name)), drafter_tables(place(name))
    assert tables is not None and tables.first_extra_rows == extra
    attention = 16 * 500 * tables.kv_token_s
    expected = tables.first_s[64 + 16 * extra] + 2 * tables.later_s[16] + 3 * (tables.each_s[16] + attention)
    assert drafter_s(cost, verify(16, 3, 3)) == pytest.approx(expected)


def test_every_further_pass_costs_the_same() -> None:
    cost = KernelCost(place("qwen3-1.7b"))
    one, two, three = (drafter_s(cost, verify(8, 3, passes)) for passes in (1, 2, 3))
    assert three - two == pytest.approx(two - one)
    assert drafter_s(cost, verify(8, 3, 0)) == 0.0


def test_a_launch_constant_is_paid_once_a_pass() -> None:
    slow = replace(
        place("eagle3-qwen3-32b"), profile=replace(PROFILE, draft_launch_s=PROFILE.draft_launch_s + 1e-3)
    )
    shape = verify(8, 3, 3)
    assert drafter_s(KernelCost(slow), shape) - drafter_s(
        KernelCost(place("eagle3-qwen3-32b")), shape
    ) == pytest.approx(3e-3)


def test_an_eagle3_pass_streams_its_layer_and_its_head() -> None:
    tables = drafter_tables(place("eagle3-qwen3-32b"))
    assert tables is not None
    parameters = 10_240 * 10_240 + 8192 * 5120 + 3 * 5120 * 25_600 + 5120 * 32_000
    assert tables.later_s[1] + tables.each_s[1] > 2 * parameters / (2.4e12 * 0.8585) + PROFILE.draft_launch_s
    assert tables.first_s[1] - tables.later_s[1] > 2 * 5120 * 15_360 / (2.4e12 * 0.8585)


def test_a_prompt_is_prefilled_through_the_drafter_too() -> None:
    cost = KernelCost(place("qwen3-1.7b"))
    tables = drafter_tables(place("qwen3-1.7b"))
    assert tables is not None
    shape = StepShape(800, 0, 1, 1, 0, 0, 0, 800 * 801 // 2, 3)
    floor = tables.first_s[801] + 2 * tables.later_s[1] + 3 * tables.each_s[1] + tables.prefill.floor_s
    assert floor < drafter_s(cost, shape) < 1.1 * floor


def test_parallel_drafting_is_one_pass_with_all_drafts_in_it() -> None:
    chain = place("eagle3-qwen3-32b")
    assert chain.drafter is not None
    parallel = replace(chain, drafter=replace(chain.drafter, parallel_drafting=True))
    tables = drafter_tables(parallel)
    assert tables is not None and tables.first_extra_rows == 2
    assert drafter_s(KernelCost(parallel), verify(8, 3, 1)) < drafter_s(KernelCost(chain), verify(8, 3, 3))


def test_an_ngram_drafter_costs_the_gpu_nothing() -> None:
    assert drafter_tables(place("ngram")) is None
    assert drafter_s(KernelCost(place("ngram")), verify(8, 3, 0)) == 0.0


def test_a_drafter_on_one_gpu_does_not_communicate() -> None:
    base = Placement.of(
        catalog.model("llama-3.3-70b"), catalog.accelerator("h100-pcie"), PROFILE, tensor_parallel_size=2,
        drafter=catalog.drafter("llama-3.2-1b"), num_speculative_tokens=3, max_num_seqs=64,
        max_num_batched_tokens=1024,
    )  # fmt: skip
    both, one = drafter_tables(base), drafter_tables(replace(base, draft_tensor_parallel_size=1))
    assert both is not None and one is not None
    assert both.later_s[64] - one.later_s[64] < 32 * (18.4e-6 + 46.7e-12 * 64 * 2048 * 2)
    assert both.each_s[64] > one.each_s[64]


def test_a_chain_stated_as_a_tree_of_width_one_costs_the_same() -> None:
    chain, shape = place("eagle3-qwen3-32b"), verify(16, 3, 3)
    tree = replace(chain, draft_pass_tokens=(1, 1, 1))
    assert drafter_s(KernelCost(tree), shape) == drafter_s(KernelCost(chain), shape)


def test_each_pass_of_a_tree_runs_at_its_own_width() -> None:
    chain = place("eagle3-qwen3-32b", 14)
    wide = drafter_tables(replace(chain, draft_pass_tokens=(1, 2, 4)))
    narrow = drafter_tables(chain)
    assert wide is not None and narrow is not None
    assert wide.later_s[8] == pytest.approx((narrow.later_s[16] + narrow.later_s[32]) / 2)
    assert wide.first_s[8] == narrow.first_s[8] + TREE_KV_MOVE_S
    assert wide.each_s[8] > narrow.each_s[8]


def test_a_scale_of_kernels_scales_every_time_of_a_drafter_and_no_count() -> None:
    plain = place("eagle3-qwen3-32b")
    slow = replace(plain, profile=replace(PROFILE, kernel_time_scale=1.5))
    one, other = drafter_tables(plain), drafter_tables(slow)
    assert one is not None and other is not None
    for name in ("first_s", "later_s", "each_s"):
        assert getattr(other, name) == pytest.approx(1.5 * getattr(one, name)), name
    assert one.kv_token_s > 0.0 and other.kv_token_s == pytest.approx(1.5 * one.kv_token_s)
    assert other.window_token_s == pytest.approx(1.5 * one.window_token_s)
    assert other.prefill == one.prefill.times(1.5)
    assert other.first_extra_rows == one.first_extra_rows


def test_windowed_kv_of_a_draft_model_is_scaled_too() -> None:
    target, drafts = catalog.model("gpt-oss-120b"), catalog.model("gpt-oss-20b")
    own = replace(catalog.drafter("qwen3-1.7b"), model=drafts, draft_vocab_size=target.vocab_size)
    gpu = catalog.accelerator("h100-94gb")
    tables = [
        drafter_tables(
            Placement.of(
                target, gpu, replace(PROFILE, kernel_time_scale=scale), drafter=own,
                num_speculative_tokens=3, max_num_seqs=8, max_num_batched_tokens=64, tensor_parallel_size=2,
            )
        )
        for scale in (1.0, 2.0)
    ]  # fmt: skip
    once, twice = tables
    assert once is not None and twice is not None and once.window_token_s > 0.0
    assert twice.window_token_s == pytest.approx(2.0 * once.window_token_s)


@pytest.mark.parametrize("passes", [0, 1, 3])
def test_a_drafter_with_windowed_layers_is_priced_alike_by_step_and_by_column(passes: int) -> None:
    target = catalog.model("gpt-oss-120b")
    own = replace(catalog.drafter("qwen3-1.7b"), model=catalog.model("gpt-oss-20b"), draft_vocab_size=201_088)
    place = Placement.of(
        target, catalog.accelerator("h100-94gb"), PROFILE, drafter=own,
        num_speculative_tokens=3, max_num_seqs=64, max_num_batched_tokens=1024, tensor_parallel_size=2,
    )  # fmt: skip
    cost, tables = KernelCost(place), drafter_tables(place)
    assert tables is not None and tables.window_token_s > 0.0
    shape = verify(16, 3, passes)._replace(kv_tokens_in_window=16 * 128)
    columns = {key: np.array([value]) for key, value in shape._asdict().items()}
    total = sum(float(term[0]) for term in cost.terms(columns).values())
    assert cost.seconds(shape) == pytest.approx(total, rel=1e-12)
    none = shape._replace(kv_tokens_in_window=0)
    more = drafter_s(cost, shape) - drafter_s(cost, none)
    assert more == pytest.approx(passes * 16 * 128 * tables.window_token_s)
