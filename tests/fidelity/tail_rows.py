"""Scores P99 on measured rows: Llama-3.3-70B on two H100 and Qwen3-32B with a draft model under load.

    python tests/fidelity/tail_rows.py [--seeds 4] [--jobs 2]

A part of `specfleet validate h100_vllm_specdec.csv`: P99 / mean TPOT of every 70B row, with the shipped
spread between requests and with all alike; and TPOT of the 32B with a 1.7B draft model at 128 users, as a
ratio to plain. Prints predicted against measured and whether each bar is met.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from specfleet.experiments.validate.points import MeasuredPoint
from specfleet.experiments.validate.runs import Scored, predict_all
from specfleet.experiments.validate.tables import read_csv


def rows(shared: Path) -> tuple[MeasuredPoint, ...]:
    """Every usable row of the file."""
    return tuple(read_csv(shared / "validation" / "h100_vllm_specdec.csv", frozen=False).points)


def llama70b(points: Sequence[MeasuredPoint]) -> list[MeasuredPoint]:
    """The rows of the 70B with a drafter."""
    return [point for point in points if point.campaign == "l70_tp2_brev" and point.k]


def draft32b(points: Sequence[MeasuredPoint]) -> list[MeasuredPoint]:
    """The 32B at 128 users, plain and with the 1.7B draft model."""
    return [
        point
        for point in points
        if point.campaign == "q32_tp1_lrz"
        and point.dataset == "InstructCoder"
        and point.max_concurrency == 128
        and point.method in ("none", "draft_model")
    ]


def alike(points: Sequence[MeasuredPoint]) -> list[MeasuredPoint]:
    """The points without spread between requests."""
    out = []
    for point in points:
        assert point.acceptance is not None
        out.append(replace(point, acceptance=replace(point.acceptance, concentration=math.inf)))
    return out


def predicted(points: Sequence[MeasuredPoint], seeds: int, jobs: int) -> list[Scored]:
    """Simulates points."""
    return predict_all(points, seeds, None, jobs, lambda name: None)


def tail_error(scored: Scored) -> float:
    """P99 / mean TPOT, predicted / measured - 1."""
    found, measured = (
        figures["tpot_p99_ms"] / figures["tpot_mean_ms"]
        for figures in (scored.predicted, scored.point.measured)
    )
    return found / measured - 1.0


def ratio_errors(scores: Sequence[Scored]) -> dict[int, dict[str, float]]:
    """K -> error of mean and P99 TPOT as a ratio to plain, at one load."""
    plain = next(scored for scored in scores if not scored.point.k)
    return {
        scored.point.k: {
            metric: scored.predicted[metric]
            / plain.predicted[metric]
            / (scored.point.measured[metric] / plain.point.measured[metric])
            - 1.0
            for metric in ("tpot_mean_ms", "tpot_p99_ms")
        }
        for scored in scores
        if scored.point.k
    }


def main(argv: list[str] | None = None) -> int:
    """Runs the command line; returns 0 if every bar is met, 1 if not, 2 without the measurements."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args(argv)
    shared = Path(os.environ.get("SPECFLEET_SHARED", Path(__file__).parents[2] / ".." / "shared"))
    if not (shared / "validation").is_dir():
        print(f"no measured rows at {shared}; set SPECFLEET_SHARED", file=sys.stderr)
        return 2
    points = rows(shared)
    spread = predicted(llama70b(points), args.seeds, args.jobs)
    same = predicted(alike(llama70b(points)), args.seeds, args.jobs)
    off, none = (np.array([tail_error(scored) for scored in scores]) for scores in (spread, same))
    alone = np.array([scored.point.max_concurrency == 1 for scored in spread])
    for scored, error, without in zip(spread, off, none, strict=True):
        point = scored.point
        name = f"{point.method:<12} K={point.k} c={point.max_concurrency:<3}"
        print(f"{name} P99/mean error {100 * error:+6.1f} % with spread, {100 * without:+6.1f} % without")
    within = float(np.mean(np.abs(off) <= 0.12))
    bars = [
        (f"70B: {100 * within:.0f} % of {len(off)} rows within 12 % (bar 90)", within >= 0.9),
        (f"70B without spread: {100 * none.mean():+.1f} % on average (bar -15)", bool(none.mean() <= -0.15)),
        (
            f"70B without spread at c = 1: {100 * none[alone].mean():+.1f} % (bar -20)",
            bool(none[alone].mean() <= -0.2),
        ),
    ]
    for k, errors in sorted(ratio_errors(predicted(draft32b(points), args.seeds, args.jobs)).items()):
        text = ", ".join(f"{metric} {100 * error:+.1f} %" for metric, error in errors.items())
        bars.append(
            (
                f"32B, 1.7B draft, c = 128, K = {k}, ratio to plain: {text} (bar 10)",
                all(abs(error) <= 0.1 for error in errors.values()),
            )
        )
    for text, met in bars:
        print(("met      " if met else "NOT MET  ") + text)
    return 0 if all(met for _, met in bars) else 1


if __name__ == "__main__":
    raise SystemExit(main())
