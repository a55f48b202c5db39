"""Rules about pools with roles: one computes prompts, one decodes, and what lies between is modelled."""

from __future__ import annotations

from collections.abc import Iterator

from specfleet.experiments.load.defaults import filled
from specfleet.experiments.load.rules.base import Conflict, scheduler_of
from specfleet.experiments.point.build import pool
from specfleet.experiments.point.handover import drafter_keeps_kv
from specfleet.experiments.schema.blocks.deployment import KvTransfer
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.blocks.serve import Serve
from specfleet.experiments.schema.pools import pool_experiments
from specfleet.hardware.memory import DoesNotFit

KEY, POOLS, ROUTER = "deployment.kv_transfer", "deployment.pools", "deployment.router"
ALIKE = ("model", "kv_cache_dtype", "block_size", "dtype")
"""Keys of `serve` that must be the same on both sides, for KV blocks to be (NIXL refuses them otherwise)."""


def handover_conflicts(config: Experiment) -> Iterator[Conflict]:
    """Roles come in pairs, what is said of KV is about them, and what they are beside is modelled."""
    deployment = config.deployment
    roles = {name: pool.role for name, pool in (deployment.pools or {}).items() if pool.role is not None}
    if not roles:
        if deployment.kv_transfer is not None:
            message = "no pool has a role, so no KV is handed over; add role: prefill and role: decode"
            yield Conflict.at(f"{message}, or remove it", KEY, POOLS)
        return
    for name in deployment.pools or {}:
        if name not in roles:
            message = "has no role beside pools that have one: say prefill or decode; replicas that do both "
            yield Conflict.at(f"{message}beside them are not modelled", f"{POOLS}.{name}")
    for role in ("prefill", "decode"):
        named = [name for name, mine in roles.items() if mine == role]
        if len(named) != 1:
            found = "no pool has" if not named else f"{' and '.join(named)} have"
            yield Conflict.at(f"{found} role: {role}; one pool has it", POOLS)
            return
    if len(roles) != len(deployment.pools or {}):
        return
    yield from _beside(config)
    sides = [filled(one).serve for one in pool_experiments(config).values()]
    first, other = sides if [*roles.values()] == ["prefill", "decode"] else sides[::-1]
    names = sorted(roles, key=lambda name: roles[name] == "decode")
    yield from _sides(config, first, other, names)
    yield from _drafter(config, first, other, names)


def _beside(config: Experiment) -> Iterator[Conflict]:
    """What is not modelled beside pools with roles, and keys that say nothing there."""
    deployment, routing = config.deployment, config.deployment.routing
    for key in ("by_class", "otherwise", "by_acceptance", "spill"):
        if getattr(routing, key) is not None:
            message = "chooses between pools, and every request goes through both; remove it"
            yield Conflict.at(message, f"{ROUTER}.{key}", POOLS)
    for key, what in (
        ("gateway", "a gateway before pools with roles is"),
        ("failures", "replicas with roles that fail are"),
        ("autoscale", "pools with roles that follow the load are"),
        ("spot", "pools with roles on spot instances are"),
    ):
        if getattr(deployment, key) is not None:
            yield Conflict.at(f"{what} not modelled; remove it, or the roles", f"deployment.{key}", POOLS)
        for name, own in (deployment.pools or {}).items():
            if getattr(own, key, None) is not None:
                message = f"{what} not modelled; remove it, or the roles"
                yield Conflict.at(message, f"{POOLS}.{name}.{key}", POOLS)
    if config.workload.sessions is not None:
        message = (
            "what a turn's answer left on the decode replica is asked for by the next turn's prompt, which "
            "is not modelled; remove sessions, or the roles"
        )
        yield Conflict.at(message, "workload.sessions", POOLS)
    asked = deployment.kv_transfer or KvTransfer()
    if asked.overlap != "after" and asked.proxy_ms is not None:
        message = f"with overlap: {asked.overlap} both replicas get a request at once; remove it"
        yield Conflict.in_vain(message, f"{KEY}.proxy_ms", f"{KEY}.overlap")
    if (asked.drafter_kv == "skipped") != (asked.first_rounds is not None):
        keys = f"{KEY}.first_rounds", f"{KEY}.drafter_kv"
        if asked.first_rounds is None:
            yield Conflict.at("say how many rounds have no drafts: first_rounds", *keys)
        else:
            yield Conflict.in_vain(f"says nothing with drafter_kv: {asked.drafter_kv}; remove it", *keys)


def _sides(config: Experiment, first: Serve, other: Serve, names: list[str]) -> Iterator[Conflict]:
    """Engines of both sides are those whose hand-over is modelled, and their KV is alike."""
    asked = config.deployment.kv_transfer or KvTransfer()
    for name, serve in zip(names, (first, other), strict=True):
        at = f"{POOLS}.{name}.serve"
        if scheduler_of(serve) not in (None, "vllm"):
            message = f"KV is handed over as vLLM does it, not as {serve.engine}; take a vllm engine"
            yield Conflict.at(message, f"{at}.engine", KEY)
        for key in ("data_parallel_size", "pipeline_parallel_size"):
            if getattr(serve, key) > 1:
                message = "engines of several ranks or stages with a role are not modelled; leave it at 1"
                yield Conflict.at(message, f"{at}.{key}", POOLS)
        if _mixes_layers(serve):
            message = "KV of layers of several kinds that is handed over is not modelled; take another model"
            yield Conflict.at(message, f"{at}.model", POOLS)
        if asked.overlap != "after" and serve.scheduling_policy != "fcfs":
            message = (
                f"with overlap: {asked.overlap} a request that holds blocks of one replica may wait behind "
                "one that waits for blocks of the other: use fcfs, or overlap: after"
            )
            yield Conflict.at(message, f"{at}.scheduling_policy", f"{KEY}.overlap")
    for key in ALIKE:
        if getattr(first, key) != getattr(other, key):
            message = f"must be the same in both pools: KV blocks of {names[0]} go to {names[1]}"
            yield Conflict.at(message, f"{POOLS}.{names[1]}.serve.{key}", f"{POOLS}.{names[0]}.serve.{key}")
    shares = config.workload.prefix is not None or config.workload.trace is not None
    if shares and other.enable_prefix_caching:
        message = (
            "what the decode replica has of a shared prompt would not be sent, which is not modelled; set "
            "enable_prefix_caching: false there"
        )
        yield Conflict.at(message, f"{POOLS}.{names[1]}.serve.enable_prefix_caching", POOLS)


def _mixes_layers(serve: Serve) -> bool:
    """Whether layers of several kinds share the KV pool; no if that cannot be known, which others say."""
    try:
        return pool(serve).shape is not None
    except (ValueError, DoesNotFit):
        return False


def _drafter(config: Experiment, first: Serve, other: Serve, names: list[str]) -> Iterator[Conflict]:
    """The drafter is on the side where it is needed, and its KV can be had as is asked."""
    asked, at = config.deployment.kv_transfer or KvTransfer(), f"{POOLS}.{names[0]}.serve.speculative_config"
    speculative = other.speculative_config
    if speculative is None:
        return
    if not drafter_keeps_kv(other):
        if asked.drafter_kv != "moved":
            message = f"{speculative.method} has no KV of its own; remove it"
            yield Conflict.at(message, f"{KEY}.drafter_kv", "serve.speculative_config")
        return
    if asked.drafter_kv == "moved":
        if first.speculative_config is None or first.speculative_config.model != speculative.model:
            message = (
                "the drafter's KV of a prompt is moved, so both pools need the same drafter; remove this, or "
                "set kv_transfer.drafter_kv: rebuilt, or skipped"
            )
            yield Conflict.at(message, at, f"{KEY}.drafter_kv")
        return
    if first.speculative_config is not None:
        message = (
            f"with drafter_kv: {asked.drafter_kv} the pool that computes prompts needs no drafter; add "
            f"speculative_config: null to {POOLS}.{names[0]}.serve"
        )
        yield Conflict.at(message, f"{KEY}.drafter_kv", at)
    if asked.drafter_kv == "skipped" and (
        other.draft_policy is not None or speculative.num_speculative_tokens_per_batch_size is not None
    ):
        message = "a policy says when to draft, too; remove one of the two"
        yield Conflict.at(message, f"{KEY}.drafter_kv", "serve.draft_policy")
