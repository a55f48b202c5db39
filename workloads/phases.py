"""Traffic that changes: one stretch of requests after another, each with its own rate and class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from specfleet.workloads.arrivals import OpenLoop, open_loop
from specfleet.workloads.requests import FloatArray


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


def phase_arrivals(phases: Sequence[Phase], burstiness: float, rng: np.random.Generator) -> FloatArray:
    """Arrival times in seconds: each phase as `open_loop`, from the end (n / rate) of the one before."""
    start, arrivals = 0.0, []
    for phase in phases:
        arrivals.append(start + open_loop(phase.num_prompts, phase.request_rate, burstiness, rng))
        start += phase.num_prompts / phase.request_rate
    return np.concatenate(arrivals)


class PhasedArrivals:
    """`phase_arrivals` taken in portions, with the same bytes.

    Args:
        phases, burstiness: as `phase_arrivals`.
        rng: draws the gaps, phase after phase.
    """

    def __init__(self, phases: Sequence[Phase], burstiness: float, rng: np.random.Generator) -> None:
        self._left = list(phases)
        self._burstiness = burstiness
        self._rng = rng
        self._start_s = self._next_s = 0.0
        self._rest = 0
        self._gaps: OpenLoop | None = None

    def take(self, count: int) -> FloatArray:
        """Returns the next arrival times in seconds, shape `(count,)`; fewer where there are no more."""
        parts = []
        while count and (self._rest or self._left):
            if not self._rest:
                phase = self._left.pop(0)
                self._rest = phase.num_prompts
                self._gaps = OpenLoop(self._rest, phase.request_rate, self._burstiness, self._rng)
                self._start_s, self._next_s = (
                    self._next_s,
                    self._next_s + phase.num_prompts / phase.request_rate,
                )
            assert self._gaps is not None
            part = min(count, self._rest)
            parts.append(self._start_s + self._gaps.take(part))
            count, self._rest = count - part, self._rest - part
        return np.concatenate(parts) if parts else np.zeros(0)
