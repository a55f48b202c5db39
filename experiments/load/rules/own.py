"""Rules about code of the user's own: constructors must take what the file gives them, and prices add up."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError

from specfleet.experiments.load.rules.base import Conflict
from specfleet.experiments.point.build import placement
from specfleet.experiments.schema.blocks.acceptance import Process, processes
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.blocks.serve import Serve
from specfleet.experiments.schema.faults import UserError
from specfleet.experiments.schema.registry import KINDS, OWN, Registered, parameters, signature
from specfleet.experiments.schema.structure import shown, value_fault
from specfleet.hardware.stepcost import TERMS, StepCost, StepShape

_BESIDE = ("source", "process")
"""What a process of one's own may have besides its parameters."""


def own_conflicts(config: Experiment) -> Iterator[Conflict]:
    """Everything wrong with how a filled point names the user's own code."""
    speculative, policy = config.serve.speculative_config, config.serve.draft_policy
    k = speculative.num_speculative_tokens or 0 if speculative else 0
    name = config.deployment.routing.then
    if ("router", name) in OWN:
        yield from _made("router", name, (0,), {}, "deployment.router")
    name = config.serve.cost_model
    if ("cost_model", name) in OWN:
        yield from _price(config.serve)
    chosen = policy.chosen if policy is not None else None
    if chosen is not None and ("policy", chosen[0]) in OWN:
        given = {"k": k, **_asked_for(chosen[0], config)}
        yield from _made("policy", chosen[0], (), given, f"serve.draft_policy.{chosen[0]}", chosen[1])
    for traffic, process in processes(config.acceptance).items():
        block = f"acceptance.{traffic}" if traffic else "acceptance"
        yield from _process(process, k, block)
        if process.process is not None and config.serve.draft_tree is not None:
            message = "a process of your own says what becomes of chains; remove draft_tree, or the process"
            yield Conflict.at(message, "serve.draft_tree", f"{block}.process")


def _process(process: Process, k: int, block: str) -> Iterator[Conflict]:
    """A process of one's own has its constructor's parameters, and no key of the shipped ones."""
    if process.process is None or not k:
        return
    beside = [key for key in process.model_fields_set if key not in _BESIDE]
    beside = [key for key in beside if key in Process.model_fields and getattr(process, key) is not None]
    for key in sorted(beside):
        message = f"belongs to the shipped processes; rename the parameter of {process.process}, or remove it"
        yield Conflict.at(message, f"{block}.{key}", f"{block}.process")
    if not beside:
        yield from _made("acceptance", process.process, (), {"k": k, "seed": 0}, block, process.own)


def _asked_for(policy: str, config: Experiment) -> dict[str, object]:
    """The price of a step, where a policy wants it."""
    asked = inspect.signature(KINDS["policy"].known[policy]).parameters
    wants = [key for key in KINDS["policy"].on_request if key in asked]
    return {key: KINDS["cost_model"].known[config.serve.cost_model](placement(config.serve)) for key in wants}


def _made(
    kind: str,
    name: str,
    first: tuple[object, ...],
    by_name: Mapping[str, object],
    block: str,
    own: Mapping[str, object] | None = None,
) -> Iterator[Conflict]:
    """Makes one: what its constructor refuses is said at the parameter that it names, or at the block."""
    cls, own = KINDS[kind].known[name], own or {}
    taken = parameters(kind, name)
    faults = dict(_parameter_faults(cls, taken, own))
    yield from (Conflict.at(message, f"{block}.{key}" if key else block) for key, message in faults.items())
    if faults:
        return
    try:
        cls(*first, **by_name, **own)
    except Exception as error:
        blamed = next((f"{block}.{key}" for key in own if key in str(error)), block)
        yield Conflict.at(f"{signature(cls)} refuses it: {error}", blamed)


def _parameter_faults(
    cls: Any, taken: Mapping[str, inspect.Parameter], own: Mapping[str, object]
) -> Iterator[tuple[str, str]]:
    """Parameters that it does not have, that it lacks, and values of another type than it says; by name."""
    said = signature(cls)
    rest = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(cls).parameters.values())
    for key, value in own.items():
        if key not in taken and not rest:
            yield key, f"is no parameter of {said}; remove it"
        elif key in taken and (message := _type_fault(cls, key, value)):
            yield key, message
    lacking = [key for key, p in taken.items() if p.default is p.empty and key not in own]
    if lacking:
        yield "", f"lacks {' and '.join(lacking)}, which {said} asks for; add it"


def _type_fault(cls: Any, key: str, value: object) -> str | None:
    """What is wrong with a value by the annotation of its parameter, where that can be told."""
    try:
        annotation = inspect.signature(cls, eval_str=True).parameters[key].annotation
        if annotation is inspect.Parameter.empty:
            return None
        adapter = TypeAdapter(annotation, config=ConfigDict(strict=True))
    except (NameError, TypeError, PydanticUserError):
        return None
    tries = [value, list(value)] if isinstance(value, tuple) else [value]
    for attempt in tries:
        try:
            adapter.validate_python(attempt)
            return None
        except ValidationError as error:
            details = error.errors()[-1]
    return value_fault(details, value)


def _price(serve: Serve) -> Iterator[Conflict]:
    """A price can be made for the placement, and its seconds are the sum of its terms."""
    name, key = serve.cost_model, "serve.cost_model"
    make = KINDS["cost_model"].known[name]
    try:
        cost = make(placement(serve))
    except Exception as error:
        yield Conflict.at(f"{signature(make)} refuses this engine: {error}", key)
        return
    try:
        yield from (Conflict.at(message, key) for message in _price_faults(cost, name, _steps(serve)))
    except Exception as error:
        yield Conflict.at(f"{name} cannot price a step: {type(error).__name__}: {error}", key)


def _steps(serve: Serve) -> list[StepShape]:
    """Steps of one sequence at which a price is held against its terms: plain, verifying, of a prompt."""
    k = serve.speculative_config.num_speculative_tokens or 0 if serve.speculative_config else 0
    piece = min(64, serve.max_num_batched_tokens or 64)
    decoding = {"decode_sequences": 1, "kv_tokens": 1024, "kv_tokens_in_window": 1024}
    pairs = piece * (piece + 1) // 2
    steps: list[dict[str, int]] = [
        {"tokens": 1, "logit_rows": 1, **decoding},
        {"tokens": 1 + k, "logit_rows": 1 + k, "draft_tokens": k, "draft_passes": k, **decoding},
        {"tokens": piece, "logit_rows": 1, "prefill_sequences": 1, "prefill_pairs": pairs},
    ]
    return [StepShape(**{key: step.get(key, 0) for key in StepShape._fields}) for step in steps]


def _price_faults(cost: Any, name: str, steps: Sequence[StepShape]) -> Iterator[str]:
    priced: StepCost = cost
    columns = {key: np.array([getattr(step, key) for step in steps]) for key in StepShape._fields}
    terms = priced.terms(columns)
    if set(terms) != set(TERMS):
        yield f"the terms of {name} must be {', '.join(TERMS)}, not {', '.join(terms)}"
        return
    for at, step in enumerate(steps):
        seconds = priced.seconds(step)
        if not (math.isfinite(seconds) and seconds > 0.0):
            yield f"{name} prices {step} at {shown(seconds)} seconds; a step takes more than none"
            return
        total = sum(float(terms[term][at]) for term in TERMS)
        if not math.isclose(seconds, total, rel_tol=1e-9):
            yield f"{name} prices {step} at {seconds:.9g} s, its terms at {total:.9g} s; make them agree"
            return


def own_notices(points: Sequence[Experiment]) -> Iterator[str]:
    """Whose code the points run, and what that means."""
    for mine in used(points):
        how = "nothing measured backs it" if mine.kind == "cost_model" else "its points are stepped"
        yield f"your own code, {how}: {mine}"


def used(points: Sequence[Experiment]) -> list[Registered]:
    """What of the user's own the points name."""
    names: dict[tuple[str, str], None] = {}
    for config in points:
        names["router", config.deployment.routing.then] = None
        names["cost_model", config.serve.cost_model] = None
        if config.serve.draft_policy is not None and config.serve.draft_policy.chosen is not None:
            names["policy", config.serve.draft_policy.chosen[0]] = None
        for process in processes(config.acceptance).values():
            names["acceptance", process.process or ""] = None
    return [OWN[name] for name in names if name in OWN]


def refuse_unreachable(points: Sequence[Experiment], jobs: int) -> None:
    """Raises UserError where points name a class that other processes need and cannot import."""
    lost = [mine for mine in used(points) if not mine.reachable] if jobs > 1 else []
    if lost:
        raise UserError(
            f"{lost[0]}: other processes cannot import it; write it into a file and name that under "
            "plugins:, or use jobs=1"
        )
