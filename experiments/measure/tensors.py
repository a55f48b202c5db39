"""Random data on a GPU, handed out so that no timed call finds its operand in the L2 cache."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Protocol

from specfleet.experiments.measure.points import DoesNotRun

BETWEEN_REUSES = 4
"""Bytes read between two uses of an operand, in L2 sizes."""

_MOST_COPIES = 512


class Tensor(Protocol):
    """The part of a torch tensor that is used here."""

    def __getitem__(self, part: int | slice) -> Tensor:
        """Some of its elements."""
        ...

    def view(self, *shape: int) -> Tensor:
        """The same elements in another shape."""
        ...

    def t(self) -> Tensor:
        """The transposed matrix."""
        ...

    def to(self, dtype: object) -> Tensor:
        """A copy in another type."""
        ...

    def copy_(self, other: Tensor) -> Tensor:
        """Overwrite with another tensor."""
        ...

    def add_(self, value: float) -> Tensor:
        """Add a number in place."""
        ...


def copies(operand_bytes: int, l2_bytes: int) -> int:
    """Operands of a size that cool the cache in turn, at least one."""
    return max(1, min(math.ceil(BETWEEN_REUSES * l2_bytes / operand_bytes), _MOST_COPIES))


class OperandPool:
    """Standard normal BF16 numbers in one allocation, and the same in FP8 when first asked for.

    Operands are views of it: a shape is free, and rotating over many of them keeps the cache cold. Random
    bits make the GPU draw the power that weights make it draw; constants would let it run faster.
    """

    def __init__(self, torch: ModuleType, device: str, size_bytes: int, l2_bytes: int) -> None:
        """Fill `size_bytes` of the device's memory."""
        self._torch = torch
        self._device = device
        self._l2_bytes = l2_bytes
        self._elements = size_bytes // 2
        self._flat: dict[str, Tensor] = {
            "bfloat16": torch.empty(self._elements, dtype=torch.bfloat16, device=device).normal_()
        }

    def cold(self, dtype: str, *shape: int) -> list[Tensor]:
        """Operands of a shape, as many as cool the cache in turn, at least one.

        Raises DoesNotRun when a single one is larger than the pool.
        """
        size = math.prod(shape)
        if size > self._elements:
            raise DoesNotRun(f"an operand of {2 * size / 2**30:.1f} GiB does not fit beside the others")
        element_bytes = 1 if dtype == "fp8" else 2
        count = min(copies(size * element_bytes, self._l2_bytes), self._elements // size)
        flat = self._in(dtype)
        return [flat[at * size : (at + 1) * size].view(*shape) for at in range(count)]

    def one(self, dtype: str, *shape: int) -> Tensor:
        """An operand that earlier kernels of a step leave in the cache: activations, queries."""
        return self.cold(dtype, *shape)[0]

    def empty(self, *shape: int) -> Tensor:
        """BF16 room for a result."""
        made: Tensor = self._torch.empty(shape, dtype=self._torch.bfloat16, device=self._device)
        return made

    def integers(self, values: range | list[int], *shape: int) -> Tensor:
        """A 32-bit integer tensor, as sequence lengths and block tables are."""
        flat: Tensor = self._torch.tensor(list(values), dtype=self._torch.int32, device=self._device)
        return flat.view(*shape) if shape else flat

    def _in(self, dtype: str) -> Tensor:
        if dtype not in self._flat:
            self._flat[dtype] = self._flat["bfloat16"].to(self._torch.float8_e4m3fn)
        return self._flat[dtype]
