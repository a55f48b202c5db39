"""The figures of a finished plan: cost, goodput, memory, points of tokens/s/user against tokens/s/GPU."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from specfleet.experiments.plan.candidates import Candidate
from specfleet.experiments.plan.capacity import interval, mean
from specfleet.experiments.plan.planned import Planned
from specfleet.experiments.plan.seen import TrialFigures, worst
from specfleet.experiments.point.built import build
from specfleet.hardware.memory import KvBudget

SHOWN = (
    "p99_ttft_ms",
    "p99_tpot_ms",
    "mean_ttft_ms",
    "mean_tpot_ms",
    "median_tpot_ms",
    "p99_itl_ms",
    "mean_e2el_ms",
    "p99_e2el_ms",
)
"""Latencies reported with their intervals."""


FULL_LENGTH = 0.5
"""Share of the longest run from which a run is more than a first look."""


@dataclass(frozen=True)
class Money:
    """What a deployment costs.

    Attributes:
        replicas: bought, spares included.
        gpus: of all of them.
        per_hour_usd: dollars an hour.
        per_million_output_usd, per_million_total_usd: dollars for a million tokens written, and for a
            million read or written, at the planned traffic.
    """

    replicas: int
    gpus: int
    per_hour_usd: float
    per_million_output_usd: float
    per_million_total_usd: float


def money(
    this: Planned, candidate: Candidate, replicas: int, runs: Sequence[TrialFigures], rate: float
) -> Money:
    """Returns the cost of `replicas` of a candidate that serve `rate` requests/s in all."""
    dollars = candidate.replica_usd * replicas
    output, prompt = (mean(runs, key) for key in ("mean_output_tokens", "mean_input_tokens"))
    hourly = rate * 3600.0 / 1e6
    return Money(
        replicas,
        replicas * candidate.gpus,
        dollars,
        dollars / (hourly * output),
        dollars / (hourly * (output + prompt)),
    )


NONE_LEFT = "no GPU that the plan allows is left for one replica more"


def one_more(this: Planned) -> Money | None:
    """Returns the cost of one replica more than are needed; None where the plan has no GPU for it."""
    assert this.winner is not None and this.winner.high is not None
    mine, n = this.winner.candidate, this.winner.high + 1
    if mine.most_replicas is not None and n > mine.most_replicas + this.plan.spare_replicas:
        return None
    return money(this, mine, n, this.runs[mine.id], this.traffic.rate)


@dataclass(frozen=True)
class KvMemory:
    """KV memory of one GPU of the winner, and what the drafter takes of it.

    Attributes:
        tokens: of the pool.
        full_requests: requests of max_model_len that fit at once.
        peak_usage: largest share of the pool in use at the planned load, mean over seeds.
        preemptions_per_hour: of one replica.
        drafter_weight_bytes: of one GPU.
        drafter_kv_bytes_per_token: of one GPU.
        tokens_without_drafter: of the pool of the same engine without drafting.
    """

    tokens: int
    full_requests: float
    peak_usage: float
    preemptions_per_hour: float
    drafter_weight_bytes: int
    drafter_kv_bytes_per_token: int
    tokens_without_drafter: int


def memory(this: Planned, candidate: Candidate) -> KvMemory:
    """Returns it for a candidate on the winner's GPU, TP and weights."""
    budget = build(candidate.config).budget
    plain = build(this.plain.config).budget if this.plain is not None else budget
    runs = this.runs[candidate.id]
    seconds = mean(runs, "duration")
    return KvMemory(
        tokens=budget.tokens,
        full_requests=budget.max_concurrency(candidate.config.serve.max_model_len or 1),
        peak_usage=mean(runs, "peak_kv_usage"),
        preemptions_per_hour=3600.0 * mean(runs, "preemptions") / seconds if seconds else 0.0,
        drafter_weight_bytes=_line(budget, "drafter weights"),
        drafter_kv_bytes_per_token=budget.bytes_per_token - plain.bytes_per_token,
        tokens_without_drafter=plain.tokens,
    )


def _line(budget: KvBudget, label: str) -> int:
    return next((size for name, size in budget.lines if name == label), 0)


@dataclass(frozen=True)
class Place:
    """One simulated deployment as vLLM's `plot_pareto` shows it.

    Attributes:
        candidate: what it is.
        per_user: output tokens/s of one request in flight.
        per_gpu: output tokens/s of one GPU.
        concurrency: requests in flight of one replica.
        swept: from the closed loops over load; else from the search.
        meets_slo: whether this run did.
    """

    candidate: Candidate
    per_user: float
    per_gpu: float
    concurrency: float
    swept: bool
    meets_slo: bool


def places(this: Planned) -> list[Place]:
    """Returns a place for every full simulation of the search, and of the closed loops over load."""
    longest = max((run["completed"] for _, _, run in this.observed), default=0.0)
    found = [
        _place(candidate, run, swept=False)
        for candidate, _, run in this.observed
        if run["completed"] >= FULL_LENGTH * longest
    ]
    by_k = {way.k: way for way in this.ways}
    found += [
        _place(by_k[k], run, swept=True, concurrency=load.concurrency)
        for load in this.loads
        for k, run in load.figures.items()
    ]
    return [place for place in found if place.per_user > 0.0]


def _place(candidate: Candidate, run: TrialFigures, swept: bool, concurrency: float | None = None) -> Place:
    flying = max(run["in_flight"], 1.0) if concurrency is None else concurrency
    throughput = run["output_throughput"]
    return Place(
        candidate,
        throughput / flying,
        throughput / candidate.gpus,
        flying,
        swept,
        worst([run])[0] <= 1.0,
    )


def front(found: Sequence[Place]) -> list[Place]:
    """Returns the places that no other beats on both axes, by tokens/s/user ascending."""
    best, kept = -math.inf, []
    for place in sorted(found, key=lambda p: (-p.per_user, -p.per_gpu)):
        if place.per_gpu > best:
            best = place.per_gpu
            kept.append(place)
    return kept[::-1]


def latencies(runs: Sequence[TrialFigures]) -> dict[str, list[float]]:
    """Returns [value, low and high end of its 95 % interval] of the latencies reported."""
    return {key: list(interval(runs, key)) for key in SHOWN}


@dataclass(frozen=True)
class Shift:
    """Replicas of a part of the day.

    Attributes:
        hour: from then on.
        rate: requests/s, growth included.
        replicas: needed by the largest rate of one.
    """

    hour: float
    rate: float
    replicas: int


def shifts(this: Planned) -> Iterator[Shift]:
    """Yields the replicas that a schedule needs through the day; the peak is what was planned for."""
    assert this.winner is not None and this.capacity is not None and this.winner.high is not None
    for hour, rate in this.plan.schedule:
        planned = rate * this.plan.growth
        fewest = math.ceil(planned / this.capacity.rate) if this.capacity.rate else this.winner.high
        yield Shift(hour, planned, min(max(fewest, 1), this.winner.high))
