"""What stepping costs where KV is handed over, against four replicas that do both, on the calendar.

    python tests/perf/handover.py

Prompts of 2,048 tokens, answers of 256, the users of `disaggregation.yaml`, 2,000 requests: CPU time, the
least of three.
"""

from __future__ import annotations

import time

from specfleet.experiments.load.config import load_experiment
from specfleet.experiments.load.sweep import Point, expand
from specfleet.experiments.point.build import requests
from specfleet.experiments.point.built import build
from specfleet.sim.simulation import simulate

REQUESTS = 2000
K = "serve.speculative_config.num_speculative_tokens"


def seconds(point: Point, engine: str) -> tuple[float, int]:
    """CPU seconds of a point, and its iterations."""
    scenario, table = build(point.config).scenario, requests(point.config, 1)
    best, steps = float("inf"), 0
    for _ in range(3):
        begun = time.process_time()
        steps = len(simulate(scenario, table, 1, engine).iterations["end_s"])
        best = min(best, time.process_time() - begun)
    return best, steps


def main() -> None:
    """Prints a line a deployment and K."""
    around = [
        f"workload.num_prompts={REQUESTS}",
        "sweep.axes.workload.input_len=[2048]",
        "sweep.axes.workload.output_len=[256]",
    ]
    base: dict[object, float] = {}
    for point in expand(load_experiment("experiments/presets/disaggregation.yaml", around)):
        pools = point.config.deployment.pools
        name = "+".join(str(pool.replicas) for pool in pools.values()) if pools else "both"
        for engine in ("auto", "step"):
            took, steps = seconds(point, engine)
            plain = base.setdefault(point.axes[K], took)
            stepped = ", stepped" if engine == "step" else ""
            print(
                f"K = {point.axes[K]}, {name}{stepped}: {took:.2f} s, {took / plain:.1f} times; "
                f"{steps} iterations of {1e6 * took / steps:.0f} us"
            )


if __name__ == "__main__":
    main()
