"""`specfleet check`: the points of an experiment, and what fits in memory, without running anything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from specfleet.experiments.load.config import Loaded, load
from specfleet.experiments.load.rules.sizes import longest
from specfleet.experiments.load.sweep import Point, expand
from specfleet.experiments.point.build import counted_requests, pool, requests, workload_spec
from specfleet.experiments.point.built import build
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.blocks.serve import Serve
from specfleet.experiments.schema.pools import pool_experiments
from specfleet.hardware.memory import GIB, DoesNotFit, KvBudget
from specfleet.sim.calendar.taken import may_be_given_up, why_stepped
from specfleet.sim.scenario import Scenario
from specfleet.sim.speculation.lives import Lives
from specfleet.workloads.build import WorkloadSpec, build_requests
from specfleet.workloads.requests import RequestTable

POOL = "pool"
"""What tells the pools of a point apart, beside its axes."""
SAMPLE = 500
"""Requests looked at to tell whether a run would be stepped."""
MOST_TURNS = 8_000
"""Requests run on the calendar, at most: by then contexts are as long, and as many, as they become."""


@dataclass(frozen=True)
class CheckedPoint:
    """A point, and what its engine has room for.

    Attributes:
        point: the point.
        requests: simulated; None is all of a trace, or as many as it takes (`at_most`).
        at_most: of a point that goes on until it is settled; None of others.
        engine_named: whether the file says which build; else one is assumed.
        budget: its memory; None where the weights do not fit.
        refusal: why the engine would not start; None where it would.
        mean_tokens: of a request, prompt and output together; None for an empty trace.
        stepped_because: why a run of it would be stepped, 2 to 25 times as long; empty where the
            calendar takes it, or the engine would not start.
    """

    point: Point
    requests: int | None
    at_most: int | None
    engine_named: bool
    budget: KvBudget | None
    refusal: str | None
    mean_tokens: float | None
    stepped_because: str = ""

    @property
    def serve(self) -> Serve:
        """What is served."""
        return self.point.config.serve

    @property
    def least_utilization(self) -> float | None:
        """Least `gpu_memory_utilization` whose pool holds the concurrency at full length; None without."""
        clients, length = self.point.config.workload.max_concurrency, self.serve.max_model_len
        if not clients or not length or self.budget is None:
            return None
        return self.budget.utilization_for(clients, length)

    def facts(self) -> dict[str, object]:
        """Returns it as plain values."""
        budget, length = self.budget, self.serve.max_model_len
        found: dict[str, object] = {
            "point": self.point.id,
            "axes": dict(self.point.axes),
            "requests": self.requests,
            **({} if self.at_most is None else {"requests_at_most": self.at_most}),
            "engine": self.serve.engine,
            "engine_assumed": not self.engine_named,
            "max_num_batched_tokens": self.serve.max_num_batched_tokens,
            "max_num_seqs": self.serve.max_num_seqs,
            "max_model_len": length,
            "fits": self.refusal is None,
            "refusal": self.refusal,
            "mean_request_tokens": self.mean_tokens,
            "least_gpu_memory_utilization": self.least_utilization,
            "stepped_because": self.stepped_because,
        }
        if budget is None:
            return found
        return found | {
            "memory_gib": {label: size / GIB for label, size in budget.lines},
            "kv_bytes_per_token": budget.bytes_per_token,
            "num_gpu_blocks": budget.num_gpu_blocks,
            "block_size": budget.block_size,
            "kv_cache_tokens": budget.printed_tokens(length),
            "max_model_len_requests": budget.max_concurrency(length) if length else None,
        }


@dataclass(frozen=True)
class CheckedFile:
    """An experiment whose points are known and whose memory is added up.

    Attributes:
        name: of its file.
        loaded: the experiment.
        points: each with its memory; one of several pools once for each of them.
    """

    name: str
    loaded: Loaded
    points: tuple[CheckedPoint, ...]

    @property
    def fits(self) -> bool:
        """Whether every engine would start."""
        return all(point.refusal is None for point in self.points)

    def facts(self) -> dict[str, object]:
        """Returns it as plain values, the answer first."""
        return {
            "fits": self.fits,
            "file": self.name,
            "replications": self.loaded.experiment.replications,
            "notices": list(self.loaded.notices),
            "points": [point.facts() for point in self.points],
        }


def check(file: Path, overrides: Sequence[str]) -> CheckedFile:
    """Loads a file and adds up the memory of its points.

    Raises:
        InputFaults: with everything that is wrong with the file.
    """
    loaded = load(file, overrides)
    return checked(str(file), loaded, expand(loaded.experiment))


def checked(name: str, loaded: Loaded, points: Sequence[Point]) -> CheckedFile:
    """Returns `check` of a loaded experiment, called `name`."""
    named = "engine" in loaded.experiment.serve.model_fields_set or "serve.engine" in points[0].axes
    written = loaded.experiment.deployment.pools or {}
    swept = {axis.rpartition(".serve.")[0] for axis in points[0].axes if axis.endswith(".serve.engine")}
    naming = {
        name
        for name, pool in written.items()
        if "engine" in pool.serve or f"deployment.pools.{name}" in swept
    }
    found = [one for point in points for one in _pools(point, named, naming)]
    return CheckedFile(name, loaded, tuple(found))


def _pools(point: Point, engine_named: bool, naming: set[str]) -> Iterator[CheckedPoint]:
    """A point, or each pool of one that has several, told apart by an axis `pool`; `naming`: those that say
    which engine build."""
    pools = pool_experiments(point.config)
    if list(pools) == [""]:
        yield _checked(point, engine_named)
        return
    found = []
    for name, config in pools.items():
        one = replace(point, axes={**point.axes, POOL: name}, config=config)
        found.append(_checked(one, engine_named or name in naming, of_point=point.config))
    if all(one.refusal is None for one in found):
        because = _why_stepped(point.config)
        found = [replace(one, stepped_because=because) for one in found]
    yield from found


def _checked(point: Point, engine_named: bool, of_point: Experiment | None = None) -> CheckedPoint:
    config = point.config
    assert config.serve.max_model_len, "defaults are filled in"
    goes_on = config.workload.goes_on
    count = None if goes_on else counted_requests(config.workload)
    most = longest(config) if goes_on else None
    try:
        budget = pool(config.serve)
    except DoesNotFit as error:
        return CheckedPoint(point, count, most, engine_named, None, str(error), None)
    refusal = budget.refusal(config.serve.max_model_len)
    stepped = "" if refusal or of_point is not None else _why_stepped(config)
    return CheckedPoint(point, count, most, engine_named, budget, refusal, mean_tokens(config), stepped)


def _why_stepped(config: Experiment) -> str:
    """Why a run of a point would be stepped, by its first requests."""
    asked_for = config
    few = counted_requests(config.workload) > SAMPLE if config.workload.trace is None else False
    if few and config.workload.phases is None:
        workload = config.workload.model_copy(update={"num_prompts": SAMPLE, "num_warmups": 0})
        config = config.model_copy(update={"workload": workload})
    scenario = build(config).scenario
    asked = config.workload
    drawn = asked.trace is None and not asked.alone and not asked.has_sessions and not asked.thinks
    table = _drawn(workload_spec(config.workload)) if drawn else requests(config, seed=0)
    if scenario.deployment.handover is not None:
        from specfleet.sim.disaggregation.run import why_decoding_is_stepped

        return why_decoding_is_stepped(scenario, table, 0)
    if scenario.pools:
        from specfleet.sim.fleet.run import why_pools_stepped

        return why_pools_stepped(scenario, table, 0)
    because = why_stepped(scenario, table, 0, _lives(scenario, table))
    if because or not may_be_given_up(scenario, table, 0, _lives(scenario, table)):
        return because
    return _once_kv_is_short(scenario, asked_for)


def _lives(scenario: Scenario, table: RequestTable, seed: int = 0) -> Lives | None:
    k = scenario.engine.num_speculative_tokens
    return Lives(scenario.acceptance, table, k, seed) if k and scenario.acceptance else None


def _once_kv_is_short(scenario: Scenario, config: Experiment) -> str:
    """Why a run would be stepped once contexts no longer fit: the first `MOST_TURNS` requests of its first
    replication are run on the calendar. Empty where they come to their end there."""
    from specfleet.sim.calendar.runs import why_given_up  # with simpy, which others need not wait for

    workload = config.workload
    if workload.trace is None and (workload.goes_on or counted_requests(workload) > MOST_TURNS):
        workload = workload.model_copy(update={"num_prompts": MOST_TURNS})
    table = requests(config.model_copy(update={"workload": workload}), config.seed).head(MOST_TURNS)
    because = why_given_up(scenario, table, config.seed, _lives(scenario, table, config.seed))
    return f"{because} (in the first {len(table):,} requests)" if because else ""


@lru_cache(maxsize=4)
def _drawn(spec: WorkloadSpec) -> RequestTable:
    """Returns the requests of a synthetic workload; kept, since the points of a sweep share few."""
    return build_requests(spec, 0)


def mean_tokens(config: Experiment) -> float | None:
    """Returns the mean tokens of a request, prompt and output together; None for an empty trace."""
    workload = config.workload
    if workload.trace is None and not workload.has_sessions and not workload.replayed:
        spec = workload_spec(workload)
        return spec.prefix_tokens + spec.input.mean + spec.output.mean
    if workload.has_sessions:  # a sample, the same for every length of a run
        some = workload.model_copy(update={"num_prompts": SAMPLE, "num_warmups": 0})
        config = config.model_copy(update={"workload": some})
    table = requests(config, seed=0)
    return float(np.mean(table.prompt_tokens + table.output_tokens)) if len(table) else None
