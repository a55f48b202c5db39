"""What a request costs behind each router: `routers.py [REQUESTS]`, CPU microseconds, the least of two runs.

Eight replicas (or two pools of four, one without drafts), an open loop of Azure's conversation at 10 requests
a second each; and whether engines are stepped for the router.
"""

from __future__ import annotations

import sys
import time

from specfleet.experiments.load.config import load_experiment
from specfleet.experiments.point.build import requests
from specfleet.experiments.point.built import build
from specfleet.sim.router import ROUTERS
from specfleet.sim.simulation import simulate

FLEETS: dict[str, dict[str, object]] = {
    "eight replicas": {"replicas": 8},
    "two pools": {
        "pools": {"a": {"replicas": 4}, "b": {"replicas": 4, "serve": {"speculative_config": None}}}
    },
    "eight of SGLang": {"replicas": 8},
}


def file(fleet: str, router: str, num_prompts: int) -> dict[str, object]:
    """An experiment."""
    serve: dict[str, object] = {
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "gpu": "h100-sxm",
        "max_model_len": 16384,
        "max_num_seqs": 256,
        "speculative_config": {"model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "num_speculative_tokens": 3},
    }
    if "SGLang" in fleet:
        serve["engine"] = "sglang"
    return {
        "name": "routers",
        "serve": serve,
        "acceptance": {"by_position": [0.7, 0.5, 0.36], "concentration": 18},
        "deployment": {**FLEETS[fleet], "router": router},
        "workload": {"preset": "azure-conv-2023", "request_rate": 80, "num_prompts": num_prompts},
    }


def main() -> None:
    """Prints a line a fleet and router."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 3000
    for fleet in FLEETS:
        for router in ROUTERS:
            config = load_experiment(file(fleet, router, count))
            scenario, table = build(config).scenario, requests(config, 0)
            least, because = float("inf"), ""
            for _ in range(2):
                began = time.process_time()
                because = simulate(scenario, table, 0).stepped_because
                least = min(least, time.process_time() - began)
            print(f"{fleet:16}{router:19}{1e6 * least / count:6.0f} us  {because}", flush=True)


if __name__ == "__main__":
    main()
