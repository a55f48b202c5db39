"""Rules that need the parts themselves: whether the engine fits its GPUs, and what a trace holds."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from specfleet.experiments.load.rules.base import Conflict
from specfleet.experiments.load.rules.datasheet import datasheet_conflicts
from specfleet.experiments.load.rules.sglang import is_sglang
from specfleet.experiments.load.rules.sizes import MOST_SECONDS
from specfleet.experiments.point.build import acceptance_specs, placement, pool, requests_asked
from specfleet.experiments.point.mixes import each_class, recorded_lengths
from specfleet.experiments.schema import lookups
from specfleet.experiments.schema.blocks.experiment import Experiment
from specfleet.experiments.schema.blocks.serve import MOST_BLOCKS, Serve
from specfleet.experiments.schema.blocks.workload import Workload
from specfleet.hardware.memory import DoesNotFit
from specfleet.sim.speculation.acceptance import AcceptanceSpec, always_reached, survival_table

if TYPE_CHECKING:
    from specfleet.workloads.traces.report import Trace


def running_conflicts(config: Experiment, elsewhere: int | None = None) -> Iterator[Conflict]:
    """What keeps a filled point from running although each of its values is sound.

    Args:
        config: the point, or one pool of it.
        elsewhere: tokens of the longest request that some pool holds: what none does is said of that one.
    """
    too_large = list(_memory(config.serve))
    yield from too_large or datasheet_conflicts(config.serve)
    yield from _acceptance(config)
    limit = config.serve.max_model_len
    if limit is not None and elsewhere is not None and limit < elsewhere:
        return
    yield from _recorded(config)
    workload = config.workload
    file = workload.trace_file
    if file is None or not lookups.is_file(file) or limit is None:
        return
    refusal, longest = _trace(_as_read(workload))
    if refusal is not None:
        yield Conflict.at(refusal, "workload.trace")
        return
    yield from _rows(config, limit)
    if workload.on_too_long == "error" and longest > limit:
        yield Conflict.at(
            f"its longest request has {longest} tokens, serve.max_model_len is {limit}; raise that, or set "
            "workload.on_too_long: drop",
            "workload.trace",
            "serve.max_model_len",
        )


def turn_notices(points: list[Experiment]) -> Iterator[str]:
    """Says how the requests of a trace are turns that wait for answers."""
    for point in points[:1]:
        for block, mine in each_class(point.workload).values():
            if mine.trace is not None and mine.sessions is None and mine.in_sessions:
                report = _trace_of(_as_read(mine)).report
                yield f"{block}.trace: {'; '.join(report.turns)}"


def _recorded(config: Experiment) -> Iterator[Conflict]:
    """The traces that classes take their lengths from can be read, and hold rows that fit."""
    limit = config.serve.max_model_len or 0
    for block, mine in each_class(config.workload).values():
        if block == "workload" or mine.trace is None:
            continue
        try:
            prompt, output = recorded_lengths(mine)
            timed = _trace_of(_as_read(mine)).report.timed
        except (ValueError, OSError) as error:
            yield Conflict.at(str(error), f"{block}.trace")
            continue
        replayed = block.removeprefix("workload.mix.") in config.workload.replayed
        if not replayed and mine.in_sessions and mine.sessions is None:
            message = "is of a trace with its own times; remove it, or how much there is of the class"
            yield Conflict.at(message, f"{block}.trace.turns", f"{block}.trace", block)
        if not timed and replayed:
            message = "has no arrival times; give the class a share or a request_rate"
            yield Conflict.at(message, f"{block}.trace", block)
        tokens = prompt + output
        if mine.on_too_long == "error" and tokens.max() > limit:
            yield Conflict.at(
                f"its longest request has {tokens.max()} tokens, serve.max_model_len is {limit}; raise that, "
                f"or set {block}.on_too_long: drop",
                f"{block}.trace",
                "serve.max_model_len",
            )
        elif tokens.min() > limit:
            message = f"none of its rows fits in serve.max_model_len, {limit}; raise that"
            yield Conflict.at(message, f"{block}.trace", "serve.max_model_len")


def _rows(config: Experiment, limit: int) -> Iterator[Conflict]:
    """Something of a trace is left to count, and it does not last for ever."""
    workload = config.workload
    table, report = _trace_of(_as_read(workload))
    if not report.timed and workload.request_rate is None:
        message = "has no arrival times; give workload.request_rate (.inf offers all at once)"
        yield Conflict.at(message, "workload.trace", "workload.request_rate")
    kept = len(table)
    if workload.on_too_long == "drop":
        kept = int(np.sum(table.prompt_tokens + table.output_tokens <= limit))
    warmups = requests_asked(workload, workload.num_warmups)
    if kept <= warmups:
        message = f"of its {len(table)} requests {kept} are left, and {warmups} warm-ups leave none to count"
        yield Conflict.at(message, "workload.trace", "workload.num_warmups", "serve.max_model_len")
    span_s = float(table.arrival_s[-1]) / workload.speed
    if workload.request_rate is not None:
        span_s = len(table) / workload.request_rate
    if span_s > MOST_SECONDS:
        message = f"lasts {span_s:.3g} s, and a run lasts at most {MOST_SECONDS:g} s; use fewer rows of it"
        yield Conflict.at(message, "workload.trace", "workload.speed", "workload.request_rate")


def _acceptance(config: Experiment) -> Iterator[Conflict]:
    """The stated acceptance must be one that some process has."""
    speculative = config.serve.speculative_config
    if speculative is None or not speculative.num_speculative_tokens:
        return
    k = speculative.num_speculative_tokens
    try:
        said = _unreachable(tuple(acceptance_specs(config).values()), k)
    except ValueError as error:
        said = str(error)
    if said is not None:
        yield Conflict.at(said, "acceptance", "serve.speculative_config.num_speculative_tokens")


@lru_cache(maxsize=256)
def _unreachable(specs: tuple[AcceptanceSpec, ...], k: int) -> str | None:
    """Returns why no process accepts like that at K drafts, or None."""
    try:
        for spec in specs:
            if not always_reached(spec, k):
                survival_table(spec, k)
    except ValueError as error:
        return str(error)
    return None


def _memory(serve: Serve) -> Iterator[Conflict]:
    """The weights and at least one KV block must fit."""
    said = _placement_fault(serve)
    if said is not None:
        message, key = said
        yield Conflict.at(
            message, key, "serve.model", "serve.tensor_parallel_size", "serve.speculative_config"
        )


def _placement_fault(serve: Serve) -> tuple[str, str] | None:
    """Returns what is wrong with an engine on its GPUs and the key to blame, or None."""
    if serve.max_model_len is None or serve.max_num_seqs is None:
        return None
    try:
        placement(serve)
    except (ValueError, AssertionError) as error:
        return (str(error), "serve") if str(error) else None
    try:
        budget = pool(serve)
    except DoesNotFit as error:
        return str(error), "serve.gpu"
    except ValueError as error:
        return str(error), "serve.memory"
    if budget.num_gpu_blocks > MOST_BLOCKS:
        message = f"{budget.num_gpu_blocks} KV blocks on a GPU, and at most {MOST_BLOCKS} can be simulated"
        return f"{message}; use larger blocks", "serve.block_size"
    if is_sglang(serve):
        return None  # starts all the same; see its notices
    refusal = budget.refusal(serve.max_model_len)
    return (f"{refusal}\n{budget.render()}", "serve.max_model_len") if refusal else None


def _as_read(workload: Workload) -> Workload:
    """Returns what of a workload decides how its trace is read, and nothing else."""
    return Workload(
        trace=workload.trace,
        trace_format=workload.trace_format,
        limit=workload.limit,
        max_tokens=workload.max_tokens,
    )


@lru_cache(maxsize=16)
def _trace(workload: Workload) -> tuple[str | None, int]:
    """Returns why a trace cannot be used, or None, and the tokens of its longest request."""
    try:
        table = _trace_of(workload).requests
    except (ValueError, OSError) as error:
        return str(error), 0
    return None, int(np.max(table.prompt_tokens + table.output_tokens))


@lru_cache(maxsize=2)
def _trace_of(workload: Workload) -> Trace:
    """Returns a trace, arrivals as recorded; raises as its reader does."""
    from specfleet.workloads.traces.formats import read_trace

    assert workload.trace_file is not None
    return read_trace(workload.trace_file, workload.trace_format, **workload.trace_asked)
