"""Derives hardware/measured/latent.json: latent attention (MLA), dense and sparse, by GPU, engine, KV type.

    python tests/fidelity/derive_latent_constants.py TREE       # see derive_kernel_tables.py; scipy besides

The law is that of `kernels.latent_decode_attention`: `floor + max(c B + bytes / (share x bandwidth), pairs /
(share x peak))`. vLLM and TensorRT-LLM were timed as whole modules, projections included: those, by the law
of this product's GEMMs for the same engine, are taken off first, so the floor is what a layer takes besides
them (norms, rotary embedding, cache write, the kernel's own). Of SGLang dense attention is the kernel alone,
sparse attention the module. Fitted by least squares in the logarithm of the whole time, from 1 to 512
sequences of 64 to 65,536 tokens.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
GPUS = {"h100_sxm": "h100-sxm", "h200_sxm": "h200", "b200_sxm": "b200"}
PROFILES = {"vllm": "vllm-0.33", "sglang": "sglang", "trtllm": "trtllm"}
DENSE = {
    "vllm": ("mla/vllm/0.24.0/mla_generation_module_perf.parquet", True),
    "sglang": ("mla/sglang/0.5.14/generation_mla_perf.parquet", False),
    "trtllm": ("mla/trtllm/1.3.0rc20/mla_generation_module_perf.parquet", True),
}
"""Table of each engine, and whether it is of modules."""
SPARSE = {
    "vllm": "sparse_attention/vllm/0.24.0/dsa_generation_module_perf.parquet",
    "sglang": "sparse_attention/sglang/0.5.14/dsa_generation_module_perf.parquet",
    "trtllm": "sparse_attention/trtllm/1.3.0rc20/dsa_generation_module_perf.parquet",
}
HEADS = (8, 16, 32, 64, 128)
MOST_SEQUENCES, SHORTEST, LONGEST = 512, 64, 65536


def kept(table: Any, module: bool) -> Any:
    """The rows that are fitted."""
    table = table[table.num_heads.isin(HEADS) & (table.batch_size <= MOST_SEQUENCES)]
    table = table[(table.step >= SHORTEST) & (table.step <= LONGEST) & table.latency.notna()]
    if module:
        table = table[table.gemm_type == "fp8_block"]
        table = table[table.model == "deepseek-ai/DeepSeek-V3"] if "V3.2" not in str(set(table.model)) else (
            table[table.model == "deepseek-ai/DeepSeek-V3.2"]
        )  # fmt: skip
    if "op_name" in table and table.op_name.nunique() > 1:
        table = table[~table.op_name.str.contains("skip")]
    return table


def projections(gpu: str, engine: str, model: str, heads: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Seconds of a layer's attention GEMMs in FP8, by this product's law."""
    from dataclasses import replace

    from specfleet.hardware import catalog
    from specfleet.hardware.forward import linear
    from specfleet.hardware.layers.attention import LatentAttention
    from specfleet.hardware.placement import Placement

    spec = catalog.model(model)
    profile = replace(catalog.engine_profile(PROFILES[engine]), arithmetic_rate=1.0)
    place = Placement.of(spec, catalog.accelerator(GPUS[gpu]), profile, tensor_parallel_size=8)
    found = np.zeros(len(rows))
    for count in set(heads.tolist()):
        here = heads == count
        mixer = next(iter(spec.mixers))
        assert isinstance(mixer, LatentAttention)
        mixer = replace(mixer, heads=int(count))
        for part in mixer.parts(spec.hidden_size, 1):
            stored = "bfloat16" if part.role == "index_w" else "fp8"
            timed = linear(place, rows[here].astype(float), *part.gemm, stored)
            found[here] += timed.floor_s + timed.stream_s + timed.extra_s
    return found


def fitted(table: Any, gpu: str, taken_off: np.ndarray, kv_bytes: int, sparse: bool) -> dict[str, float]:
    """Constants of the law and their mean and worst error, in percent."""
    from scipy.optimize import least_squares

    from specfleet.hardware.constants import kernel_constants

    sheet = kernel_constants(gpu).datasheet
    b, ctx, heads = (table[name].to_numpy(float) for name in ("batch_size", "step", "num_heads"))
    time = table.latency.to_numpy() * 1e-3
    seen = np.minimum(ctx, 2048) if sparse else ctx

    def law(x: np.ndarray) -> np.ndarray:
        floor, each, share, peak, index = np.exp(x)
        read = b * seen * 576 * kv_bytes + b * heads * (2 * 512 + 64) * 2
        streamed = each * b + read / (sheet.bytes_per_s * share)
        if sparse:
            streamed = streamed + b * ctx * 132 / (sheet.bytes_per_s * index)
        arithmetic = b * seen * 2 * heads * (2 * 512 + 64) / (sheet.flops_per_s["bfloat16"] * peak)
        return np.asarray(taken_off + floor + np.maximum(streamed, arithmetic))

    start = np.log([15e-6, 50e-9, 0.7, 0.6, 0.3])
    low, high = np.log([2e-6, 1e-10, 0.02, 0.02, 0.005]), np.log([300e-6, 5e-6, 1.0, 1.0, 1.0])
    off = least_squares(
        lambda x: np.log(law(x) / time), start, bounds=(low, high), loss="soft_l1", f_scale=0.1
    )
    floor, each, share, peak, index = np.exp(off.x)
    error = 100 * np.abs(law(off.x) / time - 1)
    found = {"t0_us": 1e6 * floor, "per_b_ns": 1e9 * each, "eff_bw": share, "eff_peak": peak}
    found |= {"index_eff_bw": index} if sparse else {}
    return {k: float(f"{v:.4g}") for k, v in found.items()} | {
        "median_off_pct": round(float(np.median(error)), 1), "worst_off_pct": round(float(error.max()), 1),
    }  # fmt: skip


def main() -> None:
    """Writes the file."""
    import pandas as pd

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tree", type=Path, help="the unpacked wheel")
    tree = parser.parse_args().tree / "aiconfigurator_core" / "systems" / "data"
    out: dict[str, Any] = {}
    for gpu in GPUS:
        for engine in PROFILES:
            for sparse in (False, True):
                name, module = (SPARSE[engine], True) if sparse else DENSE[engine]
                path = tree / gpu / name
                if not path.exists():
                    continue
                table = kept(pd.read_parquet(path), module)
                for kv in ("bfloat16", "fp8"):
                    rows = table[table.kv_cache_dtype == kv]
                    if len(rows) < 40:
                        continue
                    model = "deepseek-v3.2" if sparse else "deepseek-v3"
                    heads, batch = rows.num_heads.to_numpy(), rows.batch_size.to_numpy()
                    off = projections(gpu, engine, model, heads, batch) if module else np.zeros(len(rows))
                    found = fitted(rows, gpu, off, 2 if kv == "bfloat16" else 1, sparse)
                    kind = "sparse" if sparse else "dense"
                    out.setdefault(gpu, {}).setdefault(engine, {}).setdefault(kind, {})[kv] = found
                    print(gpu, engine, kind, kv, len(rows), found)
    text = json.dumps(out, indent=1) + "\n"
    (ROOT / "hardware" / "measured" / "latent.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
