"""Scores measured rows of SGLang under both rule sets: what its own scheduler is worth, at the same prices.

    python tests/fidelity/sglang_rows.py ../shared/validation/serving_points.csv [--seeds 1]

Every row of the file whose engine is SGLang and which states a load is simulated twice, with the same
memory, graphs, kernels and host time: as vLLM schedules, and as SGLang does. Errors are those of `specfleet
validate`, mean of absolute values and, in brackets, with their sign. Rows without a load (offline tables, a
client's users) are priced in closed form, where nobody schedules: they are counted alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from specfleet.experiments.validate.points import BENCH_KEYS, MeasuredPoint, scenario
from specfleet.experiments.validate.sample import levelled_requests
from specfleet.experiments.validate.tables import read_csv
from specfleet.hardware.memory import DoesNotFit
from specfleet.sim.metrics.columns import benchmark
from specfleet.sim.scenario import Scenario
from specfleet.sim.simulation import simulate

METRICS = {
    "output_throughput": "tok/s",
    "tpot_mean_ms": "mean TPOT",
    "tpot_p99_ms": "P99 TPOT",
    "ttft_mean_ms": "mean TTFT",
}
BLOCK = 16
"""Tokens of a KV block under vLLM's rules; SGLang's pages have one."""


def under_vllm(built: Scenario) -> Scenario:
    """Returns the scenario with vLLM's rules in place of SGLang's, and everything else as it is."""
    engine = built.engine
    blocks = engine.num_gpu_blocks * engine.block_size // BLOCK
    return replace(built, engine=replace(engine, sglang=None, block_size=BLOCK, num_gpu_blocks=blocks))


def errors(point: MeasuredPoint, built: Scenario, seeds: int) -> dict[str, float]:
    """Returns predicted over measured - 1, percent, by metric."""
    runs = []
    for seed in range(seeds):
        table = levelled_requests(point.workload, seed)
        runs.append(benchmark(simulate(built, table, seed)).numbers())
    predicted = {metric: np.mean([run[BENCH_KEYS[metric]] for run in runs]) for metric in METRICS}
    return {
        metric: float(100.0 * (value / point.measured[metric] - 1.0))
        for metric, value in predicted.items()
        if metric in point.measured
    }


def line(name: str, found: Sequence[tuple[dict[str, float], dict[str, float]]]) -> str:
    """Returns a group's errors under vLLM's rules and under SGLang's."""
    cells = []
    for metric in METRICS:
        both = [[one[rules][metric] for one in found if metric in one[rules]] for rules in (0, 1)]
        said = [f"{np.mean(np.abs(v)):.1f} ({np.mean(v):+.1f})" if v else "-" for v in both]
        cells.append(f"{said[0]:>15} -> {said[1]:<15}")
    return f"{name:<42}{len(found):>4} " + "".join(cells)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a line a record, and one for all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("file", type=Path)
    parser.add_argument("--seeds", type=int, default=1)
    asked = parser.parse_args(arguments)
    points = [p for p in read_csv(asked.file, False).points if p.placement.profile.scheduler == "sglang"]
    served = [point for point in points if not point.closed_form]
    found: dict[str, list[tuple[dict[str, float], dict[str, float]]]] = {}
    refused = 0
    for point in served:
        try:
            built = scenario(point)
        except DoesNotFit:
            refused += 1
            continue
        pair = (errors(point, under_vllm(built), asked.seeds), errors(point, built, asked.seeds))
        many = "flood" if (point.concurrency or 1000) > 64 else "64 users or fewer"
        found.setdefault(f"{point.campaign.removeprefix('GPUSTACK-')}, {many}", []).append(pair)
    print(f"{'record':<42}{'rows':>4} " + "".join(f"{name:^34}" for name in METRICS.values()))
    for name, ones in found.items():
        print(line(name, ones))
    print(line("all", [one for ones in found.values() for one in ones]))
    print(f"{refused} rows do not fit on their GPUs as stated")
    print(f"{len(points) - len(served)} more rows state no load and are priced in closed form")


if __name__ == "__main__":
    main()
