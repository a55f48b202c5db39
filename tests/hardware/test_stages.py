"""Layers on stages: who holds what, what a step takes there, and the pool that all agree on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specfleet.hardware import catalog
from specfleet.hardware.memory import kv_budget
from specfleet.hardware.memorypeak import drafter_weight_bytes, weight_bytes
from specfleet.hardware.pipeline.cost import PipelineCost, SlowestStage, kernel_cost
from specfleet.hardware.pipeline.links import crosses_servers, relayed_layers, send_s, sent_values
from specfleet.hardware.pipeline.stages import divisible, layers_by_stage
from specfleet.hardware.placement import Placement
from specfleet.hardware.stepcost import TERMS, KernelCost, StepShape

LLAMA_8B, LLAMA_70B, LLAMA_405B = (
    *("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.3-70B-Instruct"),
    "meta-llama/Llama-3.1-405B-Instruct",
)
EAGLE3 = "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"


def placed(stages: int, tp: int = 1, model: str = LLAMA_8B, gpu: str = "h100-sxm", **more: Any) -> Placement:
    engine = catalog.engine_profile("vllm-0.33")
    return Placement.of(
        catalog.model(model), catalog.accelerator(gpu), engine, tensor_parallel_size=tp,
        pipeline_parallel_size=stages, **more,
    )  # fmt: skip


def drafting(stages: int) -> Placement:
    return placed(stages, drafter=catalog.drafter(EAGLE3), num_speculative_tokens=3)


shapes = st.builds(
    lambda decodes, drafts, context, chunk: StepShape(
        decodes * (1 + drafts) + chunk, decodes, bool(chunk), decodes * (1 + drafts) + bool(chunk),
        decodes * drafts, decodes * context, decodes * context, chunk * (chunk + 1) // 2, drafts,
    ),
    st.integers(0, 64), st.integers(0, 3), st.integers(4, 4000), st.integers(1, 3000),
)  # fmt: skip


@given(st.integers(1, 200), st.integers(1, 20))
def test_layers_are_dealt_out_whole_the_rest_before_the_last_stage(layers: int, stages: int) -> None:
    stages = min(stages, layers)
    counts = layers_by_stage(layers, stages)
    assert sum(counts) == layers and len(counts) == stages
    assert max(counts) - min(counts) <= 1 and counts[-1] == min(counts)
    middle = counts[:-1]  # the larger ones stand together, the first stage is the last to get one
    assert list(middle) == sorted(middle)


@pytest.mark.parametrize(
    ("layers", "stages", "counts"),
    [(80, 3, (27, 27, 26)), (61, 4, (15, 15, 16, 15)), (126, 4, (31, 32, 32, 31)), (5, 5, (1, 1, 1, 1, 1))],
)
def test_layers_by_stage_as_vllm_s_get_pp_indices_gives_them(
    layers: int, stages: int, counts: tuple[int, ...]
) -> None:
    assert layers_by_stage(layers, stages) == counts


@pytest.mark.parametrize("model", [LLAMA_70B, "deepseek-ai/DeepSeek-V3", "Qwen/Qwen3-30B-A3B"])
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_what_stages_hold_and_cache_together_is_the_model(model: str, stages: int) -> None:
    whole, parts = placed(1, 8, model, "h200"), placed(stages, 8, model, "h200").stages
    assert sum(part.model.num_layers for part in parts) == whole.model.num_layers
    assert sum(part.model.linear_bytes(None, 8) for part in parts) == whole.model.linear_bytes(None, 8)
    assert sum(part.model.routed_bytes(None, 8) for part in parts) == whole.model.routed_bytes(None, 8)
    assert [part.vocabulary_matrices for part in parts] == [1, *[0] * (stages - 2), 1]
    cached = [part.model.kv_bytes_per_token("auto", 8) for part in parts]
    assert sum(cached) == whole.model.kv_bytes_per_token("auto", 8)
    # rotary table and final norm are on every stage, large tensors are rounded up
    assert sum(map(weight_bytes, parts)) == pytest.approx(weight_bytes(whole), rel=0.01)


def test_a_tied_matrix_is_embedding_on_the_first_stage_and_head_on_the_last() -> None:
    tied = placed(2, model="meta-llama/Llama-3.2-1B-Instruct")
    whole, first, last = placed(1, model=tied.model.name), *tied.stages
    assert whole.vocabulary_matrices == first.vocabulary_matrices == last.vocabulary_matrices == 1


def test_the_drafter_is_on_the_last_stage_with_an_embedding_of_its_own() -> None:
    first, last = drafting(2).stages
    alone = drafting(1)
    assert drafter_weight_bytes(first) == 0
    more = drafter_weight_bytes(last) - drafter_weight_bytes(alone)
    assert more == alone.drafter.model.embedding_bytes(1)  # type: ignore[union-attr]
    assert first.capture_sizes == last.capture_sizes, "all stages pad a batch alike"


@given(shapes, st.integers(2, 5))
def test_a_step_is_the_sum_of_its_stages_and_sends_and_as_on_one_stage_but_for_the_sends(
    shape: StepShape, stages: int
) -> None:
    one, several = ONE, SEVERAL[stages]
    each, sends = several.stage_seconds(shape)
    assert len(each) == stages and len(sends) == stages - 1
    assert several.seconds(shape) == pytest.approx(sum(each) + sum(sends), rel=1e-12)
    assert sum(each) == pytest.approx(one.seconds(shape), rel=1e-9)


@given(shapes)
def test_the_price_of_a_step_is_the_sum_of_its_terms_to_the_last_bit(shape: StepShape) -> None:
    cost = SEVERAL[3]
    terms = cost.terms({name: np.array([value]) for name, value in shape._asdict().items()})
    total = 0.0
    for name in TERMS:
        total += float(terms[name][0])
    assert cost.seconds(shape) == total


ONE = KernelCost(drafting(1))
SEVERAL = {stages: PipelineCost(drafting(stages)) for stages in (2, 3, 4, 5)}


def test_host_time_is_on_the_first_stage_head_and_drafter_on_the_last() -> None:
    shape = StepShape(4, 1, 0, 4, 3, 1000, 1000, 0, 3)
    cost = SEVERAL[3]
    columns = {name: np.array([value]) for name, value in shape._asdict().items()}
    first, middle, last = (stage.terms(columns) for stage in cost.stages)
    assert first["host"] > 0 and middle["host"] == last["host"] == 0
    assert first["drafter"] == middle["drafter"] == 0 and last["drafter"] > 0
    assert last["weights"] > middle["weights"], "10 layers and the head against 11 layers"


def test_one_stage_is_priced_as_ever() -> None:
    assert isinstance(kernel_cost(placed(1)), KernelCost)
    assert isinstance(kernel_cost(placed(2)), PipelineCost)


@pytest.mark.parametrize(("model", "stages", "tp"), [(LLAMA_70B, 4, 1), (LLAMA_405B, 3, 8)])
def test_the_pool_is_that_of_the_stage_with_the_fewest_blocks(model: str, stages: int, tp: int) -> None:
    whole = placed(stages, tp, model)
    budgets = [kv_budget(stage) for stage in whole.stages]
    budget = kv_budget(whole)
    assert budget.num_gpu_blocks == min(each.num_gpu_blocks for each in budgets)
    assert len(budget.stages) == stages
    assert [line.endswith("what all have") for line in budget.stages].count(True) == 1
    assert budget.render().count("stage") == stages


def test_a_sampler_needs_its_memory_on_the_last_stage_alone() -> None:
    first, last = (
        dict(kv_budget(stage).lines) for stage in placed(2, model=LLAMA_70B, max_num_seqs=1024).stages
    )
    label = next(label for label in last if label.startswith("activations"))
    assert next(size for name, size in first.items() if name.startswith("activations")) <= last[label]


def test_what_fits_no_server_fits_two() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        kv_budget(placed(1, 8, LLAMA_405B))
    assert kv_budget(placed(2, 8, LLAMA_405B)).num_gpu_blocks > 0
    with pytest.raises(ValueError, match=r"stage \d of 2 of .*405B"):
        kv_budget(placed(2, 4, LLAMA_405B))


def test_stages_that_do_not_share_a_server_send_over_the_network() -> None:
    assert [crosses_servers(placed(4, 4), stage) for stage in range(3)] == [False, True, False]
    assert not any(crosses_servers(placed(8, 1), stage) for stage in range(7))
    rows = np.array([0.0, 1.0, 8192.0])
    near, far = send_s(placed(2, 4), 0, 16, rows), send_s(placed(4, 4), 1, 16, rows)
    assert near[0] == far[0] == 0.0 and (far[1:] > near[1:]).all()
    # two tensors of 4,096 values of two bytes, a quarter of them from each GPU at 50 GB/s
    slower = send_s(_slow(placed(4, 4), 25e9), 1, 16, rows)
    assert slower[2] - far[2] == pytest.approx(8192 * 2 * 4096 * 2 / 4 / 50e9)


def _slow(place: Placement, network_bytes_per_s: float) -> Placement:
    gpu = place.accelerator.override(network_bytes_per_s=network_bytes_per_s)
    return replace(place, accelerator=gpu)


def test_hidden_states_that_eagle_3_reads_are_handed_on_with_the_others() -> None:
    place = drafting(2)
    assert relayed_layers(place) == (2, 16, 29)
    assert [sent_values(place, layers) // 4096 for layers in (1, 2, 16, 31)] == [2, 3, 4, 5]
    assert sent_values(placed(2), 31) == 2 * 4096


@pytest.mark.parametrize("gpu", ["a100", "l40s", "h100-pcie", "h100-94gb", "b200"])
def test_every_gpu_has_a_law_for_sends(gpu: str) -> None:
    seconds = send_s(placed(2, gpu=gpu), 0, 16, np.array([1.0, 64.0, 8192.0]))
    assert (np.diff(seconds) >= 0).all() and 1e-6 < seconds[0] < 1e-3


def test_layers_of_several_kinds_are_not_dealt_out_and_neither_are_more_stages_than_layers() -> None:
    assert "several kinds" in str(divisible(catalog.model("openai/gpt-oss-20b"), 2))
    assert divisible(catalog.model(LLAMA_8B), 32) is None
    with pytest.raises(ValueError, match="32 layers; use at most 32 stages"):
        placed(33)


@given(shapes)
def test_a_full_pipeline_takes_its_slowest_stage_a_batch(shape: StepShape) -> None:
    cost = SEVERAL[3]
    columns = {name: np.array([value, value]) for name, value in shape._asdict().items()}
    slowest = max(cost.stage_seconds(shape)[0])
    assert SlowestStage(cost).seconds(shape) == slowest
    assert sum(SlowestStage(cost).terms(columns).values()) == pytest.approx([slowest, slowest], rel=1e-12)
