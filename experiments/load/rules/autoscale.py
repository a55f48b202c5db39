"""Rules about a number of replicas that follows the load."""

from __future__ import annotations

from collections.abc import Iterator

from specfleet.experiments.load.rules.base import Conflict
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.sim.router import ROUTERS, Told

SHARES = ("kv_usage", "slo_attainment")


def autoscale_conflicts(config: Experiment) -> Iterator[Conflict]:
    """Bounds are in order, a share is one, and what replicas are is what can be scaled."""
    asked, at = config.deployment.autoscale, "deployment.autoscale"
    if asked is None:
        return
    if asked.min > asked.max:
        yield Conflict.at(f"is above max, {asked.max}", f"{at}.min", f"{at}.max")
    elif asked.start is not None and not asked.min <= asked.start <= asked.max:
        yield Conflict.at(f"must lie between {asked.min} and {asked.max}", f"{at}.start", f"{at}.min")
    if asked.metric in SHARES and asked.target >= 1.0:
        message = f"is a share of 1 with metric: {asked.metric}; {asked.target:g} is never exceeded"
        yield Conflict.at(message, f"{at}.target", f"{at}.metric")
    classes = config.workload.classes.values()
    limited = [slo for slo in (config.slo, *(each.slo for each in classes)) if slo is not None]
    if asked.metric == "slo_attainment" and not any(slo.request_limits_ms for slo in limited):
        message = "nothing is said of a request's latency; add slo.ttft_ms, slo.tpot_ms or slo.e2el_ms"
        yield Conflict.at(message, f"{at}.metric", "slo")
    yield from _beside(config)


def _beside(config: Experiment) -> Iterator[Conflict]:
    """What it does not go together with."""
    deployment, at = config.deployment, "deployment.autoscale"
    if deployment.pools:
        message = (
            "is not modelled with several pools: it scales replicas that are alike; remove one of the two"
        )
        yield Conflict.at(message, at, "deployment.pools")
    elif "replicas" in deployment.model_fields_set:
        message = "autoscale says how many there are; give autoscale.start, and remove it"
        yield Conflict.at(message, "deployment.replicas", at)
    if deployment.slow:
        message = "is not modelled with stragglers; remove one of the two"
        yield Conflict.at(message, at, "deployment.slow")
    if config.serve.data_parallel_size > 1:
        message = (
            "is not modelled with data_parallel_size above 1, whose ranks come and go together; remove it"
        )
        yield Conflict.at(message, at, "serve.data_parallel_size")
    router = ROUTERS.get(deployment.routing.then)
    if router is not None and hasattr(router, Told.told.__name__):
        name = deployment.routing.then
        message = f"{name} remembers replicas by number, and their number changes; take one that does not"
        yield Conflict.at(message, "deployment.router", at)
