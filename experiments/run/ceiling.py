"""What a deployment can serve at most, in closed form, and what it would take more of to serve more."""

from __future__ import annotations

from dataclasses import dataclass, replace

from specfleet.experiments.point.bounds import SLACK, MeanLengths, mean_length, most
from specfleet.experiments.point.build import build, requests
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.sim.config import EngineConfig

LESS = 0.9
"""Share of a limit that is left, to see what it holds back."""
HELD_BACK = 0.02
"""A limit binds where so much less would be served with `LESS` of it."""
STEPS = 0.1
"""How far the price of steps may be off: a capacity is told for steps that take so much more or less."""


@dataclass(frozen=True)
class Ceiling:
    """Most requests per second of a deployment.

    Attributes:
        per_s: requests/s of all replicas.
        beyond_per_s: a rate that no simulated deployment reaches; more than that is too much for certain.
        binds: the limit that binds, in words, with its figure.
    """

    per_s: float
    beyond_per_s: float
    binds: str


def ceiling(config: Experiment, seed: int) -> Ceiling:
    """Returns the ceiling of a point, for the mean lengths of its requests.

    Args:
        config: the point.
        seed: of its requests.
    """
    built = build(config)
    cost, engine = built.scenario.cost, built.scenario.engine
    lengths = MeanLengths.of(requests(config, seed))
    rounds = (mean_length(spec, engine.num_speculative_tokens) for spec in built.scenario.acceptance.values())
    length = min(rounds, default=1.0)
    found = most(cost, engine, lengths, length, None)
    replicas = config.deployment.replicas * config.serve.data_parallel_size
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
    return Ceiling(replicas * found.rate / SLACK, replicas * found.rate, binds)


def _narrower(engine: EngineConfig) -> dict[str, EngineConfig]:
    """Returns the engine with less of one limit."""
    return {
        "the KV cache": replace(engine, num_gpu_blocks=round(LESS * engine.num_gpu_blocks)),
        "seats (max_num_seqs)": replace(engine, max_num_seqs=round(LESS * engine.max_num_seqs)),
        "the token budget (max_num_batched_tokens)": replace(
            engine, max_num_batched_tokens=round(LESS * engine.max_num_batched_tokens)
        ),
    }
