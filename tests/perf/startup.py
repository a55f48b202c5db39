"""Prints the CPU seconds of short commands, whole processes, medians of runs in turn: `startup.py [RUNS]`."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[2]
DEMO = "experiments/presets/demo.yaml"
DRAFTS = "serve.speculative_config.num_speculative_tokens"
SMALL = ("workload.num_prompts=50", "replications=1", "sweep.axes.workload.max_concurrency=[8]")
COMMANDS = {
    "--version": ("--version",),
    "--help": ("--help",),
    "check demo.yaml, 36 points": ("check", DEMO),
    "run, one point of 50 requests, no figures": ("run", DEMO, *SMALL, f"sweep.axes.{DRAFTS}=[0]"),
    "run, two points of 50 requests, no figures": ("run", DEMO, *SMALL, f"sweep.axes.{DRAFTS}=[0, 3]"),
}


def cpu_seconds(arguments: tuple[str, ...], folder: Path) -> float:
    """User and system seconds of a command and its workers."""
    if arguments[0] == "run":
        arguments = (*arguments, "--no-plots", "--quiet", "--jobs", "1", "--out", str(folder / "run"))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "specfleet", *arguments], cwd=ROOT, check=True, stdout=subprocess.DEVNULL
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(runs: int = 9) -> None:
    """Runs everything once for bytecode and files in memory, then so often."""
    taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for number in range(runs + 1):
        for name, arguments in COMMANDS.items():
            with tempfile.TemporaryDirectory() as folder:
                seconds = cpu_seconds(arguments, Path(folder))
            if number:
                taken[name].append(seconds)
    print(f"CPU seconds, median (least) of {runs}; load {os.getloadavg()[0]:.1f}")
    for name, each in taken.items():
        print(f"  {name:44} {median(each):.2f} ({min(each):.2f})")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
