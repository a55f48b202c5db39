"""A sample with integer weights, read as if every value were written out as often as it weighs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Samples:
    """Values and how often each occurs.

    Args:
        values: shape `(n,)`.
        weights: non-negative integers, shape `(n,)`.
    """

    values: F64
    weights: npt.NDArray[np.int64]

    @classmethod
    def of(cls, values: npt.ArrayLike) -> Samples:
        """Returns a sample in which every value occurs once."""
        array = np.asarray(values, dtype=np.float64)
        return cls(array, np.ones(len(array), dtype=np.int64))

    def __len__(self) -> int:
        """Occurrences in all."""
        return int(self.weights.sum())

    def mean(self) -> float:
        """Returns the mean; 0 for an empty sample, as `vllm bench serve` prints it."""
        return float(self.values @ self.weights / len(self)) if len(self) else 0.0

    def std(self) -> float:
        """Returns the population standard deviation; 0 for an empty sample."""
        if not len(self):
            return 0.0
        return float(np.sqrt(((self.values - self.mean()) ** 2) @ self.weights / len(self)))

    def percentiles(self, percents: list[float]) -> list[float]:
        """Returns percentiles as `numpy.percentile` would on the written-out sample (linear)."""
        if not len(self):
            return [0.0] * len(percents)
        order = np.argsort(self.values, kind="stable")
        values, ends = self.values[order], np.cumsum(self.weights[order])
        places = np.asarray(percents) / 100.0 * (len(self) - 1)
        below = np.floor(places)
        low = values[np.searchsorted(ends, below, side="right")]
        high = values[np.searchsorted(ends, np.minimum(below + 1, len(self) - 1), side="right")]
        return [float(x) for x in low + (high - low) * (places - below)]
