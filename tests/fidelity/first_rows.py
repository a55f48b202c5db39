"""Scores the model on measured rows: Qwen3-32B on one H100, InstructCoder, with and without speculation.

    python tests/fidelity/first_rows.py [--seeds 4]

Each row of `h100_vllm_specdec.csv` (campaign q32_tp1_lrz) is simulated from its server
configuration and its workload; given are the acceptance by position and the mean lengths, nothing
else of the measurement. Prints predicted against measured and the errors over concurrency 1..128.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from math import inf
from pathlib import Path

import numpy as np

from hardware import catalog
from hardware.memory import kv_budget
from hardware.placement import Placement
from hardware.stepcost import KernelCost
from sim.config import EngineConfig, LoadConfig, SpeculativeConfig
from sim.metrics import benchmark
from sim.simulation import Scenario, simulate
from sim.speculation.acceptance import AcceptanceSpec
from workloads.build import WorkloadSpec, build_requests
from workloads.lengths import Fixed, Scaled, Shifted
from workloads.profiles import preset

SERIES = {("none", 0): "plain", ("eagle3", 3): "EAGLE-3 K=3", ("draft_model", 3): "1.7B draft K=3"}
QWEN_TEMPLATE_SAVES = 28
"""Tokens by which the Qwen chat template is shorter than the one the prompt quantiles include."""

Row = dict[str, str]


@dataclass(frozen=True)
class Score:
    """One row: (measured, predicted) by quantity."""

    series: str
    concurrency: int
    values: dict[str, tuple[float, float]]

    def error(self, quantity: str) -> float:
        """Returns predicted / measured - 1, in percent."""
        measured, predicted = self.values[quantity]
        return 100.0 * (predicted / measured - 1.0)


def rows(shared: Path) -> Iterator[Row]:
    """Yields the rows to score."""
    with (shared / "validation" / "h100_vllm_specdec.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            known = row["campaign"] == "q32_tp1_lrz" and row["dataset"] == "InstructCoder"
            if known and row["quality_flag"] == "ok" and (row["method"], int(row["K"])) in SERIES:
                yield row


def placement(row: Row) -> Placement:
    """Returns what the row's server ran on; bandwidth as found for this card (2.33 of 2.4 TB/s)."""
    k = int(row["K"])
    return Placement.of(
        catalog.model(row["target_model"]),
        catalog.accelerator({"base": "h100-94gb", "hbm_bytes_per_s": 2.33e12}),
        catalog.engine_profile("vllm-2026-01"),
        drafter=catalog.drafter(row["draft_model"]) if k else None,
        num_speculative_tokens=k,
        max_num_seqs=int(row["max_num_seqs"]),
        max_num_batched_tokens=int(row["max_num_batched_tokens"]),
        gpu_memory_utilization=float(row["gpu_memory_utilization"]),
    )


def scenario(row: Row) -> Scenario:
    """Returns the row's server under its load."""
    place, k = placement(row), int(row["K"])
    speculative = SpeculativeConfig(row["method"], k, int(row["max_model_len_tokens"])) if k else None
    engine = EngineConfig(
        max_num_seqs=place.max_num_seqs,
        max_num_batched_tokens=place.max_num_batched_tokens,
        num_gpu_blocks=kv_budget(place).num_gpu_blocks,
        max_model_len=int(row["max_model_len_tokens"]),
        async_scheduling=place.async_scheduling,
        scheduler_reserve_full_isl=place.profile.scheduler_reserve_full_isl,
        pads_one_token_admission=place.profile.pads_one_token_admission,
        skips_unused_drafts=False,
        speculative=speculative,
    )
    positions = tuple(float(row[f"accept_pos{i + 1}"]) for i in range(k))
    acceptance = {"": AcceptanceSpec(by_position=positions, concentration=inf)} if k else {}
    load = LoadConfig(max_concurrency=int(row["max_concurrency"]))
    return Scenario(engine, KernelCost(place), acceptance, load=load)


def workload(row: Row) -> WorkloadSpec:
    """Returns the row's requests: offered at c a second, prompts stretched to the row's mean."""
    prompts = Shifted(preset("instructcoder").input, -QWEN_TEMPLATE_SAVES)
    return WorkloadSpec(
        num_prompts=int(row["num_prompts"]),
        input=Scaled(prompts, float(row["mean_input_tokens_per_request"]) / prompts.mean),
        output=Fixed(int(row["output_cap_tokens"])),
        request_rate=float(row["request_rate_rps"]),
    )


def score(job: tuple[Row, int]) -> Score:
    """Simulates one row with several seeds and averages."""
    row, seeds = job
    built = scenario(row)
    names = {
        "mean_tpot_ms": "tpot_mean_ms",
        "p99_tpot_ms": "tpot_p99_ms",
        "mean_ttft_ms": "ttft_mean_ms",
        "median_itl_ms": "itl_median_ms",
        "output_throughput": "output_throughput_tok_s",
    }
    runs = [benchmark(simulate(built, build_requests(workload(row), seed), seed)) for seed in range(seeds)]
    values = {
        ours: (float(row[theirs]), float(np.mean([float(str(run[ours])) for run in runs])))
        for ours, theirs in names.items()
    }
    values["kv_tokens"] = (
        float(row["kv_pool_tokens"]),
        float(built.engine.usable_tokens + built.engine.block_size),
    )
    return Score(SERIES[row["method"], int(row["K"])], int(row["max_concurrency"]), values)


def table(scores: list[Score]) -> str:
    """Returns predicted and measured side by side."""
    lines = [
        f"{'series':<15} {'c':>4} {'TPOT ms':>15} {'err':>6} {'P99':>6} {'TTFT ms':>15} {'err':>6} "
        f"{'ITL':>6} {'tok/s':>15} {'err':>6} {'KV':>5}"
    ]
    for s in sorted(scores, key=lambda s: (s.series, s.concurrency)):
        tpot, ttft, speed = s.values["mean_tpot_ms"], s.values["mean_ttft_ms"], s.values["output_throughput"]
        lines.append(
            f"{s.series:<15} {s.concurrency:>4} "
            f"{tpot[1]:>7.2f}/{tpot[0]:<7.2f} {s.error('mean_tpot_ms'):>+5.1f}% "
            f"{s.error('p99_tpot_ms'):>+5.1f}% "
            f"{ttft[1]:>7.0f}/{ttft[0]:<7.0f} {s.error('mean_ttft_ms'):>+5.1f}% "
            f"{s.error('median_itl_ms'):>+5.1f}% {speed[1]:>7.0f}/{speed[0]:<7.0f} "
            f"{s.error('output_throughput'):>+5.1f}% {s.error('kv_tokens'):>+4.1f}%"
        )
    return "\n".join(lines)


def ratio(scores: list[Score], concurrency: int, which: int) -> float:
    """Returns the EAGLE-3 throughput ratio to plain at a concurrency; `which` 0 measured, 1 predicted."""
    speed = {s.series: s.values["output_throughput"][which] for s in scores if s.concurrency == concurrency}
    return speed["EAGLE-3 K=3"] / speed["plain"]


def verdicts(scores: list[Score]) -> list[tuple[str, bool]]:
    """Returns each bar with whether it is met."""
    upto128 = [s for s in scores if s.concurrency <= 128]
    found = []
    for quantity, mean_bar, worst_bar in (("mean_tpot_ms", 3.0, 7.0), ("mean_ttft_ms", 8.0, 20.0)):
        errors = np.abs([s.error(quantity) for s in upto128])
        text = f"{quantity}: mean error {errors.mean():.2f} % (bar {mean_bar:g}), "
        text += f"worst {errors.max():.2f} % (bar {worst_bar:g})"
        found.append((text, bool(errors.mean() <= mean_bar and errors.max() <= worst_bar)))
    pool = np.abs([s.error("kv_tokens") for s in scores]).max()
    found.append((f"KV pool: worst error {pool:.2f} % (bar 2)", bool(pool <= 2.0)))
    at128, at256 = ratio(scores, 128, 1), ratio(scores, 256, 1)
    measured = f"measured {ratio(scores, 128, 0):.2f} and {ratio(scores, 256, 0):.2f}"
    found.append(
        (
            f"EAGLE-3 throughput ratio {at128:.2f} at c=128, {at256:.2f} at c=256 ({measured})",
            at128 > 1 > at256,
        )
    )
    return found


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
    with ProcessPoolExecutor() as pool:
        scores = list(pool.map(score, [(row, args.seeds) for row in rows(shared)]))
    print(table(scores))
    checked = verdicts(scores)
    for text, met in checked:
        print(("met      " if met else "NOT MET  ") + text)
    return 0 if all(met for _, met in checked) else 1


if __name__ == "__main__":
    raise SystemExit(main())
