"""Reads `measured/constants.json`: constants of the kernel formulas, turned into seconds and bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_US = 1e-6
_NS = 1e-9
_MB = 1e6


@dataclass(frozen=True)
class GemmConstants:
    """Floor in seconds, shares of bandwidth and peak, smooth-maximum exponent, wave weight, passes.

    Passes quantise the GEMM's input. `curve_rows` and `curve_factor`: the measured residual by rows (M).
    """

    floor_s: float
    bandwidth_share: float
    peak_share: float
    smooth_exponent: float
    wave_weight: float
    quantise_passes: float
    curve_rows: tuple[int, ...]
    curve_factor: tuple[float, ...]


@dataclass(frozen=True)
class DecodeConstants:
    """Floor in seconds, seconds per sequence and KV head, share of bandwidth."""

    floor_s: float
    sequence_head_s: float
    bandwidth_share: float


@dataclass(frozen=True)
class PrefillConstants:
    """Floor in seconds, share of peak, length in tokens at which efficiency halves, multiple of the bytes."""

    floor_s: float
    peak_share: float
    half_length: float
    memory_multiple: float


@dataclass(frozen=True)
class AllReduceLaw:
    """`alpha_s + min(oneshot, twoshot_s + twoshot)`, the slopes in seconds per byte."""

    alpha_s: float
    oneshot_s_per_byte: float
    twoshot_s: float
    twoshot_s_per_byte: float


@dataclass(frozen=True)
class KernelConstants:
    """One GPU: GEMM by weight type, decode by (KV type, rows used), all-reduce by GPU count."""

    gemm: Mapping[str, GemmConstants]
    decode: Mapping[tuple[str, str], DecodeConstants]
    prefill: PrefillConstants
    all_reduce: Mapping[int, AllReduceLaw]


@cache
def _measured() -> dict[str, Any]:
    path = Path(__file__).parent / "measured" / "constants.json"
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return data


def constant_sets() -> tuple[str, ...]:
    """Names of the GPUs that have measured constants."""
    return tuple(name for name in _measured() if not name.startswith("_"))


@cache
def kernel_constants(name: str) -> KernelConstants:
    """Constants of the entry `name`, as "h100_sxm". Raises ValueError naming the known entries."""
    if name not in constant_sets():
        raise ValueError(f"no measured constants {name!r}; known: {', '.join(constant_sets())}")
    entry = _measured()[name]
    decode = {}
    for dtype, values in entry["attn_decode"].items():
        decode[dtype, "all"] = _decode(values)
        decode[dtype, "cold"] = _decode(values["cold"])
    prefill = entry["attn_prefill"]
    laws = {impl: law for impl, law in entry["allreduce"].items() if impl != "nccl"} or entry["allreduce"]
    return KernelConstants(
        gemm={key.removeprefix("gemm_"): _gemm(entry[key]) for key in entry if key.startswith("gemm_")},
        decode=decode,
        prefill=PrefillConstants(
            prefill["t0_us"] * _US, prefill["eff_max"], prefill["s_half"], prefill["mem_mult"]
        ),
        all_reduce={int(gpus): _all_reduce(law) for gpus, law in next(iter(laws.values())).items()},
    )


def _gemm(values: dict[str, Any]) -> GemmConstants:
    full, curve = values["full"], values["m_residual"]
    return GemmConstants(
        floor_s=full["t0_us"] * _US,
        bandwidth_share=full["eff_bw"],
        peak_share=full["eff_flops"],
        smooth_exponent=full["smooth_p"],
        wave_weight=full["wave_w"],
        quantise_passes=full["quant_passes"],
        curve_rows=tuple(int(rows) for rows in curve),
        curve_factor=tuple(curve.values()),
    )


def _decode(values: dict[str, Any]) -> DecodeConstants:
    return DecodeConstants(values["t0_us"] * _US, values["per_b_kv_ns"] * _NS, values["eff_bw"])


def _all_reduce(values: dict[str, float]) -> AllReduceLaw:
    return AllReduceLaw(
        alpha_s=values["alpha_us"] * _US,
        oneshot_s_per_byte=values["oneshot_us_per_MB"] * _US / _MB,
        twoshot_s=values["twoshot_us"] * _US,
        twoshot_s_per_byte=values["twoshot_us_per_MB"] * _US / _MB,
    )
