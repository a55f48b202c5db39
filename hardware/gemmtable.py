"""Measured FP8 GEMMs: what the formula of `kernels.gemm` misses, by width, depth and rows.

vLLM's and SGLang's FP8 GEMM has cliffs at tile edges (129 rows cost 1.5 times 128) that depend on the shape.
Held-out widths come out within 3 to 7 % when the table is interpolated, within 5 to 17 % with one curve in
the rows for all shapes. BF16 has no cliffs; its tables are of one time's library (`gemmrows.py`).
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

ONE_TILE_ROWS = 16
"""Up to here all rows lie in the first tile and time follows the bytes. Single measurements scatter by up to
14 % (12,288 x 8,192: 45 us at one row, 40 at two), which would make a second token cheaper than none: the
factors are averaged."""


class GemmTable(NamedTuple):
    """Measured time over the formula's: `factor[width, depth, rows]`; axes are natural logarithms."""

    log_columns: Array
    log_depths: Array
    log_rows: Array
    factor: Array

    def at(self, columns: int, depth: int, rows: Array) -> Array:
        """The factor for one shape at `rows`: linear in the logarithms, constant beyond the grid."""
        low, high, share = _between(self.log_columns, np.log(columns))
        by_depth = (1.0 - share) * self.factor[low] + share * self.factor[high]
        low, high, share = _between(self.log_depths, np.log(depth))
        by_rows = (1.0 - share) * by_depth[low] + share * by_depth[high]
        return np.asarray(np.interp(np.log(rows), self.log_rows, by_rows))


def read_table(path: Path, formula: Callable[[Array, Any, Any], Array]) -> GemmTable:
    """The table at `path` (columns n, k, m1, m2, ...; microseconds) against `formula(rows, n, k)` in seconds.

    Shapes that were not measured (both sides small) take the factor of the next larger depth, those without
    one (both sides large) of the next smaller; single missing times that of the neighbouring rows.
    """
    with path.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    rows = np.array([float(key[1:]) for key in lines[0] if key.startswith("m")])
    widths, depths = (np.array(sorted({int(line[key]) for line in lines})) for key in ("n", "k"))
    factor = np.full((len(widths), len(depths), len(rows)), np.nan)
    n, k = (np.array([[int(line[key])] for line in lines]) for key in ("n", "k"))
    seconds = np.array([[float(line[f"m{m:.0f}"] or "nan") for m in rows] for line in lines]) * 1e-6
    ratios = seconds / formula(rows, n, k)
    for ratio in ratios:
        known = np.isfinite(ratio)
        if not known.all():
            ratio[:] = np.interp(rows, rows[known], ratio[known])
    factor[np.searchsorted(widths, n[:, 0]), np.searchsorted(depths, k[:, 0])] = ratios
    for place in range(len(depths) - 2, -1, -1):
        missing = np.isnan(factor[:, place, 0])
        factor[missing, place] = factor[missing, place + 1]
    for place in range(1, len(depths)):
        missing = np.isnan(factor[:, place, 0])
        factor[missing, place] = factor[missing, place - 1]
    few = rows <= ONE_TILE_ROWS
    if few.any():
        factor[:, :, few] = factor[:, :, few].mean(axis=2, keepdims=True)
    return GemmTable(np.log(widths), np.log(depths), np.log(rows), factor)


def _between(grid: Array, value: float) -> tuple[int, int, float]:
    """Indices of the neighbours of `value` on a grid and its share of the way; the ends repeat."""
    high = int(np.clip(np.searchsorted(grid, value), 1, len(grid) - 1))
    share = (value - grid[high - 1]) / (grid[high] - grid[high - 1])
    return high - 1, high, float(np.clip(share, 0.0, 1.0))
