"""Step prices by name."""

from __future__ import annotations

from collections.abc import Callable

from specfleet.hardware.aiconfigurator import AiconfiguratorCost
from specfleet.hardware.pipeline.cost import kernel_cost
from specfleet.hardware.placement import Placement
from specfleet.hardware.roofline import RooflineCost
from specfleet.hardware.stepcost import StepCost

COST_MODELS: dict[str, Callable[[Placement], StepCost]] = {
    "kernels": kernel_cost,
    "roofline": RooflineCost,
    "aiconfigurator": AiconfiguratorCost,
}
