"""SGLang's automatic values, against its own resolution for five GPUs, and its memory rule in closed form.

The table was read off `ServerArgs` of SGLang 0.5.23 (Llama, CUDA default for prefill graphs).
"""

from __future__ import annotations

import pytest

from specfleet.hardware import catalog
from specfleet.hardware.memory import kv_budget, kv_bytes_per_token
from specfleet.hardware.placement import Placement
from specfleet.hardware.sglang.defaults import (
    MIB,
    SglangDefaults,
    draft_shape,
    max_running_requests,
    max_running_requests_with_drafts,
)

RESOLVED = {
    24_564: (4096, (48, 160), (0.704, 0.698, 0.679, 0.658)),
    46_068: (4096, (32, 160), (0.843, 0.840, 0.829, 0.818)),
    81_559: (8192, (256, 512), (0.830, 0.828, 0.819, 0.812)),
    143_771: (8192, (256, 512), (0.903, 0.902, 0.897, 0.893)),
    183_359: (16384, (512, 512), (0.854, 0.853, 0.852, 0.849)),
}


@pytest.mark.parametrize("mib", RESOLVED)
def test_chunk_graphs_and_memory_share_are_those_that_sglang_resolves(mib: int) -> None:
    chunk, graphs, fractions = RESOLVED[mib]
    for tp, fraction in zip((1, 2, 4, 8), fractions, strict=True):
        found = SglangDefaults(mib * MIB, tp)
        assert found.chunked_prefill_size == chunk
        assert found.cuda_graph_max_bs == graphs[tp >= 4]
        assert found.mem_fraction_static == fraction


def test_a_gpu_of_the_catalogue_counts_with_what_the_driver_tells_sglang() -> None:
    assert SglangDefaults(catalog.accelerator("h100-sxm").hbm_bytes, 1).reported_mib == 81_559
    assert SglangDefaults(catalog.accelerator("l40s").hbm_bytes, 1).mem_fraction_static == 0.843


def test_ranks_of_dp_attention_share_chunk_and_requests_and_keep_memory_for_their_graphs() -> None:
    """`_handle_gpu_memory_settings` and `_handle_data_parallelism`: 3 MiB a rank and graph, 4.5 above 300."""
    h200 = SglangDefaults(143_771 * MIB, 8, 8)
    assert h200.chunked_prefill_size == 8192 // 8
    reserved = 512 + 1.5 * 8192 + 128 * 8 + 2 * 512 + 8 * 58 + 8 * 512 * (3 + 1.5)
    assert h200.mem_fraction_static == round(1 - reserved / 143_771, 3) == 0.765
    small = SglangDefaults(81_559 * MIB, 2, 2)
    reserved = 512 + 1.5 * 8192 + 128 * 2 + 2 * 256 + 8 * 58 + 2 * 256 * 3
    assert small.mem_fraction_static == round(1 - reserved / 81_559, 3)
    assert [max_running_requests_with_drafts(dp) for dp in (1, 8, 64)] == [48, 6, 1]


def test_a_chunk_that_is_given_sizes_the_memory_share() -> None:
    """`handle_gpu_memory_settings`: 1.5 MiB a token, 2048 at least, and 8 MiB a prompt size up to it."""

    def share(reserved: float) -> float:
        return round(1 - reserved / 46_068, 3)

    fixed = 512 + 128 + 2 * 32
    for chunk, sizes in ((512, 30), (2048, 42), (4096, 50), (8192, 58), (16_384, 74)):
        found = SglangDefaults(46_068 * MIB, 1, chunk=chunk)
        assert found.mem_fraction_static == share(fixed + 1.5 * max(chunk, 2048) + 8 * sizes)
        assert found.chunked_prefill_size == 4096
    assert (
        SglangDefaults(46_068 * MIB, 1, chunk=4096).mem_fraction_static
        == SglangDefaults(46_068 * MIB, 1).mem_fraction_static
    )
    without = SglangDefaults(46_068 * MIB, 1, chunk=0)
    assert without.mem_fraction_static == share(fixed + 1.5 * 16_384)
    latent = SglangDefaults(143_771 * MIB, 8, latent=True).mem_fraction_static
    assert latent == round(1 - (512 + 1.5 * 8192 + 128 * 8 + 2 * 512 + 1536) / 143_771, 3)


def test_a_chunk_in_a_file_makes_the_pool_smaller_and_one_without_chunks_smaller_still() -> None:
    tokens = [
        SglangDefaults(46_068 * MIB, 1, chunk=chunk).mem_fraction_static for chunk in (2048, None, 8192, 0)
    ]
    assert tokens == sorted(tokens, reverse=True) and len(set(tokens)) == 4
    big, small = (placement(max_num_batched_tokens=chunk).gpu_memory_utilization for chunk in (16_384, 4096))
    assert big < 0.83 < small
    latent = catalog.model("deepseek-v3").latent, catalog.model("llama-3.1-8b-instruct").latent
    assert latent == (True, False)


def test_ranks_of_several_gpus_have_graphs_only_for_tokens_that_their_gpus_share_out() -> None:
    """`get_batch_sizes_to_capture` with DP attention: tokens are a multiple of a rank's GPUs."""
    ranks = SglangDefaults(143_771 * MIB, 8, 2)
    assert ranks.capture_batches(4096, 1)[:5] == (4, 8, 12, 16, 24)
    assert ranks.capture_batches(24, 4)[:3] == (1, 2, 3)
    assert ranks.capture_batches(24, 3) == (4, 8, 12, 16, 20, 24)
    assert ranks.capture_batches(6, 1) == (4, 8)
    alone = SglangDefaults(143_771 * MIB, 8, 8)
    assert alone.capture_batches(6, 4) == (1, 2, 3, 4, 5, 6)


def test_graphs_end_at_the_request_slots_and_are_denser_with_drafts() -> None:
    gpu = SglangDefaults(81_559 * MIB, 1)
    assert gpu.capture_batches(48, 4) == (*range(1, 9), *range(10, 33, 2), 40, 44, 48)
    assert gpu.capture_batches(50, 4)[-3:] == (44, 48, 50)
    assert gpu.capture_batches(6, 1) == (1, 2, 4, 6)
    assert gpu.capture_batches(4096, 1)[:7] == (1, 2, 4, 8, 12, 16, 24)
    assert gpu.capture_batches(4096, 1)[-1] == 256
    assert SglangDefaults(81_559 * MIB, 4).capture_batches(4096, 1)[-3:] == (480, 496, 512)


def test_requests_follow_the_pool_and_drafts_the_model() -> None:
    assert max_running_requests(400_000, 8192) == 4096
    assert max_running_requests(400_000, 131_072) == 2048
    assert max_running_requests(1000, 8192) == 500
    assert draft_shape("meta-llama/Llama-3.1-8B-Instruct", "eagle3") == (5, 4, 8)
    assert draft_shape("deepseek-ai/DeepSeek-V3", "eagle") == (3, 1, 4)
    assert draft_shape("meta-llama/Llama-3.1-8B-Instruct", "draft_model") == (3, 1, 4)


def placement(**more: object) -> Placement:
    """An 8B on one H100."""
    return Placement.of(
        catalog.model("meta-llama/Llama-3.1-8B-Instruct"),
        catalog.accelerator("h100-sxm"),
        catalog.engine_profile("sglang"),
        block_size=1,
        **more,  # type: ignore[arg-type]
    )


def test_the_pool_is_the_share_less_weights_and_a_drafter_layer_counts_as_one_of_the_targets() -> None:
    plain, drafter = placement(), catalog.drafter("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B")
    drafted = placement(drafter=drafter, num_speculative_tokens=3)
    assert kv_bytes_per_token(plain) == 2 * 32 * 8 * 128 * 2
    assert kv_bytes_per_token(drafted) == 2 * 33 * 8 * 128 * 2
    budget = kv_budget(drafted)
    labels = [label for label, _ in budget.lines]
    assert not [label for label in labels if "activations" in label or "graphs" in label]
    usable, *rest, pool = (size for _, size in budget.lines)
    assert pool == usable - sum(rest)
    assert usable == int(0.83 * drafted.accelerator.hbm_bytes)


def test_a_verification_of_all_requests_can_be_priced() -> None:
    drafter = catalog.drafter("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B")
    place = placement(drafter=drafter, num_speculative_tokens=7, max_num_seqs=2000, max_num_batched_tokens=64)
    assert place.largest_step == 16_000


@pytest.mark.parametrize("mib", RESOLVED)
def test_a_gpu_within_three_percent_of_a_known_one_counts_as_that_and_no_other(mib: int) -> None:
    for share, found in (
        (0.971, mib),
        (1.029, mib),
        (0.969, round(0.969 * mib)),
        (1.031, round(1.031 * mib)),
    ):
        assert SglangDefaults(round(share * mib) * MIB, 1).reported_mib == found
