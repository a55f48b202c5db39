"""Reads `measured/constants.json`, or a file of `specfleet measure`: constants of the kernel formulas, turned
into seconds and bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

_US = 1e-6
_NS = 1e-9
_MB = 1e6
FOLDER = Path(__file__).parent / "measured"
_REFERENCE = "h100_sxm"
_NVLINK_4 = ("h100_sxm", "h200_sxm")


@dataclass(frozen=True)
class GemmConstants:
    """Floor in seconds, shares of bandwidth and peak, smooth-maximum exponent, wave weight, passes.

    Passes quantise the GEMM's input.
    """

    floor_s: float
    bandwidth_share: float
    peak_share: float
    smooth_exponent: float
    wave_weight: float
    quantise_passes: float


@dataclass(frozen=True)
class DecodeConstants:
    """Floor in seconds, seconds per sequence and KV head, share of bandwidth."""

    floor_s: float
    sequence_head_s: float
    bandwidth_share: float


@dataclass(frozen=True)
class LatentConstants:
    """Latent attention of a layer: floor in seconds, seconds a sequence, shares of bandwidth and of the dense
    16-bit peak, and of the bandwidth at which an indexer reads its keys. The floor is what the layer takes
    besides its projections; with an indexer that of choosing too."""

    floor_s: float
    sequence_s: float
    bandwidth_share: float
    peak_share: float
    index_share: float


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
class Datasheet:
    """What the shares of a constant set refer to: byte/s, dense FLOP/s by type, SMs of the measured GPU."""

    bytes_per_s: float
    flops_per_s: Mapping[str, float]
    sms: int


@dataclass(frozen=True)
class KernelConstants:
    """One GPU: GEMM by weight type, decode by (KV type, rows used), all-reduce by GPU count.

    `gemm_table` is the file of measured FP8 GEMMs, or None. `notes` say what was taken from another GPU or
    engine. `query_cost` is the measured c_q by KV type, `residuals` what the GEMM formula misses by weight
    type, as (rows, factors): both only where the user's own GPU was measured.
    """

    gemm: Mapping[str, GemmConstants]
    decode: Mapping[tuple[str, str], DecodeConstants]
    prefill: PrefillConstants
    all_reduce: Mapping[int, AllReduceLaw]
    datasheet: Datasheet
    gemm_table: Path | None
    notes: tuple[str, ...] = ()
    query_cost: Mapping[str, float] = field(default_factory=dict)
    residuals: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]] = field(default_factory=dict)

    def fused(self) -> KernelConstants:
        """The same GPU where FP8 scales are static: the floor of the BF16 GEMM, no pass over the input."""
        fp8 = replace(self.gemm["fp8"], floor_s=self.gemm["bfloat16"].floor_s, quantise_passes=0.0)
        return replace(self, gemm={**self.gemm, "fp8": fp8})


_MOST = 1e18
"""Of any constant, whatever its unit."""


@cache
def _measured() -> dict[str, Any]:
    path = FOLDER / "constants.json"
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return data


def constant_sets() -> tuple[str, ...]:
    """Names of the GPUs, and GPU/engine pairs, that have measured constants."""
    return tuple(name for name in _measured() if not name.startswith("_"))


@cache
def kernel_constants(name: str, engine: str = "vllm") -> KernelConstants:
    """Constants of the GPU entry `name`, as "h100_sxm", for an engine's kernels.

    A pair that was not measured takes the GPU's GEMM constants and the engine's attention constants from the
    H100, whose shares multiply the bandwidth and peak of the GPU at hand; the all-reduce is the engine's
    where the links are the H100's, else the GPU's. `notes` says so. A `name` that ends in .json is a file
    written by `specfleet measure`, whatever the engine. ValueError names the known entries.
    """
    if measured_file(name):
        return _from_file(Path(name))
    if name not in constant_sets():
        raise ValueError(f"no measured constants {name!r}; known: {', '.join(constant_sets())}")
    pair = name if engine == "vllm" else f"{name}/{engine}"
    if pair in constant_sets():
        return _constants(pair)
    base, other = _constants(name), _constants(f"{_REFERENCE}/{engine}")
    same_links = name in _NVLINK_4
    note = (
        f"{engine} on {name} was not measured: GEMM{'' if same_links else ' and all-reduce'} as in "
        f"{_measured()[name]['framework']}, attention{' and all-reduce' if same_links else ''} as in "
        f"{_measured()[f'{_REFERENCE}/{engine}']['framework']} on {_REFERENCE}, scaled by bandwidth and peak"
    )
    links = other.all_reduce if same_links else base.all_reduce
    return replace(base, decode=other.decode, prefill=other.prefill, all_reduce=links, notes=(note,))


@cache
def _latent() -> dict[str, Any]:
    data: dict[str, Any] = json.loads((FOLDER / "latent.json").read_text(encoding="utf-8"))
    return data


def latent_constants(name: str, engine: str, kv_dtype: str, sparse: bool) -> LatentConstants | None:
    """Measured constants of latent attention on a GPU entry under an engine; None where there are none.

    `sparse` layers read a choice of tokens that they make themselves. A type of KV that was not measured
    takes the constants of the 16-bit one.
    """
    kinds = _latent().get(name, {}).get(engine, {}).get("sparse" if sparse else "dense", {})
    values = kinds.get(kv_dtype) or kinds.get("bfloat16")
    if values is None:
        return None
    return LatentConstants(
        floor_s=values["t0_us"] * _US,
        sequence_s=values["per_b_ns"] * _NS,
        bandwidth_share=values["eff_bw"],
        peak_share=values["eff_peak"],
        index_share=values.get("index_eff_bw", values["eff_bw"]),
    )


def measured_file(name: str) -> bool:
    """Whether constants are those of a file, not of a shipped entry."""
    return name.endswith(".json")


def _from_file(path: Path) -> KernelConstants:
    """The one entry of a file of `specfleet measure`. ValueError says what is wrong with it."""
    try:
        found = _of_file(path)
    except OSError as error:
        raise ValueError(f"constants {path}: {error.strerror or error}") from None
    except (ValueError, LookupError, TypeError, AttributeError, StopIteration, RecursionError) as error:
        raise ValueError(
            f"constants {path} is no file of `specfleet measure` ({type(error).__name__}: {error})"
        ) from None
    return replace(found, notes=(f"kernels as measured on your own GPU ({path})",))


def _of_file(path: Path) -> KernelConstants:
    """The constants of the one entry of a file; any of several errors where it lacks something."""
    entries = {
        key: entry
        for key, entry in json.loads(path.read_text(encoding="utf-8")).items()
        if not key.startswith("_")
    }
    (entry,) = entries.values()
    _check_numbers(entry, "")
    found = _of_entry(entry, None)
    residuals = {}
    for dtype in found.gemm:
        by_rows = sorted(
            (float(rows), float(factor)) for rows, factor in entry[f"gemm_{dtype}"]["m_residual"].items()
        )
        residuals[dtype] = (tuple(rows for rows, _ in by_rows), tuple(factor for _, factor in by_rows))
    cost = {dtype: float(values["c_q"]) for dtype, values in entry["attn_decode"].items() if "c_q" in values}
    return replace(found, query_cost=cost, residuals=residuals)


_POSITIVE = ("bw", "bfloat16", "fp8", "sms", "eff_bw", "eff_flops", "eff_max", "smooth_p")
"""Constants that a kernel's time is divided by, or that shape it."""


def _check_numbers(values: Mapping[str, Any], key: str) -> None:
    """ValueError for a number that no kernel has."""
    for name, value in values.items():
        here = f"{key}.{name}".lstrip(".")
        if isinstance(value, Mapping):
            _check_numbers(value, here)
        elif isinstance(value, int | float) and not -_MOST <= value <= _MOST:
            raise ValueError(f"{here} is {value:g}")
        elif name in _POSITIVE and not (isinstance(value, int | float) and value > 0):
            raise ValueError(f"{here} is {value!r}, and must be above 0")


@cache
def _constants(pair: str) -> KernelConstants:
    gpu, _, engine = pair.partition("/")
    table = FOLDER / f"gemm_{gpu}_{engine or 'vllm'}_fp8_us.csv"
    return _of_entry(_measured()[pair], table if table.exists() else None)


def _of_entry(entry: dict[str, Any], gemm_table: Path | None) -> KernelConstants:
    decode = {}
    for dtype, values in entry["attn_decode"].items():
        decode[dtype, "all"] = _decode(values)
        decode[dtype, "cold"] = _decode(values["cold"])
    prefill = entry["attn_prefill"]
    laws = {impl: law for impl, law in entry["allreduce"].items() if impl != "nccl"} or entry["allreduce"]
    dtypes = [key.removeprefix("gemm_") for key in entry if key.startswith("gemm_")]
    return KernelConstants(
        gemm={dtype: _gemm(entry[f"gemm_{dtype}"]) for dtype in dtypes},
        decode=decode,
        prefill=PrefillConstants(
            prefill["t0_us"] * _US, prefill["eff_max"], prefill["s_half"], prefill["mem_mult"]
        ),
        all_reduce={int(gpus): _all_reduce(law) for gpus, law in next(iter(laws.values())).items()},
        datasheet=Datasheet(entry["bw"], {dtype: entry[dtype] for dtype in dtypes}, entry["sms"]),
        gemm_table=gemm_table,
    )


def _gemm(values: dict[str, Any]) -> GemmConstants:
    full = values["full"]
    return GemmConstants(
        floor_s=full["t0_us"] * _US,
        bandwidth_share=full["eff_bw"],
        peak_share=full["eff_flops"],
        smooth_exponent=full["smooth_p"],
        wave_weight=full["wave_w"],
        quantise_passes=full["quant_passes"],
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
