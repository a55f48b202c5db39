"""Derives the tables of experts and latent attention in hardware/measured from aiconfigurator-core's.

    pip download --no-deps aiconfigurator-core==0.12.0 -d WHEELS && unzip -d TREE WHEELS/*.whl
    python tests/fidelity/derive_kernel_tables.py TREE            # needs pandas and pyarrow

What is kept: H100, H200 and B200 SXM; shapes of models in the catalogue; groups of at most eight GPUs;
routing by a power law of exponent 1.01, which touches as many experts as uniform routing does; the newest two
versions of an engine. Milliseconds become microseconds. Where several kernels were timed for one line the
fastest stands, as the engines choose it. Times over growing tokens are made to grow (pooled means of
neighbours that do not, by least squares in the logarithm): single measurements scatter.

`chosen` 1: the experts of each token were chosen before the clock ran (`chosen_before`). What choosing takes
by itself is printed at the end: vLLM 0.24 (timed with it) less 0.19 (without), the same grouped GEMMs.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
TO = ROOT / "hardware" / "measured"
GPUS = ("h100_sxm", "h200_sxm", "b200_sxm")
HOPPER = GPUS[:2]
MOST_GPUS = 8
DISTRIBUTION = "power_law_1.01"
TOKENS = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 1024, 2048, 4096, 8192, 16384)
LEAST_TOKENS = 12
"""A line with fewer numbers of tokens, or without a single one, is left out."""
UNTUNED = "vllm_modeloptfp8moe_flashinfer_cutlass_flashinferexperts"
"""FlashInfer's CUTLASS kernels for FP8 with one scale a tensor, on Hopper: timed as they come, without the
tuning that vLLM does before it serves. Up to 512 tokens they take 4.4 (H100) and 5.5 times (H200, medians)
what TensorRT-LLM's collection has for the kernels that they are built from, and 5.7 times Triton's of 0.19;
served they lose a tenth of a step to Triton's (vLLM #50040). They run at all only where a checkpoint brings
the scales of its inputs; FP8 made by the engine, or by channel, runs Triton's (#33300). Left out."""
OUTLIERS = "vllm_marlin_int4_moe"
"""vLLM 0.19's times for 4-bit integers: up to 512 tokens 3.2 times those of 0.24 and 2.8 times SGLang's
(medians, H200), with the same Marlin kernels; slower than BF16 with four times the bytes. Left out."""
VERSIONS = {
    "vllm": ("0.19.0", "0.24.0"),
    "sglang": ("0.5.10", "0.5.14"),
    "trtllm": ("1.3.0rc10", "1.3.0rc20"),
}
DTYPES = (
    "bfloat16", "fp8", "fp8_block", "w4a16_mxfp4", "w4a8_mxfp4_mxfp8", "nvfp4", "int4_wo",
)  # fmt: skip


def growing(times: Sequence[float]) -> list[float]:
    """The nearest sequence that never falls: neighbours that do are pooled (in the logarithm)."""
    pools: list[tuple[float, int]] = []
    for time in np.log(times):
        pools.append((float(time), 1))
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            (a, n), (b, m) = pools[-2], pools[-1]
            pools[-2:] = [((a * n + b * m) / (n + m), n + m)]
    return [value for level, count in pools for value in [float(np.exp(level))] * count]


def catalogue_shapes() -> dict[tuple[int, ...], tuple[int, bool]]:
    """Matrices of an expert, and whether a bias chooses, by (hidden, width, experts a token, experts)."""
    from specfleet.hardware import catalog

    found: dict[tuple[int, ...], tuple[int, bool]] = {}
    for name in catalog.names("models"):
        model = catalog.model(name)
        for run in model.runs:
            if experts := run.experts:
                hidden = experts.latent or model.hidden_size
                shape = (hidden, experts.width, experts.per_token, experts.experts)
                found[shape] = 3 if experts.gated else 2, experts.router_bias
    return found


def chosen_before(
    engine: str, version: str, dtype: str, sources: Sequence[str], ep: int, biased: bool
) -> bool:
    """Whether a line was timed with experts that had been chosen before, by what the collectors call.

    vLLM: `fused_experts` and its Marlin and FP4 kernels with ready choices until 0.22, since then (and always
    for MXFP4) the layer with scores. SGLang: `select_experts` in front of the kernel, but choices of one rank
    made beforehand where experts are apart; since 0.5.14 the whole layer with its choice, but for plain
    softmax in 8 or 16 bits. TensorRT-LLM: always the layer with scores.
    """
    if engine == "vllm":
        ready = ("vllm_fused_moe", "vllm_marlin_int4_moe", "vllm_flashinfer_trtllm_moe_fp4")
        return all(source in ready for source in sources)
    if engine == "sglang" and ep > 1:
        plain = version != "0.5.14" or not (biased or dtype.startswith("w4a"))
        return plain and all(source == "sglang_fused_moe_triton" for source in sources)
    return False


def experts(tree: Path, gpu: str) -> Iterable[list[Any]]:
    """Lines of one GPU's table."""
    import pandas as pd

    shapes = catalogue_shapes()
    for engine, versions in VERSIONS.items():
        for version in versions:
            path = tree / gpu / "moe" / engine / version / "moe_perf.parquet"
            if not path.exists():
                continue
            table = pd.read_parquet(path)
            table = table[(table.distribution == DISTRIBUTION) & table.num_tokens.isin(TOKENS)]
            table = table[(table.moe_tp_size * table.moe_ep_size <= MOST_GPUS) & table.moe_dtype.isin(DTYPES)]
            table = table[table.kernel_source != OUTLIERS]
            if gpu in HOPPER:
                table = table[table.kernel_source != UNTUNED]
            keys = [
                "moe_dtype",
                "hidden_size",
                "inter_size",
                "topk",
                "num_experts",
                "moe_tp_size",
                "moe_ep_size",
            ]
            for key, group in table.groupby(keys):
                shape: tuple[Any, ...] = tuple(key[1:5])
                if shape not in shapes:
                    continue
                fastest = group.groupby("num_tokens").latency.min()
                tokens = [m for m in TOKENS if m in fastest.index]
                if len(tokens) < LEAST_TOKENS or tokens[0] > 1:
                    continue
                smooth = dict(zip(tokens, growing([1e3 * fastest[m] for m in tokens]), strict=True))
                cells = [f"{float(f'{smooth[m]:.3g}'):g}" if m in smooth else "" for m in TOKENS]
                matrices, biased = shapes[shape]
                kind, ranks, sources = str(key[0]), int(str(key[6])), list(group.kernel_source.unique())
                chosen = chosen_before(engine, version, kind, sources, ranks, biased)
                yield [engine, version, *key[:5], matrices, *key[5:], int(chosen), *cells]


def choosing(tree: Path, gpu: str = "h200_sxm") -> None:
    """Prints what choosing takes in us, by experts a token and experts: medians of layers, types and splits.

    Up to 512 tokens, whole experts, the Triton kernels of both releases. Two mixtures are left out whose
    GEMMs 0.24 runs otherwise (2,688 wide, and 7,168 with 256 experts: twice as fast in 0.24).
    """
    import pandas as pd

    keys = [
        *("moe_dtype", "num_tokens", "hidden_size", "inter_size", "topk", "num_experts"),
        *("moe_tp_size", "moe_ep_size", "distribution"),
    ]
    times = []
    for version, source in (("0.19.0", "vllm_fused_moe"), ("0.24.0", "triton_tritonexperts")):
        table = pd.read_parquet(tree / gpu / "moe" / "vllm" / version / "moe_perf.parquet")
        table = table[table.kernel_source.str.endswith(source)]
        times.append(table.groupby(keys).latency.min())
    both = pd.concat(times, axis=1, keys=["without", "with_it"]).dropna().reset_index()
    both = both[(both.num_tokens <= 512) & (both.moe_ep_size == 1) & (both.moe_tp_size <= MOST_GPUS)]
    both = both[both.distribution.isin(("balanced", DISTRIBUTION)) & (both.hidden_size != 2688)]
    both = both[(both.hidden_size != 7168) | (both.num_experts != 256)]
    both["us"] = 1e3 * (both.with_it - both.without)
    medians = both.groupby(["topk", "num_experts"]).us.median()
    print(medians.round(2).to_string())
    rows = medians.reset_index().itertuples(index=False, name=None)
    two = [(k, us) for k, n, us in rows if not n & (n - 1)]
    print(f"{sum(k * us for k, us in two) / sum(k * k for k, _ in two):.2f} us a chosen expert")


NCCL = "2.29.2"
SIZES = tuple(1 << n for n in range(10, 30, 1))
"""Bytes of all ranks together."""


def collectives(tree: Path, gpu: str) -> Iterable[list[Any]]:
    """Lines of one GPU's gathers and scatters: microseconds by bytes of all ranks together."""
    import pandas as pd

    table = pd.read_parquet(tree / gpu / "comm" / "nccl" / NCCL / "nccl_perf.parquet")
    table = table[(table.nccl_dtype == "half") & (table.num_gpus <= MOST_GPUS)]
    for (name, gpus), group in table[table.op_name.isin(("all_gather", "reduce_scatter"))].groupby(
        ["op_name", "num_gpus"]
    ):
        times = group.groupby("message_size").latency.min()
        kept = [size for size in SIZES if size // 2 in times.index]
        smooth = dict(zip(kept, growing([1e3 * times[size // 2] for size in kept]), strict=True))
        yield [gpu, name, gpus, *(f"{smooth[size]:.1f}" if size in smooth else "" for size in SIZES)]


def write(path: Path, head: Sequence[str], lines: Iterable[Sequence[Any]]) -> None:
    """Writes a table and says how large it is."""
    kept = list(lines)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(head)
        writer.writerows(kept)
    print(f"{path.name}: {len(kept)} lines, {path.stat().st_size:,} bytes")


def main() -> None:
    """Writes all tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tree", type=Path, help="the unpacked wheel")
    tree = parser.parse_args().tree / "aiconfigurator_core" / "systems" / "data"
    for gpu in GPUS:
        head = [
            "engine",
            "version",
            "dtype",
            "hidden",
            "width",
            "per_token",
            "experts",
            "matrices",
            "tp",
            "ep",
            "chosen",
        ]
        write(TO / f"experts_{gpu}_us.csv", [*head, *(f"m{m}" for m in TOKENS)], experts(tree, gpu))
    lines = [line for gpu in GPUS for line in collectives(tree, gpu)]
    write(TO / "collectives_us.csv", ["gpu", "collective", "gpus", *(f"b{size}" for size in SIZES)], lines)
    choosing(tree)


if __name__ == "__main__":
    main()
