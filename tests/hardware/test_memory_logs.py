"""Pools that public start-up logs show: with their components given, and with nothing given."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from specfleet.hardware import catalog
from specfleet.hardware.kvbudget import KvBudget
from specfleet.hardware.memory import GIB, MemoryGiven, kv_budget
from specfleet.hardware.placement import Placement


class Log(NamedTuple):
    """One start-up log on an H100 with 79.19 GiB at 0.95: components in GiB, pool in tokens or GiB."""

    model: str
    engine: str
    weights: float
    activation: float
    non_torch: float
    tokens: int | None = None
    pool_gib: float | None = None
    options: dict[str, Any] = {}  # noqa: RUF012 - never changed


LOGS = [
    Log("llama-3.1-8b", "vllm-0.19", 14.99, 1.89, 0.25, tokens=476_016),
    Log("llama-3.1-8b", "vllm-0.19", 14.99, 1.89, 0.25, tokens=952_032, options={"kv_cache_dtype": "fp8"}),
    Log("llama-3.1-8b", "vllm-0.19", 8.49, 1.89, 0.25, tokens=529_248, options={"quantization": "fp8"}),
    Log("llama-3.1-8b", "vllm-0.19", 7.51, 1.89, 2.07, pool_gib=63.76, options={"tensor_parallel_size": 2}),
    Log("llama-3.1-8b", "vllm-0.19", 3.77, 1.89, 2.13, pool_gib=67.44, options={"tensor_parallel_size": 4}),
    Log("qwen2.5-7b", "vllm-0.19", 14.25, 2.21, 0.24, tokens=1_096_000),
    Log("qwen3-14b", "vllm-0.15", 27.52, 5.64, 0.13, pool_gib=41.94),
    Log("qwen3-14b", "vllm-0.16", 27.52, 5.64, 0.13, pool_gib=41.94),
    Log("qwen3-14b", "vllm-0.17", 27.52, 2.23, 0.13, pool_gib=45.34),
    Log("qwen3-14b", "vllm-0.18", 27.52, 2.23, 0.25, pool_gib=45.23),
]


def budget(model: str, engine: str, given: MemoryGiven | None = None, **options: Any) -> KvBudget:
    length = options.pop("max_model_len", None)
    gpu = options.pop("gpu", "h100-sxm")
    place = Placement.of(
        catalog.model(model),
        catalog.accelerator(gpu),
        catalog.engine_profile(engine),
        **{"gpu_memory_utilization": 0.95, **options},
    )
    return kv_budget(place, given=given, max_model_len=length)


def logged_blocks(log: Log, like: KvBudget) -> int:
    if log.tokens is not None:
        return log.tokens // like.block_size
    assert log.pool_gib is not None
    return int(log.pool_gib * GIB) // (like.block_size * like.bytes_per_token)


@pytest.mark.parametrize("log", LOGS, ids=str)
def test_given_components_meet_the_logged_blocks(log: Log) -> None:
    given = MemoryGiven.gib(
        device=79.19, weights=log.weights, activation=log.activation, non_torch=log.non_torch
    )
    found = budget(log.model, log.engine, given, **log.options)
    rounding = 0.005 * GIB // (found.block_size * found.bytes_per_token) if log.pool_gib else 0
    assert abs(found.num_gpu_blocks - logged_blocks(log, found)) <= 3 + rounding


@pytest.mark.parametrize("log", LOGS, ids=str)
def test_the_rules_alone_meet_every_line_of_the_log(log: Log) -> None:
    found = budget(log.model, log.engine, **log.options)
    lines = {label.split()[0]: size / GIB for label, size in found.lines}
    assert lines["weights"] == pytest.approx(log.weights, abs=0.006)
    assert lines["activations"] == pytest.approx(log.activation, abs=0.06)
    assert lines["beyond"] == pytest.approx(log.non_torch, abs=0.011)
    assert found.num_gpu_blocks == pytest.approx(logged_blocks(log, found), rel=0.002)


def test_the_triton_top_k_kernel_gave_back_eight_percent_of_a_14b_pool() -> None:
    before, after = (
        budget("qwen3-14b", engine).max_concurrency(8192) for engine in ("vllm-0.16", "vllm-0.17")
    )
    assert after / before - 1 == pytest.approx(0.081, abs=0.01)
    assert before == pytest.approx(33.55, abs=0.05)
    assert after == pytest.approx(36.27, abs=0.02)


def test_the_pool_does_not_depend_on_the_length_and_fp8_kv_doubles_its_tokens() -> None:
    pools = {budget("llama-3.1-8b", "vllm-0.19", max_model_len=n).tokens for n in (2048, 8192, 32_768)}
    assert len(pools) == 1
    halved = budget("llama-3.1-8b", "vllm-0.19", kv_cache_dtype="fp8")
    assert halved.num_gpu_blocks // 2 * 16 in pools
    assert f"{budget('llama-3.1-8b', 'vllm-0.19').max_concurrency(8192):.2f}" == "58.11"


@pytest.mark.parametrize(
    ("length", "pool_gib", "tokens", "starts"),
    [(20_000, 3.81, 31_232, True), (29_000, 2.89, 23_648, False), (35_000, None, None, True)],
)
def test_before_v1_a_longer_prompt_shrinks_the_pool_until_chunks_come(
    length: int, pool_gib: float | None, tokens: int | None, starts: bool
) -> None:
    card = {"base": "l40s", "hbm_bytes": int(23.58 * GIB)}
    options: dict[str, Any] = {"gpu": card, "gpu_memory_utilization": 0.9, "max_model_len": length}
    found = budget("llama-3.1-8b", "vllm-0.6", **options)
    assert (found.refusal(length) is None) == starts
    if tokens is not None:
        assert found.tokens == pytest.approx(tokens, rel=0.005)
        given = budget("llama-3.1-8b", "vllm-0.6", MemoryGiven.gib(available=pool_gib), **options)
        assert abs(given.tokens - tokens) <= 3 * 16


def test_the_refusal_prints_both_lengths() -> None:
    found = budget("llama-3.1-8b", "vllm-0.6", MemoryGiven.gib(available=2.8875), max_model_len=29_000)
    refusal = found.refusal(29_000)
    assert refusal is not None and "29,000 tokens" in refusal and "23,648" in refusal


def test_a_pool_of_blocks_of_128_and_what_one_request_takes_of_it() -> None:
    given = MemoryGiven.gib(device=79.18, weights=44.76, activation=2.12, non_torch=0.14)
    found = budget("mistral-small-3.2-24b", "vllm-0.11", given, block_size=128)
    assert (found.num_gpu_blocks, found.tokens) == (1444, 184_832)
    assert f"{found.max_concurrency(16_000):.2f}" == "11.55"
    assert found.blocks(15_049) == 118
    assert 100 * found.blocks(15_049) / found.num_gpu_blocks == pytest.approx(8.18, abs=0.02)
    ruled = budget("mistral-small-3.2-24b", "vllm-0.11", block_size=128)
    assert ruled.tokens == pytest.approx(184_832, rel=0.005)


@pytest.mark.parametrize(
    ("blocks", "length", "line"),
    [
        (127_626, 2048, "Maximum concurrency for 2,048 tokens per request: 997.08x"),
        (1381, 2048, "Maximum concurrency for 2,048 tokens per request: 10.79x"),
        (2666, 32_768, "Maximum concurrency for 32,768 tokens per request: 1.30x"),
        (25_408 // 16, 4096, "Maximum concurrency for 4,096 tokens per request: 6.20x"),
    ],
)
def test_the_concurrency_line_rounds_as_the_log_does(blocks: int, length: int, line: str) -> None:
    for by_request in (False, True):
        found = KvBudget((), 163_840, 16, blocks, prints_tokens_by_request=by_request)
        assert found.concurrency_line(length) == line
        assert f"GPU KV cache size: {blocks * 16:,} tokens" in found.render(length)


def test_quantised_weights_leave_the_bytes_of_a_token_alone() -> None:
    plain = budget("qwen2.5-7b", "vllm-0.19")
    small = budget("qwen2.5-7b", "vllm-0.19", quantization="fp8")
    assert plain.bytes_per_token == small.bytes_per_token == 57_344
    assert plain.factors == "2 x 28 layers x 4 KV heads x 128 x 2 B"
    assert plain.request_bytes(3072) / GIB == pytest.approx(0.164, rel=0.03)
    shares = [plain.utilization_for(n, 3072) for n in (5, 20, 50)]
    assert None not in shares
    gib = [share * 79.19 for share in shares if share is not None]
    assert (gib[1] - gib[0]) / 15 == pytest.approx(0.164, rel=0.01)
    assert (gib[2] - gib[1]) / 30 == pytest.approx(0.164, rel=0.01)
