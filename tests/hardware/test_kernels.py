"""Kernel formulas: hand-worked numbers, limits, and the measured tables they were fitted to."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specfleet.hardware.constants import kernel_constants
from specfleet.hardware.kernels import (
    Array,
    AttentionShape,
    GemmParts,
    LatentShape,
    Rates,
    decode_attention,
    elementwise_s,
    gemm,
    latent_decode_attention,
    prefill_attention,
    unmeasured_latent,
    wave_quantisation,
)

H100 = kernel_constants("h100_sxm")
BANDWIDTH, PEAK, SMS = 3.35e12, 989e12, 132
RATES = Rates(BANDWIDTH, PEAK, SMS)


def h100_gemm(
    rows: Array, columns: int, depth: int, dtype: str = "bfloat16", factor: Array | float = 1.0
) -> GemmParts:
    fp8 = dtype == "fp8"
    return gemm(
        rows,
        columns,
        depth,
        weight_bytes=1 if fp8 else 2,
        constants=H100.gemm[dtype],
        rates=RATES._replace(flops_per_s=1979e12) if fp8 else RATES,
        factor=factor,
    )


def total(parts: GemmParts) -> Array:
    return parts.floor_s + parts.stream_s + parts.extra_s


@given(
    rows=st.integers(1, 8192),
    columns=st.sampled_from([1024, 5120, 10_240, 28_672]),
    depth=st.sampled_from([1024, 4096, 25_600]),
    dtype=st.sampled_from(["bfloat16", "fp8"]),
)
def test_a_gemm_is_never_faster_than_the_datasheet(rows: int, columns: int, depth: int, dtype: str) -> None:
    width, peak = (1, 1979e12) if dtype == "fp8" else (2, PEAK)
    seconds = total(h100_gemm(np.array([float(rows)]), columns, depth, dtype))[0]
    assert seconds > columns * depth * width / BANDWIDTH
    assert seconds > 2.0 * rows * columns * depth / peak


@given(rows=st.integers(1, 4096), columns=st.integers(128, 30_000))
def test_quantisation_wastes_work_and_never_saves_it(rows: int, columns: int) -> None:
    assert wave_quantisation(np.array([float(rows)]), columns, SMS)[0] >= 1.0 - 1e-12


def test_one_row_through_a_32b_gate_up_projection_by_hand() -> None:
    parts = h100_gemm(np.array([1.0]), 51_200, 5120)
    stream = (51_200 * 5120 * 2 + 5120 * 2 + 51_200 * 2) / (3.35e12 * 0.8585)
    waves = 1.0 * np.ceil(51_200 / 128 / 132) * 132 * 64 * 128 / 51_200
    arithmetic = 2 * 51_200 * 5120 * (1 + 0.5354 * (min(waves, 64.0, 3.0) - 1)) / (989e12 * 0.8325)
    assert parts.floor_s[0] == pytest.approx(3.3899e-6)
    assert parts.stream_s[0] == pytest.approx(stream)
    assert total(parts)[0] == pytest.approx(3.3899e-6 + (stream**4.02 + arithmetic**4.02) ** (1 / 4.02))


def test_an_fp8_gemm_reads_half_and_quantises_its_input() -> None:
    rows = np.array([128.0])
    parts = h100_gemm(rows, 8192, 8192, "fp8")
    rate = 3.35e12 * 0.8296
    assert parts.stream_s[0] == pytest.approx((8192 * 8192 + 128 * 8192 + 2 * 128 * 8192) / rate)
    assert parts.extra_s[0] > 2.4298 * 3 * 128 * 8192 / rate


def test_a_factor_multiplies_every_part() -> None:
    rows = np.array([1.0, 300.0])
    plain, doubled = h100_gemm(rows, 8192, 8192), h100_gemm(rows, 8192, 8192, factor=2.0)
    for once, twice in zip(plain, doubled, strict=True):
        assert twice == pytest.approx(2.0 * once)


def test_latent_attention_reads_576_values_once_and_can_be_bound_by_arithmetic() -> None:
    shape = LatentShape(layers=1, heads=128, latent=512, rope=64, kv_bytes=2)
    law = latent_decode_attention(shape, unmeasured_latent(H100.decode["bfloat16", "all"]), RATES)
    assert law.kv_token_s == pytest.approx(1152 / (BANDWIDTH * 0.896))
    assert law.pair_s == pytest.approx(128 * 2 * (576 + 512) / (PEAK * 0.6))
    assert law.pair_s > law.kv_token_s


def test_windowed_layers_split_the_reading() -> None:
    shape = AttentionShape(layers=36, heads=64, kv_heads=8, head_dim=64, kv_bytes=2, windowed=18)
    law = decode_attention(shape, H100.decode["bfloat16", "all"], BANDWIDTH)
    assert law.kv_token_s == law.window_token_s == pytest.approx(18 * 2048 / (BANDWIDTH * 0.896))


def test_elementwise_runs_at_four_fifths_of_the_bandwidth() -> None:
    assert elementwise_s(np.array([0.8 * BANDWIDTH]), BANDWIDTH)[0] == pytest.approx(1.0)


def test_decode_attention_of_one_layer_by_hand() -> None:
    shape = AttentionShape(layers=1, heads=64, kv_heads=8, head_dim=128, kv_bytes=2)
    law = decode_attention(shape, H100.decode["bfloat16", "all"], BANDWIDTH)
    assert law.floor_s == pytest.approx(12.02e-6)
    assert law.sequence_s == pytest.approx(8 * 11.75e-9)
    assert law.kv_token_s == pytest.approx(4096 / (3.35e12 * 0.896))
    assert law.query_token_s == pytest.approx(32_768 / (3.35e12 * 0.896))


def test_prefill_attention_of_one_layer_by_hand() -> None:
    shape = AttentionShape(layers=1, heads=64, kv_heads=8, head_dim=128, kv_bytes=2)
    law = prefill_attention(shape, H100.prefill, RATES)
    assert law.floor_s == pytest.approx(12.65e-6)
    assert law.pair_s == pytest.approx(4 * 64 * 128 / (989e12 * 0.697))
    assert law.full_tiles == 132 / 64
    assert law.kv_token_s == pytest.approx(2.17 * 4096 / 3.35e12)


@pytest.mark.parametrize(("dtype", "bar"), [("bfloat16", 0.08), ("fp8", 0.12)])
def test_gemm_is_within_its_published_error_of_the_measurements(shared: Path, dtype: str, bar: float) -> None:
    with (shared / f"hardware/gemm_h100_sxm_vllm_{dtype}_us.csv").open() as file:
        table = list(csv.DictReader(file))
    errors = []
    for row in table:
        n, k = int(row["n"]), int(row["k"])
        points = [(float(m[1:]), float(us)) for m, us in row.items() if m.startswith("m") and us]
        if min(n, k) >= 1024 and points:
            rows, measured = (np.array(column) for column in zip(*points, strict=True))
            errors.append(total(h100_gemm(rows, n, k, dtype)) * 1e6 / measured - 1)
    assert np.abs(np.concatenate(errors)).mean() < bar


def test_decode_attention_is_within_its_published_error_of_the_measurements(shared: Path) -> None:
    with (shared / "hardware/attn_decode_us.csv").open() as file:
        table = [
            row for row in csv.DictReader(file) if (row["system"], row["backend"]) == ("h100_sxm", "vllm")
        ]
    errors = []
    for row in (row for row in table if row["kv_cache_dtype"] == "bfloat16"):
        batch, heads, kv_heads = int(row["b"]), int(row["h"]), int(row["kv"])
        shape = AttentionShape(layers=1, heads=heads, kv_heads=kv_heads, head_dim=128, kv_bytes=2)
        law = decode_attention(shape, H100.decode["bfloat16", "all"], BANDWIDTH)
        for context in (int(key) for key, us in row.items() if key.isdigit() and us and int(key) >= 512):
            read = batch * (law.sequence_s + law.query_token_s) + batch * context * law.kv_token_s
            errors.append(abs((law.floor_s + read) * 1e6 / float(row[str(context)]) - 1))
    assert np.mean(errors) < 0.10
