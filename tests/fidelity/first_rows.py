"""Scores the model on measured rows: Qwen3-32B on one H100, InstructCoder, with and without speculation.

    python tests/fidelity/first_rows.py [--seeds 4]

A part of `specfleet validate h100_vllm_specdec.csv`, row by row: given are the acceptance by position and the
mean lengths, nothing else of the measurement. Prints predicted against measured and the errors over
concurrency 1..128.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import numpy as np

from specfleet.experiments.validate.points import MeasuredPoint
from specfleet.experiments.validate.runs import Scored, predict_all
from specfleet.experiments.validate.tables import read_csv

SERIES = {("none", 0): "plain", ("eagle3", 3): "EAGLE-3 K=3", ("draft_model", 3): "1.7B draft K=3"}


def series(point: MeasuredPoint) -> str | None:
    """Returns the curve that a row belongs to, None for rows not shown."""
    shown = point.campaign == "q32_tp1_lrz" and point.dataset == "InstructCoder"
    return SERIES.get((point.method, point.k)) if shown else None


def pair(s: Scored, metric: str, digits: int) -> str:
    """Returns predicted/measured."""
    return f"{s.predicted[metric]:>7.{digits}f}/{s.point.measured[metric]:<7.{digits}f}"


def table(scores: list[Scored]) -> str:
    """Returns predicted and measured side by side."""
    lines = [
        f"{'series':<15} {'c':>4} {'TPOT ms':>15} {'err':>6} {'P99':>6} {'TTFT ms':>15} {'err':>6} "
        f"{'ITL':>6} {'tok/s':>15} {'err':>6} {'KV':>5}"
    ]
    for s in sorted(scores, key=lambda s: (str(series(s.point)), s.point.max_concurrency or 0)):
        error = s.errors()
        lines.append(
            f"{series(s.point):<15} {s.point.max_concurrency:>4} "
            f"{pair(s, 'tpot_mean_ms', 2)} {error['tpot_mean_ms']:>+5.1f}% {error['tpot_p99_ms']:>+5.1f}% "
            f"{pair(s, 'ttft_mean_ms', 0)} {error['ttft_mean_ms']:>+5.1f}% {error['itl_median_ms']:>+5.1f}% "
            f"{pair(s, 'output_throughput', 0)} {error['output_throughput']:>+5.1f}% "
            f"{error['kv_pool_tokens']:>+4.1f}%"
        )
    return "\n".join(lines)


def ratio(scores: list[Scored], concurrency: int, predicted: bool) -> float:
    """Returns the EAGLE-3 throughput ratio to plain at a concurrency, predicted or measured."""
    speed = {
        series(s.point): (s.predicted if predicted else s.point.measured)["output_throughput"]
        for s in scores
        if s.point.max_concurrency == concurrency
    }
    return speed["EAGLE-3 K=3"] / speed["plain"]


def verdicts(scores: list[Scored]) -> list[tuple[str, bool]]:
    """Returns each bar with whether it is met."""
    errors = [s.errors() for s in scores if (s.point.max_concurrency or 0) <= 128]
    found = []
    for metric, mean_bar, worst_bar in (("tpot_mean_ms", 3.0, 7.0), ("ttft_mean_ms", 8.0, 20.0)):
        off = np.abs([error[metric] for error in errors])
        text = f"{metric}: mean error {off.mean():.2f} % (bar {mean_bar:g}), "
        text += f"worst {off.max():.2f} % (bar {worst_bar:g})"
        found.append((text, bool(off.mean() <= mean_bar and off.max() <= worst_bar)))
    pool = max(abs(s.errors()["kv_pool_tokens"]) for s in scores)
    found.append((f"KV pool: worst error {pool:.2f} % (bar 2)", pool <= 2.0))
    at128, at256 = ratio(scores, 128, True), ratio(scores, 256, True)
    measured = f"measured {ratio(scores, 128, False):.2f} and {ratio(scores, 256, False):.2f}"
    text = f"EAGLE-3 throughput ratio {at128:.2f} at c=128, {at256:.2f} at c=256 ({measured})"
    return [*found, (text, at128 > 1 > at256)]


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns 0 if every bar is met, 1 if not, 2 without the measurements."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=4)
    args = parser.parse_args(argv)
    shared = Path(os.environ.get("SPECFLEET_SHARED", Path(__file__).parents[2] / ".." / "shared"))
    if not (shared / "validation").is_dir():
        print(f"no measured rows at {shared}; set SPECFLEET_SHARED", file=sys.stderr)
        return 2
    rows = read_csv(shared / "validation" / "h100_vllm_specdec.csv", frozen=False).points
    shown = [point for point in rows if series(point)]
    scores = predict_all(shown, args.seeds, None, os.cpu_count() or 1, lambda name: None)
    print(table(scores))
    checked = verdicts(scores)
    for text, met in checked:
        print(("met      " if met else "NOT MET  ") + text)
    return 0 if all(met for _, met in checked) else 1


if __name__ == "__main__":
    raise SystemExit(main())
