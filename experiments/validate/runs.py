"""What the simulator, or the closed form, says about a measured point."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from specfleet.experiments.run.processes import Workers, at_hand
from specfleet.experiments.validate.acceptance import predicted_acceptance
from specfleet.experiments.validate.points import (
    BENCH_KEYS,
    SPEEDUP,
    MeasuredPoint,
    drafter_passes,
    pool_tokens,
    scenario,
)
from specfleet.experiments.validate.sample import levelled_requests, matched
from specfleet.hardware.closedform import closed_form_tpot
from specfleet.hardware.memory import DoesNotFit
from specfleet.hardware.placement import Placement
from specfleet.hardware.stepcost import KernelCost, StepCost, StepShape
from specfleet.sim.errors import SimulationError
from specfleet.sim.metrics.columns import benchmark
from specfleet.sim.simulation import simulate
from specfleet.sim.speculation.acceptance import survival_table
from specfleet.sim.speculation.spread import pooled_length
from specfleet.workloads.build import build_requests

METHODS = ("simulate", "closed_form")


@dataclass(frozen=True)
class Scored:
    """A point with its prediction.

    Args:
        point: the measurement.
        predicted: values by metric, of those that were measured.
        failure: why there is no prediction, or "".
    """

    point: MeasuredPoint
    predicted: Mapping[str, float]
    failure: str = ""

    def errors(self) -> dict[str, float]:
        """Returns predicted / measured - 1 in percent by metric; `ttft_steps` as a difference in steps."""
        out = {}
        for metric, value in self.predicted.items():
            measured = self.point.measured[metric]
            out[metric] = value - measured if metric == "ttft_steps" else 100.0 * (value / measured - 1.0)
        return out


def predict(point: MeasuredPoint, seeds: int, method: str | None, free: bool = False) -> Scored:
    """Returns the prediction for a point.

    Args:
        point: what to predict.
        seeds: simulations averaged; the closed form needs none.
        method: one of `METHODS`; None takes the point's own.
        free: lengths and luck as they are drawn, not made to agree with the row's sample.
    """
    try:
        closed = point.closed_form if method is None else method == "closed_form"
        found = closed_form(point) if closed else simulated(point, seeds, free)
    except (DoesNotFit, SimulationError, ValueError, IndexError) as error:
        return Scored(point, {}, f"{type(error).__name__}: {str(error).splitlines()[0]}")
    return Scored(point, {metric: found[metric] for metric in point.measured if metric in found})


def simulated(point: MeasuredPoint, seeds: int, free: bool = False) -> dict[str, float]:
    """Returns every metric, averaged over `seeds` simulations of other requests and other luck.

    Unless `free`, each sample agrees with what was measured on the row's (`sample`).
    """
    built = scenario(point)
    runs = []
    for seed in range(seeds):
        table = build_requests(point.workload, seed) if free else levelled_requests(point.workload, seed)
        if point.acceptance is not None and not free:
            built = replace(built, acceptance={"": matched(point.acceptance, point.k, table, seed)})
        runs.append(benchmark(simulate(built, table, seed)).numbers())
    found = {
        metric: float(np.mean([run[key] for run in runs]))
        for metric, key in BENCH_KEYS.items()
        if key in runs[0]
    }
    steps = [run["median_ttft_ms"] / run["median_itl_ms"] for run in runs if run["median_itl_ms"] > 0.0]
    found |= {"ttft_steps": float(np.mean(steps))} if steps else {}
    return found | {"kv_pool_tokens": float(pool_tokens(point.placement))}


def closed_form(point: MeasuredPoint) -> dict[str, float]:
    """Returns TPOT, ITL, throughput, the ratio to plain decoding and the KV pool, by `hardware.closedform`.

    With speculation a step verifies and yields the acceptance length, tau: `T(B) / tau + (B - 1) / osl x
    (T(B + isl) - T(B))`. Of several engines or ranks each has its share of the sequences.

    Raises:
        ValueError: under an open loop, whose batch no formula gives.
    """
    if point.concurrency is None:
        raise ValueError("the closed form needs a closed loop (max_concurrency); use --method simulate")
    place = point.placement
    prompt, output = point.workload.input.mean + point.workload.prefix_tokens, point.workload.output.mean
    spec = point.acceptance
    length = pooled_length(survival_table(spec, point.k)) if spec is not None else 1.0
    cost: StepCost = KernelCost(place)
    if place.pipeline_parallel_size > 1:
        raise ValueError("the closed form knows one stage; use --method simulate")
    batch = min(-(-point.concurrency // point.engines), place.max_num_seqs)
    alone = KernelCost(without_drafter(place)) if point.k else cost
    plain = closed_form_tpot(alone, batch, prompt, output, place.max_num_batched_tokens)
    if point.k:
        cost = _Verifying(cost, point.k, drafter_passes(point), round((output - output / length) / 2))
    step = closed_form_tpot(
        cost, batch, prompt, output / length, place.max_num_batched_tokens // (1 + point.k)
    )
    return {
        SPEEDUP: plain * length / step,
        "output_throughput": min(point.concurrency, batch * point.engines) * length / step,
        "tpot_mean_ms": 1e3 * step / length,
        "itl_mean_ms": 1e3 * step,
        "kv_pool_tokens": float(pool_tokens(point.placement)),
    }


def without_drafter(place: Placement) -> Placement:
    """Returns the same engine without drafts: graphs, loop, and routing of tokens that are no neighbours."""
    overlapped = place.profile.schedules_async(None)
    return replace(
        place, drafter=None, num_speculative_tokens=0, draft_pass_tokens=(), async_scheduling=overlapped
    )


@dataclass(frozen=True)
class _Verifying:
    """Prices decoding rows as verifying ones: K drafts each, and a context of `more` tokens above."""

    cost: StepCost
    k: int
    passes: int
    more: int

    def seconds(self, shape: StepShape) -> float:
        """Seconds of the step with drafts."""
        rows = shape.decode_sequences
        return self.cost.seconds(
            shape._replace(
                tokens=shape.tokens + rows * self.k,
                logit_rows=shape.logit_rows + rows * self.k,
                draft_tokens=rows * self.k,
                kv_tokens=shape.kv_tokens + rows * (self.k + self.more),
                kv_tokens_in_window=shape.kv_tokens_in_window + rows * (self.k + self.more),
                draft_passes=self.passes,
            )
        )

    def terms(self, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Not asked of the closed form: as priced without drafts."""
        return self.cost.terms(columns)

    def summary(self) -> str:
        """What is priced."""
        return self.cost.summary()


def in_mode(points: Sequence[MeasuredPoint], mode: str) -> tuple[list[MeasuredPoint], int]:
    """Returns the points with the acceptance of a mode, and how many no other row could predict.

    Args:
        points: all of them, since rows predict each other.
        mode: "given" takes each row's own measurement; "predicted" that of the other rows.
    """
    if mode == "given":
        return list(points), 0
    out, lost = [], 0
    for point in points:
        if not point.k:
            out.append(point)
            continue
        spec = predicted_acceptance(point, points)
        if spec is None:
            lost += 1
        else:
            out.append(replace(point, acceptance=spec))
    return out, lost


def predict_all(
    points: Sequence[MeasuredPoint],
    seeds: int,
    method: str | None,
    jobs: int | Workers,
    finished: Callable[[str], None],
    free: bool = False,
) -> list[Scored]:
    """Returns all predictions in the order of `points`; the largest first, in so many or these processes."""
    if all(_closed(point, method) for point in points):
        jobs = 1
    order = sorted(range(len(points)), key=lambda index: -points[index].workload.num_prompts)
    found: dict[int, Scored] = {}
    with at_hand(jobs) as workers:
        work = partial(predict, seeds=seeds, method=method, free=free)
        for at, scored in workers.as_finished(work, [points[index] for index in order]):
            if isinstance(scored, Exception):
                raise scored
            found[order[at]] = scored
            finished(points[order[at]].name)
    return [found[index] for index in range(len(points))]


def _closed(point: MeasuredPoint, method: str | None) -> bool:
    return method == "closed_form" or (method is None and point.closed_form)
