"""First tokens where they are off: open-loop ladders of an 8B up to saturation, and EAGLE-3 with one user.

    python tests/fidelity/first_tokens.py [--seeds 1]

Needs the shared collection of measurements (SPECFLEET_SHARED). For each stage of `IPERF-L8-H100` TTFT, TPOT
and throughput, measured, predicted and the error; for the 32B with EAGLE-3 and one user the two modes of TTFT
(with a step in vain before the prompt, and without), and the share of requests in the later one: ours, and
what the measured mean says between our modes.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specfleet.experiments.validate.points import MeasuredPoint, scenario
from specfleet.experiments.validate.runs import predict
from specfleet.experiments.validate.sample import levelled_requests, matched
from specfleet.experiments.validate.tables import read_csv
from specfleet.sim.simulation import simulate

SHOWN = ("ttft_mean_ms", "ttft_median_ms", "ttft_p99_ms", "tpot_mean_ms", "output_throughput")


def ladder(points: list[MeasuredPoint], seeds: int) -> None:
    """A line a stage: measured, predicted, error in percent of each figure."""
    print("".ljust(32), *(name.rjust(24) for name in SHOWN))
    for point in points:
        scored = predict(point, seeds, "simulate")
        errors = scored.errors()
        cells = [
            f"{point.measured[name]:.1f} {scored.predicted[name]:.1f} {errors[name]:+.1f}" for name in SHOWN
        ]
        print(point.name.ljust(32), *(cell.rjust(24) for cell in cells), scored.failure)


def modes(point: MeasuredPoint, seeds: int) -> None:
    """A line: our two modes of TTFT and the share of the later, and that share by the measured mean."""
    found: list[NDArray[np.float64]] = []
    built = scenario(point)
    assert point.acceptance is not None
    for seed in range(seeds):
        table = levelled_requests(point.workload, seed)
        given = {"": matched(point.acceptance, point.k, table, seed)}
        requests = simulate(replace(built, acceptance=given), table, seed).requests
        found.append(1e3 * (requests["first_chunk_s"] - requests["sent_s"]))
    ttft = np.concatenate(found)
    late = ttft >= (ttft.min() + ttft.max()) / 2
    low, high = ttft[~late].mean(), ttft[late].mean()
    mean = point.measured["ttft_mean_ms"]
    print(
        f"{point.name}: {low:.1f} and {high:.1f} ms, late {late.mean():.2f}; measured mean {mean:.1f} "
        f"(late {(mean - low) / (high - low):.2f}), median {point.measured['ttft_median_ms']:.1f}"
    )


def main() -> None:
    """Prints both."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=1)
    seeds = parser.parse_args().seeds
    folder = Path(os.environ.get("SPECFLEET_SHARED", "../shared")) / "validation"
    served = read_csv(folder / "serving_points.csv", frozen=False).points
    ladder([point for point in served if point.name.startswith("IPERF-L8-H100")], seeds)
    print()
    for point in read_csv(folder / "h100_vllm_specdec.csv", frozen=False).points:
        if point.method == "eagle3" and point.concurrency == 1 and point.campaign == "q32_tp1_lrz":
            modes(point, 4 * seeds)


if __name__ == "__main__":
    main()
