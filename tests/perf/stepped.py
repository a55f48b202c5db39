"""Prints which share of the iterations of all presets is stepped, and why."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from specfleet.experiments.load.config import load_experiment
from specfleet.experiments.load.sweep import expand
from specfleet.experiments.point.build import requests
from specfleet.experiments.point.built import build
from specfleet.sim.simulation import simulate

PRESETS = Path(__file__).parents[2] / "experiments" / "presets"


def main() -> None:
    """Runs every point of every preset with its first seed; a preset of more seeds weighs as much more."""
    files = [path for path in sorted(PRESETS.rglob("*.yaml")) if path.parent.name != "acceptance"]
    total, stepped = 0, Counter[tuple[str, str]]()
    for path in files:
        experiment = load_experiment(path, ["plan=null"] if path.stem.startswith("plan-") else [])
        for point in expand(experiment):
            scenario, table = build(point.config).scenario, requests(point.config, experiment.seed)
            result = simulate(scenario, table, experiment.seed)
            iterations = len(result.iterations["end_s"]) * experiment.replications
            total += iterations
            if not result.stepped_share:
                continue
            stepped[path.stem, result.stepped_because or "on the way"] += round(
                iterations * result.stepped_share
            )
    print(f"{total} iterations, {100 * stepped.total() / total:.2f} % stepped")
    for (preset, reason), iterations in stepped.most_common():
        print(f"{100 * iterations / total:6.2f} %  {preset}: {reason}")


if __name__ == "__main__":
    main()
