"""Rules about `slo:` and `plan:`: one form of limits, one source of traffic, prices for every GPU."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from specfleet.experiments.load.rules.base import Conflict
from specfleet.experiments.load.rules.patience import patience_blocks
from specfleet.experiments.point.days import DayError, stretches_of
from specfleet.experiments.schema import lookups
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.blocks.plan import Day, Plan, Slo
from specfleet.experiments.schema.faults import did_you_mean

MOST_ATTAINED = 0.999999
"""Share of requests that a plan may ask to be good: one late request in a million can be told from none."""


def slo_conflicts(config: Experiment) -> Iterator[Conflict]:
    """An SLO has limits, all of one form."""
    if config.slo is not None:
        yield from _limits(config.slo, "slo")
    for name, each in config.workload.classes.items():
        if each.slo is not None:
            yield from _limits(each.slo, f"workload.mix.{name}.slo")


def _limits(slo: Slo, block: str) -> Iterator[Conflict]:
    by_percentile = list(slo.percentile_limits_ms)
    by_request = [key for key in ("ttft_ms", "tpot_ms", "e2el_ms") if getattr(slo, key) is not None]
    if not by_percentile and not by_request:
        yield Conflict.at(
            "has no limit; give p99_ttft_ms, p99_tpot_ms, .. or ttft_ms, tpot_ms, e2el_ms", block
        )
    if by_percentile and by_request:
        message = (
            "limits one request, {} a percentile; keep one form: percentiles, or ttft_ms, tpot_ms, e2el_ms "
            "and attainment"
        )
        yield Conflict.at(
            message.format(by_percentile[0]), f"{block}.{by_request[0]}", f"{block}.{by_percentile[0]}"
        )
    if by_percentile and not by_request and slo.attainment != Slo.model_fields["attainment"].default:
        message = f"belongs to limits by request, and {by_percentile[0]} is a percentile; remove it"
        yield Conflict.at(message, f"{block}.attainment", f"{block}.{by_percentile[0]}")


def plan_conflicts(experiment: Experiment) -> Iterator[Conflict]:
    """Everything about a plan that no single value shows; nothing without a `plan:` block."""
    plan = experiment.plan
    if plan is None:
        return
    if experiment.slo is None:
        yield Conflict.at("needs limits to meet; add slo: with p99_ttft_ms, p99_tpot_ms", "plan")
    elif experiment.slo.attainment > MOST_ATTAINED:
        message = "asks that no request ever be late, which no run is long enough to show; use at most "
        message += str(MOST_ATTAINED)
        yield Conflict.at(message, "slo.attainment", "plan")
    if experiment.workload.trace is not None and experiment.workload.in_sessions:
        message = "makes requests wait for answers, and a plan deals them out one by one; remove it"
        yield Conflict.at(message, "workload.trace.turns", "workload.trace", "plan")
    for name in experiment.workload.replayed:
        message = "comes at its own times, and a plan scales the traffic; give the class a request_rate"
        yield Conflict.at(message, f"workload.mix.{name}.trace", "plan")
    for name, each in experiment.workload.classes.items():
        if each.slo is not None:
            message = "is of one class, and a plan meets slo: of all requests; remove it, or the plan"
            yield Conflict.at(message, f"workload.mix.{name}.slo", "plan")
    yield from _traffic(experiment, plan)
    yield from _day(experiment, plan)
    yield from _engines(plan)
    yield from _fleets(experiment, plan)
    yield from _gpus(experiment, plan)
    yield from _drafting(experiment, plan)
    if plan.price_kind is not None and plan.prices_file is None:
        yield Conflict.at("chooses among the prices of a file; add plan.prices_file", "plan.price_kind")
    if plan.objective != "cost" and plan.max_gpus is None and not plan.gpus_available:
        message = f"{plan.objective} is looked for on the GPUs that there are; add max_gpus or gpus_available"
        yield Conflict.at(message, "plan.objective")


def _traffic(experiment: Experiment, plan: Plan) -> Iterator[Conflict]:
    """The rate comes from one place, and it is a rate."""
    workload = experiment.workload
    rate = workload.request_rate or workload.rate_of_classes
    finite = rate is not None and math.isfinite(rate)
    if workload.max_concurrency is not None:
        message = "caps the load, and a plan is made for a rate; remove it"
        yield Conflict.at(message, "workload.max_concurrency", "plan")
    said = "plan.day" if plan.day is not None else "plan.schedule" if plan.schedule else ""
    if said and (finite or workload.trace is not None):
        other = "workload.request_rate" if finite else "workload.trace"
        yield Conflict.at(f"and {other} both say how much is asked; keep one", said, other)
    if not said and not finite and workload.trace is None:
        message = "needs traffic; give workload.request_rate, workload.trace, plan.schedule or plan.day"
        yield Conflict.at(message, "plan", "workload.request_rate")
    hours = [hour for hour, _ in plan.schedule]
    if any(later <= earlier for earlier, later in pairwise(hours)):
        yield Conflict.at("must have rising hours", "plan.schedule")
    if experiment.sweep.axes:
        yield Conflict.at("a plan chooses by itself; remove the axes", "sweep.axes", "plan")
    if experiment.deployment.replicas != 1:
        message = "is what the plan finds; remove it"
        yield Conflict.at(message, "deployment.replicas", "plan")
    for key in ("pools", "autoscale"):
        if getattr(experiment.deployment, key):
            message = f"is what the plan finds; list ways in plan.candidates.{key}, or remove it"
            yield Conflict.at(message, f"deployment.{key}", "plan")
    for key in patience_blocks(experiment):
        message = "is not planned yet: a plan serves whoever comes, within the slo; remove it"
        yield Conflict.at(message, key, "plan")
    if experiment.deployment.spot is not None:
        message = (
            "is not planned yet; remove it, and take prices of spot from a file: plan.prices_file, price_kind"
        )
        yield Conflict.at(message, "deployment.spot", "plan")
    for key in ("slow", "gateway", "failures"):
        if getattr(experiment.deployment, key):
            message = "is not planned yet: a plan chooses among deployments of equal engines; remove it"
            yield Conflict.at(message, f"deployment.{key}", "plan")


def _day(experiment: Experiment, plan: Plan) -> Iterator[Conflict]:
    """A day is one, and replicas that follow the load have one to follow."""
    day, scaled = plan.day, plan.candidates.autoscale
    if day is not None:
        yield from _one_day(plan, day)
    if not scaled:
        return
    at = "plan.candidates.autoscale"
    if day is None and not plan.schedule:
        yield Conflict.at("follows the load of a day; add plan.day or plan.schedule", at)
    if plan.objective != "cost":
        message = f"is tried to pay less, and the objective is {plan.objective}; remove one of the two"
        yield Conflict.at(message, at, "plan.objective")
    if experiment.workload.changes or experiment.workload.sessions is not None:
        message = "follows the plan's day, and this workload has times of its own; remove one of the two"
        yield Conflict.at(message, at, "workload")
    for number, each in enumerate(scaled):
        if each.target is None and each.metric != "concurrency":
            yield Conflict.at(f"needs a target with metric: {each.metric}; add it", f"{at}.{number}")


def _one_day(plan: Plan, day: Day) -> Iterator[Conflict]:
    if plan.schedule:
        yield Conflict.at("and plan.schedule both say what a day is; keep one", "plan.day", "plan.schedule")
    if (day.preset is None) == (day.trace is None):
        yield Conflict.at("must be exactly one of preset and trace", "plan.day")
        return
    if day.date is not None and day.trace is None:
        yield Conflict.at("is of a log; give trace, or remove it", "plan.day.date", "plan.day.preset")
    if day.trace is None:
        return
    try:
        stretches_of(plan)
    except OSError as error:
        yield Conflict.at(f"cannot be read: {error.strerror}; check the path", "plan.day.trace")
    except (DayError, UnicodeDecodeError) as error:
        yield Conflict.at(str(error), "plan.day.trace")


def _engines(plan: Plan) -> Iterator[Conflict]:
    """Every engine has a profile, and stands there once."""
    listed = plan.candidates.engine
    for name in listed:
        try:
            lookups.engine(name)
        except ValueError as error:
            yield Conflict.at(str(error), "plan.candidates.engine")
    if len(set(listed)) < len(listed):
        twice = next(name for name in listed if listed.count(name) > 1)
        yield Conflict.at(f"has {twice} twice; keep one", "plan.candidates.engine")


def _fleets(experiment: Experiment, plan: Plan) -> Iterator[Conflict]:
    """Pools part the classes of one stream, each class in exactly one of them."""
    workload, listed = experiment.workload, plan.candidates
    if (listed.pools or listed.router or listed.disaggregated) and plan.objective != "cost":
        message = (
            f"are tried to buy less, and the objective is {plan.objective}; remove them, or the objective"
        )
        for key in ("pools", "router", "disaggregated"):
            if getattr(listed, key):
                yield Conflict.at(message, f"plan.candidates.{key}", "plan.objective")
    if not listed.pools:
        return
    if workload.rate_of_classes is not None or workload.trace is not None or workload.changes:
        message = "part classes that come in one stream at one rate, by share; give workload.mix shares"
        yield Conflict.at(message, "plan.candidates.pools", "workload")
        return
    turns = workload.sessions is not None or any(each.sessions for each in workload.classes.values())
    if turns or any(each.trace is not None for each in workload.classes.values()):
        message = (
            "part single requests, and this traffic has sessions or a log of a class; remove one of the two"
        )
        yield Conflict.at(message, "plan.candidates.pools", "workload")
        return
    known = list(workload.mix or {})
    for number, partition in enumerate(listed.pools, 1):
        here, at = f"way {number} to part the classes", f"plan.candidates.pools.{number - 1}"
        named = [name for classes in partition.values() for name in classes]
        for name in dict.fromkeys(named):
            if name not in known:
                what = did_you_mean(name, known) if known else "add workload.mix"
                yield Conflict.at(f"{here} names {name}, which is no class; {what}", at)
            elif named.count(name) > 1:
                yield Conflict.at(f"{here} has {name} twice; keep one", at)
        if missing := [name for name in known if name not in named]:
            message = f"{here} leaves out {', '.join(missing)}; give every class a pool"
            yield Conflict.at(message, at)


def _gpus(experiment: Experiment, plan: Plan) -> Iterator[Conflict]:
    """Every GPU is known and has a price; what is priced is a candidate."""
    listed = plan.candidates.gpu or (experiment.serve.gpu,)
    names = [gpu_name(gpu) for gpu in listed]
    for key, mapping in (
        ("prices_per_hour_usd", plan.prices_per_hour_usd),
        ("gpus_available", plan.gpus_available),
    ):
        for name in mapping:
            if name not in names:
                yield Conflict.at(f"{name} is no candidate; {did_you_mean(name, names)}", f"plan.{key}")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        yield Conflict.at(f"has {twice} twice; keep one", "plan.candidates.gpu")
    for gpu, name in zip(listed, names, strict=True):
        try:
            record = lookups.accelerator(gpu)
        except ValueError as error:
            yield Conflict.at(str(error), "plan.candidates.gpu")
            continue
        if record.price_per_hour_usd is None and name not in plan.prices_per_hour_usd:
            message = f"{name} has no price in the catalogue; add plan.prices_per_hour_usd: {{{name}: ..}}"
            yield Conflict.at(message, "plan.candidates.gpu", "plan.prices_per_hour_usd")


def gpu_name(gpu: str | dict[str, object]) -> str:
    """Returns what a GPU is called in the plan: its name as written, or that of an inline mapping."""
    return gpu if isinstance(gpu, str) else str(gpu.get("name", gpu.get("base", "inline")))


def _drafting(experiment: Experiment, plan: Plan) -> Iterator[Conflict]:
    """Every way to draft has a drafter, K and an acceptance."""
    if experiment.serve.draft_tree is not None:
        message = (
            "a plan tries the trees of its own lists; put it under plan.candidates.drafting, or remove it"
        )
        yield Conflict.at(message, "serve.draft_tree", "plan")
    for number, drafting in enumerate(plan.candidates.drafting, 1):
        config, here = drafting.speculative_config, f"way {number} to draft"
        at = f"plan.candidates.drafting.{number - 1}"
        if config is None:
            yield Conflict.at(
                f"{here} has no speculative_config; plain decoding is a candidate anyway, remove it",
                at,
            )
            continue
        if not (drafting.num_speculative_tokens or config.num_speculative_tokens or drafting.draft_tree):
            yield Conflict.at(f"{here} has no num_speculative_tokens; list the K to try", at)
        synthetic = config.rejection_sample_method == "synthetic"
        if drafting.acceptance is None and experiment.acceptance is None and not synthetic:
            yield Conflict.at(
                f"{here} has no acceptance; add it there, or as a block of the file",
                at,
            )
        if any(policy is not None and policy.chosen is None for policy in drafting.draft_policy):
            message = (
                f"{here} has a draft_policy that is not exactly one policy; give each as a mapping of its own"
            )
            yield Conflict.at(message, at)
        if any(policy is not None and policy.oracle is not None for policy in drafting.draft_policy):
            message = f"{here} lists the oracle, which reads the future: no engine has it; remove it"
            yield Conflict.at(message, at)
        if any(len(tree.given) != 1 for tree in drafting.draft_tree):
            message = f"{here} has a draft_tree that is not exactly one of shape, paths, optimal and sglang"
            yield Conflict.at(message, at)
        named = config.model
        fault = None if named is None or config.method == "ngram" else _fault(named)
        if fault is not None:
            yield Conflict.at(f"{here}: {fault}", at)


def _fault(named: str | dict[str, object]) -> str | None:
    """Returns what is wrong with a drafter's name or mapping, or None."""
    try:
        lookups.drafter(named)
    except ValueError as error:
        return str(error)
    return None
