"""A stand-in for torch on a GPU that counts what its memory and its L2 cache move. No arithmetic."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

LAUNCH_S = 1e-6
BYTES_PER_S = 3e12
L2_BYTES = 2**20
_WIDTH = {"bfloat16": 2, "float8_e4m3fn": 1, "int32": 4, "float32": 4}


class FakeTensor:
    """A range of an allocation with a shape."""

    def __init__(self, gpu: FakeGpu, dtype: str, shape: tuple[int, ...], base: int, start: int = 0) -> None:
        self.gpu, self.dtype, self.shape, self.base, self.start = gpu, dtype, shape, base, start

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * _WIDTH[self.dtype]

    def _as(self, shape: tuple[int, ...], start: int = 0) -> FakeTensor:
        return FakeTensor(self.gpu, self.dtype, shape, self.base, self.start + start)

    def normal_(self) -> FakeTensor:
        return self

    def view(self, *shape: int) -> FakeTensor:
        assert math.prod(shape) == math.prod(self.shape), (shape, self.shape)
        return self._as(shape)

    def t(self) -> FakeTensor:
        return self._as((self.shape[1], self.shape[0]))

    def to(self, dtype: str) -> FakeTensor:
        return self.gpu.new(self.shape, dtype)

    def __getitem__(self, part: int | slice) -> FakeTensor:
        each = math.prod(self.shape[1:]) * _WIDTH[self.dtype]
        if isinstance(part, int):
            return self._as(self.shape[1:], part * each)
        start, stop, _ = part.indices(self.shape[0])
        return self._as((stop - start, *self.shape[1:]), start * each)

    def copy_(self, other: FakeTensor) -> FakeTensor:
        self.gpu.run(other, self)
        return self

    def add_(self, value: float) -> FakeTensor:
        self.gpu.run(self)
        return self


class FakeGpu:
    """Time passes only here: a launch, and bytes that are not in the cache. Captured work waits."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.replays = 0
        self.allocations = 0
        self.broken = ""
        self.graph: FakeGraph | None = None
        self._cache: OrderedDict[tuple[int, int], int] = OrderedDict()

    def new(self, shape: tuple[int, ...] | int, dtype: str) -> FakeTensor:
        self.allocations += 1
        return FakeTensor(self, dtype, (shape,) if isinstance(shape, int) else shape, self.allocations)

    def run(self, *operands: FakeTensor) -> None:
        if self.broken:
            raise RuntimeError(f"{self.broken}\nand a long stack")
        if self.graph is not None:
            self.graph.work.append(operands)
            return
        self.seconds += LAUNCH_S + sum(self._missing(tensor) for tensor in operands) / BYTES_PER_S

    def _missing(self, tensor: FakeTensor) -> int:
        key = (tensor.base, tensor.start)
        hit = self._cache.pop(key, 0) >= tensor.bytes
        self._cache[key] = tensor.bytes
        while sum(self._cache.values()) > L2_BYTES:
            self._cache.popitem(last=False)
        return 0 if hit else tensor.bytes

    def mm(self, left: FakeTensor, right: FakeTensor, out: FakeTensor) -> None:
        assert left.shape[1] == right.shape[0] and out.shape == (left.shape[0], right.shape[1])
        self.run(left, right, out)

    def scaled_mm(self, left: FakeTensor, right: FakeTensor, **options: object) -> None:
        assert left.dtype == right.dtype == "float8_e4m3fn" and left.shape[1] == right.shape[0]
        self.run(left, right)

    def attend(self, query: FakeTensor, keys: FakeTensor, values: FakeTensor, **options: object) -> None:
        """SDPA: (batch, heads, tokens, width), heads equal unless `enable_gqa`."""
        assert query.shape[0] == keys.shape[0] and query.shape[3] == keys.shape[3]
        assert keys.shape == values.shape
        assert options.get("enable_gqa") or query.shape[1] == keys.shape[1]
        self.run(query, keys, values)


class FakeGraph:
    """Captured work of a CUDA graph."""

    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu = gpu
        self.work: list[tuple[FakeTensor, ...]] = []

    def replay(self) -> None:
        self.gpu.replays += 1
        for operands in self.work:
            self.gpu.run(*operands)


class FakeEvent:
    """A CUDA event on the fake clock."""

    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu, self.at = gpu, 0.0

    def record(self) -> None:
        self.at = self.gpu.seconds

    def elapsed_time(self, end: FakeEvent) -> float:
        return 1e3 * (end.at - self.at)


def fake_torch(gpu: FakeGpu, name: str = "NVIDIA H100 80GB HBM3", available: bool = True) -> ModuleType:
    """A module that passes for torch in `experiments.measure_torch`."""

    @contextmanager
    def capturing(graph: FakeGraph, **_: object) -> Iterator[None]:
        gpu.graph = graph
        yield
        gpu.graph = None

    @contextmanager
    def on(_: object) -> Iterator[None]:
        yield

    def nothing(*_: object) -> None: ...

    stream = SimpleNamespace(wait_stream=nothing)
    properties = SimpleNamespace(
        name=name, multi_processor_count=132, L2_cache_size=L2_BYTES, total_memory=85_029_615_042
    )
    parts: dict[str, Callable[..., object] | object] = {
        "__version__": "2.fake",
        "bfloat16": "bfloat16",
        "float8_e4m3fn": "float8_e4m3fn",
        "float32": "float32",
        "int32": "int32",
        "empty": lambda shape, dtype, device: gpu.new(shape, dtype),
        "ones": lambda shape, dtype, device: gpu.new(shape, dtype),
        "tensor": lambda values, dtype, device: gpu.new(len(values), dtype),
        "mm": gpu.mm,
        "_scaled_mm": gpu.scaled_mm,
        "nn": SimpleNamespace(functional=SimpleNamespace(scaled_dot_product_attention=gpu.attend)),
        "cuda": SimpleNamespace(
            is_available=lambda: available,
            device_count=lambda: 1,
            get_device_properties=lambda _: properties,
            get_device_capability=lambda: (9, 0),
            mem_get_info=lambda: (2**26, 2**27),
            Stream=lambda: stream,
            current_stream=lambda: stream,
            stream=on,
            synchronize=nothing,
            empty_cache=nothing,
            CUDAGraph=lambda: FakeGraph(gpu),
            graph=capturing,
            Event=lambda enable_timing: FakeEvent(gpu),
        ),
    }
    module = ModuleType("torch")
    for key, value in parts.items():
        setattr(module, key, value)
    return module
