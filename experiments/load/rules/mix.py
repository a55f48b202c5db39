"""Rules about a mix: how much there is of each class, and what a class has of its own."""

from __future__ import annotations

from collections.abc import Iterator

from specfleet.experiments.load.rules.base import Conflict
from specfleet.experiments.load.rules.sglang import is_sglang
from specfleet.experiments.point.build import class_names_of
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.blocks.workload import LENGTHS, TrafficClass, Workload

_MIX = "workload.mix"
_SUM = 1e-6
"""How far shares may be from adding up to 1."""


def mix_conflicts(config: Experiment) -> Iterator[Conflict]:
    """Everything wrong with a mix, but for the lengths of its classes."""
    workload = config.workload
    yield from _bill(config)
    if workload.mix is None:
        return
    if workload.trace is not None:
        yield Conflict.at("a trace has no traffic classes; remove it", _MIX, "workload.trace")
    for name in workload.mix:
        if ":" in name or not name.strip():
            message = f"{name!r} cannot name a class: columns are called class:NAME:figure; use another name"
            yield Conflict.at(message, _MIX)
    if not workload.classes:
        yield from _shares([each for each in workload.mix.values() if isinstance(each, float)])
        return
    yield from _amounts(workload)
    yield from _own_lengths(workload)
    if not is_sglang(config.serve):
        yield from _priorities(config)


def _bill(config: Experiment) -> Iterator[Conflict]:
    """A bill is between several classes, each with one K for life, and read off the requests."""
    if not config.run.bill:
        return
    serve = config.serve
    if len(class_names_of(config.workload)) < 2:
        message = "is between traffic classes, and there is one; give workload.mix, or remove it"
        yield Conflict.at(message, "run.bill", "workload.mix")
    if config.report.requests == "none":
        message = "is read off the requests; set report.requests: all, or remove it"
        yield Conflict.at(message, "run.bill", "report.requests")
    drafts = serve.speculative_config
    by_batch = drafts is not None and drafts.num_speculative_tokens_per_batch_size is not None
    adaptive = drafts is not None and drafts.enable_adaptive_verification
    if by_batch or adaptive or (serve.draft_policy is not None and serve.draft_policy.by_class is None):
        message = "switches drafts off class by class, and a policy chooses K here; use by_class, or none"
        yield Conflict.at(message, "run.bill", "serve.draft_policy")
    if serve.draft_tree is not None:
        message = "switches chains of drafts off; remove it, or the tree"
        yield Conflict.at(message, "run.bill", "serve.draft_tree")
    if config.deployment.pools:
        message = "looks at replicas that are alike; remove it, or the pools"
        yield Conflict.at(message, "run.bill", "deployment.pools")


def _shares(shares: list[float]) -> Iterator[Conflict]:
    if abs(sum(shares) - 1.0) > _SUM:
        yield Conflict.at(f"shares add up to {sum(shares):g}; make them add up to 1", _MIX)


def _amounts(workload: Workload) -> Iterator[Conflict]:
    """Shares or rates, exactly one way, and something is sent."""
    classes = workload.classes
    for name, each in classes.items():
        here = f"{_MIX}.{name}"
        if each.share is None and each.request_rate is None and each.trace is None:
            message = "has neither share nor request_rate; give one: how much there is of it"
            yield Conflict.at(message, here)
        if each.speed is not None and name not in workload.replayed:
            message = (
                "is of a trace that comes at its own times, and this class has none; remove it"
                if each.trace is None
                else "is of a trace that comes at its own times; remove it, or how much there is of the class"
            )
            yield Conflict.at(message, f"{here}.speed", f"{here}.share", f"{here}.request_rate")
        if each.share is not None and each.request_rate is not None:
            message = f"says how much there is of {name} twice, with request_rate; keep one"
            yield Conflict.at(message, f"{here}.share", f"{here}.request_rate")
        for key in ("burstiness", "cv"):
            if getattr(each, key) is not None and each.request_rate is None:
                message = (
                    "belongs to a class with a stream of its own; give it a request_rate, not a share, "
                    f"or move it to workload.{key}"
                )
                yield Conflict.at(message, f"{here}.{key}", f"{here}.share")
        if each.burstiness is not None and each.cv is not None:
            message = "cv and burstiness both say how gaps vary (burstiness is 1 / cv^2); keep one"
            yield Conflict.at(message, f"{here}.cv", f"{here}.burstiness")
    shared = [name for name, each in classes.items() if each.share is not None]
    rated = [name for name, each in classes.items() if each.request_rate is not None]
    yield from _replayed(workload, shared)
    if shared and rated:
        message = f"{shared[0]} has a share and {rated[0]} a request_rate; give all classes one of the two"
        yield Conflict.at(message, f"{_MIX}.{shared[0]}", f"{_MIX}.{rated[0]}.request_rate")
    elif shared and len(shared) == len(classes):
        yield from _shares([each.share or 0.0 for each in classes.values()])
    elif (rated or workload.replayed) and workload.arrivals is not None:
        message = "changes the rate of one stream, and these classes have one each; give them shares"
        yield Conflict.at(message, "workload.arrivals", _MIX)
    elif rated and not workload.rate_of_classes and not workload.replayed:
        yield Conflict.at("every class has rate 0, so nothing is sent; raise one", _MIX)


def mix_notices(points: list[Experiment]) -> Iterator[str]:
    """Says what comes of the traces of classes: their own times, or lengths alone."""
    named = dict.fromkeys(
        (name, name in point.workload.replayed)
        for point in points
        for name, each in point.workload.classes.items()
        if each.trace is not None
    )
    for name, times in named:
        if times:
            yield f"{_MIX}.{name}: the requests of its trace come at their own times, a stream of its own"
        else:
            yield (
                f"{_MIX}.{name}: its trace gives lengths, a row drawn for each request; without share and "
                "request_rate its rows would come at their own times"
            )
    ends = any(point.workload.replayed and point.workload.num_prompts is None for point in points)
    if ends:
        yield "without workload.num_prompts a run ends with the first trace that comes at its own times"


def _replayed(workload: Workload, shared: list[str]) -> Iterator[Conflict]:
    """What does not go with a class that comes at the own times of its trace."""
    for name in workload.replayed:
        here, mine = f"{_MIX}.{name}", workload.of_class(name)
        if shared:
            message = (
                f"{name} comes at its trace's own times, and {shared[0]} has a share; give {shared[0]} a "
                f"request_rate, or {name} a share, for the lengths of its rows alone"
            )
            yield Conflict.at(message, here, f"{_MIX}.{shared[0]}.share")
        if workload.request_rate is not None:
            message = (
                f"is of all classes, and {name} comes at its trace's own times; remove it (each other class "
                "has a request_rate of its own, a trace has speed)"
            )
            yield Conflict.at(message, "workload.request_rate", here)
        for key, instead in (
            ("prefix", "its rows have the prompts they have"),
            ("output_cap", "max_tokens cuts them"),
        ):
            if getattr(mine, key) is not None:
                message = f"says nothing of {name}, which comes as recorded ({instead}); remove it"
                yield Conflict.at(message, f"{here}.{key}", f"workload.{key}")


def _own_lengths(workload: Workload) -> Iterator[Conflict]:
    """Lengths of the workload that no class takes."""
    given = [key for key in LENGTHS if key != "trace" and getattr(workload, key) is not None]
    if given and all(has_lengths(each) for each in workload.classes.values()):
        message = f"every class of the mix has lengths of its own, so nobody has {given[0]}; remove it"
        yield Conflict.at(message, f"workload.{given[0]}", _MIX)


def _priorities(config: Experiment) -> Iterator[Conflict]:
    """vLLM refuses a request with a priority unless its scheduler goes by priority."""
    if config.serve.scheduling_policy == "priority":
        return
    for name, each in config.workload.classes.items():
        if each.priority:
            message = f"{each.priority} is refused by vLLM without serve.scheduling_policy: priority; add it"
            yield Conflict.at(message, f"{_MIX}.{name}.priority", "serve.scheduling_policy")


def has_lengths(given: TrafficClass | Workload) -> bool:
    """Whether it says where its lengths come from."""
    return any(getattr(given, key) is not None for key in LENGTHS)
