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
    config = this.winner.candidate.config
    bought = this.winner.high + this.plan.spare_replicas
    return [DeployedPool(deployed_name(this.experiment.name), config, bought)], config.deployment.routing.then
