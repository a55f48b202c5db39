"""A day: the fleet that is there for the peak, the fleet by the hour, and replicas that follow the load."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from specfleet.experiments.load.rules.autoscale import coming_conflicts
from specfleet.experiments.plan.asking import Laboratory
from specfleet.experiments.plan.capacity import Capacity
from specfleet.experiments.plan.search import Entry
from specfleet.experiments.plan.seen import ATTAINMENT, TrialFigures
from specfleet.experiments.plan.traffic import Trial
from specfleet.experiments.point.days import HOURS, STRETCH_S, hourly, stretches_of
from specfleet.experiments.schema.blocks.arrivals import Arrivals, Schedule
from specfleet.experiments.schema.blocks.deployment import Deployment
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.blocks.plan import Plan
from specfleet.experiments.schema.blocks.scaling import Autoscale, Scaling
from specfleet.workloads.rates import DAY_S

F64 = npt.NDArray[np.float64]

HOUR_S = 3600.0

MOST_REQUESTS = 3_000_000
"""Of a day that is simulated."""
SEEDS = 2
"""Days simulated of each kind, at most."""
UTILISED = 0.7
"""Share of the requests in flight at which a replica meets the SLO that an autoscaler aims at by itself."""
BEYOND = 1.5
"""Times the replicas of the plan that it may order by itself."""


@dataclass(frozen=True)
class DayFleet:
    """A fleet over a day.

    Attributes:
        name: `fixed for the peak`, `by the hour`, or what its autoscaler looks at.
        replicas: of each hour, mean over seeds, shape `(24,)`; spares included. Empty where there is none.
        price_per_hour_usd: of a replica.
        gpus: of a replica.
        verdict: `met`, `missed`, `not settled`, or `not simulated`.
        ratio: of the day to the limit that binds, the largest of the seeds.
        limit: that limit.
        by_hour: the same of each hour; empty where it was not simulated.
        scaling: that makes it; None of a fixed one.
        refusal: why there is none; "" where there is.
    """

    name: str
    replicas: tuple[float, ...]
    price_per_hour_usd: float
    gpus: int
    verdict: str = "not simulated"
    ratio: float = 0.0
    limit: str = ""
    by_hour: tuple[float, ...] = ()
    scaling: Autoscale | None = None
    refusal: str = ""

    @property
    def gpu_hours(self) -> float:
        """GPU-hours of the day."""
        return self.gpus * sum(self.replicas)

    @property
    def usd(self) -> float:
        """Dollars of the day."""
        return self.price_per_hour_usd * sum(self.replicas)


@dataclass(frozen=True)
class DayPlan:
    """A day of a plan.

    Attributes:
        rates: requests/s of each hour.
        fleets: the fixed one first, then by the hour, then those that follow the load.
        seeds: days simulated of each.
        requests: of a simulated day; 0 where it is too long to be simulated.
        faster: times as fast as it is simulated.
    """

    rates: tuple[float, ...]
    fleets: tuple[DayFleet, ...]
    seeds: int
    requests: int
    faster: float

    @property
    def chosen(self) -> DayFleet | None:
        """The cheapest that follows the load, meets the SLO over the day, and costs less than a fixed one."""
        able = [f for f in self.fleets if f.scaling and f.verdict == "met" and f.usd < self.fleets[0].usd]
        return min(able, key=lambda fleet: fleet.usd, default=None)


def day_of(
    laboratory: Laboratory, plan: Plan, winner: Entry, at: Capacity, router: str, seeds: Sequence[int]
) -> DayPlan | None:
    """Simulates the plan's day with every autoscaler; None where the plan lists none.

    The fixed fleet is that of the busiest hour, which meets the SLO there.

    Args:
        laboratory: runs trials.
        plan: with its day and `candidates.autoscale`.
        winner: of the peak.
        at: the largest load of one of its replicas.
        router: before them.
        seeds: of the replications.
    """
    stretches = stretches_of(plan)
    if stretches is None or not plan.candidates.autoscale:
        return None
    assert winner.high is not None
    candidate, n, spare = winner.candidate, winner.high, plan.spare_replicas
    rates = hourly(stretches)
    fixed = DayFleet("fixed for the peak", (float(n + spare),) * HOURS, candidate.replica_usd, candidate.gpus)
    needed = [min(max(math.ceil(rate / at.rate), 1), n) if at.rate else n for rate in rates]
    switched = replace(fixed, name="by the hour", replicas=tuple(float(m + spare) for m in needed))
    faster = 1.0 if plan.day is None else plan.day.faster
    requests = round(float(stretches.sum()) * STRETCH_S / faster)
    chosen = tuple(seeds[:SEEDS])
    if requests > MOST_REQUESTS:
        why = f"{requests:,} requests, of which at most {MOST_REQUESTS:,}: give plan.day.mean_per_s"
        others = [
            replace(fixed, name=each.metric, replicas=(), refusal=why) for each in plan.candidates.autoscale
        ]
        return DayPlan(tuple(rates), (fixed, switched, *others), 0, 0, faster)
    config = _over_the_day(candidate.config, stretches, faster)
    kinds = [
        (replace(fixed, name=_named(scaling)), scaling) for scaling in _scalings(plan, winner, at, needed[0])
    ]
    found = [fixed, switched]
    for fleet, scaling in kinds:
        deployment = Deployment(router=router, autoscale=scaling)
        tried = config.model_copy(update={"deployment": deployment})
        conflict = next(coming_conflicts(tried), None)
        if conflict is not None:
            found.append(replace(fleet, replicas=(), refusal=conflict.message))
            continue
        trials = [Trial(tried, seed, hour_s=HOUR_S / faster) for seed in chosen]
        runs = laboratory.run(trials)
        found.append(replace(_seen(fleet, runs, spare), scaling=scaling))
    return DayPlan(tuple(rates), tuple(found), len(chosen), requests, faster)


def _scalings(plan: Plan, winner: Entry, at: Capacity, first: int) -> Iterator[Autoscale]:
    """The autoscalers of a plan with what they leave open; `first`: replicas that the first hour needs."""
    assert winner.high is not None
    most = max(math.ceil(BEYOND * winner.high), winner.high + 1)
    if winner.candidate.most_replicas is not None:
        most = min(most, winner.candidate.most_replicas)
    for each in plan.candidates.autoscale:
        target = each.target if each.target is not None else max(UTILISED * at.concurrency, 1.0)
        top = each.max or most
        start = each.start if each.start is not None else min(max(first, each.min), top)
        yield asked_for(each, round(target, 1), top, start)


def asked_for(scaling: Scaling, target: float, most: int, start: int) -> Autoscale:
    """Returns an autoscaler of a plan as one of a deployment."""
    given = scaling.model_dump(exclude={"target", "max", "start"})
    return Autoscale(**given, target=target, max=most, start=start)


def _named(scaling: Autoscale) -> str:
    return f"{scaling.metric} {scaling.target:g}, {scaling.min} to {scaling.max}"


def _over_the_day(config: Experiment, stretches: F64, faster: float) -> Experiment:
    """An engine with the requests of the day, none of them a warm-up."""
    rates = tuple(float(rate) for rate in stretches)
    arrivals = Arrivals(schedule=Schedule(every_s=DAY_S / len(rates) / faster, requests_per_s=rates))
    update: dict[str, object] = {"arrivals": arrivals, "request_rate": sum(rates) / len(rates)}
    update |= {"num_prompts": None, "num_warmups": 0}
    return config.model_copy(update={"workload": config.workload.model_copy(update=update)})


def _seen(fleet: DayFleet, runs: Sequence[TrialFigures], spare: int) -> DayFleet:
    """A fleet with what its days showed."""
    ratios = [
        max((run[key], key.removeprefix("day:")) for key in run if key.startswith("day:")) for run in runs
    ]
    ratio, limit = max(ratios)
    met = [value <= 1.0 and not run["failed"] for (value, _), run in zip(ratios, runs, strict=True)]
    verdict = "met" if all(met) else "not settled" if any(met) else "missed"
    replicas = [float(np.mean([run[f"hour:{h}:replicas"] for run in runs])) + spare for h in range(HOURS)]
    by_hour = [max((_worst(run, h) for run in runs), default=0.0) for h in range(HOURS)]
    named = "its limits" if limit == ATTAINMENT else limit
    return replace(
        fleet, replicas=tuple(replicas), verdict=verdict, ratio=ratio, limit=named, by_hour=tuple(by_hour)
    )


def _worst(run: TrialFigures, hour: int) -> float:
    """The largest ratio of an hour to a limit."""
    start = f"hour:{hour}:"
    return max((run[k] for k in run if k.startswith(start) and not k.endswith(":replicas")), default=0.0)


def day_as_json(day: DayPlan | None) -> dict[str, object] | None:
    """Returns a day as plain values; None without one."""
    if day is None:
        return None
    fleets = []
    for fleet in day.fleets:
        values: dict[str, object] = {each.name: getattr(fleet, each.name) for each in fields(fleet)}
        values["scaling"] = None if fleet.scaling is None else fleet.scaling.model_dump()
        fleets.append(values | {"gpu_hours": fleet.gpu_hours, "usd": fleet.usd})
    said: dict[str, object] = {"rates": day.rates, "seeds": day.seeds, "requests": day.requests}
    return said | {"faster": day.faster, "fleets": fleets, "chosen": day.chosen.name if day.chosen else None}
