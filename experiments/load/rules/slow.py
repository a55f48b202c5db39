"""Rules about stragglers: they are replicas that there are, each named once, whose kernels can be slowed."""

from __future__ import annotations

from collections.abc import Iterator

from specfleet.experiments.load.rules.base import Conflict
from specfleet.experiments.schema.blocks.experiment import Experiment


def slow_conflicts(config: Experiment) -> Iterator[Conflict]:
    """Stragglers are replicas that there are, each named once, whose kernels can be slowed."""
    deployment = config.deployment
    taken: set[int] = set()
    for number, slow in enumerate(deployment.slow):
        at = f"deployment.slow.{number}"
        if (slow.replicas is None) == (slow.share is None):
            yield Conflict.at("give the replicas by number, or their share", at)
            continue
        there = set(slow.numbers(deployment.replicas))
        beyond = [one for one in sorted(there) if one >= deployment.replicas]
        if beyond:
            message = f"there is no replica {beyond[0]}: the {deployment.replicas} are numbered from 0"
            yield Conflict.at(message, at)
        if there & taken:
            message = f"replica {min(there & taken)} is named twice; say one factor for it"
            yield Conflict.at(message, at)
        taken |= there
    if deployment.slow and config.serve.cost_model != "kernels":
        message = "only kernels can be slowed; set serve.cost_model: kernels, or remove slow"
        yield Conflict.at(message, "deployment.slow", "serve.cost_model")
    if deployment.slow and config.serve.data_parallel_size > 1:
        message = "ranks that step together are as slow as the slowest; not modelled, remove slow"
        yield Conflict.at(message, "deployment.slow", "serve.data_parallel_size")
