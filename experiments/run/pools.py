"""What engine.json says of pools: each pool's figures, its steps, and what its GPUs cost."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

from specfleet.experiments.point.built import Built
from specfleet.experiments.run.analysis import StepTotals, tpot_splits
from specfleet.experiments.run.costs.paid import Paid, PaidPool, pool_scaling
from specfleet.sim.disaggregation.config import DECODE, PREFILL
from specfleet.sim.fleet.failing import TAKEN
from specfleet.sim.metrics.failures import failure_figures
from specfleet.sim.metrics.figures import Figures, Value
from specfleet.sim.metrics.handover import handover_figures, ttft_split
from specfleet.sim.metrics.patience import patience_figures
from specfleet.sim.metrics.pools import by_pool, rounds_of
from specfleet.sim.recorder import FINISHED, REJECTED, TIMED_OUT
from specfleet.sim.scenario import RunResult

FLAT = (
    "requests",
    "output_tokens",
    "output_throughput",
    "mean_ttft_ms",
    "p99_ttft_ms",
    "mean_tpot_ms",
    "p99_tpot_ms",
    "acceptance_length",
    "gpu_busy",
    "mean_running",
    "mean_waiting",
    "peak_kv_usage",
    "slo_attainment",
    "gpu_hours",
    "cost_usd",
)
"""Figures of a pool that summary.csv has, as `pool:NAME:FIGURE`."""
COMING = ("mean_replicas", "peak_replicas", "scale_outs", "interruptions", "cost_usd_on_demand")
"""The same of a pool whose replicas come and go."""


def steps_of(result: RunResult, built: Built) -> dict[str, StepTotals]:
    """Returns the steps of each pool, added up; those of the only one under ""."""
    if not result.parts:
        totals = StepTotals.of(built.scenario, built.plain_cost)
        totals.add(result.iterations)
        return {"": totals}
    found: dict[str, StepTotals] = {}
    for pool, part, plain in zip(result.scenario.pools, result.parts, built.plain_costs, strict=True):
        totals = StepTotals.of(part.scenario, plain)
        totals.add(part.iterations)
        if pool.role == PREFILL:
            totals.tokens = 0  # what it samples is thrown away
        if pool.name in found:
            found[pool.name].take(totals)
        else:
            found[pool.name] = totals
    return found


def pools_of(
    result: RunResult, built: Built, figures: Figures, steps: dict[str, StepTotals], paid: Paid
) -> list[dict[str, object]]:
    """Returns a mapping a pool; none where all replicas are alike."""
    if not result.parts:
        return []
    there = {pool.name: pool for pool in built.pools}
    costs = {one.pool.name: one for one in paid.pools}
    found = []
    for mine in by_pool(result, built.slo):
        pool, totals = there[mine.pool], steps[mine.pool]
        accepted = verifications = 0
        for kind, part in zip(result.scenario.pools, result.parts, strict=True):
            if kind.name == mine.pool:
                counts = rounds_of(part)
                accepted, verifications = accepted + counts[0], verifications + counts[1]
        found.append(
            {
                **mine.as_dict(),
                **_cost(costs[mine.pool], paid, figures.duration_s, mine.output_tokens),
                **pool_scaling(costs[mine.pool], paid.seconds),
                **_interruptions(result, mine.pool),
                "kv_cache_tokens": pool.budget.tokens,
                **totals.split(),
                **totals.overheads(accepted, verifications),
            }
        )
    return found


def _interruptions(result: RunResult, name: str) -> dict[str, object]:
    """Returns how many instances of a pool were taken, or noticed to be; nothing where none is on spot."""
    members = [pool.members for pool in result.scenario.pools if pool.name == name and pool.spot is not None]
    if not members:
        return {}
    taken = [outage.replica for outage in result.outages if outage.kind == TAKEN]
    return {"interruptions": float(sum(replica in members[0] for replica in taken))}


def gateway_of(result: RunResult) -> dict[str, object]:
    """Returns what became of counted requests at the gateway; nothing where there is none."""
    if result.scenario.deployment.gateway is None:
        return {}
    requests = result.requests
    counted = requests["counted"] == 1
    served = counted & (requests["status"] == FINISHED)
    client = result.scenario.client
    turned_away = requests["turned_away"] > 0  # others were refused for their length
    held_ms = 1e3 * (requests["arrived_s"] - requests["sent_s"] - client.send_s)[served]
    return {
        "gateway_rejected": int((counted & turned_away & (requests["status"] == REJECTED)).sum()),
        "gateway_timed_out": int((counted & (requests["status"] == TIMED_OUT)).sum()),
        "gateway_turned_away": int(requests["turned_away"][counted].sum()),
        "gateway_mean_held_ms": float(held_ms.mean()) if len(held_ms) else 0.0,
        "gateway_p99_held_ms": float(np.percentile(held_ms, 99.0)) if len(held_ms) else 0.0,
    }


def failures_of(result: RunResult) -> dict[str, object]:
    """Returns what failures of replicas did to counted requests, and each of them; nothing where none is."""
    figures = failure_figures(result)
    if figures is None:
        return {}
    where = {
        member: {"pool": pool.name} if pool.name else {}
        for pool in result.scenario.pools
        for member in pool.members
    }
    each = [
        {
            **where.get(outage.replica, {}),
            "replica": outage.replica,
            "kind": outage.kind,
            "at_s": outage.at_s,
            "found_s": _finite(outage.found_s),
            "back_s": _finite(outage.back_s),
            "settled_s": outage.settled_s,
            "lost": len(outage.lost),
            **({"gone_s": _finite(outage.gone_s)} if outage.kind == TAKEN else {}),
        }
        for outage in result.outages
    ]
    return {**figures.as_dict(), "outages": each}


def told_of(result: RunResult) -> dict[str, object]:
    """Returns where the time to first tokens went, what became of KV that was handed over, if it was, of
    replicas that failed, if any may, and of requests that their clients gave up."""
    handed, left = handover_figures(result), patience_figures(result)
    return {
        **({} if left is None else left.as_dict()),
        **failures_of(result),
        **ttft_split(result),
        **({} if handed is None else handed.as_dict()),
    }


def _finite(seconds: float) -> float | None:
    return seconds if seconds < inf else None


def _cost(one: PaidPool, paid: Paid, duration_s: float, output_tokens: int) -> dict[str, Value]:
    """Returns what the GPUs of a pool cost over the run, by the catalogue's price; None without one. Where
    replicas of some pool come and go, from the first step to the last, while they are paid for."""
    pool = one.pool
    if any(each.log is not None for each in paid.pools):
        hours, dollars = one.gpu_s / 3600.0, one.dollars()
        gpus = one.gpu_s / paid.seconds if paid.seconds else 0.0
    else:
        hours, gpus = duration_s / 3600.0 * pool.gpus, float(pool.gpus)
        dollars = None if pool.per_hour_usd is None else duration_s / 3600.0 * pool.per_hour_usd
    each = None if dollars is None or not output_tokens else 1e6 * dollars / output_tokens
    return {
        "gpus": gpus,
        "gpu_hours": hours,
        "cost_usd": dollars,
        "cost_usd_per_million_output_tokens": each,
    }


def flat(pools: list[dict[str, object]]) -> dict[str, object]:
    """Returns the figures of pools by key, as summary.csv has them."""
    names = (*FLAT, *COMING)
    return {f"pool:{pool['pool']}:{name}": pool[name] for pool in pools for name in names if name in pool}


def of_decode(
    result: RunResult, built: Built, steps: dict[str, StepTotals], class_names: Sequence[str]
) -> dict[str, object]:
    """Returns what drafts do to the steps of the pool that decodes, and where its TPOT went; nothing where no
    pool has a role, or replicas of it differ in speed."""
    kinds = zip(result.scenario.pools, result.parts, built.plain_costs, strict=True)
    mine = [(pool, part, plain) for pool, part, plain in kinds if pool.role == DECODE]
    if len(mine) != 1:
        return {}
    ((pool, part, plain),) = mine
    counts = (int(part.requests[name].sum()) for name in ("accepted_tokens", "verifications"))
    whole, by_class = tpot_splits(part, plain, class_names)
    splits = {"tpot_split": whole, **({"tpot_split_by_class": by_class} if by_class else {})}
    return {**steps[pool.name].overheads(*counts), **splits}
