"""Traffic that changes: one stretch of requests after another, each with its own rate and class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workloads.arrivals import open_loop
from workloads.requests import FloatArray, IntArray


@dataclass(frozen=True)
class Phase:
    """`num_prompts` requests at `request_rate` (requests/s; inf: as soon as there is a free slot), all of one
    class. ValueError for values out of range."""

    num_prompts: int
    request_rate: float = math.inf
    traffic_class: str = "default"

    def __post_init__(self) -> None:
        """Reject an empty phase and a rate that is not positive."""
        if self.num_prompts < 1 or not self.request_rate > 0:
            raise ValueError(
                f"a phase needs at least one request and a positive rate, got {self.num_prompts} at "
                f"{self.request_rate}"
            )


def class_names(phases: Sequence[Phase]) -> list[str]:
    """Classes in the order in which they first come."""
    return list(dict.fromkeys(phase.traffic_class for phase in phases))


def phase_classes(phases: Sequence[Phase]) -> IntArray:
    """Index into `class_names` of every request."""
    names = class_names(phases)
    return np.repeat(
        [names.index(phase.traffic_class) for phase in phases], [phase.num_prompts for phase in phases]
    ).astype(np.int64)


def phase_arrivals(phases: Sequence[Phase], burstiness: float, rng: np.random.Generator) -> FloatArray:
    """Arrival times in seconds: each phase as `open_loop`, from the end (n / rate) of the one before."""
    start, arrivals = 0.0, []
    for phase in phases:
        arrivals.append(start + open_loop(phase.num_prompts, phase.request_rate, burstiness, rng))
        start += phase.num_prompts / phase.request_rate
    return np.concatenate(arrivals)
