"""Runs points with torch, on a CUDA GPU; on the CPU for tests of the same path."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from functools import partial
from types import ModuleType

from specfleet.experiments.measure.attention import Attention, find_attention
from specfleet.experiments.measure.links import all_reduce_seconds
from specfleet.experiments.measure.points import Device, DoesNotRun, KernelCall
from specfleet.experiments.measure.tensors import BETWEEN_REUSES, OperandPool, Tensor
from specfleet.experiments.measure.timer import Call, CudaTimer, Timer, first_line

NO_TORCH = (
    "specfleet measure needs PyTorch, which is not installed: "
    "pip install 'specfleet[gpu]' on the machine with the GPU"
)
NO_GPU = "PyTorch sees no CUDA GPU here; run specfleet measure on the machine that serves the model"

_LAUNCHES = 512
_MOST_POOL_BYTES = 40 * 2**30


class Unavailable(Exception):  # noqa: N818 (what the user lacks, in one sentence)
    """Nothing to measure on: no torch, or no GPU."""


class TorchBackend:
    """Times points on one device. FP8 GEMMs include vLLM's quantise kernel where vLLM is installed."""

    def __init__(
        self,
        torch: ModuleType,
        device: Device,
        place: str,
        timer: Timer,
        attention: Attention,
        pool_bytes: int,
    ) -> None:
        """`place` is torch's name of the device ("cuda", "cpu"); `pool_bytes` of it are filled."""
        self._torch = torch
        self._place = place
        self._timer = timer
        self._attention = attention
        self._pool = OperandPool(torch, place, pool_bytes, device.l2_bytes)
        self._fp8 = _vllm_fp8() if place == "cuda" else None
        self.device = device
        self.software = f"torch {torch.__version__}"
        self.attention = attention.name
        self.quantises = self._fp8 is not None

    def seconds(self, points: Sequence[KernelCall]) -> list[float]:
        """As `Backend.seconds`."""
        first = points[0]
        if first.law == "all_reduce":
            return all_reduce_seconds(self._place, first.gpus, [point.message_bytes for point in points])
        try:
            return [self._one(point) for point in points]
        except RuntimeError as error:
            raise DoesNotRun(first_line(error)) from None

    def _one(self, point: KernelCall) -> float:
        if point.law == "launch_eager":
            return self._timer.launch_s(self._empty_kernel())
        return self._timer.seconds(self._calls(point))

    def _calls(self, point: KernelCall) -> list[Call]:
        if point.law == "launch_graph":
            return [self._empty_kernel()] * _LAUNCHES
        if point.law == "copy":
            return self._copies(point)
        if point.law == "gemm":
            return self._scaled_gemms(point) if point.dtype == "fp8" else self._gemms(point)
        kernel = self._attention.decode if point.law == "decode" else self._attention.prefill
        return kernel(self._pool, point)

    def _empty_kernel(self) -> Call:
        """A kernel on one number: what remains is its launch."""
        number = self._pool.empty(1)
        return lambda: number.add_(1.0)

    def _copies(self, point: KernelCall) -> list[Call]:
        source = self._pool.one("bfloat16", point.message_bytes // 2)
        target = self._pool.empty(point.message_bytes // 2)
        return [lambda: target.copy_(source)]

    def _gemms(self, point: KernelCall) -> list[Call]:
        """x @ W^T with W stored (columns x depth), as linear layers store it."""
        inputs = self._pool.one("bfloat16", point.rows, point.depth)
        out = self._pool.empty(point.rows, point.columns)

        def product(weight: Tensor) -> object:
            return self._torch.mm(inputs, weight.t(), out=out)

        weights = self._pool.cold("bfloat16", point.columns, point.depth)
        return [partial(product, weight) for weight in weights]

    def _scaled_gemms(self, point: KernelCall) -> list[Call]:
        """FP8 with one scale a token and one a weight matrix in vLLM's kernels, one scale each in torch's."""
        weights = self._pool.cold("fp8", point.columns, point.depth)
        one = self._torch.ones(1, dtype=self._torch.float32, device=self._place)
        half = self._torch.bfloat16
        if self._fp8 is not None:
            ops, inputs = self._fp8, self._pool.one("bfloat16", point.rows, point.depth)

            def quantised(weight: Tensor) -> object:
                small, scale = ops.scaled_fp8_quant(inputs, use_per_token_if_dynamic=True)
                return ops.cutlass_scaled_mm(small, weight.t(), scale, one, half)

            return [partial(quantised, weight) for weight in weights]
        small = self._pool.one("fp8", point.rows, point.depth)

        def product(weight: Tensor) -> object:
            return self._torch._scaled_mm(small, weight.t(), scale_a=one, scale_b=one, out_dtype=half)

        return [partial(product, weight) for weight in weights]


def cuda_backend(wanted_attention: str | None = None) -> TorchBackend:
    """The first CUDA GPU that torch sees.

    Raises Unavailable without torch or a GPU, ValueError for an attention kernel that is not installed.
    """
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        raise Unavailable(NO_TORCH) from None
    if not torch.cuda.is_available():
        raise Unavailable(NO_GPU)
    device = cuda_device(torch)
    free, _ = torch.cuda.mem_get_info()
    size = min(int(free) // 2, _MOST_POOL_BYTES)
    least = 2 * BETWEEN_REUSES * device.l2_bytes
    if size < least:
        raise Unavailable(
            f"only {free / 2**30:.1f} GiB of the GPU's memory are free, {least / 2**29:.1f} are needed; "
            "stop what runs there (it would also disturb the timing)"
        )
    attention = find_attention(torch, device.sms, wanted_attention)
    return TorchBackend(torch, device, "cuda", CudaTimer(torch), attention, size)


def cuda_device(torch: ModuleType) -> Device:
    """The first GPU, and whether all GPUs of this server reach each other's memory."""
    properties = torch.cuda.get_device_properties(0)
    count = int(torch.cuda.device_count())
    return Device(
        name=str(properties.name),
        sms=int(properties.multi_processor_count),
        l2_bytes=int(properties.L2_cache_size),
        memory_bytes=int(properties.total_memory),
        gpus=count,
        peers=count > 1 and all(torch.cuda.can_device_access_peer(0, other) for other in range(1, count)),
    )


def _vllm_fp8() -> ModuleType | None:
    """vLLM's kernels, if vLLM is installed with them."""
    try:
        ops = importlib.import_module("vllm._custom_ops")
    except (ImportError, OSError):
        return None
    return ops if hasattr(ops, "scaled_fp8_quant") and hasattr(ops, "cutlass_scaled_mm") else None
