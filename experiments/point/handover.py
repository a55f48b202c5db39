"""From pools with roles and `kv_transfer` to how KV is handed over: its bytes, the links, the drafter's
part."""

from __future__ import annotations

import dataclasses
from math import inf
from typing import NamedTuple

from specfleet.experiments.point.build import drafter, placement, pool
from specfleet.experiments.schema.blocks.deployment import KvTransfer
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.blocks.serve import Serve
from specfleet.experiments.schema.pools import pool_experiments
from specfleet.sim.config import EAGLE_FAMILY, WITHOUT_DRAFT_KV, EngineConfig
from specfleet.sim.disaggregation.config import AFTER, DECODE, HandoverConfig
from specfleet.sim.speculation.policies import FIRST_ROUNDS
from specfleet.sim.speculation.policy import PolicySpec

PROXY_MS = 5.0
"""An HTTP answer to the proxy and a request to the decode replica, whose prompt is tokens already
(assumed)."""
ONE_STATE = ("eagle", "mtp")
"""Methods whose drafter reads one hidden state a token, beside its embedding."""
STATE_BYTES = 2


def transfer_of(config: Experiment) -> KvTransfer | None:
    """Returns how KV is handed over; None where no pool has a role."""
    if config.deployment.pool_with(DECODE) is None:
        return None
    return config.deployment.kv_transfer or KvTransfer()


def drafter_keeps_kv(serve: Serve) -> bool:
    """Whether an engine has a drafter with KV of its own."""
    speculative = serve.speculative_config
    return speculative is not None and speculative.method not in WITHOUT_DRAFT_KV


def state_bytes(serve: Serve) -> int:
    """Returns the bytes of hidden states a token that a drafter reads of its target."""
    speculative = serve.speculative_config
    if speculative is None or speculative.method not in EAGLE_FAMILY:
        return 0
    head = drafter(speculative)
    states = 1 if head.method in ONE_STATE else head.fc_input_multiple
    return states * placement(serve).model.hidden_size * STATE_BYTES


def kv_bytes(config: Experiment) -> tuple[int, int]:
    """Returns the bytes of a KV block that is handed over, all GPUs of a decode replica together, and what
    else goes along, a prompt token."""
    asked, name = transfer_of(config), config.deployment.pool_with(DECODE)
    assert asked is not None
    assert name is not None
    serve = pool_experiments(config)[name].serve
    rebuilt = asked.drafter_kv == "rebuilt"
    own = serve
    if asked.drafter_kv != "moved":
        own = serve.model_copy(update={"speculative_config": None, "draft_tree": None, "draft_policy": None})
    budget = pool(own)
    block = budget.bytes_per_token * budget.block_size * serve.tensor_parallel_size
    return block, state_bytes(serve) if rebuilt else 0


def handover_config(config: Experiment) -> HandoverConfig | None:
    """Returns how KV is handed over; None where no pool has a role."""
    asked = transfer_of(config)
    if asked is None:
        return None
    block_bytes, token_bytes = kv_bytes(config)
    proxy_ms = PROXY_MS if asked.proxy_ms is None else asked.proxy_ms
    model = placement(next(iter(pool_experiments(config).values())).serve).model
    return HandoverConfig(
        asked.overlap,
        asked.router,
        proxy_ms / 1e3 if asked.overlap == AFTER else 0.0,
        asked.setup_ms / 1e3,
        block_bytes,
        token_bytes,
        model.num_layers,
    )


class Role(NamedTuple):
    """What a pool is, and does about the drafter's KV, by the fields of `built.BuiltPool`."""

    role: str
    bytes_per_s: float
    engine: EngineConfig
    policy: PolicySpec | None


def role_of(
    config: Experiment, name: str, engine: EngineConfig, policy: PolicySpec | None, gpus: float
) -> Role:
    """Returns the role of a pool whose replicas have so many GPUs each."""
    asked = transfer_of(config)
    if asked is None:
        return Role("", inf, engine, policy)
    role = (config.deployment.pools or {})[name].role or ""
    speculative = engine.speculative
    if role == DECODE and speculative is not None and speculative.method not in WITHOUT_DRAFT_KV:
        engine = dataclasses.replace(engine, rebuilds_drafter_kv=asked.drafter_kv == "rebuilt")
        if asked.drafter_kv == "skipped":
            policy = PolicySpec(FIRST_ROUNDS, {"rounds": asked.first_rounds})
    return Role(role, asked.gb_per_s * 1e9 * gpus, engine, policy)
