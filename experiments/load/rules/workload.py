"""Rules about the workload: where lengths come from, and whether they fit the engine."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from specfleet.experiments.load.rules.base import Conflict
from specfleet.experiments.load.rules.mix import mix_conflicts
from specfleet.experiments.point.mixes import each_class
from specfleet.experiments.schema import lookups
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.blocks.lengths import Lengths
from specfleet.experiments.schema.blocks.workload import PerConcurrency, Workload
from specfleet.experiments.schema.faults import did_you_mean
from specfleet.experiments.schema.lookups import found
from specfleet.workloads.profiles import preset, preset_names

_TRACE_ONLY = ("trace_format", "speed", "limit", "on_too_long")


def workload_conflicts(config: Experiment) -> Iterator[Conflict]:
    """Everything wrong with the workload of a filled point."""
    yield from mix_conflicts(config)
    for block, workload in each_class(config.workload).values():
        yield from _one_source(workload, block)
        yield from _trace(workload, block)
        for key in ("input", "output"):
            lengths = getattr(workload, key)
            if lengths is not None:
                yield from length_conflicts(lengths, f"{block}.{key}")
        if workload.sessions is None:
            yield from _too_long(workload, config.serve.max_model_len, block)
    yield from _counts(config.workload)
    yield from _phases(config.workload)
    yield from _arrivals(config.workload)


def workload_notices(points: list[Experiment]) -> Iterator[str]:
    """Says what of the workload has no effect in any point, and where most of a run does not count."""
    loads = [point.workload for point in points]
    if any(load.gap_shape != 1.0 for load in loads) and all(_all_at_once(load) for load in loads):
        key = "burstiness" if all(load.cv is None for load in loads) else "cv"
        yield f"workload.{key} has no effect: no request_rate spreads the arrivals"
    pairs = {(_asked(load, load.num_warmups), _asked(load, load.num_prompts)) for load in loads}
    for warmups, counted in sorted((w, n) for w, n in pairs if 0 < n < w)[-1:]:
        yield (
            f"workload.num_warmups, {warmups}, is more than the {counted} requests of num_prompts: most of "
            "the run does not count; raise num_prompts, or lower it"
        )


def _asked(load: Workload, asked: int | PerConcurrency | None) -> int:
    """Requests of a point; 0 of phases, which hold their warm-ups, and of traces, which bring their own."""
    if load.phases is not None or load.trace is not None:
        return 0
    if isinstance(asked, PerConcurrency):
        return max(asked.per_concurrency * (load.max_concurrency or 0), asked.min)
    return asked or 0


def _all_at_once(workload: Workload) -> bool:
    """Whether no law spreads the arrivals: no rate, no phase with one."""
    rates = [workload.request_rate, *(phase.request_rate for phase in workload.phases or ())]
    return not any(rate is not None and math.isfinite(rate) for rate in rates)


def _one_source(workload: Workload, block: str) -> Iterator[Conflict]:
    """Lengths come from exactly one of a preset, a trace, or input and output."""
    sides = {
        "input": [key for key in ("input_len", "input") if getattr(workload, key) is not None],
        "output": [key for key in ("output_len", "output") if getattr(workload, key) is not None],
    }
    whole = [key for key in ("preset", "trace") if getattr(workload, key) is not None]
    given = [*whole, *sides["input"], *sides["output"]]
    if not given:
        yield Conflict.at("has no lengths; give preset, trace, or input_len and output_len", block)
    elif whole and len(given) > 1:
        message = f"lengths come from {' and '.join(given)}; keep exactly one source"
        yield Conflict.at(message, *(f"{block}.{key}" for key in reversed(given)))
    elif not whole:
        for side, keys in sides.items():
            if len(keys) > 1:
                message = f"{' and '.join(keys)} are both given; keep one"
                yield Conflict.at(message, *(f"{block}.{key}" for key in reversed(keys)))
            if not keys:
                message = f"has no {side} lengths; add {side}_len or {side}"
                yield Conflict.at(message, block, f"{block}.{side}_len", f"{block}.{side}")


def _trace(workload: Workload, block: str) -> Iterator[Conflict]:
    """A trace exists; what only a trace understands has one."""
    if workload.trace is not None:
        if not lookups.is_file(workload.trace_file or ""):
            named = (workload.trace_file or "")[:200]
            message = f"there is no file {named}; paths are relative to the experiment file"
            yield Conflict.at(message, f"{block}.trace")
        if workload.rank_correlation is not None:
            message = "a trace pairs prompts and outputs itself; remove it"
            yield Conflict.at(message, f"{block}.rank_correlation", f"{block}.trace")
        return
    for key in _TRACE_ONLY:
        if getattr(workload, key) != Workload.model_fields[key].default:
            message = "means something only for a trace; add trace: or remove it"
            yield Conflict.at(message, f"{block}.{key}", f"{block}.trace")


def _phases(workload: Workload) -> Iterator[Conflict]:
    """Phases say rate and class by themselves, and hold more requests than the warm-ups."""
    if workload.phases is None:
        return
    for key in ("mix", "trace", "num_prompts"):
        if getattr(workload, key) is not None:
            yield Conflict.at(f"phases and {key} exclude each other; keep one", "workload.phases")
    finite = [p.request_rate for p in workload.phases if p.request_rate and not math.isinf(p.request_rate)]
    if finite and len(finite) < len(workload.phases) and workload.closed_loop:
        message = "some phases have a rate and some have none; give workload.request_rate, or one to each"
        yield Conflict.at(message, "workload.phases")
    warmups = workload.num_warmups
    total = sum(phase.num_prompts for phase in workload.phases)
    if isinstance(warmups, int) and warmups >= total:
        message = f"{warmups} leave nothing to count of the {total} requests of the phases; lower it"
        yield Conflict.at(message, "workload.num_warmups", "workload.phases")


def _arrivals(workload: Workload) -> Iterator[Conflict]:
    """A rate that changes is one law, of a rate that is known; gaps vary in one way."""
    if workload.cv is not None and workload.burstiness != 1.0:
        message = "cv and burstiness both say how gaps vary (burstiness is 1 / cv^2); keep one"
        yield Conflict.at(message, "workload.cv", "workload.burstiness")
    arrivals = workload.arrivals
    if arrivals is None:
        return
    names = ", ".join(type(arrivals).model_fields)
    if len(arrivals.given) != 1:
        said = " and ".join(arrivals.given) or "nothing"
        yield Conflict.at(f"must be exactly one of {names}, not {said}", "workload.arrivals")
        return
    if workload.phases is not None:
        message = "arrivals and phases both say how the rate changes; keep one"
        yield Conflict.at(message, "workload.arrivals", "workload.phases")
    if arrivals.preset is not None and arrivals.minutes is None:
        known = [name for name in preset_names() if preset(name).minutes]
        message = f"has no arrivals by minute; {did_you_mean(arrivals.preset, known)}"
        yield Conflict.at(message, "workload.arrivals.preset", "workload.arrivals")
    elif not arrivals.lasts:
        message = "has no rate above 0 that lasts; raise one, or let it repeat"
        yield Conflict.at(message, "workload.arrivals.schedule", "workload.arrivals")
    elif workload.request_rate is None or math.isinf(workload.request_rate):
        message = f"{arrivals.given[0]} says a shape alone; give workload.request_rate, requests/s"
        yield Conflict.at(message, "workload.arrivals", "workload.request_rate")


def _counts(workload: Workload) -> Iterator[Conflict]:
    """Requests per concurrency need a concurrency."""
    for key in ("num_prompts", "num_warmups"):
        if isinstance(getattr(workload, key), PerConcurrency) and workload.max_concurrency is None:
            message = "per_concurrency needs workload.max_concurrency; add it, or give a plain number"
            yield Conflict.at(message, f"workload.{key}", "workload.max_concurrency")


def length_conflicts(lengths: Lengths, block: str) -> Iterator[Conflict]:
    """A distribution is exactly one law, with its ends the right way round."""
    laws = [law for law in Lengths.model_fields if getattr(lengths, law) is not None]
    if len(laws) != 1:
        names = ", ".join(Lengths.model_fields)
        yield Conflict.at(f"must be exactly one of {names}, not {' and '.join(laws) or 'nothing'}", block)
    uniform, lognormal, quantiles = lengths.uniform, lengths.lognormal, lengths.quantiles
    if uniform is not None and uniform.low > uniform.high:
        message = f"low, {uniform.low}, is above high, {uniform.high}; swap them"
        yield Conflict.at(message, f"{block}.uniform.low", f"{block}.uniform.high")
    if lognormal is not None and lognormal.min > lognormal.max:
        message = f"min, {lognormal.min}, is above max, {lognormal.max}; swap them"
        yield Conflict.at(message, f"{block}.lognormal.min", f"{block}.lognormal.max")
    if quantiles is not None:
        percentiles = [percentile for percentile, _ in quantiles]
        rising = all(a[0] < b[0] and a[1] <= b[1] for a, b in pairwise(quantiles))
        if percentiles[0] != 0 or percentiles[-1] != 100 or not rising:
            message = "must be [percentile, tokens] pairs from percentile 0 to 100, both rising"
            yield Conflict.at(message, f"{block}.quantiles")


def _too_long(workload: Workload, longest: int | None, block: str) -> Iterator[Conflict]:
    """vLLM refuses a prompt that leaves no room, and a prompt whose max_tokens does not fit behind it."""
    prompt, prompt_key = prompt_maximum(workload)
    if longest is None or prompt is None:
        return
    prompt_key = prompt_key.replace("workload", block, 1)
    keys = (prompt_key, "serve.max_model_len", f"{block}.prefix")
    if prompt >= longest:
        yield Conflict.at(
            f"prompts of up to {prompt} tokens leave no room in serve.max_model_len, {longest}; shorten them "
            f"or raise it above {prompt}",
            *keys,
        )
        return
    output, output_key = output_maximum(workload)
    if output is not None and prompt + output > longest:
        yield Conflict.at(
            f"prompts of up to {prompt} tokens and outputs of up to {output} exceed serve.max_model_len, "
            f"{longest}; shorten them or raise it to {prompt + output}",
            output_key.replace("workload", block, 1),
            *keys,
        )


def prompt_maximum(workload: Workload) -> tuple[int | None, str]:
    """Longest prompt, tokens, shared prefix included, and the key that says so; None where unknown."""
    shared = workload.prefix.tokens if workload.prefix else 0
    name = workload.preset
    if workload.input_len is not None:
        return workload.input_len + shared, "workload.input_len"
    if workload.input is not None:
        longest = workload.input.maximum
        return (None if longest is None else longest + shared), "workload.input"
    if name is not None:
        preset = found(lambda: lookups.preset(name))
        return (preset.input.maximum + shared if preset else None), "workload.preset"
    return None, "workload"


def output_maximum(workload: Workload) -> tuple[int | None, str]:
    """Most output tokens a request may state, and the key that says so; None where unknown."""
    name = workload.preset
    if workload.max_tokens is not None:
        return workload.max_tokens, "workload.max_tokens"
    longest, key = None, "workload"
    if workload.output_len is not None:
        longest, key = workload.output_len, "workload.output_len"
    elif workload.output is not None:
        longest, key = workload.output.maximum, "workload.output"
    elif name is not None:
        preset = found(lambda: lookups.preset(name))
        longest, key = (preset.max_tokens if preset else None), "workload.preset"
    if longest is not None and workload.output_cap is not None and workload.output_cap < longest:
        return workload.output_cap, "workload.output_cap"
    return longest, key
