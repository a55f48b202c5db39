"""Rules about replicas that fail: they are there, what is said of them is enough, and it is modelled."""

from __future__ import annotations

from collections.abc import Iterator

from specfleet.experiments.load.rules.autoscale import retry_conflicts
from specfleet.experiments.load.rules.base import Conflict
from specfleet.experiments.schema.blocks.deployment import Deployment, ReplicaPool
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.blocks.failing import Failure, Failures, PoolFailures
from specfleet.experiments.schema.blocks.scaling import Retry
from specfleet.experiments.schema.faults import did_you_mean
from specfleet.sim.router import ROUTERS, Remembering

KEY = "deployment.failures"


def failure_conflicts(config: Experiment) -> Iterator[Conflict]:
    """Something fails, what is needed of it is said, and what it fails beside is modelled."""
    deployment, failures = config.deployment, config.deployment.failures
    if failures is None:
        return
    of_each = _of_each(deployment, failures)
    if not failures.at and all(one.mtbf_s is None for one in of_each.values()):
        yield Conflict.at("nothing fails: give at or mtbf_s, or remove it", KEY)
    yield from _said(deployment, failures, of_each)
    yield from _there(deployment, failures)
    yield from _beside(config, deployment)


def _of_each(deployment: Deployment, failures: Failures) -> dict[str, PoolFailures]:
    """Where it is said -> how the replicas of a pool fail; under the key of all where all are alike."""
    own = failures.pools or {}
    others = [name for name in deployment.pools or () if name not in own]
    found = {f"{KEY}.pools.{name}": failures.of_pool(name) for name in own}
    return {**({KEY: failures.of_pool("")} if others or not own else {}), **found}


def _there(deployment: Deployment, failures: Failures) -> Iterator[Conflict]:
    """Pools and replicas that fail are there."""
    pools = deployment.pools or {}
    for name in failures.pools or ():
        if name not in pools:
            message = (
                f"{name!r} is no pool; {did_you_mean(name, list(pools))}" if pools else "there are no pools"
            )
            yield Conflict.at(message, f"{KEY}.pools.{name}", "deployment.pools")
    for number, failure in enumerate(failures.at):
        if pools and failure.pool is None:
            message = f"say of which pool: add pool: {next(iter(pools))}"
            yield Conflict.at(message, f"{KEY}.at.{number}", "deployment.pools")
        elif failure.pool is not None and failure.pool not in pools:
            hint = did_you_mean(failure.pool, list(pools)) if pools else "there are none: remove it"
            message = f"{failure.pool!r} is no pool; {hint}"
            yield Conflict.at(message, f"{KEY}.at.{number}.pool", "deployment.pools")
        elif failure.replica >= (there := _replicas(deployment, failure)):
            of = f" in pool {failure.pool}" if failure.pool else ""
            message = f"there is no replica {failure.replica}{of}: the {there} are numbered from 0"
            key = f"deployment.pools.{failure.pool}" if failure.pool else "deployment.replicas"
            yield Conflict.at(message, f"{KEY}.at.{number}.replica", key)


def _replicas(deployment: Deployment, failure: Failure) -> int:
    """How many there are, or may be, where one fails."""
    where: Deployment | ReplicaPool = deployment
    if failure.pool is not None:
        where = (deployment.pools or {})[failure.pool]
    return where.replicas if where.autoscale is None else where.autoscale.max


def is_replaced(deployment: Deployment, pool: str | None) -> bool:
    """Whether another replica comes in place of one that is lost, which is not repaired."""
    where = (deployment.pools or {}).get(pool or "", deployment)
    return where.autoscale is not None or where.spot is not None


def _said(deployment: Deployment, failures: Failures, of_each: dict[str, PoolFailures]) -> Iterator[Conflict]:
    """What is said of failures is enough, and nothing is said in vain."""
    known = {failure.kind or failures.kind for failure in failures.at}
    kinds = known | {one.kind for one in of_each.values() if one.mtbf_s is not None}
    for key, one in of_each.items():
        name = key.removeprefix(f"{KEY}.pools.") if key != KEY else None
        repaired = one.kind == "slow" or not _all_replaced(deployment, failures, name)
        if one.mtbf_s is not None and one.repair_s is None and repaired:
            message = "say how long a repair takes: repair_s"
            yield Conflict.at(message, f"{key}.mtbf_s", f"{key}.repair_s")
        if one.mtbf_s is not None and one.kind == "slow" and one.factor is None:
            yield Conflict.at("say how many times as long a slow step takes: factor", key)
        if key != KEY and one.mtbf_s is None:
            for name in ("repair_s", "kind", "factor"):
                if getattr(failures.pools[key.rpartition(".")[2]], name) is not None:  # type: ignore[index]
                    message = "says nothing: none of its replicas fails by chance; give mtbf_s, or remove it"
                    yield Conflict.in_vain(message, f"{key}.{name}")
    chance = any(one.mtbf_s is not None for one in of_each.values())
    if not chance and failures.repair_s is not None and all(one.for_s is not None for one in failures.at):
        message = "every failure says for_s, and there are no others; add mtbf_s, or remove it"
        yield Conflict.in_vain(message, f"{KEY}.repair_s", f"{KEY}.mtbf_s")
    yield from retry_conflicts(failures.retry, f"{KEY}.retry")
    if kinds == {"slow"}:
        for name, nothing in (("detect_s", None), ("retry", Retry())):
            if getattr(failures, name) != nothing:
                message = "says nothing: replicas are slow, and none is lost; remove it"
                yield Conflict.in_vain(message, f"{KEY}.{name}", f"{KEY}.kind")
    if failures.detect_s is None and kinds - {"slow"}:
        message = (
            "say how long health checks take to find a failure: detect_s "
            "(Kubernetes finds an unready pod in 30 s: three probes 10 s apart)"
        )
        yield Conflict.at(message, KEY)
    slow = [one for one in failures.at if (one.kind or failures.kind) == "slow"]
    if any(one.factor is None for one in slow) and failures.factor is None:
        yield Conflict.at("say how many times as long a slow step takes: factor", KEY)
    if failures.factor is not None and "slow" not in kinds:
        yield Conflict.in_vain("says nothing: no replica is slow; remove it", f"{KEY}.factor", f"{KEY}.kind")
    for number, failure in enumerate(failures.at):
        if failure.factor is not None and (failure.kind or failures.kind) != "slow":
            message = "says nothing: this replica is not slow; remove it"
            yield Conflict.in_vain(message, f"{KEY}.at.{number}.factor")


def _all_replaced(deployment: Deployment, failures: Failures, pool: str | None) -> bool:
    """Whether all replicas of a pool, or of those that say nothing of failures themselves, are replaced."""
    if pool is not None:
        return is_replaced(deployment, pool)
    others = [name for name in deployment.pools or () if name not in (failures.pools or {})]
    return all(is_replaced(deployment, name) for name in others or (None,))


def _in_vain(deployment: Deployment, failures: Failures) -> Iterator[Conflict]:
    """Nothing is said of the repair of replicas that are replaced."""
    message = "says nothing: one that is lost is replaced, as autoscale or spot says; remove it"
    for number, failure in enumerate(failures.at):
        dies = (failure.kind or failures.kind) != "slow"
        if failure.for_s is not None and dies and is_replaced(deployment, failure.pool):
            yield Conflict.in_vain(message, f"{KEY}.at.{number}.for_s")
    own = (failures.pools or {}).values()
    kinds = {failures.kind, *(one.kind for one in failures.at), *(one.kind for one in own)}
    replaced = all(is_replaced(deployment, name) for name in deployment.pools or (None,))
    if failures.repair_s is not None and "slow" not in kinds and replaced:
        yield Conflict.in_vain(message, f"{KEY}.repair_s")


def _beside(config: Experiment, deployment: Deployment) -> Iterator[Conflict]:
    """What replicas that fail are not modelled with."""
    yield from _in_vain(deployment, deployment.failures) if deployment.failures else ()
    pools = deployment.pools or {}
    for key in ("data_parallel_size", "pipeline_parallel_size"):
        sizes: dict[str, object] = {
            f"deployment.pools.{name}.serve": p.serve.get(key) for name, p in pools.items()
        }
        if not pools or None in sizes.values():
            sizes["serve"] = getattr(config.serve, key)
        for at, size in sizes.items():
            if isinstance(size, int) and size > 1:
                message = f"replicas of several engines that fail are not modelled; remove it, or {at}.{key}"
                yield Conflict.at(message, KEY, f"{at}.{key}")
    router = ROUTERS.get(deployment.routing.then)
    if router is not None and issubclass(router, Remembering):
        message = (
            f"{deployment.routing.then} remembers what it sent where, and what it does about a replica that "
            "failed is not modelled; take another router, or remove failures"
        )
        yield Conflict.at(message, KEY, "deployment.router")
