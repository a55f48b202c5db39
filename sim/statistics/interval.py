"""Estimates, and the intervals in which the truth lies with a given confidence."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from specfleet.sim.statistics.batches import BatchSpread, spread
from specfleet.sim.statistics.series import F64

CONFIDENCE = 0.95
WORTH = 50.0
"""From so many independent values on the error of an interval's own width no longer matters much."""


@dataclass(frozen=True)
class Interval:
    """A figure and where its truth lies.

    Attributes:
        value: the figure.
        low, high: ends of the interval; infinite where what was seen does not bound it.
        confidence: such as 0.95.
        count: values seen.
        effective: how many independent values would bound it as well; requests of one run are
            correlated and count for less.
        degrees: of freedom of the width.
        short: why the interval itself is not to be trusted yet; empty: it is.
    """

    value: float
    low: float
    high: float
    confidence: float
    count: float
    effective: float
    degrees: float
    short: str = ""

    @property
    def enough(self) -> bool:
        """Whether enough was seen for the interval to be trusted."""
        return not self.short

    @property
    def half_width(self) -> float:
        """The longer side of the interval."""
        return max(self.high - self.value, self.value - self.low)

    @property
    def relative(self) -> float:
        """`half_width` as a share of the value; 0 for a figure that is exactly known."""
        if self.half_width == 0.0:
            return 0.0
        return self.half_width / abs(self.value) if self.value else inf

    def holds(self, truth: float) -> bool:
        """Whether a value lies in the interval."""
        return self.low <= truth <= self.high


@dataclass(frozen=True)
class Estimate:
    """A figure and what each batch of what was seen adds to its error.

    Attributes:
        value: the figure.
        influence: shape `(runs, batches)`, summing to 0; two figures of the same requests (of two runs
            on common random numbers, say) are cut into the same batches. Not finite where what was seen
            says nothing of the error; `short` then says why.
        count: values seen.
        independent: standard error if all values were independent; 0 if that is not known.
        short: as in `Interval`.
    """

    value: float
    influence: F64
    count: float
    independent: float = 0.0
    short: str = ""

    def interval(self, confidence: float = CONFIDENCE) -> Interval:
        """Returns the interval, lopsided where the batches are."""
        if not np.isfinite(self.influence).all():
            return Interval(self.value, -inf, inf, confidence, self.count, 0.0, 1.0, self.short)
        found = spread(self.influence)
        below, above = found.deviations(confidence)
        effective = self.count
        if self.independent and found.standard_error:
            effective = self.count * (self.independent / found.standard_error) ** 2
        short = self.short or too_short(effective, found)
        return Interval(
            self.value,
            self.value - below,
            self.value + above,
            confidence,
            self.count,
            effective,
            found.degrees,
            short,
        )


def too_short(effective: float, found: BatchSpread) -> str:
    """Says why an interval is not to be trusted yet; empty: it is."""
    if found.batches < 2:
        return "one batch alone bounds nothing: a longer run or another is needed"
    if not found.separate:
        return "what was seen is shorter than a few times the memory of the process"
    if effective < WORTH:
        return f"what was seen is worth {effective:.0f} independent values, fewer than {WORTH:.0f}"
    return ""
