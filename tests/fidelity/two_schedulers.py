"""Draws docs/img/two-schedulers.png: the same load and the same prices under vLLM's and SGLang's scheduler.

    python tests/fidelity/two_schedulers.py docs/img/two-schedulers.png

Above, half a second of steps and the tokens of one request that decodes meanwhile; below, what that does to
P99 of ITL and TTFT from light load to heavy. A step of a given shape costs the same under both: nothing
but the rules differs.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from specfleet.experiments.load.config import load_experiment
from specfleet.experiments.load.sweep import expand
from specfleet.experiments.point.build import requests
from specfleet.experiments.point.built import build
from specfleet.sim.metrics.columns import benchmark
from specfleet.sim.simulation import RunResult, simulate

TEXT = """
serve: {model: meta-llama/Llama-3.1-8B-Instruct, gpu: h100-sxm, max_model_len: 8192, max_num_seqs: 64, engine: vllm-0.33}
workload:
  input: {uniform: {low: 512, high: 1536}}
  output: {uniform: {low: 64, high: 192}}
  request_rate: 14
  num_prompts: 600
"""  # noqa: E501
RATES = (4, 8, 12, 16, 20, 24)
SHOWN_S = 0.5
KINDS = {"prompts": "#c0504d", "decode": "#9bbb59", "both": "#e0a030"}
NAMES = {"vllm-0.33": "vLLM", "sglang": "SGLang"}


def under_both(rate: float) -> dict[str, RunResult]:
    """Runs the load at a rate under both engines' rules, at the prices of one."""
    found, cost = {}, None
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "both.yaml"
        file.write_text(TEXT)
        for engine in NAMES:
            changed = [f"serve.engine={engine}", f"workload.request_rate={rate}"]
            experiment = load_experiment(file, changed)
            (point,) = expand(experiment)
            scenario = build(point.config).scenario
            cost = cost or scenario.cost
            table = requests(point.config, experiment.seed)
            found[engine] = simulate(replace(scenario, cost=cost), table, experiment.seed)
    return found


def draw_steps(axes: Any, result: RunResult, name: str, request: int, begin_s: float) -> None:
    """Draws the steps from a time on, and the tokens of one request."""
    steps = result.iterations
    shown = (steps["end_s"] > begin_s) & (steps["start_s"] < begin_s + SHOWN_S)
    prompts, decodes = steps["prefill_sequences"] > 0, steps["decode_sequences"] > 0
    kind = np.where(prompts & decodes, "both", np.where(prompts, "prompts", "decode"))
    for which, colour in KINDS.items():
        mine = shown & (kind == which)
        begins, lasts = steps["start_s"][mine] - begin_s, (steps["end_s"] - steps["start_s"])[mine]
        bars = [(1e3 * at, 1e3 * last) for at, last in zip(begins, lasts, strict=True)]
        axes.broken_barh(bars, (0.0, 1.0), color=colour, edgecolor="white", linewidth=0.5, label=which)
    rows = result.requests
    first, last = rows["first_iteration"][request], rows["last_iteration"][request]
    its = np.arange(first, last + 1)
    its = its[decodes[its]]
    at = 1e3 * (steps["end_s"][its] - begin_s)
    at = at[(at > 0) & (at < 1e3 * SHOWN_S)]
    axes.plot(at, np.full(len(at), 1.35), "k|", markersize=9, label="a token of one request")
    axes.set(xlim=(0, 1e3 * SHOWN_S), ylim=(-0.1, 1.8), yticks=[], ylabel=name)


def main(path: str) -> None:
    """Draws the figure into a file."""
    figure = Figure(figsize=(9.0, 5.4), layout="constrained")
    grid = figure.add_gridspec(3, 2, height_ratios=[1, 1, 2.6])
    middle = under_both(16)
    rows = middle["sglang"].requests
    request = int(np.argmax((rows["output_tokens"] > 150) & (rows["sent_s"] > 10.0)))
    for line, (engine, name) in enumerate(NAMES.items()):
        axes = figure.add_subplot(grid[line, :])
        begin_s = float(middle[engine].requests["first_token_s"][request]) + 0.3
        draw_steps(axes, middle[engine], name, request, begin_s)
    axes.set_xlabel("ms")
    axes.legend(ncols=4, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.5), frameon=False)
    figures = {rate: {e: benchmark(r, None) for e, r in under_both(rate).items()} for rate in RATES}
    for column, (latency, title) in enumerate((("itl", "P99 ITL, ms"), ("ttft", "P99 TTFT, ms"))):
        axes = figure.add_subplot(grid[2, column])
        for engine, name in NAMES.items():
            values = [getattr(figures[rate][engine], latency).p99_ms for rate in RATES]
            axes.plot(RATES, values, "o-", label=name)
            print(name, latency, [round(value) for value in values])
        axes.set(xlabel="requests a second", title=title, xticks=RATES)
        if latency == "ttft":
            axes.set_yscale("log")
        else:
            axes.set_ylim(0, None)
        axes.legend(frameon=False)
    figure.savefig(path, dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main(sys.argv[1])
