"""What a deployment can serve at most, in closed form, and what it would take more of to serve more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from specfleet.experiments.point.bounds import SLACK, MeanLengths, mean_length, most, of_one_batch
from specfleet.experiments.point.build import requests
from specfleet.experiments.point.built import BuiltPool, build, pool_of_class
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.sim.config import EngineConfig
from specfleet.sim.source import some_rows
from specfleet.workloads.requests import RequestTable
from specfleet.workloads.traces.statistics import reused_share

LESS = 0.9
"""Share of a limit that is left, to see what it holds back."""
HELD_BACK = 0.02
"""A limit binds where so much less would be served with `LESS` of it."""
SEEN = 20_000
"""Requests, from the first on, that say what prompts share."""
STEPS = 0.1
"""How far the price of steps may be off: a capacity is told for steps that take so much more or less."""


@dataclass(frozen=True)
class Ceiling:
    """Most requests per second of a deployment.

    Attributes:
        per_s: requests/s of all replicas.
        beyond_per_s: a rate that no simulated deployment reaches; more than that is too much for certain.
        binds: the limit that binds, in words, with its figure.
        users: requests that decode there.
    """

    per_s: float
    beyond_per_s: float
    binds: str
    users: float


def ceiling(config: Experiment, seed: int) -> Ceiling | None:
    """Returns the ceiling of a point, for the mean lengths of its requests, as `ceiling_of`.

    Args:
        config: the point.
        seed: of its requests.
    """
    return ceiling_of(config, requests(config, seed))


def ceiling_of(config: Experiment, table: RequestTable) -> Ceiling | None:
    """Returns the ceiling of a point for requests.

    What prompts share is taken to be found, as in a cache without bound, where there is one. None for turns
    of sessions: what they find of their own is most of their prompts, and no mean says how much.

    Args:
        config: the point.
        table: its requests.
    """
    if table.output_stream is not None:
        return None
    built = build(config)
    chosen = {} if config.deployment.routing.spill else pool_of_class(config, built.pools)
    tops = []
    for pool in built.pools:
        mine = _sent_to(chosen, pool.name, table)
        if len(mine):
            tops.append((pool.name, len(mine) / len(table), _of_pool(pool, mine)))
    if not chosen:
        name, _, least = max(tops, key=lambda top: top[2].per_s)
        total = sum(top.per_s for _, _, top in tops)
    else:
        name, share, least = min(tops, key=lambda top: top[2].per_s / top[1])
        total = least.per_s / share
    binds = f"pool {name}: {least.binds}" if name else least.binds
    return Ceiling(total, total * SLACK, binds, sum(top.users for _, _, top in tops))


def _sent_to(chosen: Mapping[str, str], pool: str, table: RequestTable) -> RequestTable:
    """Returns the requests that may go to a pool, by their class; `chosen`: class -> pool, empty for all."""
    if not chosen:
        return table
    mine = [chosen.get(name, chosen.get("")) == pool for name in table.class_names]
    return some_rows(table, np.flatnonzero(np.array(mine)[table.class_id]))


def _of_pool(pool: BuiltPool, table: RequestTable) -> Ceiling:
    """Returns the ceiling of a pool, for the mean lengths of these requests."""
    cost, engine = of_one_batch(pool.cost, pool.engine)
    lengths = MeanLengths.of(table)
    if engine.enable_prefix_caching and (share := reused_share(table.head(SEEN))):
        lengths = replace(lengths, prompt=max(lengths.prompt * (1.0 - share), 1.0))
    come = {table.class_names[number] for number in np.unique(table.class_id).tolist()}
    rounds = (
        mean_length(spec, engine.num_speculative_tokens)
        for name, spec in pool.acceptance.items()
        if not name or name in come
    )
    length = min(rounds, default=1.0)
    found = most(cost, engine, lengths, length, None)
    lost = {
        name: 1.0 - most(cost, narrower, lengths, length, None).rate / found.rate
        for name, narrower in _narrower(engine).items()
    }
    name = max(lost, key=lambda limit: lost[limit])
    if lost[name] >= HELD_BACK:
        binds = f"{name} (10 % less would serve {lost[name]:.0%} less)"
    elif found.prompt_share >= 0.5:
        binds = f"prompt compute ({found.prompt_share:.0%} of the time)"
    else:
        binds = f"decode steps ({1.0 - found.prompt_share:.0%} of the time)"
    replicas = pool.replicas
    return Ceiling(replicas * found.rate / SLACK, replicas * found.rate, binds, replicas * found.batch)


def _narrower(engine: EngineConfig) -> dict[str, EngineConfig]:
    """Returns the engine with less of one limit."""
    return {
        "the KV cache": replace(engine, num_gpu_blocks=round(LESS * engine.num_gpu_blocks)),
        "seats (max_num_seqs)": replace(engine, max_num_seqs=round(LESS * engine.max_num_seqs)),
        "the token budget (max_num_batched_tokens)": replace(
            engine, max_num_batched_tokens=round(LESS * engine.max_num_batched_tokens)
        ),
    }
