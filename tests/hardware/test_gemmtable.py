"""FP8 cliffs and BF16 by rows: the shipped tables against what was measured, and what they do to a step."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specfleet.hardware import catalog
from specfleet.hardware.constants import FOLDER
from specfleet.hardware.forward import fp8_table, linear
from specfleet.hardware.gemmtable import (
    MOST_ROWS,
    ONE_TILE_ROWS,
    OWN_BANDWIDTH_SHARE,
    OWN_PEAK_SHARE,
    gemm_by_rows,
    law_of_rows,
    read_table,
    rows_table,
)
from specfleet.hardware.kernels import Rates, gemm
from specfleet.hardware.placement import Placement

PAIRS = [("h100_sxm", "vllm"), ("h100_sxm", "sglang"), ("h200_sxm", "vllm"), ("l40s", "vllm")]


def place(gpu: str, engine: str) -> Placement:
    profile = replace(catalog.engine_profile(engine), arithmetic_rate=1.0)
    return Placement.of(
        catalog.model("llama-3.3-70b"), catalog.accelerator(gpu), profile, quantization="fp8",
        tensor_parallel_size=4,
    )  # fmt: skip


def seconds(placement: Placement, rows: list[float], columns: int, depth: int) -> np.ndarray:
    parts = linear(placement, np.array(rows), columns, depth, "fp8")
    return parts.floor_s + parts.stream_s + parts.extra_s


@pytest.mark.parametrize("engine", ["vllm-0.33", "sglang"])
def test_one_row_over_a_tile_costs_half_as_much_again(engine: str) -> None:
    placement, jumps = place("h100-sxm", engine), []
    for columns, depth in placement.model.layer_groups(4)[0].gemms:
        below, above = seconds(placement, [128.0, 129.0], columns, depth)
        jumps.append(above / below)
    assert np.median(jumps) == pytest.approx(1.5, abs=0.08)


@pytest.mark.parametrize("edge", [256, 512])
def test_the_cliffs_at_two_and_four_tiles_are_steeper(edge: int) -> None:
    below, above = seconds(place("h100-sxm", "vllm-0.33"), [edge, edge + 1.0], 8192, 8192)
    assert 1.6 < above / below < 2.3


def test_tensorrt_llm_has_no_cliff_and_no_pass_over_its_input() -> None:
    placement = place("h100-sxm", "trtllm")
    below, above = seconds(placement, [128.0, 129.0], 8192, 8192)
    assert above / below < 1.05
    assert placement.constants.gemm["fp8"].floor_s == placement.constants.gemm["bfloat16"].floor_s


@pytest.mark.parametrize(("gpu", "engine"), PAIRS)
def test_on_the_grid_the_table_is_the_measurement(shared: Path, gpu: str, engine: str) -> None:
    names = {"h100_sxm": "h100-sxm", "h200_sxm": "h200", "l40s": "l40s"}
    placement = place(names[gpu], "sglang" if engine == "sglang" else "vllm-0.33")
    with (shared / f"hardware/gemm_{gpu}_{engine}_fp8_us.csv").open() as file:
        lines = list(csv.DictReader(file))[::17]
    for line in lines:
        known = [key for key in line if key.startswith("m") and line[key]]
        measured = np.array([float(line[key]) for key in known])
        rows = np.array([float(key[1:]) for key in known])
        priced = seconds(placement, list(rows), int(line["n"]), int(line["k"])) * 1e6
        few = rows <= ONE_TILE_ROWS
        assert priced[~few] == pytest.approx(measured[~few])
        assert priced[few].mean() == pytest.approx(measured[few].mean(), rel=0.03)


@pytest.mark.parametrize("gpu", ["h100-sxm", "h200", "l40s"])
def test_within_the_first_tile_another_row_never_costs_less(gpu: str) -> None:
    placement = place(gpu, "vllm-0.33")
    for columns, depth in placement.model.layer_groups(4)[0].gemms:
        priced = seconds(placement, list(range(1, ONE_TILE_ROWS + 1)), columns, depth)
        assert (np.diff(priced) >= 0).all()


def test_beyond_the_grid_the_factor_stays_and_the_formula_goes_on() -> None:
    table = fp8_table("h100_sxm", "vllm")
    assert table is not None
    rows = np.array([1.0, 129.0, 500.0])
    assert table.at(28_672, 16_384, rows) == pytest.approx(table.at(28_672, 60_000, rows))
    assert fp8_table("a100_sxm", "vllm") is None and fp8_table("b200_sxm", "vllm") is None


def test_gaps_of_a_table_are_filled_from_their_neighbours(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    lines = ("1000,2000,2,,8", "2000,1000,3,3,3", "2000,2000,4,4,4", "1000,3000,5,5,5")
    path.write_text("\n".join(("n,k,m32,m64,m128", *lines)) + "\n")
    table = read_table(path, lambda rows, n, k: np.full_like(rows, 1e-6))
    assert table.at(2000, 3000, np.array([64.0])) == pytest.approx([4])
    assert table.at(1000, 2000, np.array([32.0, 64.0, 128.0])) == pytest.approx([2, 4, 8])
    assert table.at(1000, 1000, np.array([128.0])) == pytest.approx([8])
    assert table.at(2000, 1000, np.array([128.0])) == pytest.approx([3])


BUILT = catalog.engine_profile("vllm-2026-01")
RATES = Rates(3.35e12, 9.89e14, 132)
"""Of the H100 SXM."""


def built(table: bool = True, gpu: str = "h100-sxm", rate: float = 1.0) -> Placement:
    profile = replace(BUILT, bf16_gemm_table=table, arithmetic_rate=rate)
    return Placement.of(catalog.model("qwen3-32b"), catalog.accelerator(gpu), profile)


def seconds_of(placement: Placement, rows: np.ndarray, columns: int, depth: int) -> np.ndarray:
    parts = linear(placement, rows, columns, depth)
    return parts.floor_s + parts.stream_s + parts.extra_s


def measured() -> list[dict[str, str]]:
    with (FOLDER / "gemm_h100_sxm_bfloat16_us.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_on_the_grid_it_is_the_measurement_at_the_shares_of_the_card_that_was_measured() -> None:
    placement, table = built(), rows_table("h100_sxm")
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
    with_table, without = (linear(built(table, rate=rate), at, columns, depth) for table in (True, False))
    assert all(np.isfinite(part).all() and (part >= 0).all() for part in with_table)
    if rows > MOST_ROWS:
        assert with_table == without
    assert 0.5 < sum(map(np.sum, with_table)) / sum(map(np.sum, without)) < 2.0


def test_slower_memory_costs_more_where_bytes_decide_and_less_so_at_256_rows() -> None:
    rows = np.array([8.0, 256.0])
    ratio = seconds_of(built(gpu="h100-94gb"), rows, 10240, 5120) / seconds_of(built(), rows, 10240, 5120)
    assert ratio[0] == pytest.approx(3.35 / 2.4, rel=0.05)
    assert 1.0 < ratio[1] < ratio[0]


def test_a_step_of_80_rows_is_slower_than_the_law_says_and_one_of_256_is_not() -> None:
    """Why K = 4 with 16 sequences is slow: its 80 rows, not its K."""
    rows = np.array([16.0, 80.0, 256.0])
    growth = []
    for table in (True, False):
        layer = np.zeros(3)
        for columns, depth in built().model.layer_groups(1)[0].gemms:
            layer += seconds_of(built(table, "h100-94gb", 0.805), rows, columns, depth)
        growth.append(layer[1:] / layer[0])
    assert growth[0][0] > growth[1][0] * 1.02
    assert growth[0][1] < growth[1][1]


def test_a_gpu_or_a_build_that_was_not_measured_has_the_law_alone() -> None:
    assert rows_table("h200_sxm") is None and rows_table("a100_sxm") is None
    assert not catalog.engine_profile("vllm-0.33").bf16_gemm_table
    assert not catalog.engine_profile("vllm-0.6").bf16_gemm_table
    at = np.array([160.0])
    assert linear(built(gpu="h200"), at, 5120, 8192) == linear(built(False, "h200"), at, 5120, 8192)


def test_the_law_of_rows_has_no_waves() -> None:
    constants, at = law_of_rows(built().constants.gemm["bfloat16"]), np.array([129.0])
    few, many = (
        gemm(at, 5120, 5120, weight_bytes=2, constants=constants, rates=RATES._replace(sms=sms))
        for sms in (8, 132)
    )
    assert few == many
