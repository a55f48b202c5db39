"""The figures of a finished run, from its columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from specfleet.sim.config import Slo
from specfleet.sim.metrics.figures import ClassFigures, EngineLoad, Figures, ReplicaFigures, SpecDecode
from specfleet.sim.metrics.samples import PerToken, Sample, Samples
from specfleet.sim.metrics.seconds import Seconds
from specfleet.sim.metrics.sums import Counted, IterationSums, RequestSums, parts, step_gaps
from specfleet.sim.pauses import alike
from specfleet.sim.recorder import alone_s
from specfleet.sim.scenario import RunResult


def inter_token_latencies(result: RunResult) -> tuple[Samples, Sample]:
    """Returns ITL by chunk and by token, seconds.

    A chunk that follows one of the iteration before waited for exactly that iteration, so ITL is a
    weighted sample of iterations; the few longer pauses (preemption, a full budget) are added.
    """
    counts = result.iterations["gaps_by_tokens"]
    chunks, gaps = counts.sum(axis=1, dtype=np.int32), step_gaps(result.iterations)
    gaps[chunks == 0] = 0.0  # nobody waited for these
    odd, used = alike(result.odd_gaps), chunks > 0
    by_chunk = Samples(
        np.concatenate([gaps[used], odd.gap_s]),
        np.concatenate([chunks[used], odd.chunks.sum(axis=1, dtype=np.int32)]),
    )
    return by_chunk, PerToken(gaps, counts, odd.gap_s, odd.chunks)


def benchmark(result: RunResult, slo: Slo | None = None) -> Figures:
    """Returns what `vllm bench serve` prints of a finished run.

    Args:
        result: a finished run.
        slo: limits for `request_goodput`; None leaves it None, as vLLM does.
    """
    counted = Counted.of(result.requests)
    requests = RequestSums.of(result.requests, counted, slo)
    drafts = result.scenario.drafts
    by_chunk, by_token = inter_token_latencies(result)
    return Figures.of(
        requests,
        _peaks(result, counted),
        SpecDecode.of(result.rounds_by_accepted, requests.draft_tokens) if drafts else None,
        {
            "ttft": Samples.of(counted.ttft_s),
            "tpot": Samples.of(counted.tpot_sample_s),
            "itl": by_chunk,
            "e2el": Samples.of(counted.e2el_s),
            "itl_per_token": by_token,
        },
    )


def _peaks(result: RunResult, counted: Counted) -> tuple[int, int]:
    """Returns the most chunks streamed, and the most requests present, in one second."""
    if not len(counted.sent_s):
        return 0, 0
    seconds = Seconds(float(counted.sent_s.min()), result.scenario.client.receive_s)
    seconds.add_requests(counted)
    chunks = result.iterations["gaps_by_tokens"].sum(axis=1, dtype=np.int64)
    seconds.add_iterations(np.asarray(result.iterations["end_s"], dtype=np.float64), chunks)
    seconds.add_gaps(result.odd_gaps)
    return seconds.peaks()


def engine_load(result: RunResult) -> EngineLoad | None:
    """Returns how busy the engines were; None if nothing ran."""
    requests = RequestSums.of(result.requests, Counted.of(result.requests))
    iterations = IterationSums(result.scenario.stages)
    busy_s = iterations.add(result.iterations)
    load = EngineLoad.of(result.scenario, requests, iterations, busy_s, result.steps_without_drafter)
    fullest = [part.peak_kv_usage for run in result.parts if (part := engine_load(run)) is not None]
    return load if load is None or not fullest else replace(load, peak_kv_usage=max(fullest))


def by_class(
    result: RunResult, class_names: Sequence[str], slo: Slo | None = None
) -> dict[str, ClassFigures]:
    """Returns the figures of each traffic class; `class_names` are in the order of `class_id`."""
    found = {}
    for name, mine in zip(class_names, parts(result.requests, "class_id", len(class_names)), strict=True):
        counted = Counted.of(mine)
        ttft, tpot, e2el = map(Samples.of, (counted.ttft_s, counted.tpot_sample_s, counted.e2el_s))
        found[name] = ClassFigures.of(RequestSums.of(mine, counted, slo), ttft, tpot, e2el)
    return found


def by_replica(result: RunResult) -> list[ReplicaFigures]:
    """Returns what each replica did."""
    replicas, stages = result.scenario.deployment.replicas, result.scenario.stages
    duration_s = RequestSums.of(result.requests, Counted.of(result.requests)).duration_s
    if result.parts:
        own = [by_replica(part) for part in result.parts]
        numbered = zip(result.scenario.pools, own, strict=True)
        every = {n: one for pool, mine in numbered for n, one in zip(pool.members, mine, strict=True)}
        return [
            replace(
                every[n],
                replica=n,
                output_throughput=every[n].output_tokens / duration_s if duration_s else 0.0,
            )
            for n in range(replicas)
        ]
    times = {name: result.iterations[name] for name in ("replica", "start_s", "end_s")}
    found = []
    for index, (mine, steps) in enumerate(
        zip(parts(result.requests, "replica", replicas), parts(times, "replica", replicas), strict=True)
    ):
        sums = RequestSums.of(mine, Counted.of(mine))
        several = max(sums.completed, 1)
        # a mean of seconds first, as numpy takes it: the other order rounds to another last digit
        waits_ms = 1e3 * (sums.queue_s / several), 1e3 * (sums.engine_ttft_s / several)
        busy_s = float(np.sum(alone_s(steps) if stages > 1 else steps["end_s"] - steps["start_s"]))
        found.append(ReplicaFigures.of(index, sums, duration_s, waits_ms, busy_s, len(steps["end_s"])))
    return found
