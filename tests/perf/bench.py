"""Times the reference jobs: `python tests/perf/bench.py --json [--only NAME]`; `--cliffs`: see `cliffs`;
`--sglang`: SGLang's jobs beside vLLM's.

Each job runs in a process of its own, inside which it is repeated; a time is the median of five runs
with all metrics, imports and the making of requests left out, set beside a small numpy loop timed
just before and after it, since a machine's speed drifts.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

import cliffs
from jobs import JOBS, Job

from specfleet.sim.metrics.columns import benchmark
from specfleet.sim.simulation import simulate
from specfleet.sim.summarise import summarise

Figures = dict[str, float | str | None]
Run = Callable[[], dict[str, float]]
REPEATS, LARGE = 5, 200_000
"""Runs of a job; jobs with more requests run once."""
HEAVY = ("reference-spec-1m", "fleet-64", "fleet-64-balanced", "summary-1m", "summary-10m")
"""Jobs of minutes: run only where they are named, or with --all."""


def calibrate() -> float:
    """Seconds of 20,000 additions of 100 numbers."""
    a, b = np.ones(100), np.ones(100)
    started = time.perf_counter()
    for _ in range(20_000):
        np.add(a, b, a)
    return time.perf_counter() - started


def held_mb() -> float | None:
    """Memory that this process holds just now, MB; None where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return None
    return pages * resource.getpagesize() / 1e6


def peak_mb() -> float:
    """The most memory that this process has held, MB."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def measure(job: Job) -> Figures:
    """Runs a job and returns its figures.

    `request_mb_per_million` is the peak beyond what the process held when the requests had been made,
    metrics included; of large jobs alone, where what is fixed does not count.

    Raises:
        SystemExit: the job is not the one meant: too few or too many sequences were running.
    """
    run = summed(job) if job.summed else kept(job)
    seconds, ratios, held = [], [], held_mb()
    for _ in range(REPEATS if job.requests <= LARGE else 1):
        before = calibrate()
        started = time.perf_counter()
        counts = run()
        seconds.append(time.perf_counter() - started)
        ratios.append(seconds[-1] / ((before + calibrate()) / 2))
    running = counts["mean_running"]
    if job.bounds is not None and not job.bounds[0] <= running <= job.bounds[1]:
        raise SystemExit(f"{job.name} is not valid: {running:.0f} sequences running, not {job.bounds}")
    taken = median(seconds)
    return {
        "name": job.name,
        "requests": job.requests,
        "iterations": int(counts["iterations"]),
        "output_tokens": int(counts["output_tokens"]),
        "seconds": round(taken, 4),
        "calibrated_ratio": round(median(ratios), 3),
        "mean_running": round(running, 1),
        "requests_per_s": round(job.requests / taken),
        "output_tokens_per_s": round(counts["output_tokens"] / taken),
        "peak_rss_mb": round(peak_mb(), 1),
        "request_mb_per_million": None
        if held is None or job.requests <= LARGE
        else round((peak_mb() - held) * 1e6 / job.requests, 1),
        "preempted_share": round(counts["preempted_share"], 4),
        "stepped_share": counts["stepped_share"],
    }


def kept(job: Job) -> Run:
    """Returns what simulates a job whose requests are kept, metrics included, and returns what it did."""
    scenario, table = job.scenario(), job.table()

    def run() -> dict[str, float]:
        result = simulate(scenario, table, 0)
        benchmark(result)
        return {
            "iterations": len(result.iterations["end_s"]),
            "output_tokens": int(result.iterations["output_tokens"].sum()),
            "mean_running": float(result.iterations["running"].mean()),
            "preempted_share": float((result.requests["preemptions"] > 0).mean()),
            "stepped_share": result.stepped_share,
        }

    return run


def summed(job: Job) -> Run:
    """The same for a job that keeps figures alone; requests are made as it goes."""
    scenario, source = job.scenario(), job.source()

    def run() -> dict[str, float]:
        summary = summarise(scenario, source, 0)
        figures, load = summary.benchmark(), summary.engine_load()
        assert load is not None, "something ran"
        return {
            "iterations": summary.steps,
            "output_tokens": float(figures.total_output_tokens),
            "mean_running": load.mean_running,
            "preempted_share": summary.all.preemptions / len(source),
            "stepped_share": summary.stepped_share,
        }

    return run


def beside_vllm(times: int = 5) -> None:
    """Prints SGLang's jobs, each beside the same job under vLLM's rules, run in turn: medians of CPU time."""
    print(f"{'job':24}{'us a request':>14}{'vLLM':>8}{'ratio':>8}")
    for job in [job for job in JOBS if job.sglang]:
        runs = [kept(job), kept(replace(job, sglang=False))]
        each: list[list[float]] = [[], []]
        for run, taken in [
            (run, taken) for _ in range(times + 1) for run, taken in zip(runs, each, strict=True)
        ]:
            started = time.process_time()
            run()
            taken.append((time.process_time() - started) * 1e6 / job.requests)
        ratio = median(ours / theirs for ours, theirs in list(zip(*each, strict=True))[1:])
        print(f"{job.name:24}{median(each[0][1:]):14.1f}{median(each[1][1:]):8.1f}{ratio:8.2f}", flush=True)


def exponents(figures: list[Figures]) -> dict[str, float]:
    """Returns how time grows: d log(seconds) / d log(x) between two jobs that differ in x alone."""
    ratios = {str(row["name"]): float(row["calibrated_ratio"] or 0.0) for row in figures}
    pairs = {
        "requests": ("reference-spec", "reference-spec-100k", 10.0),
        "output length": ("output-50-spec", "output-1000-spec", 20.0),
        "concurrency": ("closed-64-spec", "closed-1024-spec", 16.0),
    }
    return {
        axis: round(
            math.log(ratios[b] / ratios[a]) / math.log(factor),
            3,
        )
        for axis, (a, b, factor) in pairs.items()
        if a in ratios and b in ratios
    }


def main() -> None:
    """Reads the command line, runs the jobs and prints their figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="a JSON list instead of a table")
    parser.add_argument("--only", metavar="NAME", help="one job")
    parser.add_argument("--all", action="store_true", help="the jobs of minutes too")
    parser.add_argument(
        "--cliffs", metavar="ROW", nargs="?", const="", help="each row that was once a cliff, beside its base"
    )
    parser.add_argument("--sglang", action="store_true", help="SGLang's jobs beside those of vLLM's rules")
    options = parser.parse_args()
    if options.sglang:
        beside_vllm()
        return
    if options.cliffs is not None:
        cliffs.show(options.cliffs)
        return
    if options.only is not None:
        job = next((job for job in JOBS if job.name == options.only), None)
        if job is None:
            parser.error(f"no job {options.only}; there are {', '.join(job.name for job in JOBS)}")
        show([measure(job)], options.json)
        return
    figures = []
    for job in JOBS:
        if options.all or job.name not in HEAVY:
            command = [sys.executable, str(Path(__file__)), "--json", "--only", job.name]
            figures += json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    show(figures, options.json)
    for axis, exponent in exponents(figures).items():
        print(f"time grows with {axis} to the power {exponent}", file=sys.stderr)


def show(figures: list[Figures], as_json: bool) -> None:
    """Prints figures."""
    if as_json:
        print(json.dumps(figures, indent=1))
        return
    print(f"{'job':24}{'seconds':>9}{'ratio':>8}{'running':>9}{'iterations':>12}{'Mtok/s':>8}{'MB':>7}")
    for row in figures:
        speed = float(row["output_tokens_per_s"] or 0.0) / 1e6
        print(
            f"{row['name']:24}{row['seconds']:9.3f}{row['calibrated_ratio']:8.2f}{row['mean_running']:9.1f}"
            f"{row['iterations']:12}{speed:8.2f}{row['peak_rss_mb']:7.0f}"
        )


if __name__ == "__main__":
    main()
