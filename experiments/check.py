"""`specfleet check`: the points of an experiment, and what fits in memory, without running anything."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.build import placement, requests_asked
from experiments.config import load
from experiments.sweep import Point, expand
from hardware.memory import DoesNotFit, kv_budget

MANY = 12


def check_text(file: Path, overrides: Sequence[str]) -> tuple[str, bool]:
    """Returns what to print, and whether every point fits.

    Raises:
        InputFaults: with everything that is wrong with the file.
    """
    loaded = load(file, overrides)
    points = expand(loaded.experiment)
    replications = loaded.experiment.replications
    parts = [f"{file}: {len(points)} points x {replications} replications"]
    parts += [f"note: {notice}" for notice in loaded.notices]
    parts += ["", *_points(points), ""]
    budgets, fits = _budgets(points)
    return "\n".join([*parts, *budgets]), fits


def _points(points: Sequence[Point]) -> list[str]:
    lines = []
    for point in points[:MANY]:
        workload = point.config.workload
        lines.append(f"  {point.id}: {requests_asked(workload, workload.num_prompts) or 'all'} requests")
    return lines + ([f"  .. and {len(points) - MANY} more"] if len(points) > MANY else [])


def _budgets(points: Sequence[Point]) -> tuple[list[str], bool]:
    """Returns the memory budget of each different engine among the points."""
    by_budget: dict[str, list[str]] = {}
    fits = True
    for point in points:
        serve = point.config.serve
        try:
            text = kv_budget(
                placement(serve),
                num_gpu_blocks_override=serve.num_gpu_blocks_override,
                kv_cache_memory_bytes=serve.kv_cache_memory_bytes,
            ).render(serve.max_model_len)
        except DoesNotFit as error:
            text, fits = str(error), False
        by_budget.setdefault(text, []).append(point.id)
    lines = []
    for text, ids in by_budget.items():
        named = ids[0] if len(ids) == 1 else f"{ids[0]} and {len(ids) - 1} more"
        lines += [f"Memory of one GPU, {named}:", text, ""]
    return lines[:-1], fits
