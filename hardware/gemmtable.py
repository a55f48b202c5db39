"""Measured GEMMs: what the formula of `kernels.gemm` misses, by width, depth and rows.

vLLM's and SGLang's FP8 GEMM has cliffs at tile edges (129 rows cost 1.5 times 128) that depend on the shape.
Held-out widths come out within 3 to 7 % when the table is interpolated, within 5 to 17 % with one curve in
the rows for all shapes.

BF16 has no cliffs, but its library chooses a kernel by shape and rows, so a step is no function of tiles
alone, and a table of one release misleads about the next (`measured/README.md`). Where the kernels of a
profile's time were measured, their table says how a shape grows up to 256 rows; how fast memory and
arithmetic are stays with the law and the GPU at hand.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from specfleet.hardware.constants import FOLDER, GemmConstants, kernel_constants
from specfleet.hardware.kernels import Array, GemmParts, Rates, gemm

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


MOST_ROWS = 256
"""Up to here rows were measured in steps of at most 64. Beyond, the next point is a whole tile away and the
law alone is used."""

OWN_BANDWIDTH_SHARE, OWN_PEAK_SHARE = 0.877, 0.789
"""Of the GPU that was measured: what makes the median factor 1 up to 32 rows, and from 1,024 to 4,096."""


def law_of_rows(constants: GemmConstants) -> GemmConstants:
    """The law that the factors multiply: `kernels.gemm` without waves, which the table has in it.

    It carries the table to other bandwidths: from an H200's times to an H100's (0.7 of the bandwidth, the
    same chip and kernels) it is off by 2 % at most in the median up to 192 rows, and by 6 at 256
    (`tests/fidelity/derive_gemm_rows.py`).
    """
    return replace(constants, wave_weight=0.0)


@cache
def rows_table(constants: str) -> GemmTable | None:
    """How shapes grow with rows on a GPU entry, against the law at the shares of the measured GPU; None
    where nobody measured it."""
    path = FOLDER / f"gemm_{constants}_bfloat16_us.csv"
    if not path.exists():
        return None
    found = kernel_constants(constants)
    sheet = found.datasheet
    own = replace(
        law_of_rows(found.gemm["bfloat16"]),
        bandwidth_share=OWN_BANDWIDTH_SHARE,
        peak_share=OWN_PEAK_SHARE,
    )

    def law(rows: Array, columns: int, depth: int) -> Array:
        rates = Rates(sheet.bytes_per_s, sheet.flops_per_s["bfloat16"], sheet.sms)
        parts = gemm(rows, columns, depth, weight_bytes=2, constants=own, rates=rates)
        return parts.floor_s + parts.stream_s + parts.extra_s

    return read_table(path, law)


def gemm_by_rows(
    rows: Array, columns: int, depth: int, table: GemmTable, constants: GemmConstants, rates: Rates
) -> GemmParts:
    """Time of (M x depth) @ (depth x columns) in BF16, seconds by rows as in `kernels.gemm`."""
    beyond = gemm(rows, columns, depth, weight_bytes=2, constants=constants, rates=rates)
    within = gemm(
        rows, columns, depth, weight_bytes=2, constants=law_of_rows(constants), rates=rates,
        factor=table.at(columns, depth, rows),
    )  # fmt: skip
    measured = rows <= MOST_ROWS
    return GemmParts(*(np.where(measured, a, b) for a, b in zip(within, beyond, strict=True)))
