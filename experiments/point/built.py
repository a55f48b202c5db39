"""From one validated point of an experiment to what is simulated: its pools, each with its prices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf

from specfleet.experiments.point.build import (
    acceptance_specs,
    client_config,
    engine_config,
    placement,
    policy_of,
    pool,
    requests_asked,
)
from specfleet.experiments.point.coming import autoscale_config, limits, seconds, spot_config
from specfleet.experiments.point.handover import handover_config, role_of
from specfleet.experiments.point.mixes import writes_what_it_asks
from specfleet.experiments.point.plugins import load_plugins
from specfleet.experiments.point.sessions import patience_of
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.blocks.failing import PoolFailures
from specfleet.experiments.schema.blocks.scaling import Retry, Spot
from specfleet.experiments.schema.pools import pool_experiments
from specfleet.hardware.costmodels import COST_MODELS
from specfleet.hardware.memory import KvBudget
from specfleet.hardware.placement import Placement
from specfleet.hardware.stepcost import StepCost
from specfleet.sim import config as sim_config
from specfleet.sim.fleet.failing import DIES, SLOW, ChanceConfig, FailureConfig, FailuresConfig
from specfleet.sim.fleet.groups import members_of
from specfleet.sim.fleet.scaling import AutoscaleConfig
from specfleet.sim.fleet.spot import SpotConfig
from specfleet.sim.scenario import ReplicaPool, Scenario
from specfleet.sim.speculation.acceptance import survival_table
from specfleet.sim.speculation.policy import PolicySpec
from specfleet.sim.speculation.spec import AcceptanceSpec


@dataclass(frozen=True)
class BuiltPool:
    """Replicas of a point that are alike, ready to run.

    Args:
        name: of the pool; "" where there is one.
        engine, cost, acceptance, policy, lockstep: as in `sim.scenario.ReplicaPool`.
        plain_cost: prices the same engine without a drafter, to tell what speculation adds.
        budget: the KV pool, line by line.
        replicas: schedulers, each rank of data parallelism one.
        gpus: of all of them.
        per_hour_usd: what these cost; None without a price in the catalogue.
        tdp_w: board power of one; None where it is not known.
        busy_gpus: of a replica's GPUs, how many work at a time: those of one stage of a pipeline.
        slowed: prices of replicas whose kernels take longer, with drafts and without, by number.
        role, bytes_per_s, autoscale, spot: as in `sim.scenario.ReplicaPool`.
        spot_per_hour_usd: what the GPUs of all replicas cost on spot; None where that is not known.
    """

    name: str
    engine: sim_config.EngineConfig
    cost: StepCost
    acceptance: Mapping[str, AcceptanceSpec]
    policy: PolicySpec | None
    lockstep: int
    plain_cost: StepCost
    budget: KvBudget
    replicas: int
    gpus: int
    per_hour_usd: float | None
    tdp_w: float | None
    busy_gpus: float
    slowed: Mapping[int, tuple[StepCost, StepCost]]
    role: str = ""
    bytes_per_s: float = inf
    autoscale: AutoscaleConfig | None = None
    spot: SpotConfig | None = None
    spot_per_hour_usd: float | None = None


@dataclass(frozen=True)
class Built:
    """A point, ready to run.

    Args:
        scenario: what is simulated.
        plain_cost, budget: of the first pool, as in `BuiltPool`.
        slo: limits, or None.
        gpus: GPUs of the whole deployment.
        pools: what there is, by pool: one where all replicas are alike.
        plain_costs: as `plain_cost`, for each of `scenario.pools`; empty where there are none.
    """

    scenario: Scenario
    plain_cost: StepCost
    budget: KvBudget
    slo: sim_config.Slo | None
    gpus: int
    pools: tuple[BuiltPool, ...] = ()
    plain_costs: tuple[StepCost, ...] = ()


def build(config: Experiment) -> Built:
    """Builds a point.

    Raises:
        ValueError: when model, GPU, drafter and settings do not go together.
        hardware.memory.DoesNotFit: when no KV block is left; the message is the budget.
    """
    load_plugins(config.plugins)
    failures = config.deployment.failures
    retry = Retry() if failures is None else failures.retry
    every = pool_experiments(config).items()
    pools = tuple(_with_role(config, _built_pool(name, own, retry)) for name, own in every)
    first = pools[0]
    deployment = deployment_config(config, pools, first.lockstep)
    client = client_config(config)
    load = sim_config.LoadConfig(
        config.workload.max_concurrency,
        requests_asked(config.workload, config.workload.num_warmups),
        patience_of(config.workload),
    )
    kinds = simulated_pools(pools)
    plain = deployment.gateway is None and not deployment.refresh_s and first.autoscale is None
    if len(kinds) == 1 and not kinds[0][0].name and plain:
        scenario = Scenario(
            first.engine, first.cost, first.acceptance, deployment, client, load, first.policy
        )
        kinds = []
    else:
        scenario = Scenario.of_pools([pool for pool, _ in kinds], deployment, client, load)
    gpus = sum(pool.gpus for pool in pools)
    plain_costs = tuple(plain for _, plain in kinds)
    return Built(scenario, first.plain_cost, first.budget, limits(config), gpus, pools, plain_costs)


def _built_pool(name: str, config: Experiment, retry: Retry) -> BuiltPool:
    """Builds one pool of a point; `retry`: as `spot_config`."""
    serve = config.serve
    place = placement(serve)
    budget = pool(serve)
    cost_model = COST_MODELS[serve.cost_model]
    ranks = config.deployment.most_replicas * serve.data_parallel_size
    gpus = place.gpus * config.deployment.most_replicas
    dollars = place.accelerator.price_per_hour_usd
    slowed: dict[int, tuple[StepCost, StepCost]] = {}
    for slow in config.deployment.slow:
        profile = place.profile
        scale = profile.kernel_time_scale * slow.factor
        there = dataclasses.replace(place, profile=dataclasses.replace(profile, kernel_time_scale=scale))
        costs = priced(cost_model, there), priced(cost_model, _without_drafter(there))
        slowed |= dict.fromkeys(slow.numbers(config.deployment.most_replicas), costs)
    return BuiltPool(
        name,
        engine_config(serve, place.profile, budget, writes_what_it_asks(config.workload)),
        priced(cost_model, place),
        acceptance_specs(config),
        policy_of(config),
        serve.data_parallel_size,
        priced(cost_model, _without_drafter(place)),
        budget,
        ranks,
        gpus,
        None if dollars is None else gpus * dollars,
        place.accelerator.tdp_w,
        gpus / ranks / place.pipeline_parallel_size,
        slowed,
        autoscale=autoscale_config(config),
        spot=spot_config(config, retry),
        spot_per_hour_usd=_on_spot(config.deployment.spot, gpus, dollars),
    )


def _on_spot(spot: Spot | None, gpus: int, dollars: float | None) -> float | None:
    """Returns what so many GPUs cost on spot, where one costs so much on demand."""
    if spot is None:
        return None
    if spot.usd_per_gpu_hour is not None:
        return gpus * spot.usd_per_gpu_hour
    assert spot.price_factor is not None, "the rules ask for one of the two"
    return None if dollars is None else gpus * spot.price_factor * dollars


def _with_role(config: Experiment, one: BuiltPool) -> BuiltPool:
    """Returns a pool with its role, where it has one, and what follows from that."""
    role = role_of(config, one.name, one.engine, one.policy, one.gpus / one.replicas)
    return dataclasses.replace(one, **role._asdict())


def simulated_pools(pools: Sequence[BuiltPool]) -> list[tuple[ReplicaPool, StepCost]]:
    """Returns the kinds of replicas that there are, each with its price without drafts: a pool, or those of
    its replicas that are as fast as each other. Replicas are numbered pool after pool."""
    found: list[tuple[ReplicaPool, StepCost]] = []
    first = 0
    for one in pools:
        kinds: dict[tuple[StepCost, StepCost], list[int]] = {}
        for number in range(one.replicas):
            kind = one.slowed.get(number, (one.cost, one.plain_cost))
            kinds.setdefault(kind, []).append(first + number)
        first += one.replicas
        for (cost, plain), members in kinds.items():
            of = (one.name, one.engine, cost, tuple(members), one.acceptance, one.policy, one.lockstep)
            found.append((ReplicaPool(*of, one.role, one.bytes_per_s, one.autoscale, one.spot), plain))
    return found


def deployment_config(
    config: Experiment, pools: Sequence[BuiltPool], lockstep: int
) -> sim_config.DeploymentConfig:
    """Returns how many schedulers there are, and who gets a request."""
    routing, asked = config.deployment.routing, config.deployment.gateway
    spill = {name: (rule.above, rule.to) for name, rule in (routing.spill or {}).items()}
    gateway = None
    if asked is not None:
        gateway = sim_config.GatewayConfig(
            asked.max_outstanding,
            asked.queue,
            seconds(asked.timeout_ms),
            seconds(asked.admit_ttft_ms),
            asked.retries,
            asked.backoff_ms / 1e3,
        )
    return sim_config.DeploymentConfig(
        sum(pool.replicas for pool in pools),
        routing.then,
        lockstep,
        sim_config.RoutingConfig(pool_of_class(config, pools), spill),
        routing.refresh_ms / 1e3,
        gateway,
        failures_config(config, pools),
        handover_config(config),
    )


def numbers_of(pools: Sequence[BuiltPool]) -> dict[str, tuple[int, ...]]:
    """Returns the numbers of the replicas of each pool among all of the cluster."""
    members = members_of([pool.replicas for pool in pools])
    return dict(zip((pool.name for pool in pools), members, strict=True))


def failures_config(config: Experiment, pools: Sequence[BuiltPool]) -> FailuresConfig | None:
    """Returns which replicas fail when; None where none does."""
    asked = config.deployment.failures
    if asked is None:  # spot instances are taken, and nothing else happens
        return FailuresConfig() if any(pool.spot for pool in pools) else None
    numbers = numbers_of(pools)
    known = tuple(
        FailureConfig(
            numbers[one.pool or ""][one.replica],
            one.at_s,
            asked.repair_s if one.for_s is None else one.for_s,
            one.kind or asked.kind,
            one.factor or asked.factor or 1.0,
        )
        for one in asked.at
    )
    return FailuresConfig(
        known,
        asked.mtbf_s,
        asked.repair_s or 0.0,
        asked.kind,
        asked.factor or 1.0,
        asked.detect_s or 0.0,
        asked.retry.most,
        asked.retry.backoff_s,
        asked.retry.keep_partial,
        tuple(
            (numbers[pool.name], _chance(asked.of_pool(pool.name), pool))
            for pool in pools
            if pool.autoscale is not None or pool.name in (asked.pools or ())
        ),
    )


def _chance(asked: PoolFailures, pool: BuiltPool) -> ChanceConfig:
    """Returns how the replicas of a pool fail; those that are replaced when they are lost need no repair."""
    kind = asked.kind or DIES
    repair_s = 0.0 if pool.autoscale is not None and kind != SLOW else asked.repair_s or 0.0
    return ChanceConfig(asked.mtbf_s, repair_s, kind, asked.factor or 1.0)


def pool_of_class(config: Experiment, pools: Sequence[BuiltPool]) -> dict[str, str]:
    """Returns the pool of each traffic class, `""` of those not named; nothing where all may go anywhere."""
    routing = config.deployment.routing
    rule, found = routing.by_acceptance, dict(routing.by_class or {})
    if rule is not None:
        drafts = next(pool for pool in pools if pool.name == rule.to)
        found = {name: rule.to for name, length in _lengths(drafts).items() if length >= rule.at_least}
    if routing.otherwise is not None and (found.get("") is None):
        found[""] = routing.otherwise
    return found if routing.by_class or rule is not None else {}


def expected_lengths(config: Experiment, pool: str) -> dict[str, float]:
    """Returns the acceptance length that each traffic class of a point is expected to have at a pool."""
    return _lengths(next(one for one in build(config).pools if one.name == pool))


def _lengths(pool: BuiltPool) -> dict[str, float]:
    """Returns the mean acceptance length of each traffic class, `""` of those not named."""
    k = pool.engine.num_speculative_tokens
    if not k:
        return {}
    return {
        name: 1.0 + float(survival_table(spec, k).mean(axis=0).sum())
        for name, spec in pool.acceptance.items()
    }


@lru_cache(maxsize=16)
def priced(cost_model: Callable[[Placement], StepCost], place: Placement) -> StepCost:
    """Prices an engine. Kept, since the points of a sweep share few engines."""
    return cost_model(place)


def _without_drafter(place: Placement) -> Placement:
    """Returns the same engine without drafts."""
    if place.drafter is None:
        return place
    return dataclasses.replace(
        place, drafter=None, num_speculative_tokens=0, draft_pass_tokens=(), draft_tiers=()
    )
