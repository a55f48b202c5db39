"""Writes what was measured: every row, the constants, and how an experiment names them."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from pathlib import Path

from specfleet.experiments.measure.entry import Fits
from specfleet.experiments.measure.points import Backend, KernelCall, Timed
from specfleet.experiments.measure.unsettled import Expected, Topic

ROWS, CONSTANTS, SUMMARY, PLAN = "rows.csv", "constants.json", "summary.txt", "plan.csv"
_UNITS = "times in us, bytes/s, FLOP/s; shares refer to bw, bfloat16 and fp8 of this entry"


def write_rows(folder: Path, timed: Timed, fits: Fits) -> None:
    """`rows.csv`: a row a point, its time, and what the fitted law says of it."""
    with (folder / ROWS).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*KernelCall._fields, "us", "fitted_us", "error_pct"])
        for at, (point, seconds) in enumerate(timed.rows):
            fitted = fits.predicted.get(at)
            told = (
                ["", ""] if fitted is None else [f"{1e6 * fitted:.4g}", f"{100 * (fitted / seconds - 1):.1f}"]
            )
            writer.writerow([*point, f"{1e6 * seconds:.5g}", *told])


def write_plan(folder: Path, topics: Sequence[Topic], taken: Sequence[Sequence[Expected]]) -> None:
    """`plan.csv`: a row a point, with what its kernel and its timing are expected to take."""
    with (folder / PLAN).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["topic", *KernelCall._fields, "expected_us", "timing_s"])
        for topic, groups in zip(topics, taken, strict=True):
            for group in groups:
                each = group.wall_s / len(group.points)
                for point, seconds in zip(group.points, group.kernel_s, strict=True):
                    writer.writerow([topic.name, *point, f"{1e6 * seconds:.4g}", f"{each:.3g}"])


def write_constants(folder: Path, fits: Fits) -> Path:
    """`constants.json`: one entry, named after the GPU, in the format of the shipped constants."""
    path = folder / CONSTANTS
    document = {"_note": f"written by specfleet measure; {_UNITS}", entry_name(fits): fits.entry}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return path


def entry_name(fits: Fits) -> str:
    """The entry's name: the driver's name of the GPU in lower case, words joined by `_`."""
    return re.sub(r"[^a-z0-9]+", "_", str(fits.entry["gpu"]).lower()).strip("_")


def serve_block(constants: Path, fits: Fits, backend: Backend) -> str:
    """YAML for an experiment: the catalogue's GPU with these constants, or the whole GPU if it has none."""
    device, known = backend.device, fits.reference.accelerator
    named = json.dumps(str(constants.absolute()))
    apart = ", p2p: false" if device.gpus > 1 and not device.peers else ""
    if known is not None:
        return f"serve:\n  gpu: {{base: {known.name}, constants: {named}{apart}}}"
    peaks = ", ".join(f"{dtype}: {rate:.4g}" for dtype, rate in fits.reference.flops_per_s.items())
    lines = (
        f"name: {entry_name(fits).replace('_', '-')}",
        f"hbm_bytes: {device.memory_bytes}",
        f"hbm_bytes_per_s: {fits.reference.bytes_per_s:.4g}",
        f"flops_per_s: {{{peaks}}}",
        f"sms: {device.sms}",
        f"p2p: {str(device.peers).lower()}",
        f"l2_bytes: {device.l2_bytes}",
        f"constants: {named}",
    )
    return "serve:\n  gpu:\n" + "\n".join(f"    {line}" for line in lines)
