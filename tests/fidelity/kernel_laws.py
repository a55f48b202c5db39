"""Each kernel law against its own table: how far formulas are from the measured times that they stand for.

    python tests/fidelity/kernel_laws.py              # experts and latent attention, by GPU, engine and type

Every line of `hardware/measured/experts_*_us.csv` at all its tokens: the formula alone ("law"), and what is
priced where exactly this mixture was left out of the table ("left out": the nearest other mixture's factor).
Where a mixture stands in the table its own times are priced, error 0. Errors are absolute, in percent.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from specfleet.hardware import catalog  # noqa: E402
from specfleet.hardware.constants import FOLDER  # noqa: E402
from specfleet.hardware.layers.formats import weight_format  # noqa: E402
from specfleet.hardware.mixture import table as experttable  # noqa: E402
from specfleet.hardware.mixture.experts import ExpertLaw  # noqa: E402
from specfleet.hardware.placement import Placement  # noqa: E402

GPUS = {"h100_sxm": "h100-sxm", "h200_sxm": "h200", "b200_sxm": "b200"}
ENGINES = {"vllm": "vllm-0.33", "sglang": "sglang", "trtllm": "trtllm"}
STORED = {
    "bfloat16": "bfloat16", "fp8": "fp8", "fp8_block": "fp8", "w4a16_mxfp4": "mxfp4",
    "w4a8_mxfp4_mxfp8": "mxfp4", "nvfp4": "nvfp4", "int4_wo": "int4_g128",
}  # fmt: skip


def law_of(gpu: str, engine: str, dtype: str, mixture: experttable.Mixture) -> ExpertLaw:
    """The formula for a mixture at the rates of the datasheet."""
    place = Placement.of(
        catalog.model("qwen3-30b-a3b"),
        catalog.accelerator(GPUS[gpu]),
        catalog.engine_profile(ENGINES[engine]),
    )
    stored = STORED[dtype]
    name, peak = place.kernel_law(stored)
    sheet = place.constants.datasheet
    flops = place.accelerator.flops_per_s[peak] * sheet.flops_per_s["bfloat16"]
    flops /= place.accelerator.flops_per_s["bfloat16"]
    bits = weight_format(stored).bits
    return ExpertLaw(mixture, bits, place.constants.gemm[name], sheet.bytes_per_s, flops)


Ratios = dict[experttable.Mixture, tuple[np.ndarray, np.ndarray, str]]


def ratios(gpu: str) -> dict[tuple[str, str], Ratios]:
    """By engine and type: tokens, the formula over the measured time, and the release, of every mixture."""
    found: dict[tuple[str, str], Ratios] = defaultdict(dict)
    for (engine, dtype, mixture), lines in experttable.lines_of(gpu).items():
        line = lines[-1]
        parts = law_of(gpu, engine, dtype, mixture).parts(line.tokens, line.tokens)
        total = parts.floor_s + parts.stream_s + parts.extra_s
        found[engine, dtype][mixture] = line.tokens, total / line.seconds, line.version
    return found


def left_out(by: Ratios) -> np.ndarray:
    """What the nearest other mixture of the same release would be off, in percent, at every token count."""
    off = [np.zeros(0)]
    for mixture, (tokens, ratio, version) in by.items():
        others = {m: by[m] for m in by if m[:4] != mixture[:4] and by[m][2] == version}
        if near := experttable.nearest(mixture, others):
            there, other, _ = others[near]
            off.append(100 * np.abs(ratio / np.interp(np.log(tokens), np.log(there), other) - 1))
    return np.concatenate(off)


def main() -> None:
    """Prints the table."""
    print(f"{'GPU':9s} {'engine':7s} {'type':17s} lines | law: median  worst | left out: median  P90  worst")
    for gpu in GPUS:
        for (engine, dtype), by in sorted(ratios(gpu).items()):
            law = np.concatenate([100 * np.abs(ratio - 1) for _, ratio, _ in by.values()])
            near = left_out(by)
            rest = (
                f"{np.median(near):6.1f} {np.percentile(near, 90):6.0f} {near.max():6.0f}"
                if near.size
                else ""
            )
            print(
                f"{gpu:9s} {engine:7s} {dtype:17s} {len(by):5d} | {np.median(law):6.1f} {law.max():8.0f}"
                f"       | {rest}".rstrip()
            )


def latent() -> None:
    """Prints how far the law of latent attention is from the tables that its constants were fitted on."""
    print(
        f"\n{'GPU':9s} {'engine':7s} {'attention':17s} KV       | law: median  worst | floor of a layer, us"
    )
    data = json.loads((FOLDER / "latent.json").read_text(encoding="utf-8"))
    for gpu, engines in data.items():
        for engine, kinds in engines.items():
            for kind, types in kinds.items():
                for kv, of in types.items():
                    print(
                        f"{gpu:9s} {engine:7s} {kind + ' latent':17s} {kv:8s} | {of['median_off_pct']:6.1f}"
                        f" {of['worst_off_pct']:8.0f}       | {of['t0_us']:.0f}"
                    )


if __name__ == "__main__":
    main()
    latent()
