"""What each pool of a cluster did, and what it took for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from specfleet.sim.config import Slo
from specfleet.sim.disaggregation.config import PREFILL
from specfleet.sim.metrics.columns import engine_load
from specfleet.sim.metrics.samples import F64, Samples
from specfleet.sim.metrics.sums import Counted, RequestSums
from specfleet.sim.recorder import alone_s
from specfleet.sim.scenario import RunResult


@dataclass(frozen=True)
class PoolFigures:
    """One pool's share of a run.

    Attributes:
        pool: its name.
        replicas: how many it has; of those that come and go, how many it may have, and what is said of them
            is of the time that is paid for.
        requests, output_tokens: counted and completed there; of a pool that computes prompts for another the
            prompts, and no tokens, and its TTFT ends with the prompt.
        output_throughput: tokens a second of the whole run's duration.
        mean_ttft_ms, p99_ttft_ms, mean_tpot_ms, p99_tpot_ms: on the client's clock.
        acceptance_length: over all its requests, warm-ups included; 1 where nothing was verified.
        gpu_busy: of the time from the run's first iteration to its last.
        mean_running, mean_waiting: requests a replica, over that time.
        peak_kv_usage: of a replica's pool at the fullest.
        preemptions: of counted requests.
        slo_attainment: share within the limits, of those completed, or begun or lost here without an answer;
            None without limits or requests.
    """

    pool: str
    replicas: int
    requests: int
    output_tokens: int
    output_throughput: float
    mean_ttft_ms: float
    p99_ttft_ms: float
    mean_tpot_ms: float
    p99_tpot_ms: float
    acceptance_length: float
    gpu_busy: float
    mean_running: float
    mean_waiting: float
    peak_kv_usage: float
    preemptions: int
    slo_attainment: float | None

    def as_dict(self) -> dict[str, object]:
        """Returns the figures by name."""
        return asdict(self)


def pool_names(result: RunResult) -> tuple[str, ...]:
    """Returns the pools of a run in their order; none where all replicas are alike."""
    return tuple(dict.fromkeys(pool.name for pool in result.scenario.pools))


def parts_of(result: RunResult, name: str) -> list[RunResult]:
    """Returns the parts of a run that are replicas of one pool."""
    pools = zip(result.scenario.pools, result.parts, strict=True)
    return [part for pool, part in pools if pool.name == name]


def by_pool(result: RunResult, slo: Slo | None = None) -> list[PoolFigures]:
    """Returns what each pool did; nothing where all replicas are alike."""
    if not result.parts:
        return []
    duration_s = RequestSums.of(result.requests, Counted.of(result.requests)).duration_s
    steps = [part.iterations for part in result.parts if len(part.iterations["end_s"])]
    start = min((float(rows["start_s"].min()) for rows in steps), default=0.0)
    span_s = max((float(rows["end_s"].max()) for rows in steps), default=0.0) - start
    return [_figures(result, name, duration_s, (start, start + span_s), slo) for name in pool_names(result)]


def _figures(
    result: RunResult, name: str, duration_s: float, span: tuple[float, float], slo: Slo | None
) -> PoolFigures:
    parts = parts_of(result, name)
    scaled = [pool.autoscale for pool in result.scenario.pools if pool.name == name]
    replicas = sum(
        part.scenario.deployment.replicas if config is None else config.most
        for part, config in zip(parts, scaled, strict=True)
    )
    sums, several = RequestSums(slo), [Counted.of(part.requests) for part in parts]
    for part, counted in zip(parts, several, strict=True):
        sums.add(part.requests, counted)
    decodes = all(pool.role != PREFILL for pool in result.scenario.pools if pool.name == name)
    tokens = sums.output_tokens if decodes else 0  # what a prompt's replica samples is thrown away
    ttft = Samples.of(_joined([counted.ttft_s for counted in several]))
    tpot = Samples.of(_joined([counted.tpot_sample_s for counted in several]))
    accepted, verifications = (sum(counts) for counts in zip(*map(rounds_of, parts), strict=True))
    seconds = [_seconds(part) for part in parts]
    whole_s = sum(
        part.scenario.deployment.replicas * (span[1] - span[0])
        if part.scaling is None
        else part.scaling.paid_s(*span)
        for part in parts
    )
    busy, running, waiting = (sum(one[i] for one in seconds) / whole_s if whole_s else 0.0 for i in range(3))
    loads = [load for part in parts if (load := engine_load(part)) is not None]
    return PoolFigures(
        pool=name,
        replicas=replicas,
        requests=sums.completed,
        output_tokens=tokens,
        output_throughput=tokens / duration_s if duration_s else 0.0,
        mean_ttft_ms=1e3 * ttft.mean(),
        p99_ttft_ms=1e3 * ttft.percentiles([99.0])[0],
        mean_tpot_ms=1e3 * tpot.mean(),
        p99_tpot_ms=1e3 * tpot.percentiles([99.0])[0],
        acceptance_length=1.0 + accepted / verifications if verifications else 1.0,
        gpu_busy=busy,
        mean_running=running,
        mean_waiting=waiting,
        peak_kv_usage=max((load.peak_kv_usage for load in loads), default=0.0),
        preemptions=sums.preemptions,
        slo_attainment=sums.attainment,
    )


def rounds_of(part: RunResult) -> tuple[int, int]:
    """Returns the drafts accepted in a pool, and its verifications. Where a request may have been in several,
    its own counts are those of all of them, so these are of the rounds that count here."""
    if part.attempts:
        rounds = np.array(part.rounds_by_accepted)
        return int(rounds @ np.arange(len(rounds))), int(rounds.sum())
    accepted, verifications = (part.requests[name].sum() for name in ("accepted_tokens", "verifications"))
    return int(accepted), int(verifications)


def _seconds(part: RunResult) -> tuple[float, float, float]:
    """Returns the seconds of iterations, and these times the requests running and waiting."""
    rows, stages = part.iterations, part.scenario.engine.pipeline_parallel_size
    took = alone_s(rows) if stages > 1 else rows["end_s"] - rows["start_s"]
    return float(took.sum()), float((took * rows["running"]).sum()), float((took * rows["waiting"]).sum())


def _joined(columns: Sequence[F64]) -> F64:
    return columns[0] if len(columns) == 1 else np.concatenate(columns)
