"""Values of a run in the order of time, each as often as it weighs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Series:
    """What was seen in one run, in the order in which it happened: neighbours may be correlated.

    Args:
        values: finite, shape `(n,)`.
        weights: how often each occurs, from 0, shape `(n,)`; None: once each.
        ordered: whether the order is that of time; if not, the run as a whole is one batch.
    """

    values: F64
    weights: F64 | None = None
    ordered: bool = True

    def __post_init__(self) -> None:
        """Checks the shapes.

        Raises:
            ValueError: if there is not one weight a value.
        """
        if self.values.ndim != 1 or (self.weights is not None and self.weights.shape != self.values.shape):
            raise ValueError("a series is a column of values, with a weight each or none")

    @classmethod
    def in_order(cls, times_s: F64, values: F64, weights: npt.NDArray[Any] | None = None) -> Series:
        """Returns a series of values that happened at `times_s`, in whatever order they are given."""
        order = np.argsort(times_s, kind="stable")
        weighed = None if weights is None else np.asarray(weights, dtype=np.float64)[order]
        return cls(np.asarray(values, dtype=np.float64)[order], weighed)

    @classmethod
    def of_counts(cls, values: F64, counts: npt.NDArray[Any]) -> Series:
        """Returns a run of which only a histogram is kept: it takes several to bound a figure.

        Args:
            values: what the bins stand for, shape `(n,)`.
            counts: how many fell into each.
        """
        return cls(values, np.asarray(counts, dtype=np.float64), ordered=False)

    @classmethod
    def by_token(cls, pauses_s: F64, chunks: npt.NDArray[Any]) -> Series:
        """Returns pauses before chunks as a value a token.

        Args:
            pauses_s: in order of time, shape `(n,)`.
            chunks: how many chunks of so many tokens follow each pause, shape `(n, most tokens + 1)`.
        """
        tokens = np.arange(1, chunks.shape[1])
        return cls((pauses_s[:, None] / tokens).ravel(), (chunks[:, 1:] * tokens).ravel().astype(np.float64))

    def __len__(self) -> int:
        """Rows, whatever they weigh."""
        return len(self.values)

    @property
    def count(self) -> float:
        """Values, each as often as it weighs."""
        return float(len(self.values) if self.weights is None else self.weights.sum())


Values = Series | F64
Runs = Values | Sequence[Values]
"""One run, or several that are independent of each other (replications)."""


def runs_of(data: Runs) -> list[Series]:
    """Returns the runs as series.

    Raises:
        ValueError: if there is none, or one is empty.
    """
    given = [data] if isinstance(data, Series | np.ndarray) else list(data)
    runs = [run if isinstance(run, Series) else Series(np.asarray(run, dtype=np.float64)) for run in given]
    if not runs or not all(len(run) for run in runs):
        raise ValueError("an interval needs at least one run, and at least one value in each")
    return runs


def weighed(runs: Sequence[Series]) -> tuple[F64, F64 | None]:
    """Returns all values and their weights; None: once each."""
    values = np.concatenate([run.values for run in runs]) if len(runs) > 1 else runs[0].values
    if all(run.weights is None for run in runs):
        return values, None
    each = [np.ones(len(run)) if run.weights is None else run.weights for run in runs]
    return values, np.concatenate(each)
