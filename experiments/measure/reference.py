"""The catalogue GPU nearest to the one measured: what its datasheet says, which shipped constants it has."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from specfleet import hardware
from specfleet.experiments.measure.points import Device, TimedCall
from specfleet.hardware import catalog
from specfleet.hardware.accelerator import Accelerator
from specfleet.hardware.constants import KernelConstants, kernel_constants
from specfleet.hardware.kernels import Rates

_COPY_SHARE = 0.9
"""Share of the datasheet bandwidth that a large copy reaches: 0.88 to 0.93 on Hopper."""


class Reference(NamedTuple):
    """Rates that shares refer to, and what to compare with and to take missing laws from.

    `accelerator` is None for a GPU that the catalogue does not have: the rates are then the best measured
    ones. `shipped` names the entry of the shipped constants that is nearest.
    """

    accelerator: Accelerator | None
    shipped: str
    bytes_per_s: float
    flops_per_s: Mapping[str, float]
    sms: int

    def rates(self, dtype: str) -> Rates:
        """Rates of a GEMM in `dtype`."""
        return Rates(self.bytes_per_s, self.flops_per_s[dtype], self.sms)

    @property
    def constants(self) -> KernelConstants:
        """The shipped constants."""
        return kernel_constants(self.shipped)

    @property
    def entry(self) -> dict[str, object]:
        """The shipped constants as they stand in the file."""
        path = Path(hardware.__file__).parent / "measured" / "constants.json"
        entries: dict[str, dict[str, object]] = json.loads(path.read_text(encoding="utf-8"))
        return entries[self.shipped]


def copy_bytes_per_s(rows: Sequence[TimedCall]) -> float:
    """Bytes read and written a second by the copy; ValueError when it was not timed."""
    rates = [2 * row.point.message_bytes / row.seconds for row in rows if row.point.law == "copy"]
    if not rates:
        raise ValueError("the copy did not run: without it nothing is known of this GPU's memory")
    return max(rates)


def gemm_flops_per_s(rows: Sequence[TimedCall], dtype: str) -> float | None:
    """The best rate of any GEMM timed in `dtype`, None without one."""
    rates = [
        2.0 * p.rows * p.columns * p.depth / seconds
        for p, seconds in rows
        if p.law == "gemm" and p.dtype == dtype
    ]
    return max(rates, default=None)


def find_reference(device: Device, rows: Sequence[TimedCall], named: str | None = None) -> Reference:
    """The catalogue GPU called `named`, else the one that the driver's name, SMs, memory and speed point to.

    CatalogError (a KeyError) for a name that the catalogue does not have.
    """
    copy = copy_bytes_per_s(rows)
    known = catalog.accelerator(named) if named else _same(device, copy)
    if known is not None:
        return Reference(known, known.constants, known.hbm_bytes_per_s, known.flops_per_s, device.sms)
    best = gemm_flops_per_s(rows, "bfloat16")
    if best is None:
        raise ValueError(
            f"no BF16 GEMM ran and the catalogue has no {device.name!r}; name its nearest kin with --gpu"
        )
    nearest = min(_all(), key=lambda gpu: abs(math.log(gpu.hbm_bytes_per_s * _COPY_SHARE / copy)))
    ratio = nearest.flops_per_s.get("fp8", nearest.flops_per_s["bfloat16"]) / nearest.flops_per_s["bfloat16"]
    peaks = {
        "bfloat16": best,
        "float16": best,
        "fp8": gemm_flops_per_s(rows, "fp8") or best * ratio,
    }
    return Reference(None, nearest.constants, copy, peaks, device.sms)


def nearest(device: Device) -> Accelerator:
    """The catalogue GPU of the same chip, else the one nearest in memory; nothing has been timed yet."""
    words = set(re.split(r"[^a-z0-9]+", device.name.lower()))
    kin = [gpu for gpu in _all() if gpu.name.split("-")[0] in words and gpu.sms == device.sms]
    return min(kin or _all(), key=lambda gpu: abs(math.log(gpu.hbm_bytes / device.memory_bytes)))


def _same(device: Device, copy: float) -> Accelerator | None:
    """The catalogue GPU of the same chip (its name is a word of the driver's) nearest in memory and speed."""
    words = set(re.split(r"[^a-z0-9]+", device.name.lower()))
    kin = [gpu for gpu in _all() if gpu.name.split("-")[0] in words and gpu.sms == device.sms]

    def distance(gpu: Accelerator) -> float:
        memory = abs(math.log(gpu.hbm_bytes / device.memory_bytes))
        return memory + abs(math.log(gpu.hbm_bytes_per_s * _COPY_SHARE / copy))

    return min(kin, key=distance, default=None)


def _all() -> list[Accelerator]:
    return [catalog.accelerator(name) for name in catalog.names("accelerators")]
