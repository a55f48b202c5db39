"""Whether what `specfleet plan` says is sure meets its SLO, run again with other seeds: 20 plans.

    python tests/fidelity/plans_hold.py [--jobs N] [--only FIRST:LAST]

Each plan has another model, rate or limit. What it says is sure is simulated again with 10,000 requests a
replica and five fresh seeds, and the percentiles of their steady parts together are held against the limits.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from itertools import product
from typing import Any

import specfleet as sf
from specfleet.experiments.plan.seen import worst
from specfleet.experiments.plan.trials import measure

FRESH = range(1000, 1005)
PROMPTS = 10_000
MODELS: dict[str, dict[str, Any]] = {
    "Qwen/Qwen3-32B": {
        "gpu": ["h100-94gb", "h200"],
        "drafter": "RedHatAI/Qwen3-32B-speculator.eagle3",
        "limits": (45, 60),
        "rates": (8, 20, 35),
    },
    "meta-llama/Llama-3.1-8B-Instruct": {
        "gpu": ["h100-sxm", "l40s"],
        "drafter": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",
        "limits": (15, 25),
        "rates": (10, 25, 40),
    },
    "meta-llama/Llama-3.3-70B-Instruct": {
        "gpu": ["h100-sxm", "h200"],
        "drafter": "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B",
        "limits": (40, 60),
        "rates": (3, 8),
    },
}
PRICES = {
    "Qwen/Qwen3-32B": (3.5, 4.9),
    "meta-llama/Llama-3.1-8B-Instruct": (3.9, 1.2),
    "meta-llama/Llama-3.3-70B-Instruct": (3.9, 4.9),
}


def plans() -> list[dict[str, Any]]:
    """Returns twenty plans, two of each model's rates and limits and then some with tighter first tokens."""
    found = []
    for model, about in MODELS.items():
        sizes = [2, 4] if "70B" in model else [1, 2]
        for rate, tpot in product(about["rates"], about["limits"]):
            found.append(
                _plan(model, about, sizes, rate, {"p99_ttft_ms": 2000.0, "p99_tpot_ms": float(tpot)})
            )
    for model, about in list(MODELS.items())[:2]:
        for rate in about["rates"][:2]:
            limits = {"p99_ttft_ms": 500.0, "p90_tpot_ms": float(about["limits"][0])}
            found.append(_plan(model, about, [1, 2], rate, limits))
    return found[:20]


def _plan(
    model: str, about: dict[str, Any], sizes: list[int], rate: float, slo: dict[str, float]
) -> dict[str, Any]:
    return {
        "serve": {
            "model": model,
            "gpu": about["gpu"][0],
            "tensor_parallel_size": sizes[-1],
            "max_model_len": 5000,
            "max_num_seqs": 256,
            "max_num_batched_tokens": 8192,
            "enable_prefix_caching": False,
        },
        "acceptance": {"by_position": [0.7, 0.5, 0.36], "concentration": 18.0},
        "workload": {"preset": "instructcoder", "request_rate": float(rate)},
        "slo": slo,
        "plan": {
            "candidates": {
                "gpu": about["gpu"],
                "tensor_parallel_size": sizes,
                "drafting": [
                    {
                        "speculative_config": {
                            "method": "eagle3", "model": about["drafter"], "max_model_len": 5000
                        },
                        "num_speculative_tokens": [1, 3],
                    }
                ],
            },
            "prices_per_hour_usd": dict(zip(about["gpu"], PRICES[model], strict=True)),
        },
    }  # fmt: skip


def main() -> None:
    """Makes the plans and prints a line each."""
    options = argparse.ArgumentParser()
    options.add_argument("--jobs", type=int, default=1)
    options.add_argument("--only", default=":")
    asked = options.parse_args()
    first, last = (int(text) if text else None for text in asked.only.split(":"))
    held = sure = 0
    for number, given in list(enumerate(plans()))[first:last]:
        started = time.process_time()
        with tempfile.TemporaryDirectory() as folder:
            planned = sf.plan(given, jobs=asked.jobs, out=folder)
        spent, slo, rate = time.process_time() - started, given["slo"], given["workload"]["request_rate"]
        said = f"{number:2} {given['serve']['model']:34} {rate:3g}/s {slo} {spent:5.1f} s"
        winner = planned.winner
        if winner is None or winner.high is None:
            print(f"{said} nothing is sure, settled: {planned.settled}", flush=True)
            continue
        sure += 1
        config = winner.candidate.config
        runs = [measure(planned.traffic.trial(config, winner.high, seed, PROMPTS)) for seed in FRESH]
        ratio, limit = worst(runs)
        held += ratio <= 1.0
        named = f"{winner.high} x ({winner.candidate.id})"
        print(f"{said} settled {planned.settled!s:5} {named:48} {ratio:.3f} of {limit}", flush=True)
    print(f"{held} of {sure} that are sure meet their SLO")


if __name__ == "__main__":
    main()
