"""Rules about several pools: each obeys the rules of a file, and the routing names them."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import replace

from pydantic import ValidationError

from specfleet.experiments.load.defaults import filled
from specfleet.experiments.load.rules.autoscale import coming_conflicts
from specfleet.experiments.load.rules.base import Conflict
from specfleet.experiments.load.rules.conflicts import conflicts
from specfleet.experiments.load.rules.failures import failure_conflicts
from specfleet.experiments.load.rules.gateway import gateway_conflicts
from specfleet.experiments.load.rules.handover import handover_conflicts
from specfleet.experiments.load.rules.patience import patience_conflicts
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.faults import did_you_mean
from specfleet.experiments.schema.pools import longest_of, pool_data, pool_experiments, written_path
from specfleet.experiments.schema.structure import check
from specfleet.experiments.schema.yamlfile import KeyPath, Value


def drafts_of(config: Experiment) -> int:
    """Returns the drafts of a round, 0 without a drafter."""
    speculative = config.serve.speculative_config
    return speculative.num_speculative_tokens or 0 if speculative else 0


def pooled_conflicts(
    config: Experiment, data: dict[str, Value], written: Container[KeyPath]
) -> tuple[list[Conflict], bool]:
    """Returns everything wrong with a point of several pools, and whether that leaves it unsound.

    Args:
        config: the point, its defaults not filled in.
        data: the same as plain values.
        written: keys that the file, or an axis, says.
    """
    pools = config.deployment.pools or {}
    found: list[Conflict] = []
    unsound = False
    sounds: dict[str, Experiment] = {}
    for name in pools:
        own = pool_data(data, name)
        try:
            sound = Experiment.model_validate(own)
        except ValidationError:
            unsound = True
            findings = check(own).findings
            found += [Conflict((written_path(f.path, name, written),), f.message) for f in findings]
            continue
        sounds[name] = filled(sound)
    longest = None if unsound else longest_of(filled(config))
    each = {name: list(conflicts(sound, longest)) for name, sound in sounds.items()}
    for name, mine in each.items():
        for conflict in mine:
            paths = [written_path(path, name, written) for path in conflict.paths]
            paths.sort(key=lambda path, name=name: path[:3] != ("deployment", "pools", name))  # type: ignore[misc]
            shared = all(conflict in other for other in each.values())
            inside = paths[0][:3] == ("deployment", "pools", name)
            said = conflict.message if shared or inside else f"pool {name}: {conflict.message}"
            found.append(replace(conflict, paths=tuple(paths), message=said))
    return [
        *found,
        *_routing(config),
        *_between_pools(config),
        *gateway_conflicts(config),
        *patience_conflicts(config),
        *coming_conflicts(config),
        *failure_conflicts(config),
        *([] if unsound else handover_conflicts(config)),
    ], unsound


def classes_of(config: Experiment) -> tuple[str, ...] | None:
    """Returns the traffic classes of a workload; None where only its trace knows."""
    workload = config.workload
    if workload.trace is not None:
        return None
    if workload.phases is not None:
        return tuple(dict.fromkeys(phase.traffic_class for phase in workload.phases))
    return tuple(workload.mix or ("default",))


def _routing(config: Experiment) -> Iterator[Conflict]:
    """The routing names pools and classes that there are, and leaves no class without a pool."""
    deployment, routing = config.deployment, config.deployment.routing
    pools, by_class = deployment.pools or {}, routing.by_class or {}
    if "replicas" in deployment.model_fields_set:
        message = "every pool has replicas of its own; remove it, or the pools"
        yield Conflict.at(message, "deployment.replicas", "deployment.pools")
    if deployment.slow:
        yield Conflict.at(
            "say which pool's: deployment.pools.NAME.slow", "deployment.slow", "deployment.pools"
        )
    named = {f"deployment.router.by_class.{key}": pool for key, pool in by_class.items()}
    if routing.otherwise is not None:
        named["deployment.router.otherwise"] = routing.otherwise
    for key, pool in named.items():
        if pool not in pools:
            yield Conflict.at(
                f"{pool!r} is no pool; {did_you_mean(pool, list(pools))}", key, "deployment.pools"
            )
    if config.report.requests == "none":
        message = "figures alone are kept of equal replicas; remove deployment.pools, or keep all requests"
        yield Conflict.at(message, "report.requests", "deployment.pools")
    classes = classes_of(config)
    if not by_class:
        if routing.by_acceptance is not None:
            return
        if routing.otherwise is not None:
            message = "says where classes go that by_class does not name; give by_class, or remove it"
            yield Conflict.at(message, "deployment.router.otherwise", "deployment.router")
        return
    for name in by_class:
        if classes is not None and name not in classes:
            message = f"no request is of class {name!r}; {did_you_mean(name, list(classes))}"
            yield Conflict.at(message, f"deployment.router.by_class.{name}", "workload.mix")
    left = [name for name in classes or () if name not in by_class]
    if routing.otherwise is None and (left or classes is None):
        which = f"class {left[0]!r}" if left else "classes that only the trace names"
        message = (
            f"does not say where {which} goes; name a pool for it, or add otherwise: {next(iter(pools))}"
        )
        yield Conflict.at(message, "deployment.router.by_class", "deployment.router")


def _between_pools(config: Experiment) -> Iterator[Conflict]:
    """By expected acceptance requests go to a pool that drafts; a pool spills to another one."""
    routing, pools = config.deployment.routing, config.deployment.pools or {}
    rule = routing.by_acceptance
    if rule is not None:
        key = "deployment.router.by_acceptance"
        if routing.by_class:
            message = "and by_class both say where a class goes; keep one"
            yield Conflict.at(message, key, "deployment.router.by_class")
        if rule.to not in pools:
            message = f"{rule.to!r} is no pool; {did_you_mean(rule.to, list(pools))}"
            yield Conflict.at(message, f"{key}.to", "deployment.pools")
        elif not drafts_of(filled(pool_experiments(config)[rule.to])):
            message = f"pool {rule.to} drafts nothing; name one with a speculative_config"
            yield Conflict.at(message, f"{key}.to", "deployment.pools")
        if routing.otherwise is None:
            message = f"does not say where other classes go; add otherwise: {list(pools)[-1]}"
            yield Conflict.at(message, key, "deployment.router")
    sent = {*(routing.by_class or {}).values(), routing.otherwise, rule.to if rule else None}
    for name, spill in (routing.spill or {}).items():
        key = f"deployment.router.spill.{name}"
        for pool, where in ((name, key), (spill.to, f"{key}.to")):
            if pool not in pools:
                message = f"{pool!r} is no pool; {did_you_mean(pool, list(pools))}"
                yield Conflict.at(message, where, "deployment.pools")
        if spill.to == name:
            yield Conflict.at("a pool cannot spill to itself; name another", f"{key}.to")
        elif name in pools and name not in sent:
            message = f"no class is sent to {name} alone; give by_class, or by_acceptance"
            yield Conflict.at(message, key, "deployment.router")
