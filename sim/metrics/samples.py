"""Weighted samples, read as if every value were written out as often as it weighs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]
Weights = npt.NDArray[np.integer]
PIECE = 1 << 16
"""Rows read at once, so that no temporary is as long as the run."""
BINS = 1 << 12
"""Bins in which a percentile is looked for; only the values of its bin are sorted."""


def dot(values: F64, weights: npt.NDArray[Any]) -> float:
    """Returns the sum of products, in numpy's own order: BLAS would add in an order of the machine's."""
    return float((values * weights).sum())


class Described(Protocol):
    """What has a mean, a deviation and percentiles: a `Sample`, or a `tally.Tally`."""

    def mean(self) -> float:
        """Returns the mean; 0 for none."""
        ...

    def std(self) -> float:
        """Returns the population standard deviation; 0 for none."""
        ...

    def percentiles(self, percents: Sequence[float]) -> list[float]:
        """Returns linear percentiles; all 0 for none."""
        ...


def per_token(pauses_s: F64, chunks: Weights) -> Iterator[tuple[F64, Weights]]:
    """Yields pauses divided by the tokens of the chunks that end them, with a weight of one a token.

    Args:
        pauses_s: shape `(n,)`.
        chunks: how many chunks of so many tokens end each pause, shape `(n, most tokens + 1)`.
    """
    for tokens in range(1, chunks.shape[1]):
        yield pauses_s / tokens, chunks[:, tokens].astype(np.int64) * tokens


class Sample(ABC):
    """Finite values and how often each occurs, given piece by piece."""

    @abstractmethod
    def pieces(self) -> Iterator[tuple[F64, Weights]]:
        """Yields values, and whole numbers of occurrences from 0."""

    def __len__(self) -> int:
        """Occurrences in all."""
        return sum(int(weights.sum()) for _, weights in self.pieces())

    def mean(self) -> float:
        """Returns the mean; 0 for an empty sample, as `vllm bench serve` prints it."""
        count = len(self)
        return sum(dot(values, weights) for values, weights in self.pieces()) / count if count else 0.0

    def std(self) -> float:
        """Returns the population standard deviation; 0 for an empty sample."""
        count, mean = len(self), self.mean()
        if not count:
            return 0.0
        squares = sum(dot((values - mean) ** 2, weights) for values, weights in self.pieces())
        return float(np.sqrt(squares / count))

    def percentiles(self, percents: Sequence[float]) -> list[float]:
        """Returns percentiles as `numpy.percentile` would on the written-out sample (linear)."""
        count = len(self)
        if not count:
            return [0.0] * len(percents)
        places = np.asarray(percents) / 100.0 * (count - 1)
        below = np.floor(places).astype(np.int64)
        above = np.minimum(below + 1, count - 1)
        ranks, back = np.unique(np.concatenate([below, above]), return_inverse=True)
        low, high = np.split(self._at(ranks)[back], 2)
        return [float(x) for x in low + (high - low) * (places - below)]

    def _at(self, ranks: npt.NDArray[np.int64]) -> F64:
        """Returns the values at ranks (from 0, rising): bins first, then the bins that hold them sorted.

        A value's bin never falls as the value rises, whatever the rounding, so the answer is exact.
        """
        low, high = np.inf, -np.inf
        for values, weights in self.pieces():
            seen = values[weights > 0]
            low, high = min(low, seen.min(initial=low)), max(high, seen.max(initial=high))
        if high == low:
            return np.full(len(ranks), low)
        with np.errstate(over="ignore"):
            scale = (BINS - 1) / (high - low)
        scale = scale if scale < np.inf else 0.0  # values too close: all in one bin
        counts = np.zeros(BINS)
        for values, weights in self.pieces():
            bins = ((values[weights > 0] - low) * scale).astype(np.intp)
            counts += np.bincount(bins, weights=weights[weights > 0], minlength=BINS)
        ends = np.cumsum(counts)  # whole numbers: exact in floats up to 2 ** 53
        wanted = np.zeros(BINS, dtype=np.bool_)
        wanted[np.searchsorted(ends, ranks, side="right")] = True
        found, weighed = [], []
        for values, weights in self.pieces():
            values, weights = values[weights > 0], weights[weights > 0]
            inside = wanted[((values - low) * scale).astype(np.intp)]
            found.append(values[inside])
            weighed.append(weights[inside])
        values, weights = np.concatenate(found), np.concatenate(weighed)
        order = np.argsort(values)
        inner = np.cumsum(weights[order], dtype=np.int64)
        # ranks among the values of wanted bins: those of the other bins below fall away
        skipped = np.cumsum(np.where(wanted, 0.0, counts))
        inside_ranks = ranks - skipped[np.searchsorted(ends, ranks, side="right")]
        return np.asarray(values[order][np.searchsorted(inner, inside_ranks, side="right")])


@dataclass(frozen=True)
class Samples(Sample):
    """Values and how often each occurs.

    Args:
        values: shape `(n,)`.
        weights: non-negative integers, shape `(n,)`; None: once each.
    """

    values: F64
    weights: Weights | None = None

    @classmethod
    def of(cls, values: npt.ArrayLike) -> Samples:
        """Returns a sample in which every value occurs once."""
        return cls(np.asarray(values, dtype=np.float64))

    def pieces(self) -> Iterator[tuple[F64, Weights]]:
        """Yields values and weights, `PIECE` of them at a time."""
        for low in range(0, len(self.values), PIECE):
            values = self.values[low : low + PIECE]
            ones = self.weights is None
            yield values, np.ones(len(values), np.int8) if ones else self.weights[low : low + PIECE]  # type: ignore[index]

    def __len__(self) -> int:
        """Occurrences in all."""
        return len(self.values) if self.weights is None else int(self.weights.sum())

    def mean(self) -> float:
        """Returns the mean; 0 for an empty sample."""
        if self.weights is None and len(self.values):
            return float(self.values.mean())
        return super().mean()

    def std(self) -> float:
        """Returns the population standard deviation; 0 for an empty sample."""
        if self.weights is None and len(self.values):
            return float(self.values.std())
        return super().std()

    def _at(self, ranks: npt.NDArray[np.int64]) -> F64:
        if self.weights is None:
            return np.asarray(np.partition(self.values, ranks)[ranks])
        return super()._at(ranks)


@dataclass(frozen=True)
class PerToken(Sample):
    """Pauses before chunks, each divided by the tokens of its chunk: a sample a token.

    Args:
        pauses: shape `(n,)`.
        chunks: how many chunks of so many tokens follow each pause, shape `(n, most tokens + 1)`.
        odd_s, odd_chunks: further pauses, and the same of them.
    """

    pauses: F64
    chunks: Weights
    odd_s: F64
    odd_chunks: Weights

    def pieces(self) -> Iterator[tuple[F64, Weights]]:
        """Yields pauses by token, `PIECE` iterations at a time; the further pauses last."""
        for low in range(0, len(self.pauses), PIECE):
            pauses, chunks = self.pauses[low : low + PIECE], self.chunks[low : low + PIECE]
            yield from per_token(pauses, chunks)
        yield from per_token(self.odd_s, self.odd_chunks)
