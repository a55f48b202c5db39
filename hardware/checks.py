"""What a placement takes: values, shapes that divide among GPUs, rates that constants were fitted with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from specfleet.hardware.accelerator import Accelerator
from specfleet.hardware.constants import KernelConstants, measured_file
from specfleet.hardware.model import ModelSpec
from specfleet.hardware.pipeline.stages import divisible

_T = TypeVar("_T")


def given(value: _T | None, default: _T) -> _T:
    """A value, or its default where it is None."""
    return default if value is None else value


def one_of(key: str, value: str | None, allowed: Iterable[str | None]) -> None:
    """ValueError where a value is not among those allowed."""
    names = tuple(allowed)
    if value not in names:
        raise ValueError(f"{key} is {value!r}; use one of {', '.join(map(str, names))}")


def span(limits: tuple[float, float]) -> str:
    """Two limits in words."""
    return f"{limits[0]:g} to {limits[1]:g}"


def check_sharding(model: ModelSpec, tp: int, key: str, ways: int | None = None) -> None:
    """ValueError where heads or widths do not divide; experts are cut in `ways` (`tp` if left out)."""
    if tp < 1:
        raise ValueError(f"{key} is {tp}; it must be at least 1")
    widths = {"num_heads": model.num_heads}
    if model.num_dense_layers or not model.num_experts:
        widths["intermediate_size"] = model.intermediate_size
    if model.num_experts:
        widths["moe_intermediate_size"] = model.moe_intermediate_size
        widths["shared_expert_intermediate_size"] = model.shared_expert_intermediate_size
    for what, width in widths.items():
        if width % (ways or tp if what == "moe_intermediate_size" else tp):
            raise ValueError(f"{key} {tp} does not divide {what} {width} of {model.name}")
    heads = model.num_kv_heads
    if max(heads, tp) % min(heads, tp):
        raise ValueError(f"{key} {tp} and num_kv_heads {heads} of {model.name}: one must divide the other")


def check_measured(gpu: Accelerator, constants: KernelConstants) -> None:
    """The user's own constants are shares of a bandwidth and peaks that must be this GPU's."""
    sheet = constants.datasheet
    if not measured_file(gpu.constants):
        return
    rates = {"hbm_bytes_per_s": (gpu.hbm_bytes_per_s, sheet.bytes_per_s)}
    for dtype, rate in sheet.flops_per_s.items():
        rates[f"flops_per_s.{dtype}"] = (gpu.flops_per_s.get(dtype, rate), rate)
    for key, (stated, measured) in rates.items():
        if abs(stated / measured - 1.0) > 1e-3:
            raise ValueError(
                f"{gpu.constants} was fitted with {key} = {measured:.4g}, {gpu.name} has {stated:.4g}; "
                "measured constants are shares of it: keep the rate they were fitted with"
            )


def check_stages(model: ModelSpec, stages: int, ranks: int) -> None:
    """ValueError where layers cannot be dealt out to stages, or ranks share experts besides."""
    if ranks > 1:
        raise ValueError("data-parallel ranks that share experts are priced without pipeline stages")
    if why_not := divisible(model, stages):
        raise ValueError(f"pipeline_parallel_size {stages}: {why_not}")
