"""Rules about runs that keep figures alone: which of them need not be held in memory."""

from __future__ import annotations

from collections.abc import Iterator

from specfleet.experiments.load.rules.base import Conflict
from specfleet.experiments.point.build import counted_requests, requests_asked
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.sim.router import ROUTERS, Blind, Counting
from specfleet.sim.source import FITS


def held_because(config: Experiment) -> tuple[str, str] | None:
    """Returns the key for which a run without kept requests is held in memory all the same, and why.

    None if there is none. What only the simulation can find out is said in the point's engine.json.
    """
    if config.report.requests == "all":
        return None
    workload, deployment, serve = config.workload, config.deployment, config.serve
    speculative = serve.speculative_config
    if workload.max_concurrency is not None:
        return "workload.max_concurrency", "an answer lets the next request go"
    router = ROUTERS.get(deployment.routing.then)
    if deployment.replicas > 1 and router is not None and not issubclass(router, Blind | Counting):
        return "deployment.router", "the router looks at more than the number of requests at each replica"
    if serve.data_parallel_size > 1:
        return "serve.data_parallel_size", "ranks step together"
    if serve.pipeline_parallel_size > 1:
        return "serve.pipeline_parallel_size", "batches under way overlap"
    if serve.draft_policy is not None:
        return "serve.draft_policy", "the draft length changes with the batch"
    if speculative is not None and speculative.enable_adaptive_verification:
        key = "serve.speculative_config.enable_adaptive_verification"
        return key, "the draft length changes with the batch"
    if speculative is not None and speculative.num_speculative_tokens_per_batch_size is not None:
        key = "serve.speculative_config.num_speculative_tokens_per_batch_size"
        return key, "the draft length changes with the batch"
    if workload.prefix is not None and serve.enable_prefix_caching:
        return "workload.prefix", "requests share what is in the prefix cache"
    return None


def summary_conflicts(config: Experiment) -> Iterator[Conflict]:
    """A run that has to be held in memory must fit there."""
    deployment = config.deployment
    names = ("slow", "gateway", "autoscale", "spot", "failures")
    kept = {name: bool(getattr(deployment, name)) for name in names}
    for key in (key for key, there in kept.items() if there and config.report.requests == "none"):
        message = f"figures alone are kept of equal replicas; remove deployment.{key}, or keep all requests"
        yield Conflict.at(message, "report.requests", f"deployment.{key}")
    held = held_because(config)
    if held is None or config.workload.trace is not None:
        return
    n = counted_requests(config.workload) + requests_asked(config.workload, config.workload.num_warmups)
    if n > FITS:
        key, reason = held
        yield Conflict.at(
            f"{n} requests cannot be forgotten one by one ({key}: {reason}), and at most {FITS} are held in "
            f"memory; ask for fewer, or leave {key} out",
            "report.requests",
            key,
        )


def summary_notices(points: list[Experiment]) -> Iterator[str]:
    """Says of which runs the requests are kept in memory although only figures are asked for."""
    for key, reason in sorted({held for point in points if (held := held_because(point)) is not None}):
        yield f"report.requests: none: with {key} a run is held in memory as a whole ({reason})"
