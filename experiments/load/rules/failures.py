"""Rules about replicas that fail: they are there, what is said of them is enough, and it is modelled."""

from __future__ import annotations

from collections.abc import Iterator

from specfleet.experiments.load.rules.base import Conflict
from specfleet.experiments.schema.blocks.deployment import Deployment, Failures
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.sim.router import ROUTERS, Remembering

KEY = "deployment.failures"


def failure_conflicts(config: Experiment) -> Iterator[Conflict]:
    """Something fails, what is needed of it is said, and what it fails beside is modelled."""
    deployment, failures = config.deployment, config.deployment.failures
    if failures is None:
        return
    if not failures.at and failures.mtbf_s is None:
        yield Conflict.at("nothing fails: give at or mtbf_s, or remove it", KEY)
    yield from _said(failures)
    if not deployment.pools and deployment.autoscale is None:
        for number, failure in enumerate(failures.at):
            if failure.replica >= deployment.replicas:
                message = (
                    f"there is no replica {failure.replica}: the {deployment.replicas} are numbered from 0"
                )
                yield Conflict.at(message, f"{KEY}.at.{number}.replica", "deployment.replicas")
    yield from _beside(config, deployment)


def _said(failures: Failures) -> Iterator[Conflict]:
    """What is said of failures is enough, and nothing is said in vain."""
    kinds = {failure.kind or failures.kind for failure in failures.at}
    if failures.mtbf_s is not None:
        kinds.add(failures.kind)
        if failures.repair_s is None:
            message = "say how long a repair takes: repair_s"
            yield Conflict.at(message, f"{KEY}.mtbf_s", f"{KEY}.repair_s")
    elif failures.repair_s is not None and all(failure.for_s is not None for failure in failures.at):
        message = "every failure says for_s, and there are no others; add mtbf_s, or remove it"
        yield Conflict.at(message, f"{KEY}.repair_s", f"{KEY}.mtbf_s")
    if failures.detect_s is None and kinds - {"slow"}:
        message = (
            "say how long health checks take to find a failure: detect_s "
            "(Kubernetes finds an unready pod in 30 s: three probes 10 s apart)"
        )
        yield Conflict.at(message, KEY)
    slow = [one for one in failures.at if (one.kind or failures.kind) == "slow"]
    needed = any(one.factor is None for one in slow) or (failures.mtbf_s and failures.kind == "slow")
    if needed and failures.factor is None:
        yield Conflict.at("say how many times as long a slow step takes: factor", KEY)
    if failures.factor is not None and "slow" not in kinds:
        yield Conflict.at("says nothing: no replica is slow; remove it", f"{KEY}.factor", f"{KEY}.kind")
    for number, one in enumerate(failures.at):
        if one.factor is not None and (one.kind or failures.kind) != "slow":
            message = "says nothing: this replica is not slow; remove it"
            yield Conflict.at(message, f"{KEY}.at.{number}.factor")


def _beside(config: Experiment, deployment: Deployment) -> Iterator[Conflict]:
    """What replicas that fail are not modelled with."""
    if deployment.pools:
        message = "replicas of several pools that fail are not modelled; remove failures, or the pools"
        yield Conflict.at(message, KEY, "deployment.pools")
    if deployment.autoscale is not None:
        message = "replicas that come and go with the load and fail are not modelled; remove one of the two"
        yield Conflict.at(message, KEY, "deployment.autoscale")
    if deployment.slow:
        message = "stragglers that fail are not modelled; remove failures, or slow"
        yield Conflict.at(message, KEY, "deployment.slow")
    serve = config.serve
    for key in ("data_parallel_size", "pipeline_parallel_size"):
        if getattr(serve, key) > 1:
            message = f"replicas of several engines that fail are not modelled; remove it, or serve.{key}"
            yield Conflict.at(message, KEY, f"serve.{key}")
    router = ROUTERS.get(deployment.routing.then)
    if router is not None and issubclass(router, Remembering):
        message = (
            f"{deployment.routing.then} remembers what it sent where, and what it does about a replica that "
            "failed is not modelled; take another router, or remove failures"
        )
        yield Conflict.at(message, KEY, "deployment.router")
