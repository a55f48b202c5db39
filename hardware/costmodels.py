"""Step prices by name."""

from __future__ import annotations

from collections.abc import Callable

from specfleet.hardware.aiconfigurator import AiconfiguratorCost
from specfleet.hardware.placement import Placement
from specfleet.hardware.roofline import RooflineCost
from specfleet.hardware.stepcost import KernelCost, StepCost

COST_MODELS: dict[str, Callable[[Placement], StepCost]] = {
    "kernels": KernelCost,
    "roofline": RooflineCost,
    "aiconfigurator": AiconfiguratorCost,
}
