"""FP8 cliffs: the shipped tables against what was measured, and what they do to a step."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from specfleet.hardware import catalog
from specfleet.hardware.forward import fp8_table, linear
from specfleet.hardware.gemmtable import ONE_TILE_ROWS, read_table
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
