"""The torch side of `specfleet measure`, on a GPU that only counts bytes, and on the CPU where torch is."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType, SimpleNamespace

import pytest
from fake_torch import BYTES_PER_S, L2_BYTES, LAUNCH_S, FakeGpu, FakeTensor, fake_torch

from specfleet.experiments.measure.attention import TorchAttention, find_attention
from specfleet.experiments.measure.links import all_reduce_seconds
from specfleet.experiments.measure.points import Device, DoesNotRun, KernelCall
from specfleet.experiments.measure.timer import CpuTimer, CudaTimer
from specfleet.experiments.measure.torch_gpu import (
    NO_GPU,
    NO_TORCH,
    TorchBackend,
    Unavailable,
    cuda_backend,
)

GEMM = KernelCall("gemm", rows=8, columns=512, depth=256)
DECODE = KernelCall("decode", batch=2, context=512, query=1, heads=8, kv_heads=2, head_dim=64)
PREFILL = DECODE._replace(law="prefill", context=128, query=128)
ENGINES = ("vllm", "vllm._custom_ops", "vllm.vllm_flash_attn", "flash_attn_interface", "flash_attn")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """A fake GPU behind `import torch`; no engine is installed."""
    made = FakeGpu()
    monkeypatch.setitem(sys.modules, "torch", fake_torch(made))
    for name in ENGINES:
        monkeypatch.setitem(sys.modules, name, None)
    return made


@pytest.fixture
def backend(gpu: FakeGpu) -> TorchBackend:
    """What `specfleet measure` would time on."""
    return cuda_backend()


def test_a_timed_gemm_never_finds_its_weights_in_the_cache(backend: TorchBackend) -> None:
    weights = 2 * GEMM.columns * GEMM.depth
    assert weights < L2_BYTES, "one copy alone would stay in the cache"
    assert backend.seconds([GEMM])[0] == pytest.approx(LAUNCH_S + weights / BYTES_PER_S, rel=0.01)


def test_fp8_weights_are_a_byte_each(backend: TorchBackend) -> None:
    seconds = backend.seconds([GEMM._replace(dtype="fp8")])[0]
    assert seconds == pytest.approx(LAUNCH_S + GEMM.columns * GEMM.depth / BYTES_PER_S, rel=0.01)
    assert not backend.quantises


@pytest.mark.parametrize("query", [1, 4, 8])
def test_kv_is_read_once_and_cold_whatever_the_query_length(backend: TorchBackend, query: int) -> None:
    kv_bytes = 4 * DECODE.batch * DECODE.context * DECODE.kv_heads * DECODE.head_dim
    seconds = backend.seconds([DECODE._replace(query=query)])[0]
    assert seconds == pytest.approx(LAUNCH_S + kv_bytes / BYTES_PER_S, rel=0.01)


def test_a_copy_is_timed_by_what_it_moves_and_a_launch_by_nothing(backend: TorchBackend) -> None:
    size = 2**24
    assert backend.seconds([KernelCall("copy", message_bytes=size)])[0] == pytest.approx(
        LAUNCH_S + 2 * size / BYTES_PER_S
    )
    assert backend.seconds([KernelCall("launch_graph")])[0] == pytest.approx(LAUNCH_S, rel=1e-6)
    assert 0.0 < backend.seconds([KernelCall("launch_eager")])[0] < 1e-3


def test_a_graph_is_replayed_a_bounded_number_of_times(gpu: FakeGpu, backend: TorchBackend) -> None:
    backend.seconds([GEMM])
    assert 8 <= gpu.replays <= 50
    before = gpu.replays
    timer = CudaTimer(fake_torch(gpu), replays=15)
    timer.seconds([lambda: gpu.run()])
    assert gpu.replays - before == 17, "ranks of one all-reduce must agree on this number"


def test_what_does_not_run_says_why_in_one_line(gpu: FakeGpu, backend: TorchBackend) -> None:
    with pytest.raises(DoesNotRun, match="does not fit"):
        backend.seconds([DECODE._replace(batch=4096)])
    gpu.broken = "CUDA out of memory"
    with pytest.raises(DoesNotRun) as caught:
        backend.seconds([GEMM])
    assert str(caught.value) == "CUDA out of memory"


def test_prefill_runs_with_fewer_kv_heads_than_heads(backend: TorchBackend) -> None:
    assert backend.seconds([PREFILL])[0] > LAUNCH_S


def test_without_torch_or_a_gpu_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(Unavailable, match=r"specfleet\[gpu\]") as caught:
        cuda_backend()
    assert str(caught.value) == NO_TORCH
    monkeypatch.setitem(sys.modules, "torch", fake_torch(FakeGpu(), available=False))
    with pytest.raises(Unavailable) as caught:
        cuda_backend()
    assert str(caught.value) == NO_GPU


def test_a_gpu_full_of_something_else_is_refused(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = fake_torch(gpu)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2**20, 2**30))
    monkeypatch.setitem(sys.modules, "torch", torch)
    with pytest.raises(Unavailable, match="GiB of the GPU's memory are free"):
        cuda_backend()


def paged(gpu: FakeGpu) -> ModuleType:
    """vLLM's kernel: pages of 16 tokens, one row a query token."""

    def run(**given: FakeTensor) -> None:
        pages, block, kv_heads, width = given["k"].shape
        assert block == 16 and given["block_table"].shape == (DECODE.batch, pages // DECODE.batch)
        assert given["q"].shape[1:] == (DECODE.heads, width) and kv_heads == DECODE.kv_heads
        assert given["cu_seqlens_q"].shape == (DECODE.batch + 1,)
        assert given["seqused_k"].shape == (DECODE.batch,)
        gpu.run(given["q"], given["k"], given["v"], given["out"])

    module = ModuleType("vllm.vllm_flash_attn")
    module.flash_attn_varlen_func = run  # type: ignore[attr-defined]
    return module


def contiguous(gpu: FakeGpu) -> ModuleType:
    """The flash-attn package: (batch, tokens, heads, width)."""

    def run(query: FakeTensor, keys: FakeTensor, values: FakeTensor, **_: object) -> None:
        assert query.shape[2:] == (DECODE.heads, DECODE.head_dim)
        assert keys.shape == values.shape and keys.shape[2:] == (DECODE.kv_heads, DECODE.head_dim)
        gpu.run(query, keys, values)

    module = ModuleType("flash_attn")
    module.flash_attn_with_kvcache = run  # type: ignore[attr-defined]
    module.flash_attn_func = run  # type: ignore[attr-defined]
    return module


def test_the_engines_own_kernel_is_preferred_and_named(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cuda_backend().attention.startswith("torch")
    monkeypatch.setitem(sys.modules, "flash_attn", contiguous(gpu))
    assert cuda_backend().attention == "flash-attn 2"
    monkeypatch.setitem(sys.modules, "vllm.vllm_flash_attn", paged(gpu))
    assert cuda_backend().attention == "vLLM's FlashAttention 3"
    assert cuda_backend("flash-attn").attention == "flash-attn 2"


@pytest.mark.parametrize("kernel", ["vllm", "flash-attn", "torch"])
@pytest.mark.parametrize("point", [DECODE, DECODE._replace(query=5), PREFILL])
def test_every_kernel_reads_the_same_cold_kv(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, kernel: str, point: KernelCall
) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn", contiguous(gpu))
    monkeypatch.setitem(sys.modules, "vllm.vllm_flash_attn", paged(gpu))
    kv_bytes = 4 * point.batch * point.context * point.kv_heads * point.head_dim
    seconds = cuda_backend(kernel).seconds([point])[0]
    assert seconds == pytest.approx(LAUNCH_S + kv_bytes / BYTES_PER_S, rel=0.01)


def test_an_attention_kernel_that_is_not_there_is_refused_when_asked_for(gpu: FakeGpu) -> None:
    torch = fake_torch(gpu)
    with pytest.raises(ValueError, match="vllm cannot be used here"):
        find_attention(torch, 132, "vllm")
    with pytest.raises(ValueError, match="use one of vllm, flash-attn, torch"):
        find_attention(torch, 132, "xformers")


def test_vllms_quantise_kernel_is_part_of_an_fp8_gemm_where_it_is_installed(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    ops = ModuleType("vllm._custom_ops")

    def quantise(inputs: FakeTensor, use_per_token_if_dynamic: bool) -> tuple[FakeTensor, FakeTensor]:
        gpu.run(inputs)
        return gpu.new(inputs.shape, "float8_e4m3fn"), gpu.new(inputs.shape[0], "float32")

    def product(left: FakeTensor, right: FakeTensor, *_: object) -> None:
        gpu.scaled_mm(left, right)

    ops.scaled_fp8_quant, ops.cutlass_scaled_mm = quantise, product  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm._custom_ops", ops)
    backend = cuda_backend()
    assert backend.quantises
    assert backend.seconds([GEMM._replace(dtype="fp8")])[0] > 2 * LAUNCH_S


def test_an_all_reduce_that_fails_says_why_and_ends_its_processes() -> None:
    with pytest.raises(DoesNotRun, match="all-reduce among 2: "):
        all_reduce_seconds("cpu", 2, [-2], most_s=60.0)


def test_the_cpu_runs_the_same_path() -> None:
    """With torch where it is installed, else with the stand-in."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        torch = fake_torch(FakeGpu())
    device = Device("cpu", 4, 2**16, 2**24, 1, False)
    attention = TorchAttention(torch, device.sms)
    backend = TorchBackend(torch, device, "cpu", CpuTimer(), attention, 2**22)
    points = [
        KernelCall("launch_graph"),
        KernelCall("launch_eager"),
        KernelCall("copy", message_bytes=2**16),
        GEMM._replace(columns=64, depth=64),
        DECODE._replace(query=3, head_dim=16),
        PREFILL._replace(head_dim=16),
    ]
    assert all(backend.seconds([point])[0] > 0.0 for point in points)


def test_the_cpu_timer_takes_the_median_of_its_calls() -> None:
    clock = SimpleNamespace(calls=0)

    def count() -> None:
        clock.calls += 1

    assert CpuTimer(repeats=2).seconds([count, count]) > 0.0
    assert clock.calls == 5
