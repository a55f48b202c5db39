"""Derives hardware/measured/gemm_h100_sxm_bfloat16_us.csv from the tables of an older aiconfigurator.

    pip download --no-deps aiconfigurator==0.7.0 -d WHEELS && unzip -d TREE WHEELS/*.whl
    python tests/fidelity/derive_gemm_rows.py TREE

Four collections of BF16 GEMMs on an H100 SXM, releases of July 2025 to January 2026. vLLM's own two of that
time (0.12 and 0.14) are left out: its collector leaves whatever lay in memory as weights, and they are 10 to
15 % faster from 384 rows on. Each is brought to the level of all by one number (their cards differ by 1 to
2 % up to 32 rows); the median stands, since single times scatter by up to 15 % upwards. Kept: both sides from
1,024 on, up to 256 rows. Milliseconds become microseconds.

Printed besides: the shares of bandwidth and peak at which the law (`hardware/gemmtable.py`) has the median of
all shapes with both sides from 2,048 on right, and how far it goes wrong from an H200's times to an H100's
with its exponent (4) and with others.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Times = dict[tuple[int, int], dict[int, float]]

TO = Path(__file__).resolve().parents[2] / "hardware" / "measured" / "gemm_h100_sxm_bfloat16_us.csv"
COLLECTIONS = ("sglang/0.5.6.post2", "sglang/0.5.8.post1", "trtllm/1.2.0rc5", "trtllm/1.0.0rc3")
ON_BOTH_CARDS = ("sglang/0.5.6.post2", "trtllm/1.2.0rc5", "trtllm/1.0.0rc3")
ROWS = (1, 2, 4, 8, 16, 32, 48, 64, 80, 96, 128, 160, 192, 256)
MANY_ROWS = (1024, 2048, 4096)
FEW = 6
"""Of `ROWS`: up to 32, where time is that of the bytes."""
LEAST_SIDE = 1024
FLOOR_US, BYTES_PER_US, FLOP_PER_US = 3.4, 3.35e6, 989e6
H200_BYTES_PER_US = 4.8e6
EXPONENT = 4.0
"""Of the smooth maximum of streaming and arithmetic: `constants.json`, H100 SXM, BF16."""


def collection(tree: Path, gpu: str, name: str) -> Times:
    """Microseconds by rows, by (columns, depth)."""
    found: Times = {}
    path = tree / "aiconfigurator" / "systems" / "data" / gpu / name / "gemm_perf.txt"
    with path.open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            if line["gemm_dtype"] == "float16":
                shape = found.setdefault((int(line["n"]), int(line["k"])), {})
                shape[int(line["m"])] = 1e3 * float(line["latency"])
    return found


def times(tables: Sequence[Times], shapes: Sequence[tuple[int, int]], rows: Sequence[int]) -> Array:
    """Microseconds by collection, shape and rows; not a number where one is missing."""
    return np.array([[[t[s].get(m, np.nan) for m in rows] for s in shapes] for t in tables])


def law(shapes: Sequence[tuple[int, int]], rows: Sequence[int], shares: tuple[float, float],
        exponent: float, bytes_per_us: float = BYTES_PER_US) -> Array:  # fmt: skip
    """Microseconds of the law without waves."""
    n, k = (np.array([[shape[side]] for shape in shapes], dtype=float) for side in (0, 1))
    m = np.array([rows], dtype=float)
    stream = 2.0 * (n * k + m * k + m * n) / (bytes_per_us * shares[0])
    arithmetic = 2.0 * m * n * k / (FLOP_PER_US * shares[1])
    return np.asarray(FLOOR_US + (stream**exponent + arithmetic**exponent) ** (1.0 / exponent))


def main() -> int:
    """Writes the table and prints what `hardware/gemmtable.py` states."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tree", type=Path, help="the unpacked wheel")
    tree = parser.parse_args().tree
    tables = [collection(tree, "h100_sxm", name) for name in COLLECTIONS]
    shapes = sorted(shape for shape in tables[0] if min(shape) >= LEAST_SIDE)
    every = times(tables, shapes, ROWS + MANY_ROWS)
    few = np.nanmedian(np.log(every[:, :, :FEW]), axis=2)
    every /= np.exp(np.nanmedian(few - few.mean(axis=0), axis=1))[:, None, None]
    median = np.nanmedian(every, axis=0)
    with TO.open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(["n", "k", *(f"m{m}" for m in ROWS)])
        for shape, row in zip(shapes, median, strict=True):
            out.writerow([*shape, *(f"{value:.2f}" for value in row[: len(ROWS)])])
    large = [at for at, shape in enumerate(shapes) if min(shape) >= 2 * LEAST_SIDE]
    shares = (0.9, 0.75)
    for _ in range(50):
        off = np.log(median[large] / law([shapes[at] for at in large], ROWS + MANY_ROWS, shares, EXPONENT))
        shares = (
            shares[0] / float(np.exp(np.nanmedian(off[:, :FEW]))),
            shares[1] / float(np.exp(np.nanmedian(off[:, len(ROWS) :]))),
        )
    print(f"{len(shapes)} shapes; share of bandwidth {shares[0]:.3f}, of peak {shares[1]:.3f}")
    between_cards(tree, shares)
    return 0


def between_cards(tree: Path, shares: tuple[float, float]) -> None:
    """Prints what is wrong in the median when an H200's times are brought to an H100's bandwidth."""
    rows = (32, 64, 96, 128, 192, 256, 384, 512, 1024)
    print("from H200 to H100, median error in % by rows", *rows)
    for exponent in (3.0, EXPONENT, 6.0, 8.0):
        found = []
        for name in ON_BOTH_CARDS:
            slow, fast = (collection(tree, gpu, name) for gpu in ("h100_sxm", "h200_sxm"))
            shapes = [s for s in slow if s in fast and min(s) >= 4096 and s[0] * s[1] > 3.3e7]
            ratio = law(shapes, rows, shares, exponent) / law(
                shapes, rows, shares, exponent, H200_BYTES_PER_US
            )
            measured = times([slow], shapes, rows)[0] / times([fast], shapes, rows)[0]
            found.append(100.0 * np.log(ratio / measured))
        print(
            f"exponent {exponent:3.0f}", *(f"{v:+.1f}" for v in np.nanmedian(np.concatenate(found), axis=0))
        )


if __name__ == "__main__":
    raise SystemExit(main())
