"""The winner of a plan as pools to deploy."""

from __future__ import annotations

import re

from specfleet.experiments.plan.deploy.pool import DeployedPool
from specfleet.experiments.plan.planned import Planned

LONGEST = 40
"""Characters of a name: Kubernetes allows 63, and things are made with something behind it."""


def deployed_name(text: str) -> str:
    """Returns a name that Kubernetes and Compose take, as near to a text as may be."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:LONGEST].rstrip("-")
    return plain if plain[:1].isalpha() else f"fleet-{plain}".rstrip("-")


def winning_pools(this: Planned) -> tuple[list[DeployedPool], str]:
    """Returns what the winner is made of, and its router."""
    assert this.winner is not None and this.winner.high is not None
    config, spare = this.winner.candidate.config, this.plan.spare_replicas
    name, chosen = deployed_name(this.experiment.name), this.fleets.chosen
    day = None if this.day is None else this.day.chosen
    if chosen is None:
        scaling = None if day is None else day.scaling
        pool = DeployedPool(name, config, this.winner.high + spare, autoscale=scaling)
        return [pool], config.deployment.routing.then
    pools = [
        DeployedPool(
            deployed_name(f"{name}-{part.name}") if part.name else name,
            part.candidate.config,
            part.replicas + spare,
            part.classes,
            None if day is None or part.name else day.scaling,
            part.name if chosen.transfer is not None else "",
            chosen.transfer,
        )
        for part in chosen.parts
    ]
    return pools, chosen.router
