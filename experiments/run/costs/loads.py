"""What engine.json says of load and throughput, of the replicas and GPUs that are paid for."""

from __future__ import annotations

from dataclasses import replace

from specfleet.experiments.point.built import Built
from specfleet.experiments.run.costs.paid import Paid
from specfleet.sim.metrics.figures import EngineLoad, Figures, Value


def loads(figures: Figures, load: EngineLoad | None) -> dict[str, Value]:
    """Returns percentiles that `vllm bench serve` does not print, the acceptance length, and the load."""
    every = figures.as_dict()
    ours = {k: v for k, v in every.items() if "itl_per_token" in k or k.startswith(("p90", "p95"))}
    busy = {} if load is None else load.as_dict()
    return {**ours, "acceptance_length": figures.acceptance_length, **busy}


def of_paid(load: EngineLoad | None, paid: float) -> EngineLoad | None:
    """Returns the load of a replica that is paid for, of that of all that there may be."""
    if load is None or paid == 1.0:
        return load
    return replace(
        load,
        gpu_busy=load.gpu_busy / paid,
        mean_running=load.mean_running / paid,
        mean_waiting=load.mean_waiting / paid,
    )


def rates(figures: Figures, load: EngineLoad | None, built: Built, paid: Paid) -> dict[str, Value]:
    """Returns throughput by GPU and by user, and the size of the KV cache."""
    throughput = figures.output_throughput
    replicas = paid.replica_share * built.scenario.deployment.replicas
    users = load.mean_running * replicas if load is not None else 0.0
    return {
        "output_throughput_per_gpu": throughput / (paid.gpu_share * built.gpus),
        "output_throughput_per_user": throughput / users if users else 0.0,
        "kv_cache_tokens": built.budget.tokens,
    }
