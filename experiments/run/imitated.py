"""A law that imitates a trace, held against the replay of the trace on one engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from specfleet.experiments.load.config import load_experiment
from specfleet.experiments.load.sweep import expand
from specfleet.experiments.point.build import requests
from specfleet.experiments.point.built import build
from specfleet.experiments.point.ceiling import ceiling_of
from specfleet.experiments.schema.blocks.base import MOST_TOKENS
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.given import Change, Given, document
from specfleet.experiments.schema.yamlfile import Value
from specfleet.sim.metrics.sums import Counted
from specfleet.sim.simulation import simulate
from specfleet.workloads.traces.imitation import Imitation

ENGINE: Mapping[str, object] = {
    "name": "fit",
    "serve": {"model": "meta-llama/Llama-3.1-8B-Instruct", "gpu": "h100-sxm"},
}
"""Served by this where no experiment is named."""
MOST_ROWS = 5_000
"""Rows of a trace that are replayed, from its start."""
SEEDS = (0, 1, 2, 3)
"""Of the requests of a fit."""
LOADED, FULL = 0.7, 0.95
"""Shares of what the engine serves at most: of the second comparison, and beyond which there is no first,
since latencies are then as long as the run."""
FIGURES = ("mean TTFT", "P99 TTFT", "mean TPOT", "P99 TPOT")


@dataclass(frozen=True)
class Held:
    """A replay beside its imitation, at one speed.

    Attributes:
        speed: of the replay.
        share: of what the engine serves at most, that is offered.
        replay: of `FIGURES`, ms.
        fit: of the same, shape `(seeds, figures)`, ms.
    """

    speed: float
    share: float
    replay: tuple[float, ...]
    fit: np.ndarray


def workload_of(law: Imitation, speed: float = 1.0, longest: int | None = None) -> dict[str, Value]:
    """Returns the `workload:` block of a law.

    Args:
        law: of the traffic.
        speed: so many times as fast.
        longest: tokens of a sequence; prompts are cut there, as longer rows of a trace are dropped.
    """
    room = max((longest or MOST_TOKENS) - max(tokens for _, tokens in law.output) - 1, 1)
    block: dict[str, Value] = {
        "input": {"quantiles": tuple((percentile, min(tokens, room)) for percentile, tokens in law.prompt)},
        "output": {"quantiles": law.output},
        "rank_correlation": law.rank_correlation,
    }
    if law.request_rate is None:
        return block
    block["request_rate"] = float(f"{law.request_rate * speed:.6g}")
    if law.burstiness != 1.0:
        block["burstiness"] = law.burstiness
    if law.every_s is not None:
        every = float(f"{law.every_s / speed:.6g}")
        block["arrivals"] = {"schedule": {"every_s": every, "requests_per_s": law.requests_per_s}}
    return block


def held_against(
    replay: Mapping[str, Value], law: Imitation, engine: Given | None, rows: int
) -> tuple[str, list[Held]]:
    """Returns what served both, and the two beside each other: at the recorded speed, and at a fixed load.

    Args:
        replay: the `workload:` block that replays the trace.
        law: what imitates it.
        engine: the experiment whose engine serves both; None for `ENGINE`.
        rows: of the trace.
    """
    rows = min(rows, MOST_ROWS)
    base = _point(engine, {**replay, "limit": rows, "on_too_long": "drop"})
    table = requests(base, 0)
    top = ceiling_of(base, table)
    assert top is not None, "rows of a trace are no turns"
    most = top.per_s
    recorded = (len(table) - 1) / max(float(table.arrival_s[-1]), 1e-9)
    served = f"{base.serve.model} on {base.serve.gpu}, {base.serve.engine}"
    found = []
    for speed in (1.0, float(f"{LOADED * most / recorded:.3g}")):
        if speed == 1.0 and recorded > FULL * most:
            continue
        config = _point(engine, {**replay, "limit": rows, "on_too_long": "drop", "speed": speed})
        block = workload_of(law, speed, config.serve.max_model_len)
        fit = _point(engine, block | {"num_prompts": len(table)})
        runs = [_figures(fit, seed) for seed in SEEDS]
        found.append(Held(speed, speed * recorded / most, _figures(config, 0), np.array(runs)))
    return served, found


def experiment_of(law: Imitation, engine: Given | None) -> dict[str, Value]:
    """Returns an experiment file's values: what serves, and the traffic of a law."""
    given = document(ENGINE if engine is None else engine).data
    kept = {key: value for key, value in given.items() if key not in ("name", "workload", "sweep", "report")}
    return {**kept, "workload": workload_of(law)}


def _point(engine: Given | None, workload: Mapping[str, Value]) -> Experiment:
    changes = [
        Change("workload", dict(workload)),
        Change("sweep", {}),
        Change("report", {}),
        Change("slo", None),
    ]
    return expand(load_experiment(ENGINE if engine is None else engine, changes))[0].config


def _figures(config: Experiment, seed: int) -> tuple[float, ...]:
    table = requests(config, seed)
    counted = Counted.of(simulate(build(config).scenario, table, seed).requests)
    several = counted.output_tokens > 1
    ttft, tpot = 1e3 * counted.ttft_s, 1e3 * counted.tpot_s[several]
    return tuple(
        float(value)
        for series in (ttft, tpot)
        for value in ((series.mean(), np.percentile(series, 99)) if len(series) else (np.nan, np.nan))
    )
