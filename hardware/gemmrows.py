"""BF16 GEMMs up to 256 rows as the library of a release runs them, by width, depth and rows.

A GEMM library chooses its kernel by shape and rows, so a step is no function of tiles alone: 5,120 x 8,192 is
slow at 80 rows in one release and at 160 in another, and a table of one release misleads about the next
(`measured/README.md`). Where the kernels of the time were measured, the table says how a shape grows with its
rows; how fast memory and arithmetic are stays with the law and the GPU at hand.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

from specfleet.hardware.constants import FOLDER, GemmConstants, kernel_constants
from specfleet.hardware.gemmtable import GemmTable, read_table
from specfleet.hardware.kernels import Array, GemmParts, Rates, gemm

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
