"""`specfleet check`: the points of an experiment, and what fits in memory, without running anything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from specfleet.experiments.load.config import Loaded, load
from specfleet.experiments.load.sweep import Point, expand
from specfleet.experiments.point.build import counted_requests, pool, requests, workload_spec
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.blocks.serve import Serve
from specfleet.hardware.memory import GIB, DoesNotFit, KvBudget

MANY = 12


def check_text(file: Path, overrides: Sequence[str]) -> tuple[str, bool]:
    """Returns what to print, and whether every point fits.

    Raises:
        InputFaults: with everything that is wrong with the file.
    """
    loaded = load(file, overrides)
    return checked(str(file), loaded, expand(loaded.experiment))


def checked(name: str, loaded: Loaded, points: Sequence[Point]) -> tuple[str, bool]:
    """Returns `check_text` of a loaded experiment, called `name`."""
    replications = loaded.experiment.replications
    parts = [f"{name}: {len(points)} points x {replications} replications"]
    parts += [f"note: {notice}" for notice in loaded.notices]
    engine_named = "engine" in loaded.experiment.serve.model_fields_set or "serve.engine" in points[0].axes
    parts += ["", *_points(points), ""]
    budgets, fits = _budgets(points, engine_named)
    return "\n".join([*parts, *budgets]), fits


def _points(points: Sequence[Point]) -> list[str]:
    lines = []
    for point in points[:MANY]:
        workload = point.config.workload
        lines.append(f"  {point.id}: {counted_requests(workload) or 'all'} requests")
    return lines + ([f"  .. and {len(points) - MANY} more"] if len(points) > MANY else [])


def _budgets(points: Sequence[Point], engine_named: bool) -> tuple[list[str], bool]:
    """Returns the memory of each different engine and load among the points, and whether all start."""
    by_text: dict[str, list[str]] = {}
    fits = True
    for point in points:
        text, starts = memory_text(point.config, engine_named)
        fits &= starts
        by_text.setdefault(text, []).append(point.id)
    lines = []
    for text, ids in by_text.items():
        named = ids[0] if len(ids) == 1 else f"{ids[0]} and {len(ids) - 1} more"
        lines += [f"Memory of one GPU, {named}:", text, ""]
    return lines[:-1], fits


def memory_text(config: Experiment, engine_named: bool = True) -> tuple[str, bool]:
    """Returns the budget of a point line by line with what it holds, and whether the engine would start."""
    serve = config.serve
    assert serve.max_model_len, "defaults are filled in"
    lines = [_engine_line(serve, engine_named)]
    try:
        budget = pool(serve)
    except DoesNotFit as error:
        return "\n".join([*lines, str(error)]), False
    lines += [budget.render(serve.max_model_len), *_load_lines(config, budget)]
    return "\n".join(lines), budget.refusal(serve.max_model_len) is None


def _engine_line(serve: Serve, engine_named: bool) -> str:
    """Returns which build is assumed, and the two limits that set its profiling peak."""
    assumed = "" if engine_named else " (assumed: serve.engine is not given)"
    return (
        f"engine {serve.engine}{assumed}, "
        f"max_num_batched_tokens {serve.max_num_batched_tokens:,}, max_num_seqs {serve.max_num_seqs:,}"
    )


def _load_lines(config: Experiment, budget: KvBudget) -> Iterator[str]:
    """What the pool means for this workload: its own mean length, and the memory of its concurrency."""
    length = config.serve.max_model_len
    mean = mean_tokens(config)
    if mean is not None:
        yield f"{budget.concurrency_line(mean)} (this workload's mean)"
    clients = config.workload.max_concurrency
    if not clients or not length:
        return
    share = budget.utilization_for(clients, length)
    if share is not None:
        size = clients * budget.request_bytes(length) / GIB
        more = ", more than the GPU has" if share > 1.0 else ""
        yield (
            f"Least gpu_memory_utilization for {clients:,} requests of {length:,} tokens "
            f"({size:.2f} GiB): {share:.3f}{more}"
        )


def mean_tokens(config: Experiment) -> float | None:
    """Returns the mean tokens of a request, prompt and output together; None for an empty trace."""
    workload = config.workload
    if workload.trace is None:
        spec = workload_spec(workload)
        return spec.prefix_tokens + spec.input.mean + spec.output.mean
    table = requests(config, seed=0)
    return float(np.mean(table.prompt_tokens + table.output_tokens)) if len(table) else None
