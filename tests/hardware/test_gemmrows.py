"""BF16 GEMMs by rows: the shipped table against the law, and what it does to a step."""

from __future__ import annotations

import csv
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specfleet.hardware import catalog
from specfleet.hardware.constants import FOLDER
from specfleet.hardware.forward import linear
from specfleet.hardware.gemmrows import (
    MOST_ROWS,
    OWN_BANDWIDTH_SHARE,
    OWN_PEAK_SHARE,
    gemm_by_rows,
    law_of_rows,
    rows_table,
)
from specfleet.hardware.gemmtable import ONE_TILE_ROWS
from specfleet.hardware.kernels import Rates, gemm
from specfleet.hardware.placement import Placement

BUILT = catalog.engine_profile("vllm-2026-01")
RATES = Rates(3.35e12, 9.89e14, 132)
"""Of the H100 SXM."""


def place(table: bool = True, gpu: str = "h100-sxm", rate: float = 1.0) -> Placement:
    profile = replace(BUILT, bf16_gemm_table=table, arithmetic_rate=rate)
    return Placement.of(catalog.model("qwen3-32b"), catalog.accelerator(gpu), profile)


def seconds(placement: Placement, rows: np.ndarray, columns: int, depth: int) -> np.ndarray:
    parts = linear(placement, rows, columns, depth)
    return parts.floor_s + parts.stream_s + parts.extra_s


def measured() -> list[dict[str, str]]:
    with (FOLDER / "gemm_h100_sxm_bfloat16_us.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_on_the_grid_it_is_the_measurement_at_the_shares_of_the_card_that_was_measured() -> None:
    placement, table = place(), rows_table("h100_sxm")
    assert table is not None
    own = replace(
        placement.constants.gemm["bfloat16"],
        bandwidth_share=OWN_BANDWIDTH_SHARE,
        peak_share=OWN_PEAK_SHARE,
    )
    for line in measured()[::13]:
        rows = np.array([float(key[1:]) for key in line if key.startswith("m")])
        stated = np.array([float(line[f"m{m:.0f}"]) for m in rows]) * 1e-6
        parts = gemm_by_rows(rows, int(line["n"]), int(line["k"]), table, own, RATES)
        priced, few = parts.floor_s + parts.stream_s + parts.extra_s, rows <= ONE_TILE_ROWS
        assert priced[~few] == pytest.approx(stated[~few], rel=1e-6)
        assert priced[few].mean() == pytest.approx(stated[few].mean(), rel=0.02)


def test_the_law_alone_goes_on_behind_the_last_row_that_was_measured() -> None:
    assert max(int(key[1:]) for key in measured()[0] if key.startswith("m")) == MOST_ROWS


def test_the_level_of_both_ends_is_the_laws() -> None:
    """Over all shapes with both sides from 2,048 on the median factor is 1 up to 32 rows."""
    table = rows_table("h100_sxm")
    assert table is not None
    few = np.array([1.0, 8.0, 32.0])
    shapes = [(int(line["n"]), int(line["k"])) for line in measured()]
    factors = [table.at(n, k, few) for n, k in shapes if min(n, k) >= 2048]
    assert np.median(factors) == pytest.approx(1.0, abs=0.01)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 4096),
    columns=st.integers(256, 160_000),
    depth=st.integers(256, 70_000),
    rate=st.floats(0.3, 1.0),
)
def test_every_part_is_a_time_and_beyond_the_table_it_is_the_law(
    rows: int, columns: int, depth: int, rate: float
) -> None:
    at = np.array([float(rows)])
    with_table, without = (linear(place(table, rate=rate), at, columns, depth) for table in (True, False))
    assert all(np.isfinite(part).all() and (part >= 0).all() for part in with_table)
    if rows > MOST_ROWS:
        assert with_table == without
    assert 0.5 < sum(map(np.sum, with_table)) / sum(map(np.sum, without)) < 2.0


def test_slower_memory_costs_more_where_bytes_decide_and_less_so_at_256_rows() -> None:
    rows = np.array([8.0, 256.0])
    ratio = seconds(place(gpu="h100-94gb"), rows, 10240, 5120) / seconds(place(), rows, 10240, 5120)
    assert ratio[0] == pytest.approx(3.35 / 2.4, rel=0.05)
    assert 1.0 < ratio[1] < ratio[0]


def test_a_step_of_80_rows_is_slower_than_the_law_says_and_one_of_256_is_not() -> None:
    """Why K = 4 with 16 sequences is slow: its 80 rows, not its K."""
    rows = np.array([16.0, 80.0, 256.0])
    growth = []
    for table in (True, False):
        layer = np.zeros(3)
        for columns, depth in place().model.layer_groups(1)[0].gemms:
            layer += seconds(place(table, "h100-94gb", 0.805), rows, columns, depth)
        growth.append(layer[1:] / layer[0])
    assert growth[0][0] > growth[1][0] * 1.02
    assert growth[0][1] < growth[1][1]


def test_a_gpu_or_a_build_that_was_not_measured_has_the_law_alone() -> None:
    assert rows_table("h200_sxm") is None and rows_table("a100_sxm") is None
    assert not catalog.engine_profile("vllm-0.33").bf16_gemm_table
    assert not catalog.engine_profile("vllm-0.6").bf16_gemm_table
    at = np.array([160.0])
    assert linear(place(gpu="h200"), at, 5120, 8192) == linear(place(False, "h200"), at, 5120, 8192)


def test_the_law_of_rows_has_no_waves() -> None:
    constants, at = law_of_rows(place().constants.gemm["bfloat16"]), np.array([129.0])
    few, many = (
        gemm(at, 5120, 5120, weight_bytes=2, constants=constants, rates=RATES._replace(sms=sms))
        for sms in (8, 132)
    )
    assert few == many
