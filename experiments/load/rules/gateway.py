"""Rules about what stands before replicas: keys that say nothing beside others are faults."""

from __future__ import annotations

from collections.abc import Iterator

from specfleet.experiments.load.rules.base import Conflict
from specfleet.experiments.schema.blocks.deployment import Gateway
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.sim.router import ROUTERS, Blind

BETWEEN_POOLS = ("by_class", "otherwise", "by_acceptance", "spill")


def gateway_conflicts(config: Experiment) -> Iterator[Conflict]:
    """A gateway holds somebody, views get old before routers that look, rules between pools need pools."""
    deployment, routing, gateway = config.deployment, config.deployment.routing, config.deployment.gateway
    if not deployment.pools:
        for key in BETWEEN_POOLS:
            if getattr(routing, key) is not None:
                message = "chooses between pools, and there are none; add deployment.pools, or remove it"
                yield Conflict.at(message, f"deployment.router.{key}", "deployment.pools")
    router = ROUTERS.get(routing.then)
    if routing.refresh_ms and router is not None and issubclass(router, Blind):
        message = f"{routing.then} looks at no replica, so nothing gets old; remove it"
        yield Conflict.in_vain(message, "deployment.router.refresh_ms", "deployment.router.then")
    if gateway is None:
        return
    for key in ("queue", "timeout_ms"):
        if getattr(gateway, key) is not None and gateway.max_outstanding is None:
            message = "nobody is held without max_outstanding; add it, or remove this"
            yield Conflict.in_vain(message, f"deployment.gateway.{key}", "deployment.gateway.max_outstanding")
    turns_away = gateway.admit_ttft_ms is not None or gateway.max_outstanding is not None
    if not turns_away:
        message = "turns nobody away; give max_outstanding or admit_ttft_ms, or remove it"
        yield Conflict.in_vain(message, "deployment.gateway")
    given_up = any(key is not None for key in (gateway.queue, gateway.timeout_ms, gateway.admit_ttft_ms))
    if gateway.retries and turns_away and not given_up:
        message = "says nothing: nobody is turned away; give queue, timeout_ms or admit_ttft_ms, or remove it"
        yield Conflict.in_vain(message, "deployment.gateway.retries", "deployment.gateway")
    if not gateway.retries and gateway.backoff_ms != Gateway().backoff_ms:
        message = "says nothing: nothing is sent again; add retries, or remove it"
        yield Conflict.in_vain(message, "deployment.gateway.backoff_ms", "deployment.gateway.retries")
