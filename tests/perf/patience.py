"""CPU time of a run whose clients may give up, as a multiple of the same run without limits.

    python tests/perf/patience.py

The preset `impatient` at 20 requests a second with K = 3, medians of three: with limits that nobody reaches,
with its own, and where users are sent again who left (they find what was computed of their prompts).
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from statistics import median

from specfleet.experiments.load.config import load_experiment
from specfleet.experiments.load.sweep import expand
from specfleet.experiments.point.build import requests
from specfleet.experiments.point.built import build
from specfleet.sim.config import LoadConfig
from specfleet.sim.fleet.patience import PatienceConfig
from specfleet.sim.recorder import GAVE_UP
from specfleet.sim.simulation import simulate
from specfleet.workloads.pauses import FixedPause

PRESET = Path(__file__).parents[2] / "experiments" / "presets" / "impatient.yaml"
ROUNDS = 3


def main() -> None:
    """Prints a line a case."""
    point = expand(load_experiment(PRESET))[3]
    table, scenario = requests(point.config, 1), build(point.config).scenario

    def cpu_s(load: LoadConfig) -> tuple[float, int]:
        begin = time.process_time()
        result = simulate(replace(scenario, load=load), table, 1)
        return time.process_time() - begin, int((result.requests["status"] == GAVE_UP).sum())

    own, patient = scenario.load, PatienceConfig(FixedPause(1e6))
    again = replace(own, patience={name: replace(one, retries=3) for name, one in own.patience.items()})
    plain = replace(own, patience={})
    cpu_s(plain)
    nobody = replace(own, patience={"": patient})
    for name, load in (("nobody gives up", nobody), ("some give up", own), ("and come again", again)):
        ratios, gone = [], 0
        for _ in range(ROUNDS):
            base_s, _ = cpu_s(plain)
            mine_s, gone = cpu_s(load)
            ratios.append(mine_s / base_s)
        print(
            f"{name}: {gone} of {len(table)} given up, {median(ratios):.2f} times the CPU time without limits"
        )


if __name__ == "__main__":
    main()
