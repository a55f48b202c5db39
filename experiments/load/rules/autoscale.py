"""Rules about replicas that come and go, with the load or on spot instances."""

from __future__ import annotations

from collections.abc import Iterator

from specfleet.experiments.load.rules.base import Conflict
from specfleet.experiments.schema.blocks.deployment import Deployment
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.blocks.scaling import Autoscale, Retry, Spot
from specfleet.sim.router import ROUTERS, Told

SHARES = ("kv_usage", "slo_attainment")
COMING = ("autoscale", "spot")


def coming_conflicts(config: Experiment) -> Iterator[Conflict]:
    """What is said of replicas that come and go is whole, and what they are can."""
    deployment = config.deployment
    yield from _routers(deployment)
    if deployment.pools:
        for key in COMING:
            if getattr(deployment, key) is not None:
                message = f"say which pool's: deployment.pools.NAME.{key}"
                yield Conflict.at(message, f"deployment.{key}", "deployment.pools")
        return
    if deployment.autoscale is not None:
        yield from autoscale_conflicts(config, deployment.autoscale)
    if deployment.spot is not None:
        yield from _spot(deployment, deployment.spot)
    for key in COMING:
        if getattr(deployment, key) is not None:
            yield from _beside(config, f"deployment.{key}")


def autoscale_conflicts(config: Experiment, asked: Autoscale) -> Iterator[Conflict]:
    """Bounds are in order, a share is one, and nothing else says how many there are."""
    at = "deployment.autoscale"
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
    if "replicas" in config.deployment.model_fields_set:
        message = "autoscale says how many there are; give autoscale.start, and remove it"
        yield Conflict.at(message, "deployment.replicas", at)


def _spot(deployment: Deployment, asked: Spot) -> Iterator[Conflict]:
    """A price is said once, something is taken and replaced, and somebody is on spot."""
    at, scaled = "deployment.spot", deployment.autoscale
    if (asked.price_factor is None) == (asked.usd_per_gpu_hour is None):
        message = "say what it costs, one way: price_factor (of the price on demand), or usd_per_gpu_hour"
        yield Conflict.at(message, at, *((f"{at}.usd_per_gpu_hour",) if asked.price_factor else ()))
    if asked.mtti_s is None and not asked.at:
        yield Conflict.at("nothing is taken: give mtti_s or at, or remove it", at)
    own = bool(asked.at) and all(one.unavailable_s is not None for one in asked.at)
    if asked.mtti_s is None and asked.unavailable_s and own:
        message = "says nothing: each of at says its own, and nothing is taken by chance; remove it"
        yield Conflict.in_vain(message, f"{at}.unavailable_s", f"{at}.at")
    if asked.retry is not None:
        yield from retry_conflicts(asked.retry, f"{at}.retry")
    for key in ("provision_s", "load_s"):
        if scaled is not None and getattr(asked, key) is not None:
            yield Conflict.at(
                f"autoscale.{key} says it; remove one of the two", f"{at}.{key}", "deployment.autoscale"
            )
    if scaled is None and asked.provision_s is None:
        message = "say how long it takes until another instance is there: provision_s"
        yield Conflict.at(message, at)
    always, key = (deployment.replicas, "replicas") if scaled is None else (scaled.min, "autoscale.min")
    if asked.on_demand > always or (scaled is None and asked.on_demand == always):
        message = (
            f"{asked.on_demand} of {always} are on demand, and none is on spot; lower it"
            if scaled is None
            else f"{asked.on_demand} are always there, and autoscale.min is {always}; raise that, or lower it"
        )
        yield Conflict.at(message, f"{at}.on_demand", f"deployment.{key}")


def retry_conflicts(asked: Retry, at: str) -> Iterator[Conflict]:
    """Nothing is said of requests that are sent anew where none is."""
    for key in ("backoff_s", "keep_partial"):
        if not asked.most and getattr(asked, key) != getattr(Retry(), key):
            message = "says nothing: no request is sent anew; raise most, or remove it"
            yield Conflict.in_vain(message, f"{at}.{key}", f"{at}.most")


def _beside(config: Experiment, at: str) -> Iterator[Conflict]:
    """What replicas that come and go are not modelled with."""
    if config.deployment.slow:
        yield Conflict.at("is not modelled with stragglers; remove one of the two", at, "deployment.slow")
    several = ["data_parallel_size"] + (["pipeline_parallel_size"] if at.endswith("spot") else [])
    for key in several:
        if getattr(config.serve, key) > 1:
            whose = "ranks come and go together" if key.startswith("data") else "stages are lost together"
            message = f"is not modelled with {key} above 1, whose {whose}; remove it"
            yield Conflict.at(message, at, f"serve.{key}")


def _routers(deployment: Deployment) -> Iterator[Conflict]:
    """Routers that remember replicas by number cannot stand before some that come and go."""
    keys = [f"deployment.{key}" for key in COMING if getattr(deployment, key) is not None]
    for name, pool in (deployment.pools or {}).items():
        keys += [f"deployment.pools.{name}.{key}" for key in COMING if getattr(pool, key) is not None]
    name = deployment.routing.then
    if keys and hasattr(ROUTERS.get(name), Told.told.__name__):
        message = f"{name} remembers replicas by number, and their number changes; take one that does not"
        yield Conflict.at(message, "deployment.router", keys[0])
